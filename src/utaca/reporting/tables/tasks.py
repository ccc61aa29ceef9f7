"""The tables of benchmarks of other domains (paper, section on out-of-domain generalization and its calibration)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.reporting import paper, render, statistics
from utaca.reporting.points import RATIOS, Point, of_answers, of_config, pooled, setting_in_words, totals
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate, Row, spread
from utaca.reporting.table import NAN, framed
from utaca.reporting.tables.detection import Detections, loaded, measured
from utaca.settings import schema
from utaca.tasks.registry import TASKS


@dataclass(frozen=True)
class Asked:
    """A set of a task under its points; :attr:`draws` are the resamples of what its rows share."""

    name: str
    settings: schema.TaskSetSettings
    official: bool
    tokens: float
    points: Sequence[Point]
    config: schema.Config

    @cached_property
    def draws(self) -> Draws:
        return Draws.of(len(self.points[0].documents), self.config, f"tasks/{self.name}")


def asked(files: Files, config: schema.Config) -> list[Asked]:
    """The sets that were asked, from ``task_examples``, ``task_answers`` and ``task_scores``, a file of each a set.

    Raises :class:`UserError` where scores are those of other answers, or rows lack one.
    """
    found = []
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
        points = pooled(_point(own) for _, own in table.groupby(["split", "point"], sort=False))
        settings, official = config.tasks.sets[name], bool(examples["official"].all())
        whole = table[table["n_context"] > 0]
        tokens = (whole["n_context"] + whole["dropped"]).groupby(whole["example"]).max().mean()
        found.append(Asked(name, settings, official, float(tokens), points, config))
    return found


def _point(own: pd.DataFrame) -> Point:
    sums = pd.DataFrame(totals(own)).assign(score=own["score"].to_numpy(), examples=1.0)
    grouped = sums.groupby(own["document"].to_numpy(), sort=True).sum(min_count=1)
    return of_answers(own, tuple(grouped.index), {column: grouped[column].to_numpy() for column in grouped})


Identity = tuple[paper.Point, str]
"""A point's key and its detector."""


@dataclass(frozen=True)
class Group:
    """A set, or several whose figures weigh alike, each resampled by itself; points are those that all have."""

    name: str
    sets: Sequence[Asked]

    @cached_property
    def points(self) -> dict[Identity, list[Point]]:
        found = [{(point.key, point.detector): point for point in one.points} for one in self.sets]
        shared = [identity for identity in found[0] if all(identity in own for own in found)]
        return {identity: [own[identity] for own in found] for identity in shared}

    def estimate(self, of: Identity, above: str, below: str, *, minus: Identity | None = None) -> Estimate:
        """The mean over sets of the ratio of two sums of a point, less that of another one, paired by document."""
        value, drawn = self._mean(of, above, below)
        if minus is not None:
            other, others_drawn = self._mean(minus, above, below)
            value, drawn = value - other, drawn - others_drawn
        return statistics.interval(value, drawn)

    def _mean(self, of: Identity, above: str, below: str) -> tuple[float, np.ndarray]:
        own = self.points[of]
        drawn = [point.drawn(above, below, one.draws) for one, point in zip(self.sets, own, strict=True)]
        return float(np.mean([point.ratio(above, below) for point in own])), np.mean(drawn, axis=0)

    def total(self, of: Identity, what: str) -> float:
        return float(sum(point.sums[what].sum() for point in self.points[of]))


def groups(sets: Sequence[Asked]) -> list[Group]:
    """Every set, and RULER's two tasks of one length together, for which the paper gives one figure."""
    found = [Group(one.name, [one]) for one in sets]
    for first in sets:
        for second in sets:
            both = first.settings.task, second.settings.task
            if both == ("qa_1", "qa_2") and first.settings.length == second.settings.length:
                found.append(Group(f"QA-{round(first.settings.length / 1024)}k", [first, second]))
    return found


