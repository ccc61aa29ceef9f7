"""The tables of benchmarks of other domains (paper, section on out-of-domain generalization and its calibration)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.detection.training.metrics import detection_metrics
from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.reporting import paper, render, statistics
from utaca.reporting.detection import Detections, resampled_metrics
from utaca.reporting.generation import seeds_in_words
from utaca.reporting.points import Point, setting_in_words, totals
from utaca.reporting.tables import NAN, Column, Row, Table, caption_in_words, figure, plain, spread
from utaca.settings import schema
from utaca.settings.schema import NOT_RUN
from utaca.tasks.registry import TASKS

_UNITS = (
    "Score is the task's official one, the mean over rows. mTokens is the nominal budget a generated token, in the "
    "accepted pass; of full attention and without a document, all tokens. Intervals are drawn over what rows share: "
    "paragraphs, meetings, books."
)


@dataclass(frozen=True)
class Asked:
    """A set of a task under its points; :attr:`counts` are the resamples of what its rows share."""

    name: str
    settings: schema.TaskSet
    official: bool
    tokens: float
    points: Sequence[Point]
    config: schema.Config

    @cached_property
    def counts(self) -> np.ndarray:
        documents = len(self.points[0].documents)
        return statistics.resamples(documents, self.config.scale.bootstrap, self.config.seed, f"tasks/{self.name}")

    @property
    def source(self) -> str:
        """What its files are."""
        return "official" if self.official else "protocol"


@dataclass(frozen=True)
class Files:
    """Rows, answers and scores of sets, a file of each a set."""

    examples: Sequence[str]
    answers: Sequence[str]
    scores: Sequence[str]


def asked(files: Files, config: schema.Config) -> list[Asked]:
    """The sets that were asked. Raises :class:`UserError` where scores are those of other answers, or rows lack one."""
    found = []
    for paths in zip(files.examples, files.answers, files.scores, strict=True):
        name = Path(paths[0]).parent.name
        examples, answers, scores = (
            read(path, kind).to_pandas()
            for path, kind in zip(paths, ("examples", "answers", "task_scores"), strict=True)
        )
        check_source(paths[2], [paths[1]])
        table = answers.rename(columns={"document": "example"}).merge(
            scores, on=["example", "suite", "point"], validate="one_to_one"
        )
        if len(table) != len(answers) or set(table["example"]) != set(examples["id"]):
            raise UserError(f"the answers of {name} are not those of its rows; answer them again")
        points = [_point(own) for _, own in table.groupby(["suite", "point"], sort=False)]
        settings, official = config.tasks.sets[name], bool(examples["official"].all())
        whole = table[table["n_context"] > 0]
        tokens = (whole["n_context"] + whole["dropped"]).groupby(whole["example"]).max().mean()
        found.append(Asked(name, settings, official, float(tokens), points, config))
    return found


def _point(own: pd.DataFrame) -> Point:
    first = own.iloc[0]
    lacks = next((end.removeprefix(NOT_RUN) for end in own["finish"] if end.startswith(NOT_RUN)), "")
    sums = pd.DataFrame(totals(own)).assign(score=own["score"].to_numpy(), examples=1.0)
    grouped = sums.groupby(own["document"].to_numpy(), sort=True).sum(min_count=1)
    key = first["method"], int(first["budget"]), first["policy"] or ""
    seed = -1 if pd.isna(first["seed"]) else int(first["seed"])
    summed = {column: grouped[column].to_numpy() for column in grouped}
    return Point(key, first["detector"] or "", seed, tuple(grouped.index), summed, lacks)


def ood(files: Files, config: schema.Config) -> Table:
    """Every point of every set under its official score, and the mean of RULER's two tasks of one length."""
    sets = asked(files, config)
    rows = [row for one in sets for row in _rows(one)]
    rows += [row for pair in _pairs(sets) for row in _means(*pair)]
    columns = (
        Column("Set", plain("set")),
        Column("Rows are", plain("source")),
        Column("Method", plain("method")),
        Column("Setting", plain("setting")),
        Column("mTokens", figure("mtokens", 1)),
        Column("Score", figure("score", 2)),
        Column(f"paper mTokens ({paper.NAMES[paper.LLAMA]})", figure("paper_mtokens", 0)),
        Column(f"paper score ({paper.NAMES[paper.LLAMA]})", figure("paper_score", 2)),
        Column("To full attention", figure("difference", 2), folded=True),
        Column("Metric", plain("metric"), folded=True),
        Column("Rows", plain("n_rows"), folded=True),
        Column("Documents", plain("n_documents"), folded=True),
        Column("Tokens a document", figure("tokens", 0), folded=True),
        Column("Read %", figure("read_pct", 1), folded=True),
        Column("Failed", plain("n_failed"), folded=True),
        Column("Attended", figure("attended", 1), folded=True),
        Column("Rollbacks a token %", figure("rollbacks_pct", 1), folded=True),
        Column("Tokens an answer", figure("answered", 1), folded=True),
        Column("Seconds a token", figure("seconds_per_token", 4), folded=True),
    )
    absent = [f"{row['method']} was not run on {row['set']}: {row['lacks']}." for row in rows if row["lacks"]]
    what = f"Benchmarks of other domains, detectors trained on biographies. {' '.join([_UNITS, *absent])}"
    caption = caption_in_words(what, config, "labeller", _documents(sets), seeds_in_words(config), paper.LLAMA)
    notes = (
        "Rows are official where the files have as many rows as the benchmark's own; protocol: its prompts, lengths "
        "and score on other questions of its kind, which no reader of the project was trained on. Read: methods with "
        "true positions read documents cut in the middle to the reader's positions. Failed: answers that memory did "
        "not suffice for, scored 0. The paper gives one figure for RULER's two tasks of a length; it stands beside "
        "their mean. It names the budgets, and no policy but in the calibration."
    )
    return Table("ood", "Benchmarks of other domains", caption, pd.DataFrame(rows), columns, notes=notes)


