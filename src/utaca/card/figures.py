"""The card's figures: shares and scores with 95 % intervals, each beside the bar it is held to.

Intervals resample whole documents (:mod:`utaca.reporting.statistics`), for the questions about one document depend on
each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from utaca.biographies.attributes import draw_value
from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.people import people
from utaca.biographies.sentences import abstention, summary
from utaca.card import scores
from utaca.card.material import ATTRIBUTES, SPLIT, blocks_cell
from utaca.card.prose import WRITTEN, XQUAD, written_cell
from utaca.judging.cas import extract, score
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.reporting.statistics import LEVEL, Estimate, paired_difference, ratio_interval, resamples
from utaca.settings import schema

NAN = float("nan")
QUESTIONS = 500
"""Fewest questions of a cell that the bars are meant for."""

EXACT, ABSTAINED, WRONG = "exact value", "abstained", "another value"
CAS, RISE = "CAS", "rise of CAS"
ABSENT, ALL_PRESENT = "absent facts", "summary and natural"
FULL = "full attention"
FOUND, F1, EXACT_MATCH = "value found", "F1", "exact match"
SHORTFALL, FOUND_RISE = "full attention less blocks", "rise of values found"
UNWRITTEN = "written, absent facts"
TRAINING_SET, FERTILITY = "detector training set", "tokenizer"

Counts = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Bar:
    """A limit that a figure is to reach or, for ``most``, not to exceed."""

    limit: float
    most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {self.limit:.2f}"

    def missed(self, value: float) -> float:
        """How far a value is on the wrong side; 0 where the bar is met, NaN where there is no value."""
        return max(0.0, value - self.limit if self.most else self.limit - value) if value == value else NAN


@dataclass(frozen=True)
class Figure:
    """A row of the card: a measure of a cell in a setting, from ``n`` questions, tokens or values.

    ``failed`` more have no verdict, for the endpoint failed, and are left out.
    """

    cell: str
    setting: str
    measure: str
    n: int
    value: float
    low: float = NAN
    high: float = NAN
    bar: Bar | None = None
    failed: int = 0


def in_blocks(budget: int) -> str:
    """The setting of a budget of so many blocks."""
    return f"K={budget}"


def prefilled_in(prefill: int, budget: int) -> str:
    """The setting of a budget after a prefill whose chunks retrieved so many blocks."""
    return f"prefill {in_blocks(prefill)}, {in_blocks(budget)}"


def between(low: int, high: int) -> str:
    """The setting of a comparison of two budgets."""
    return f"K={low} to K={high}"


_BARS: dict[str, dict[tuple[str, str, str], Bar]] = {
    "tiny": {
        ("summary", FULL, EXACT): Bar(0.97),
        ("natural", FULL, EXACT): Bar(0.90),
        (ABSENT, FULL, ABSTAINED): Bar(0.95),
        ("summary", FULL, ABSTAINED): Bar(0.03, most=True),
        ("natural", FULL, ABSTAINED): Bar(0.03, most=True),
        (ALL_PRESENT, FULL, ABSTAINED): Bar(0.03, most=True),
        (blocks_cell(32768), in_blocks(96), CAS): Bar(0.85),
        (blocks_cell(32768), between(2, 96), RISE): Bar(0.25),
        (blocks_cell(131072), in_blocks(96), CAS): Bar(0.80),
        (blocks_cell(250000), in_blocks(96), CAS): Bar(0.75),
        (TRAINING_SET, "train", "unknown"): Bar(0.03),
        (TRAINING_SET, "train", "hallucinated"): Bar(0.03),
        (TRAINING_SET, "train", "correct"): Bar(0.40),
    },
    "qwen25_coder_1_5b": {
        (WRITTEN, FULL, FOUND): Bar(0.80),
        (written_cell(4096), FULL, FOUND): Bar(0.70),
        (written_cell(4096), in_blocks(128), SHORTFALL): Bar(0.05, most=True),
        (written_cell(8192), between(2, 128), FOUND_RISE): Bar(0.15),
    },
    "smollm2_tuned": {
        (WRITTEN, FULL, FOUND): Bar(0.60),
        (WRITTEN, FULL, ABSTAINED): Bar(0.10, most=True),
        (UNWRITTEN, FULL, ABSTAINED): Bar(0.80),
        (written_cell(2048), FULL, FOUND): Bar(0.55),
        (written_cell(4096), FULL, FOUND): Bar(0.50),
        (written_cell(4096), in_blocks(96), SHORTFALL): Bar(0.05, most=True),
        (written_cell(16384), in_blocks(96), FOUND): Bar(0.30),
        (written_cell(16384), between(8, 32), FOUND_RISE): Bar(0.08),
        (XQUAD, FULL, F1): Bar(0.45),
        (TRAINING_SET, "train", "unknown"): Bar(0.05),
        (TRAINING_SET, "train", "hallucinated"): Bar(0.05),
    },
}
"""By reader; those of a reader of another name are not held to any."""


def figure(
    config: schema.Config, cell: str, setting: str, measure: str, n: int, estimate: Estimate, failed: int = 0
) -> Figure:
    """A figure with the bar that the config's reader is held to there, if any."""
    bar = _BARS.get(config.reader.name, {}).get((cell, setting, measure))
    return Figure(cell, setting, measure, n, estimate.value, estimate.low, estimate.high, bar, failed)


