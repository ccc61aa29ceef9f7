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
    """Results on one set of a task, of ``n_rows`` questions; ``tokens`` is the mean length of its texts, ``draws``
    resample the ``points``."""

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
    for paths in zip(*(files[f"task_{what}"] for what in ("examples", "answers", "scores")), strict=True):
        name = Path(paths[0]).parent.name
        kinds = ("examples", "answers", "task_scores")
        examples, answers, scores = (read(path, kind).to_pandas() for path, kind in zip(paths, kinds, strict=True))
        check_source(paths[2], [paths[1]])
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
    sums = pd.DataFrame(totals(rows)).assign(score=rows["score"].to_numpy(), examples=1.0)
    grouped = sums.groupby(rows["document"].to_numpy(), sort=True).sum(min_count=1)
    return of_answers(rows, tuple(grouped.index), {column: grouped[column].to_numpy() for column in grouped})


@dataclass(frozen=True)
class Group:
    """One set, or several of equal weight, each resampled separately; ``identities`` are the points in all sets."""

    name: str
    sets: Sequence[SetResult]

    @property
    def identities(self) -> list[Identity]:
        first, *others = self.sets
        return [identity for identity in first.points if all(identity in other.points for other in others)]

    def points(self, identity: Identity) -> list[PointResult]:
        return [one.points[identity] for one in self.sets]

    def mean(self, identity: Identity, measure: Measure = SCORE) -> Resampled:
        """Mean over the sets of a measure of a point; NaN if the point was not run."""
        mean = statistics.mean([one.points[identity].resampled(measure, one.draws) for one in self.sets])
        not_run = any(point.not_run for point in self.points(identity))
        return replace(mean, value=np.nan, resamples=mean.resamples * np.nan) if not_run else mean


def groups(sets: Sequence[SetResult]) -> list[Group]:
    """A group per set, and one for RULER's two tasks at equal length, for which the paper reports one figure."""
    result = [Group(one.name, [one]) for one in sets]
    for first in sets:
        for second in sets:
            both = first.settings.task, second.settings.task
            if both == ("qa_1", "qa_2") and first.settings.length == second.settings.length:
                result.append(Group(f"QA-{round(first.settings.length / 1024)}k", [first, second]))
    return result


def ood(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of every operating point on every set of a benchmark."""
    sets = set_results(files, config)
    rows = [_row(group, identity, "ood", config) for group in groups(sets) for identity in group.identities]
    absent = [f"{row['method']} was not run on {row['set']}: {row['lacks']}." for row in rows if row["lacks"]]
    remarks = " ".join([*absent, tasks_in_words(config)])
    return framed(rows, sum(one.draws.documents.shape[1] for one in sets), remarks=remarks)


def calibration(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of calibrated detectors, and of the detectors that their training started from."""
    sets = set_results(files, config)
    verdicts = loaded(files)
    started = {name: settings.start or config.detector for name, settings in config.detectors.items() if settings.sets}
    draws = Draws.of(len(verdicts.documents), config, "detection")
    detectors = {*started, *started.values()}
    balanced = {name: measured(verdicts, name, draws)["balanced_accuracy"][0] for name in detectors}
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
            figures = paper.tables().calibration.get(group.name, {}).get(identity.key)
            rows.append(row | paper.reference(("mtokens", "score"), figures and figures[detector in started]))
    return framed(rows, sum(one.draws.documents.shape[1] for one in sets), remarks=tasks_in_words(config))


def _row(group: Group, identity: Identity, table: str, config: schema.Config) -> Row:
    """The row of a point on a set, with what the ``table`` declares; without figures if the point was not run."""
    entry = ENTRIES[table]
    points = group.points(identity)
    first = next((point for point in points if point.not_run), points[0])
    task = TASKS[group.sets[0].settings.task]
    figures = paper.tables().tasks.get(group.name, {}).get(first.key) if first.in_paper else None
    row: Row = {
        "set": group.name,
        "benchmark": task.benchmark,
        "metric": task.metric,
        "source": "official" if all(one.official for one in group.sets) else "protocol",
        "n_rows": sum(one.n_rows for one in group.sets),
        "n_documents": sum(len(point.documents) for point in points),
        "n_failed": sum(point.total("memory") for point in points),
        "tokens": float(np.mean([one.tokens for one in group.sets])),
    }
    row |= point_rows.identified(first, config)
    row |= point_rows.measured(entry.names, lambda measure: group.mean(identity, measure))
    full = next((other for other in group.identities if other.key[0] == "full"), identity)
    difference = group.mean(identity) - group.mean(full) if full != identity else Resampled()
    difference.put(row, "difference")
    return row | paper.reference(entry.of_paper, figures)


def bars(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of the reader, and the bars of the config (limits that a score must keep)."""
    sets = {one.name: Group(one.name, [one]) for one in set_results(files, config)}
    rows = [_bar_row(sets[bar.set], bar, config) for bar in config.reader.bars if bar.set in sets]
    return framed(rows, remarks=tasks_in_words(config))


def _bar_row(group: Group, bar: schema.BarSettings, config: schema.Config) -> Row:
    """Score of ``bar.point``, minus the score of ``bar.minus`` if named, beside the bar; NaN if a point was not run."""
    identities = {point.name: of_config(point, config).identity for point in config.decoded(group.name)}
    run = {name for name, key in identities.items() if key in group.identities and not group.points(key)[0].not_run}
    score = Resampled()
    n_rows = 0
    if {bar.point, bar.minus} - {""} <= run:
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