def calibration(files: Files, verdicts: Detections, config: schema.Config) -> Table:
    """Points of detectors that learned from benchmarks, beside the same points of those that they started from.

    ``verdicts`` are those on the test split's biographies, which say what a detector forgot.
    """
    sets = asked(files, config)
    learned = {name: settings.start or config.detector for name, settings in config.detectors.items() if settings.sets}
    kept = {name: _balanced(name, verdicts, config) for name in {*learned, *learned.values()}}
    rows: list[Row] = []
    for one in sets:
        for point in one.points:
            name = point.detector
            if name not in {*learned, *learned.values()}:
                continue
            row = _row(one, point)
            before = next((x for x in one.points if x.key == point.key and x.detector == learned.get(name)), None)
            difference = statistics.Estimate(NAN)
            if before is not None:
                pairs = (x.pair("score", "examples") for x in (point, before))
                difference = statistics.paired_difference(*pairs, one.counts)
            spread(row, "gain", difference)
            row |= {"detector": name, "learned_from": ", ".join(_sources(config.detectors[name]))}
            spread(row, "balanced_accuracy_pct", kept[name], 100)
            rows.append(row)
    columns = (
        Column("Set", plain("set")),
        Column("Setting", plain("setting")),
        Column("Detector", plain("detector")),
        Column("mTokens", figure("mtokens", 1)),
        Column("Score", figure("score", 2)),
        Column("To the detector before", figure("gain", 2)),
        Column("Balanced accuracy on biographies %", figure("balanced_accuracy_pct", 1)),
        Column("Learned from", plain("learned_from"), folded=True),
        Column("Rollbacks a token %", figure("rollbacks_pct", 1), folded=True),
    )
    what = (
        "Detectors that go on learning from trajectories of a benchmark's own questions, beside the detector that they "
        f"start from. {_UNITS}"
    )
    caption = caption_in_words(
        what, config, "labeller", _documents(sets), seeds_in_words(config), paper.LLAMA, columns=False
    )
    return Table("calibration", "Calibration on benchmarks", caption, pd.DataFrame(rows), columns)


def _balanced(name: str, verdicts: Detections, config: schema.Config) -> statistics.Estimate:
    """A detector's balanced accuracy on the tokens of biographies, the mean over its seeds."""
    counts = statistics.resamples(len(verdicts.documents), config.scale.bootstrap, config.seed, "detection")
    runs = verdicts.runs[name]
    mean = np.mean([detection_metrics(run.uncertain, verdicts.label)["balanced_accuracy"] for run in runs])
    return statistics.interval(float(mean), resampled_metrics(verdicts, runs, counts)["balanced_accuracy"])


