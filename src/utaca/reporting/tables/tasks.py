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
from utaca.tasks.ruler_tasks import OFFICIAL


@dataclass(frozen=True)
class SetResult:
    """The results of all points on one set of a task: ``n_rows`` questions about texts of ``tokens`` tokens on average.

    ``official`` says whether all rows come from the benchmark's own files. ``draws`` resample the set's documents.
    """

    name: str
    settings: schema.TaskSetSettings
    official: bool
    n_rows: int
    tokens: float
    points: Mapping[Identity, PointResult]
    draws: Draws


def set_results(files: Files, config: schema.Config) -> list[SetResult]:
    """Read the results on every set: ``task_examples``, ``task_answers`` and ``task_scores`` each have a file per set.

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
        # The column "document" of an answer to a task has the id of the example.
        table = answers.rename(columns={"document": "example"}).merge(
            scores, on=["example", "split", "point"], validate="one_to_one"
        )
        if len(table) != len(answers) or set(table["example"]) != set(examples["id"]):
            raise UserError(f"the answers of {name} do not belong to its rows; decode them again")
        points = pooled(_point(rows) for _, rows in table.groupby(["split", "point"], sort=False))
        # A text's length is the number of its tokens that were read, and of those that were cut ("dropped"). Any answer
        # that was decoded has it; an answer that was not decoded has read nothing.
        decoded = table[table["n_context"] > 0]
        tokens = (decoded["n_context"] + decoded["dropped"]).groupby(decoded["example"]).max().mean()
        official = bool(examples["official"].all())
        settings = config.tasks.sets[name]
        draws = Draws.of(len(points[0].documents), config, f"tasks/{name}")
        by_identity = {point.identity: point for point in points}
        results.append(SetResult(name, settings, official, len(examples), float(tokens), by_identity, draws))
    return results


def _point(rows: pd.DataFrame) -> PointResult:
    """The result of a point on a set; ``rows`` are its answers with their scores.

    Several questions may be about one document: sums are over all of them.
    """
    sums = pd.DataFrame(totals(rows)).assign(score=rows["score"].to_numpy(), examples=1.0)
    grouped = sums.groupby(rows["document"].to_numpy(), sort=True).sum(min_count=1)
    by_document = {column: grouped[column].to_numpy() for column in grouped}
    return of_answers(rows, tuple(grouped.index), by_document)


@dataclass(frozen=True)
class Group:
    """The sets that a row of a table is about: one, or several of equal weight, each resampled separately."""

    name: str
    sets: Sequence[SetResult]

    @property
    def identities(self) -> list[Identity]:
        """The points that answered all of the sets."""
        first, *others = self.sets
        in_all = list(first.points)
        for other in others:
            in_all = [identity for identity in in_all if identity in other.points]
        return in_all

    def points(self, identity: Identity) -> list[PointResult]:
        """The results of a point, one for each set."""
        return [of_set.points[identity] for of_set in self.sets]

    def mean(self, identity: Identity, measure: Measure = SCORE) -> Resampled:
        """The mean over the sets of a point's ``measure``; NaN if the point was not run on one of them.

        Resample number i of the mean takes resample number i of each set.
        """
        by_set = [of_set.points[identity].resampled(measure, of_set.draws) for of_set in self.sets]
        mean = statistics.mean(by_set)
        if any(point.not_run for point in self.points(identity)):
            return replace(mean, value=np.nan, resamples=mean.resamples * np.nan)
        return mean


def groups(sets: Sequence[SetResult]) -> list[Group]:
    """Make a group of each set, and groups of RULER's tasks at each length.

    The paper has one figure for ``qa_1`` and ``qa_2``; RULER has one for all thirteen with its own rows.
    """
    result = [Group(of_set.name, [of_set]) for of_set in sets]
    for first in sets:
        for second in sets:
            both = first.settings.task, second.settings.task
            if both == ("qa_1", "qa_2") and first.settings.length == second.settings.length:
                result.append(Group(f"QA-{round(first.settings.length / 1024)}k", [first, second]))
    for length in sorted({of_set.settings.length for of_set in sets}):
        of_ruler = [of_set for of_set in sets if of_set.settings.task in OFFICIAL and of_set.settings.length == length]
        if sorted(of_set.settings.task for of_set in of_ruler) == sorted(OFFICIAL):
            result.append(Group(f"RULER-{round(length / 1024)}k", of_ruler))
    return result


def ood(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the scores of every operating point on every set of a benchmark."""
    sets = set_results(files, config)
    rows = []
    for group in groups(sets):
        rows += [_row(group, identity, "ood", config) for identity in group.identities]
    absent = [f"{row['method']} was not run on {row['set']}: {row['lacks']}." for row in rows if row["lacks"]]
    remarks = " ".join([*absent, tasks_in_words(config)])
    n_documents = sum(of_set.draws.documents.shape[1] for of_set in sets)
    return framed(rows, n_documents, remarks=remarks)