def outcome(answer: str, attribute: str, person: str, value: str | None, alone: bool) -> str:
    """What an answer makes of an attribute: :data:`EXACT`, :data:`ABSTAINED` or :data:`WRONG`.

    ``value`` is None where the document does not state it; ``alone`` where nothing else was asked: the answer must
    then be the one sentence and nothing else.
    """
    if alone:
        if value is not None and answer == summary(attribute, person, value):
            return EXACT
        return ABSTAINED if answer == abstention(attribute, person) else WRONG
    stated = extract(answer, attribute, person)
    if stated == value:
        return EXACT
    return ABSTAINED if summary(attribute, person, stated) == abstention(attribute, person) else WRONG


def share(hits: np.ndarray, asked: np.ndarray, counts: np.ndarray) -> Estimate:
    """Sum of ``hits`` [documents] over the sum of ``asked`` [documents], with its interval under ``counts``.

    Where no document differs from another, resampling says nothing: the interval is then Wilson's with the documents
    as the sample; a single document has none.
    """
    estimate, number = ratio_interval(hits, asked, counts), np.count_nonzero(asked)
    if number < 2 or estimate.low < estimate.high:
        return estimate
    value = estimate.value
    square = NormalDist().inv_cdf((1 + LEVEL) / 2) ** 2 / number
    half = math.sqrt(square * (value * (1 - value) + square / 4))
    middle = value + square / 2
    return Estimate(value, max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square)))


def readings(answers: pa.Table, judge: schema.Endpoint, store: Path | str, config: schema.Config) -> list[Figure]:
    """Figures of all cells in ``answers`` (schema "readings").

    Full attention: shares of exact values and abstentions, by attribute too. Block memory: CAS by the judge, shares
    of exact values, abstentions and other values at every budget, and the rise of CAS from the smallest budget to the
    largest. Raises :class:`UserError` where the judge cannot be asked.
    """
    frame = answers.to_pandas()
    prose = frame["cell"].str.match(f"({WRITTEN}|{XQUAD})\\b")
    prefilled = frame["prefill_budget"].notna()
    found = [*_prose(frame[prose].copy(), config), *_prefilled(frame[prefilled].copy(), judge, store, config)]
    frame = frame[~prose & ~prefilled].copy()
    if frame.empty:
        return found
    alone = frame.groupby(["document", "question", "budget"], dropna=False)["attribute"].transform("size") == 1
    frame["outcome"] = [
        outcome(row.answer, row.attribute, row.person, row.value, single)
        for row, single in zip(frame.itertuples(), alone, strict=True)
    ]
    frame["document"] = pd.Categorical(frame["document"], categories=frame["document"].unique())
    full, blocks = frame[frame["budget"].isna()], frame[frame["budget"].notna()]
    present = full[full["value"].notna()]
    for cell, rows in present.groupby("cell", sort=False):
        found += _outcomes(rows, str(cell), FULL, (EXACT, ABSTAINED, WRONG), config)
        for attribute in ATTRIBUTES:
            own = rows[rows["attribute"] == attribute]
            if len(own):
                found += _outcomes(own, str(cell), attribute, (EXACT,), config)
    if len(present):
        found += _outcomes(present, ALL_PRESENT, FULL, (ABSTAINED,), config)
    if len(full) > len(present):
        found += _outcomes(full[full["value"].isna()], ABSENT, FULL, (ABSTAINED, WRONG), config)
    if len(blocks):
        blocks = blocks.assign(cas=_cas(blocks, judge, store))
        for cell, rows in blocks.groupby("cell", sort=False):
            found += _budgets(rows, str(cell), config)
    return found


