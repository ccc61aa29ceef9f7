"""The card's figures: shares and scores with 95 % intervals, each beside the bar it is held to.

Intervals resample whole documents (:mod:`utaca.reporting.statistics`), for the questions about one document depend on
each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from utaca.card.material import ATTRIBUTES, SPLIT, blocks_cell
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


def between(low: int, high: int) -> str:
    """The setting of a comparison of two budgets."""
    return f"K={low} to K={high}"


_BARS: dict[tuple[str, str, str], Bar] = {
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
}


def figure(cell: str, setting: str, measure: str, n: int, estimate: Estimate, failed: int = 0) -> Figure:
    """A figure with the bar that its cell, setting and measure are held to, if any."""
    bar = _BARS.get((cell, setting, measure))
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
    as the sample.
    """
    estimate = ratio_interval(hits, asked, counts)
    if estimate.low < estimate.high:
        return estimate
    value, number = estimate.value, np.count_nonzero(asked)
    square = NormalDist().inv_cdf((1 + LEVEL) / 2) ** 2 / number
    half = math.sqrt(square * (value * (1 - value) + square / 4))
    middle = value + square / 2
    return Estimate(value, max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square)))


def readings(answers: pa.Table, judge: schema.Endpoint, store: Path, config: schema.Config) -> list[Figure]:
    """Figures of all cells in ``answers`` (schema "readings").

    Full attention: shares of exact values and abstentions, by attribute too. Block memory: CAS by the judge, shares
    of exact values, abstentions and other values at every budget, and the rise of CAS from the smallest budget to the
    largest. Raises :class:`UserError` where the judge cannot be asked.
    """
    frame = answers.to_pandas()
    alone = frame.groupby(["document", "question", "budget"], dropna=False)["attribute"].transform("size") == 1
    frame["outcome"] = [
        outcome(row.answer, row.attribute, row.person, row.value, single)
        for row, single in zip(frame.itertuples(), alone, strict=True)
    ]
    frame["document"] = pd.Categorical(frame["document"], categories=frame["document"].unique())
    full, blocks = frame[frame["budget"].isna()], frame[frame["budget"].notna()]
    present = full[full["value"].notna()]
    found = []
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


def _outcomes(
    rows: pd.DataFrame, cell: str, setting: str, measures: Iterable[str], config: schema.Config
) -> list[Figure]:
    names = rows["document"].unique()
    counts = resamples(len(names), config.scale.bootstrap, config.seed, f"card:{cell}")
    by_document = rows.groupby("document", observed=True)["outcome"]
    asked = by_document.size().to_numpy(np.float64)
    return [
        figure(
            cell, setting, measure, len(rows),
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
        found.append(figure(cell, setting, CAS, n, ratio_interval(*sums[int(budget)], counts), len(own) - n))
        found += _outcomes(own, cell, setting, (EXACT, ABSTAINED, WRONG), config)
    low, high = min(sums), max(sums)
    if low < high:
        rise = paired_difference(sums[high], sums[low], counts)
        found.append(figure(cell, between(low, high), RISE, int(sums[high][1].sum()), rise))
    return found


def _cas(rows: pd.DataFrame, judge: schema.Endpoint, store: Path) -> list[float]:
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
            TRAINING_SET, "train", name, len(frame),
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
