"""What the paper's figures imply beyond what it says: computed from them alone, to two decimals as they are printed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from utaca.reporting import paper, render
from utaca.reporting.detection import DETECTORS
from utaca.reporting.points import METHODS
from utaca.reporting.tables import Column, Row, Table, plain

ROUNDING = 0.005
"""Half of the last decimal place of the paper's percentages."""
GRID = 0.1
"""Step, in points, of the mean of RULER's two tasks of 500 questions each; an answer is found or not."""


def implied() -> Table:
    """A row a figure that the paper does not print and that follows from those it does."""
    rows = [*_uncertain(), *_majority(), *_equal_tokens(), *_grid()]
    columns = (
        Column("Paper's table", plain("table")),
        Column("Row", plain("row")),
        Column("What follows", plain("what")),
        Column("Figure", lambda row: render.bracketed(row["figure"], row["low"], row["high"], 2)),
        Column("Remark", plain("remark")),
    )
    caption = (
        "What follows from the paper's own figures. Brackets: what its rounding to two decimals leaves open. Accuracy "
        "is a mean of the two recalls, weighed by the share of either class, so that each row of detection implies the "
        "share of uncertain tokens that it was measured on, and the accuracy of calling every token by the larger "
        "class. CAS less InfLLM's at equal tokens: interpolated in log2 mTokens between the paper's points of InfLLM, "
        "clipped to their range."
    )
    return Table("implied", "What the paper's figures imply", caption, pd.DataFrame(rows), columns)


def uncertain_share(row: paper.Detection) -> tuple[float, float, float]:
    """The share of uncertain tokens in % that accuracy and recalls imply, and the range that their rounding allows."""

    def share(macc: float, recall_n: float, recall_p: float) -> float:
        return 100 * (recall_p - macc) / (recall_p - recall_n)

    corners = itertools.product((-ROUNDING, ROUNDING), repeat=len(row))
    ends = [share(*(x + off for x, off in zip(row, corner, strict=True))) for corner in corners]
    return share(*row), min(ends), max(ends)


def on_grid(score: float) -> bool:
    """Whether a mean of RULER's two tasks can have this score, as printed."""
    nearest = GRID * round(score / GRID)
    return math.isclose(score, nearest, abs_tol=ROUNDING)


def _row(table: str, row: str, what: str, figure: tuple[float, float, float], remark: str = "") -> Row:
    value, low, high = figure
    return {"table": table, "row": row, "what": what, "figure": value, "low": low, "high": high, "remark": remark}


def _uncertain() -> Iterator[Row]:
    for name, row in paper.tables().detection.items():
        table = "two-way against three-way" if name == "two_way" else "detection"
        yield _row(table, DETECTORS[name], "uncertain tokens %", uncertain_share(row))


def _majority() -> Iterator[Row]:
    """Rows whose accuracy is below that of calling every token by the larger class of their own tokens."""
    for name, row in paper.tables().detection.items():
        shares = [max(share, 100 - share) for share in uncertain_share(row)]
        if row.macc < min(shares):
            yield _row("detection", DETECTORS[name], "accuracy of the larger class %",
                       (shares[0], min(shares), max(shares)), f"its own accuracy is {row.macc}, below")  # fmt: skip
    for (margin, embedding, lstm), row in paper.tables().ablation.items():
        parts = [name for name, there in (("LogM", margin), ("SE", embedding), ("LSTM", lstm)) if there]
        share = uncertain_share(paper.tables().detection["utaca"])
        larger = tuple(100 - one for one in (share[0], share[2], share[1]))
        if row.macc < larger[1]:
            remark = f"its own accuracy is {row.macc}, below; tokens as of UT-ACA's row of detection"
            yield _row("component ablation", " + ".join(parts), "accuracy of the larger class %", larger, remark)


def _equal_tokens() -> Iterator[Row]:
    nan = float("nan")
    tables = [("long-context test set", paper.tables().test), ("validation set", paper.tables().validation)]
    for title, reader, points in ((title, *one) for title, table in tables for one in table.items()):
        fixed = sorted((row for (method, *_), row in points.items() if method == "infllm"), key=lambda row: row.mtokens)
        tokens, cas = (np.array([getattr(row, key) for row in fixed]) for key in ("mtokens", "cas"))
        for (method, budget, policy), row in points.items():
            if method == "infllm":
                continue
            gain = row.cas - float(np.interp(math.log2(row.mtokens), np.log2(tokens), cas))
            beyond = not tokens[0] <= row.mtokens <= tokens[-1]
            remark = f"{row.mtokens:.0f} tokens" + (", beyond InfLLM's range: clipped" if beyond else "")
            yield _row(f"{title}, {paper.NAMES[reader]}",
                       f"{METHODS[method]} K_max={budget}, {policy.capitalize()}",
                       "CAS less InfLLM's at equal tokens", (gain, nan, nan), remark)  # fmt: skip


def _grid() -> Iterator[Row]:
    nan = float("nan")
    for name in ("QA-16k", "QA-8k"):
        for (method, budget, policy), row in paper.tables().tasks[name].items():
            if not on_grid(row.cas):
                at = f"K_max={budget}, {policy.capitalize()}" if policy else f"K={budget}"
                remark = f"no mean of two tasks of 500 answers, each found or not: these lie {GRID} apart"
                yield _row(f"RULER, {name}", f"{METHODS[method]} {at}", "score", (row.cas, nan, nan), remark)
