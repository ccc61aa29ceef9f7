"""The table of the reader card: what a reader's answers score, each figure beside the bar that it is held to."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from utaca.reporting.render import bracketed
from utaca.reporting.statistics import Draws, Estimate, paired_difference, ratio_interval
from utaca.reporting.tables import NAN, Column, Row, Table, intervals_in_words, plain, run_in_words
from utaca.settings import schema
from utaca.tasks.card.measures import CAS, FOUND, FULL

SHORTFALL = "full attention less blocks"
RISES = {CAS: "rise of CAS", FOUND: "rise of values found"}
"""Differences between budgets, by measure."""

_CAPTION = (
    "How well the reader reads what is no part of any training. A cell is what it read, as docs/reader.md says. Exact "
    "value: the answer gives the value character for character. Value found: it gives the value, case, punctuation and "
    "articles aside, with few further words. F1 and exact match are SQuAD's. K: blocks that a token retrieves; "
    "prefill K: blocks that each chunk retrieves while the document and the question are read. Differences compare the "
    "same documents. n counts questions, a question being one attribute asked; what no verdict was given of is left "
    "out. A bar is met where the figure, not its interval, reaches it."
)

Key = tuple[str, str, str]
"""Cell, setting and measure of a figure."""
Sums = tuple[np.ndarray, np.ndarray]
"""What the questions about each document scored together, and how many they are [documents]."""


def card(scores: pd.DataFrame, config: schema.Config) -> Table:
    """The figures of ``scores``, columns as of :class:`utaca.tasks.card.measures.Score`, and differences of budgets.

    Bars of the reader of which nothing was measured have a row too.
    """
    found: dict[Key, Row] = {}
    sums: dict[Key, Sums] = {}
    for key, rows in scores.groupby(["cell", "setting", "measure"], sort=False):
        by_document = rows.groupby("document", sort=False)["score"]
        sums[key] = by_document.sum().to_numpy(np.float64), by_document.count().to_numpy(np.float64)
        estimate = ratio_interval(*sums[key], _counts(key, sums[key], config))
        found[key] = _row(key, estimate, sums[key][1].sum(), int(rows["score"].isna().sum()))
    for key, more, less in _differences(sums):
        found[key] = _row(key, paired_difference(more, less, _counts(key, more, config)), more[1].sum())
    for bar in config.reader.bars:
        key = bar.cell, bar.setting, bar.measure
        row = found.setdefault(key, _row(key, Estimate(NAN)))
        row["bar"], row["verdict"] = str(bar), verdict(row["value"], bar)
    cells = list(dict.fromkeys(cell for cell, _, _ in found))
    frame = pd.DataFrame(sorted(found.values(), key=lambda row: cells.index(row["cell"])))
    columns = (
        Column("Cell", plain("cell")),
        Column("Setting", plain("setting")),
        Column("Measure", plain("measure")),
        Column("Share", lambda row: bracketed(row["value"], row["low"], row["high"], 3)),
        Column("n", lambda row: f"{row['n']} (and {row['failed']} failed)" if row["failed"] else str(row["n"])),
        Column("Bar", plain("bar")),
        Column("Verdict", plain("verdict")),
    )
    caption = f"{_CAPTION}\n{run_in_words(config, 'judge')}; {intervals_in_words(config)}"
    return Table("card", f"Reader card: {config.reader.name}", caption, frame, columns)


def verdict(value: float, bar: schema.Bar) -> str:
    """ "met", by how much a figure misses its bar, or that there is no figure."""
    if np.isnan(value):
        return "not measured"
    missed = value - bar.limit if bar.most else bar.limit - value
    # No miss reads as one of 0.000.
    return f"missed by {max(missed, 0.001):.3f}" if missed > 0 else "met"


def _differences(sums: dict[Key, Sums]) -> Iterator[tuple[Key, Sums, Sums]]:
    """Of neighbouring budgets, the smallest and the largest, and full attention and the largest: which less which."""
    for cell, measure in dict.fromkeys((cell, measure) for cell, _, measure in sums if measure in RISES):
        at = {setting: of for (c, setting, m), of in sums.items() if (c, m) == (cell, measure)}
        budgets = sorted((setting for setting in at if setting.startswith("K=")), key=lambda name: int(name[2:]))
        whole_range = [(budgets[0], budgets[-1])] if len(budgets) > 2 else []
        for low, high in [*pairwise(budgets), *whole_range]:
            yield (cell, f"{low} to {high}", RISES[measure]), at[high], at[low]
        if budgets and FULL in at:
            yield (cell, budgets[-1], SHORTFALL), at[FULL], at[budgets[-1]]


def _counts(key: Key, sums: Sums, config: schema.Config) -> np.ndarray:
    """How often each document was drawn [resamples, documents], the same draws for all figures of a cell."""
    return Draws.of(len(sums[0]), config, f"card:{key[0]}").documents


def _row(key: Key, estimate: Estimate, n: float = 0, failed: int = 0) -> Row:
    figures = {"n": int(n), "value": estimate.value, "low": estimate.low, "high": estimate.high}
    return (
        dict(zip(("cell", "setting", "measure"), key, strict=True))
        | figures
        | {"bar": "", "failed": failed, "verdict": ""}
    )