def ood(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of every point on every set of a benchmark."""
    sets = asked(files, config)
    rows = [_row(group, identity, config) for group in groups(sets) for identity in group.points]
    absent = [f"{row['method']} was not run on {row['set']}: {row['lacks']}." for row in rows if row["lacks"]]
    return framed(rows, _documents(sets), absent=" ".join(absent))


def calibration(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of calibrated detectors beside those of the detectors that they start from."""
    sets, verdicts = asked(files, config), loaded(files)
    started = {name: settings.start or config.detector for name, settings in config.detectors.items() if settings.sets}
    kept = {name: _balanced(name, verdicts, config) for name in {*started, *started.values()}}
    rows = []
    for group in groups(sets):
        for identity in group.points:
            key, detector = identity
            if detector not in kept:
                continue
            setting = group.points[identity][0].setting
            row = _row(group, identity, config) | {"detector": detector, "setting": setting}
            before = key, started.get(detector, "")
            gain = Estimate(NAN)
            if before in group.points:
                gain = group.estimate(identity, "score", "examples", minus=before)
            spread(row, "gain", gain)
            spread(row, "balanced_accuracy_pct", kept[detector], 100)
            row["learned_from"] = ", ".join(_sources(config.detectors[detector]))
            printed = paper.tables().calibration.get(group.name, {}).get(key)
            rows.append(row | paper.beside(paper.Score, printed and printed[detector in started]))
    return framed(rows, _documents(sets), absent="")


def _balanced(name: str, verdicts: Detections, config: schema.Config) -> Estimate:
    """A detector's balanced accuracy on the tokens of biographies, the mean over its seeds."""
    draws = Draws.of(len(verdicts.documents), config, "detection")
    metrics, resampled = measured(verdicts, name, draws)
    value = float(np.mean([one["balanced_accuracy"] for one in metrics]))
    return statistics.interval(value, resampled["balanced_accuracy"])


def _sources(detector: schema.DetectorSettings) -> list[str]:
    return [*(["biographies"] if detector.mixed or not detector.sets else []), *detector.sets]


def _documents(sets: Sequence[Asked]) -> int:
    return sum(len(one.points[0].documents) for one in sets)


def _row(group: Group, identity: Identity, config: schema.Config) -> Row:
    first, point = group.sets[0], group.points[identity][0]
    task = TASKS[first.settings.task]
    lacks = next((own.lacks for own in group.points[identity] if own.lacks), "")
    printed = paper.tables().tasks.get(group.name, {}).get(point.key) if point.in_paper else None
    row: Row = {
        "set": group.name,
        "benchmark": task.benchmark,
        "metric": task.metric,
        "source": "official" if all(one.official for one in group.sets) else "protocol",
        "method": point.method,
        "setting": render.MISSING if lacks else setting_in_words(point, config),
        "detector": point.detector,
        "n_rows": int(group.total(identity, "examples")),
        "n_documents": sum(len(own.documents) for own in group.points[identity]),
        "n_failed": int(group.total(identity, "memory")),
        "tokens": float(np.mean([one.tokens for one in group.sets])),
        "lacks": lacks,
    } | paper.beside(paper.Score, printed)
    for column in ("mtokens", "score", "attended", "rollbacks_pct", "answered", "seconds_per_token", "read_pct"):
        above, below, factor = RATIOS[column]
        estimate = Estimate(NAN) if lacks else group.estimate(identity, above, below)
        if column in ("mtokens", "score"):
            spread(row, column, estimate, factor)
        else:
            row[column] = factor * estimate.value
    full = next((other for other in group.points if other[0][0] == "full"), identity)
    compared = not lacks and full != identity
    difference = group.estimate(identity, "score", "examples", minus=full) if compared else Estimate(NAN)
    spread(row, "difference", difference)
    return row


def bars(files: Files, config: schema.Config) -> pd.DataFrame:
    """Scores of the reader beside the bars that the config sets."""
    sets = {one.name: Group(one.name, [one]) for one in asked(files, config)}
    rows = [_held(sets[bar.set], bar, config) for bar in config.reader.bars if bar.set in sets]
    return framed(rows, absent="")


def _held(group: Group, bar: schema.BarSettings, config: schema.Config) -> Row:
    by_label = _named(group, config)
    found, n = Estimate(NAN), 0
    if {bar.point, bar.minus} <= {*by_label, ""}:
        of, minus = by_label[bar.point], by_label.get(bar.minus)
        found, n = group.estimate(of, "score", "examples", minus=minus), int(group.total(of, "examples"))
    row: Row = {"set": group.name, "point": bar.point, "minus": bar.minus, "bar": str(bar), "n_rows": n}
    spread(row, "score", found)
    return row | {"verdict": verdict(found.value, bar)}


def _named(group: Group, config: schema.Config) -> dict[str, Identity]:
    """What identifies the answers of each point of the config that has some, by its name."""
    points = {point.name: of_config(point, config) for point in config.decoded(group.name)}
    named = {name: (point.key, point.detector) for name, point in points.items()}
    ran = {identity for identity, sets in group.points.items() if not sets[0].lacks}
    return {name: identity for name, identity in named.items() if identity in ran}


def verdict(value: float, bar: schema.BarSettings) -> str:
    """ "met", by how much a score misses its bar, or that there is none."""
    if np.isnan(value):
        return "not measured"
    missed = value - bar.limit if bar.most else bar.limit - value
    # No miss reads as one of 0.0.
    return f"missed by {max(missed, 0.1):.1f}" if missed > 0 else "met"