def _sources(detector: schema.Detector) -> list[str]:
    return [*(["biographies"] if detector.mixed or not detector.sets else []), *detector.sets]


def _documents(sets: Sequence[Asked]) -> int:
    return sum(len(one.points[0].documents) for one in sets)


def _rows(one: Asked) -> Iterator[Row]:
    full = next((point for point in one.points if point.key[0] == "full"), None)
    for point in one.points:
        row = _row(one, point)
        if full is not None and full is not point and not row["lacks"]:
            pairs = (x.pair("score", "examples") for x in (point, full))
            spread(row, "difference", statistics.paired_difference(*pairs, one.counts))
        yield row


def _row(one: Asked, point: Point) -> Row:
    task = TASKS[one.settings.task]
    known = paper.TASKS.get(one.name, {}).get(point.key) if point.in_paper else None
    row: Row = {"set": one.name, "benchmark": task.benchmark, "metric": task.metric, "source": one.source}
    row |= {"method": point.method, "setting": setting_in_words(point, one.config), "detector": point.detector}
    row |= {"n_rows": int(point.sums["examples"].sum()), "n_documents": len(point.documents), "tokens": one.tokens}
    row |= {"n_failed": int(point.sums["memory"].sum()), "lacks": point.lacks}
    row |= {"paper_mtokens": known.mtokens if known else NAN, "paper_score": known.cas if known else NAN}
    if point.lacks:
        return row | {"setting": render.MISSING}

    def mean(above: str, below: str) -> float:
        return float(statistics.ratio(*point.pair(above, below)))

    spread(row, "mtokens", statistics.ratio_interval(*point.mtokens, one.counts))
    spread(row, "score", statistics.ratio_interval(*point.pair("score", "examples"), one.counts))
    spread(row, "difference", statistics.Estimate(NAN))
    read = point.sums["n_context"] / (point.sums["n_context"] + point.sums["dropped"])
    return row | {
        "read_pct": 100 * float(read.mean()),
        "attended": mean("attended", "n_generated"),
        "rollbacks_pct": 100 * mean("rollbacks", "n_generated"),
        "answered": mean("n_generated", "examples"),
        "seconds_per_token": mean("decode_seconds", "n_generated"),
    }


def _pairs(sets: Sequence[Asked]) -> Iterator[tuple[Asked, Asked]]:
    """RULER's two tasks at one length."""
    for first in sets:
        for second in sets:
            same = first.settings.length == second.settings.length
            if (first.settings.task, second.settings.task) == ("qa_1", "qa_2") and same:
                yield first, second


def _means(first: Asked, second: Asked) -> Iterator[Row]:
    """Points that both sets have, their two scores weighing alike; each set is resampled by itself."""
    others: Mapping[tuple[paper.Point, str, int], Point] = {(x.key, x.detector, x.seed): x for x in second.points}
    name = f"QA-{round(first.settings.length / 1024)}k"
    for point in first.points:
        other = others.get((point.key, point.detector, point.seed))
        if other is None or point.lacks or other.lacks:
            continue
        row = _row(first, point)
        known = paper.TASKS.get(name, {}).get(point.key) if point.in_paper else None
        for column, above, below in (("mtokens", "selected", "n_generated"), ("score", "score", "examples")):
            halves = [(one, x.pair(above, below)) for one, x in ((first, point), (second, other))]
            values = [float(statistics.ratio(*pair)) for _, pair in halves]
            drawn = [statistics.ratio(*pair, one.counts) for one, pair in halves]
            spread(row, column, statistics.interval(float(np.mean(values)), np.mean(drawn, axis=0)))
        sides = _row(first, point), _row(second, other)
        for column in ("read_pct", "attended", "rollbacks_pct", "answered", "seconds_per_token", "tokens"):
            row[column] = float(np.mean([side[column] for side in sides]))
        for column in ("n_rows", "n_documents", "n_failed"):
            row[column] = sum(side[column] for side in sides)
        row |= {"set": name, "source": first.source if first.official == second.official else "protocol"}
        row |= {"paper_mtokens": known.mtokens if known else NAN, "paper_score": known.cas if known else NAN}
        yield row