def _prose(rows: pd.DataFrame, config: schema.Config) -> list[Figure]:
    """Figures of handwritten biographies and of SQuAD's questions, under full attention and every budget."""
    if rows.empty:
        return []
    rows["values"] = [
        [] if row.value is None else [row.value, *(row.also if row.also is not None else [])]
        for row in rows.itertuples()
    ]
    rows["document"] = pd.Categorical(rows["document"], categories=rows["document"].unique())
    found: list[Figure] = []
    for cell, own in rows.groupby("cell", sort=False):
        stated = own[own["value"].notna()]
        if cell == XQUAD:
            measures = {
                F1: [scores.f1(row.answer, row.values_) for row in _rows(stated)],
                EXACT_MATCH: [scores.exact_match(row.answer, row.values_) for row in _rows(stated)],
                ABSTAINED: [float(scores.normalise(row.answer) == [scores.UNKNOWN]) for row in _rows(stated)],
            }
            found += _means(stated, str(cell), FULL, measures, config)[0]
            continue
        sums: dict[int | None, Counts] = {}
        for budget, read in stated.groupby("budget", dropna=False):
            setting = FULL if math.isnan(budget) else in_blocks(int(budget))
            measures = {
                FOUND: [float(scores.found(r.answer, r.attribute, r.person, r.values_)) for r in _rows(read)],
                ABSTAINED: [float(scores.abstains(r.answer, r.attribute, r.person)) for r in _rows(read)],
            }
            figures, counted = _means(read, str(cell), setting, measures, config)
            found += figures
            sums[None if math.isnan(budget) else int(budget)] = counted[FOUND]
        counts = resamples(stated["document"].nunique(), config.scale.bootstrap, config.seed, f"card:{cell}")
        budgets = sorted(budget for budget in sums if budget is not None)
        n = int(next(iter(sums.values()))[1].sum())
        if budgets and None in sums:
            lost = paired_difference(sums[None], sums[budgets[-1]], counts)
            found.append(figure(config, str(cell), in_blocks(budgets[-1]), SHORTFALL, n, lost))
        whole_range = [(budgets[0], budgets[-1])] if len(budgets) > 2 else []
        for low, high in [*pairwise(budgets), *whole_range]:
            rise = paired_difference(sums[high], sums[low], counts)
            found.append(figure(config, str(cell), between(low, high), FOUND_RISE, n, rise))
        lacking = own[own["value"].isna()]
        if len(lacking):
            said = {ABSTAINED: [float(scores.abstains(r.answer, r.attribute, r.person)) for r in _rows(lacking)]}
            found += _means(lacking, UNWRITTEN, FULL, said, config)[0]
    return found


def _rows(frame: pd.DataFrame) -> Iterable[Any]:
    """The rows; ``values`` under a name that is no method's."""
    return frame.rename(columns={"values": "values_"}).itertuples()


def _means(
    rows: pd.DataFrame, cell: str, setting: str, measures: Mapping[str, Sequence[float]], config: schema.Config
) -> tuple[list[Figure], dict[str, Counts]]:
    """Means of measures over questions, and their sums and counts by document."""
    counts = resamples(rows["document"].nunique(), config.scale.bootstrap, config.seed, f"card:{cell}")
    found, sums = [], {}
    for measure, values in measures.items():
        by_document = rows.assign(measured=values).groupby("document", observed=True)["measured"]
        sums[measure] = by_document.sum().to_numpy(np.float64), by_document.count().to_numpy(np.float64)
        found.append(figure(config, cell, setting, measure, len(rows), share(*sums[measure], counts)))
    return found, sums


def _prefilled(rows: pd.DataFrame, judge: schema.Endpoint, store: Path | str, config: schema.Config) -> list[Figure]:
    """CAS under every prefill budget and decoding budget."""
    found = []
    for (cell, prefill), own in rows.groupby(["cell", "prefill_budget"], sort=False):
        own = own.assign(cas=_cas(own, judge, store))
        for budget, read in own.groupby("budget"):
            by_document = read.groupby("document", sort=False)["cas"]
            sums = by_document.sum().to_numpy(np.float64), by_document.count().to_numpy(np.float64)
            counts = resamples(len(sums[0]), config.scale.bootstrap, config.seed, f"card:{cell}")
            n = int(sums[1].sum())
            setting = prefilled_in(int(prefill), int(budget))
            found.append(figure(config, str(cell), setting, CAS, n, share(*sums, counts), len(read) - n))
    return found


