"""The tables of benchmarks of other domains (paper, section on out-of-domain generalization and its calibration)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.reporting import paper, point_rows, statistics
from utaca.reporting.measures import SCORE, Measure
from utaca.reporting.registry import ENTRIES, Files
from utaca.reporting.results import Identity, PointResult, of_answers, of_config, pooled, totals
from utaca.reporting.statistics import Draws, Resampled, Row
from utaca.reporting.table import framed
from utaca.reporting.tables.detection import learned_from, loaded, measured
from utaca.reporting.words import tasks_in_words
from utaca.settings import schema
from utaca.tasks.registry import TASKS


@dataclass(frozen=True)
class SetResult:
    """Results on a set of a task: ``n_rows`` questions about texts of ``tokens`` tokens on average.

    ``official`` says whether all rows come from the benchmark's own files. ``draws`` resample the ``points``.
    """

    name: str
    settings: schema.TaskSetSettings
    official: bool
    n_rows: int
    tokens: float
    points: Mapping[Identity, PointResult]
    draws: Draws


def set_results(files: Files, config: schema.Config) -> list[SetResult]:
    """Results on every set, from ``task_examples``, ``task_answers`` and ``task_scores`` with one file per set each.

    Raises:
        UserError: the scores belong to other answers, or rows have no score.
    """
    results = []
    of_sets = zip(files["task_examples"], files["task_answers"], files["task_scores"], strict=True)
    for examples_path, answers_path, scores_path in of_sets:
        name = Path(examples_path).parent.name
        examples = read(examples_path, "examples").to_pandas()
        answers = read(answers_path, "answers").to_pandas()
        scores = read(scores_path, "task_scores").to_pandas()
        check_source(scores_path, [answers_path])
        table = answers.rename(columns={"document": "example"}).merge(
            scores, on=["example", "split", "point"], validate="one_to_one"
        )
        if len(table) != len(answers) or set(table["example"]) != set(examples["id"]):
            raise UserError(f"the answers of {name} are not those of its rows; answer them again")
        points = pooled(_point(rows) for _, rows in table.groupby(["split", "point"], sort=False))
        whole = table[table["n_context"] > 0]
        tokens = (whole["n_context"] + whole["dropped"]).groupby(whole["example"]).max().mean()
        official = bool(examples["official"].all())
        settings = config.tasks.sets[name]
        draws = Draws.of(len(points[0].documents), config, f"tasks/{name}")
        by_identity = {point.identity: point for point in points}
        results.append(SetResult(name, settings, official, len(examples), float(tokens), by_identity, draws))
    return results


def _point(rows: pd.DataFrame) -> PointResult:
    """A point on a set, from its answers with their scores; several questions may be about one document."""
    sums = pd.DataFrame(totals(rows)).assign(score=rows["score"].to_numpy(), examples=1.0)
    grouped = sums.groupby(rows["document"].to_numpy(), sort=True).sum(min_count=1)
    by_document = {column: grouped[column].to_numpy() for column in grouped}
    return of_answers(rows, tuple(grouped.index), by_document)


@dataclass(frozen=True)
class Group:
    """One set, or several of equal weight, each resampled separately; ``identities`` are the points in all sets."""

    name: str
    sets: Sequence[SetResult]

    @property
    def identities(self) -> list[Identity]:
        first, *others = self.sets
        in_all = list(first.points)
        for other in others:
            in_all = [identity for identity in in_all if identity in other.points]
        return in_all

    def points(self, identity: Identity) -> list[PointResult]:
        return [of_set.points[identity] for of_set in self.sets]

    def mean(self, identity: Identity, measure: Measure = SCORE) -> Resampled:
        """Mean over the sets of a measure of a point; NaN if the point was not run."""
        by_set = [of_set.points[identity].resampled(measure, of_set.draws) for of_set in self.sets]
        mean = statistics.mean(by_set)
        if any(point.not_run for point in self.points(identity)):
            return replace(mean, value=np.nan, resamples=mean.resamples * np.nan)
        return mean


def groups(sets: Sequence[SetResult]) -> list[Group]:
    """A group per set, and a group for RULER's two tasks at equal length, for which the paper reports one figure."""
    result = [Group(of_set.name, [of_set]) for of_set in sets]
    for first in sets:
        for second in sets:
            both = first.settings.task, second.settings.task
            if both == ("qa_1", "qa_2") and first.settings.length == second.settings.length:
                result.append(Group(f"QA-{round(first.settings.length / 1024)}k", [first, second]))
    return result