def calibration(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of scores with calibrated detectors, and with the detectors that their training started from.

    A calibrated detector has learnt from sets of benchmarks.
    """
    sets = set_results(files, config)
    verdicts = loaded(files)
    calibrated = {name: settings for name, settings in config.detectors.items() if settings.sets}
    # By name of the calibrated detector, the detector that its training started from.
    start_of = {name: settings.start or config.detector for name, settings in calibrated.items()}
    draws = Draws.of(len(verdicts.documents), config, "detection")
    detectors = {*start_of, *start_of.values()}
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
            # The same point with the detector before its calibration; no point has it if this one was not calibrated.
            before = identity._replace(detector=start_of.get(detector, ""))
            gain = group.mean(identity) - group.mean(before) if before in group.identities else Resampled()
            gain.put(row, "gain")
            balanced[detector].put(row, "balanced_accuracy_pct", 100)
            row["learned_from"] = learned_from(config.detectors[detector])
            # The paper has a pair of rows for a point: before calibration and after it.
            figures = None
            if reported := paper.tables().calibration.get(group.name, {}).get(identity.key):
                figures_before, figures_after = reported
                figures = figures_after if detector in start_of else figures_before
            rows.append(row | paper.reference(("mtokens", "score"), figures))
    return framed(rows, n_documents, remarks=tasks_in_words(config))


def _row(group: Group, identity: Identity, table: str, config: schema.Config) -> Row:
    """The row of a point on a group of sets, with the columns that the ``table`` declares.

    It has no figures if the point was not run on one of the sets.
    """
    entry = ENTRIES[table]
    points = group.points(identity)
    # Any result names the point; one that was not run also says why.
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
    # The first part of a key is the decoder; "full" reads the whole text.
    full_attention = next((other for other in group.identities if other.key[0] == "full"), identity)
    difference = Resampled()
    if full_attention != identity:
        difference = group.mean(identity) - group.mean(full_attention)
    difference.put(row, "difference")
    return row | paper.reference(entry.of_paper, figures)


def bars(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the reader's scores and the bars of the config (limits that a score must keep)."""
    sets = {of_set.name: Group(of_set.name, [of_set]) for of_set in set_results(files, config)}
    rows = [_bar_row(sets[bar.set], bar, config) for bar in config.reader.bars if bar.set in sets]
    return framed(rows, remarks=tasks_in_words(config))


def _bar_row(group: Group, bar: schema.BarSettings, config: schema.Config) -> Row:
    """The row of a bar: the score of ``bar.point``, minus that of ``bar.minus`` if it names one, and the verdict.

    ``group`` is the bar's set. The score is NaN if one of the points was not run.
    """
    # The points that the config decodes on this set, by the names that bars use for them.
    identities = {point.name: of_config(point, config).identity for point in config.decoded(group.name)}
    points_run = set()
    for name, identity in identities.items():
        if identity in group.identities and not group.points(identity)[0].not_run:
            points_run.add(name)
    needed = {bar.point, bar.minus} - {""}
    score = Resampled()
    n_rows = 0
    if needed <= points_run:
        score = group.mean(identities[bar.point])
        n_rows = group.sets[0].n_rows
        if bar.minus:
            score -= group.mean(identities[bar.minus])
    row: Row = {"set": group.name, "point": bar.point, "minus": bar.minus, "bar": str(bar), "n_rows": n_rows}
    score.put(row, "score")
    return row | {"verdict": verdict(score.value, bar)}


def verdict(value: float, bar: schema.BarSettings) -> str:
    """Compare a score with a bar: "met", "missed by" and the score's distance from the bar, or "not measured"."""
    if np.isnan(value):
        return "not measured"
    # `most`: the limit is an upper one.
    missed_by = value - bar.limit if bar.most else bar.limit - value
    # A miss is never shown as 0.0.
    return f"missed by {max(missed_by, 0.1):.1f}" if missed_by > 0 else "met"