def _outcomes(
    rows: pd.DataFrame, cell: str, setting: str, measures: Iterable[str], config: schema.Config
) -> list[Figure]:
    names = rows["document"].unique()
    counts = resamples(len(names), config.scale.bootstrap, config.seed, f"card:{cell}")
    by_document = rows.groupby("document", observed=True)["outcome"]
    asked = by_document.size().to_numpy(np.float64)
    return [
        figure(
            config, cell, setting, measure, len(rows),
            share(by_document.agg(lambda o, m=measure: (o == m).sum()).to_numpy(np.float64), asked, counts),
        )
        for measure in measures
    ]  # fmt: skip


def _budgets(rows: pd.DataFrame, cell: str, config: schema.Config) -> list[Figure]:
    counts = resamples(rows["document"].nunique(), config.scale.bootstrap, config.seed, f"card:{cell}")
    found: list[Figure] = []
    sums: dict[int, Counts] = {}
    for budget, own in rows.groupby("budget"):
        scores = own.groupby("document", observed=True)["cas"]
        sums[int(budget)] = scores.sum().to_numpy(np.float64), scores.count().to_numpy(np.float64)
        setting, n = in_blocks(int(budget)), int(own["cas"].notna().sum())
        found.append(figure(config, cell, setting, CAS, n, ratio_interval(*sums[int(budget)], counts), len(own) - n))
        found += _outcomes(own, cell, setting, (EXACT, ABSTAINED, WRONG), config)
    low, high = min(sums), max(sums)
    if low < high:
        rise = paired_difference(sums[high], sums[low], counts)
        found.append(figure(config, cell, between(low, high), RISE, int(sums[high][1].sum()), rise))
    return found


def _cas(rows: pd.DataFrame, judge: schema.Endpoint, store: Path | str) -> list[float]:
    """The judge's score of every row, in their order; NaN where it failed."""
    documents: dict[str, dict[str, Any]] = {}
    answers: list[dict[str, Any]] = []
    for (budget, document), own in rows.groupby(["budget", "document"], observed=True, sort=False):
        facts = own[["attribute", "value"]].to_dict("records")
        documents[document] = {"id": document, "person": own["person"].iloc[0], "facts": facts}
        point = in_blocks(int(budget))
        answers.append({"document": document, "suite": "card", "point": point, "text": own["answer"].iloc[0]})
    scored = score(answers, documents.values(), judge, store)
    by_row = {(s["document"], s["point"], s["attribute"]): NAN if s["cas"] is None else s["cas"] for s in scored}
    return [by_row[row.document, in_blocks(int(row.budget)), row.attribute] for row in rows.itertuples()]


def labels(table: pa.Table, config: schema.Config) -> list[Figure]:
    """Shares of the three classes among the labelled tokens of the detector's training set (schema "labels")."""
    frame = table.select(["document", "label"]).to_pandas().dropna(subset="label")
    failed = len(table) - len(frame)
    by_document = frame.groupby("document", sort=False)["label"]
    tokens = by_document.size().to_numpy(np.float64)
    counts = resamples(len(tokens), config.scale.bootstrap, config.seed, "card:labels")
    classes = {"correct": CORRECT, "unknown": UNKNOWN, "hallucinated": HALLUCINATED}
    return [
        figure(
            config, TRAINING_SET, "train", name, len(frame),
            share(by_document.agg(lambda labels, c=label: (labels == c).sum()).to_numpy(np.float64), tokens, counts),
            failed,
        )
        for name, label in classes.items()
    ]  # fmt: skip


def fertility(articles: Sequence[Mapping[str, str]], count: Any, seed: int) -> list[Figure]:
    """What the tokenizer makes of the corpus' prose and of drawn values of every attribute.

    ``articles`` are rows of schema "corpus", ``count`` gives the tokens of a text (in a sentence: with the space before
    it). Words are what white space separates.
    """
    prose = [paragraph for article in articles for paragraph in paragraphs(article["text"])]
    found = _fertility("prose", prose, count)
    crowd = people(SPLIT, seed)
    named = [next(crowd) for _ in range(QUESTIONS)]
    for attribute in ATTRIBUTES:
        rng = random.Random(f"{seed}:card:fertility:{attribute}")
        values = [f" {draw_value(attribute, rng, person.locale)}" for person in named]
        found += _fertility(attribute, values, count)
    return found


def _fertility(setting: str, texts: Sequence[str], count: Any) -> list[Figure]:
    tokens, words = sum(map(count, texts)), sum(len(text.split()) for text in texts)
    measures = {
        "tokens a word": tokens / words,
        "characters a token": sum(map(len, texts)) / tokens,
        "tokens a value": tokens / len(texts),
    }
    return [
        Figure(FERTILITY, setting, measure, words if measure == "tokens a word" else len(texts), value)
        for measure, value in measures.items()
        if setting != "prose" or measure != "tokens a value"
    ]