def ood(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of every operating point on every set of a benchmark."""
    sets = set_results(files, config)
    rows = []
    for group in groups(sets):
        rows += [_row(group, identity, "ood", config) for identity in group.identities]
    absent = [f"{row['method']} was not run on {row['set']}: {row['lacks']}." for row in rows if row["lacks"]]
    remarks = " ".join([*absent, tasks_in_words(config)])
    n_documents = sum(of_set.draws.documents.shape[1] for of_set in sets)
    return framed(rows, n_documents, remarks=remarks)


def calibration(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of calibrated detectors, and of the detectors that their training started from."""
    sets = set_results(files, config)
    verdicts = loaded(files)
    # Calibrated detectors, with the detector that the training of each started from.
    calibrated = {name: settings for name, settings in config.detectors.items() if settings.sets}
    started = {name: settings.start or config.detector for name, settings in calibrated.items()}
    draws = Draws.of(len(verdicts.documents), config, "detection")
    detectors = {*started, *started.values()}
    balanced = {name: measured(verdicts, name, draws)["balanced_accuracy"][0] for name in detectors}
    n_documents = sum(of_set.draws.documents.shape[1] for of_set in sets)
    rows = []
    for group in groups(sets):
        for identity in group.identities:
            detector = identity.detector
            if detector not in detectors:
                continue
            row = _row(group, identity, "calibration", config)
            row["setting"] = group.points(identity)[0].setting
            before = identity._replace(detector=started.get(detector, ""))
            gain = group.mean(identity) - group.mean(before) if before in group.identities else Resampled()
            gain.put(row, "gain")
            balanced[detector].put(row, "balanced_accuracy_pct", 100)
            row["learned_from"] = learned_from(config.detectors[detector])
            before_and_after = paper.tables().calibration.get(group.name, {}).get(identity.key)
            figures = before_and_after and before_and_after[detector in started]
            rows.append(row | paper.reference(("mtokens", "score"), figures))
    return framed(rows, n_documents, remarks=tasks_in_words(config))


def _row(group: Group, identity: Identity, table: str, config: schema.Config) -> Row:
    """The row of a point on a set, with what the ``table`` declares; without figures if the point was not run."""
    entry = ENTRIES[table]
    points = group.points(identity)
    first = next((point for point in points if point.not_run), points[0])
    task = TASKS[group.sets[0].settings.task]
    figures = paper.tables().tasks.get(group.name, {}).get(first.key) if first.in_paper else None
    is_official = all(of_set.official for of_set in group.sets)
    row: Row = {
        "set": group.name,
        "benchmark": task.benchmark,
        "metric": task.metric,
        "source": "official" if is_official else "protocol",
        "n_rows": sum(of_set.n_rows for of_set in group.sets),
        "n_documents": sum(len(point.documents) for point in points),
        "n_failed": sum(point.total("memory") for point in points),
        "tokens": float(np.mean([of_set.tokens for of_set in group.sets])),
    }
    row |= point_rows.identified(first, config)
    row |= point_rows.measured(entry.names, lambda measure: group.mean(identity, measure))
    of_full = [other for other in group.identities if other.key[0] == "full"]
    difference = Resampled()
    if of_full and of_full[0] != identity:
        difference = group.mean(identity) - group.mean(of_full[0])
    difference.put(row, "difference")
    return row | paper.reference(entry.of_paper, figures)


def bars(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of the reader, and the bars of the config (limits that a score must keep)."""
    sets = {of_set.name: Group(of_set.name, [of_set]) for of_set in set_results(files, config)}
    rows = [_bar_row(sets[bar.set], bar, config) for bar in config.reader.bars if bar.set in sets]
    return framed(rows, remarks=tasks_in_words(config))


def _bar_row(group: Group, bar: schema.BarSettings, config: schema.Config) -> Row:
    """Score of ``bar.point``, minus the score of ``bar.minus`` if named, and the bar; NaN if a point was not run."""
    identities = {point.name: of_config(point, config).identity for point in config.decoded(group.name)}
    run = set()
    for name, identity in identities.items():
        if identity in group.identities and not group.points(identity)[0].not_run:
            run.add(name)
    needed = {bar.point, bar.minus} - {""}
    score = Resampled()
    n_rows = 0
    if needed <= run:
        score = group.mean(identities[bar.point])
        n_rows = group.sets[0].n_rows
        if bar.minus:
            score -= group.mean(identities[bar.minus])
    row: Row = {"set": group.name, "point": bar.point, "minus": bar.minus, "bar": str(bar), "n_rows": n_rows}
    score.put(row, "score")
    return row | {"verdict": verdict(score.value, bar)}


def verdict(value: float, bar: schema.BarSettings) -> str:
    """ "met", "missed by" and the distance of the score from the bar, or "not measured"."""
    if np.isnan(value):
        return "not measured"
    missed = value - bar.limit if bar.most else bar.limit - value
    # A miss is never shown as 0.0.
    return f"missed by {max(missed, 0.1):.1f}" if missed > 0 else "met"
