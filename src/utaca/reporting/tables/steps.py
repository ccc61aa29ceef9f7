"""Where in an answer tokens are expanded: a detector that takes length for failure expands more and more of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from utaca.records import read
from utaca.reporting.points import Point, name_in_words, of_label, pooled
from utaca.reporting.registry import Files, table
from utaca.reporting.statistics import Draws, Row, spread
from utaca.reporting.table import framed
from utaca.settings import schema

FROM = (0, 6, 12, 24, 40, 60, 90)
"""First steps of the spans that are told apart."""


@table(
    theme="detection",
    files="test_traces",
    when="tried_on_test",
    role="labeller",
    columns="point +seeds from_*_pct",
)
def steps(files: Files, config: schema.Config) -> pd.DataFrame:
    """Expansions by step.

    Share of tokens, in percent, that were rolled back and generated again, by their step in the answer, from 0.
    """
    columns = ["document", "point", "step", "rolled_back"]
    frame = pd.concat([read(path, "traces", columns).to_pandas() for path in files["test_traces"]], ignore_index=True)
    documents = tuple(sorted(frame["document"].unique()))
    frame["span"] = np.searchsorted(FROM, frame["step"], side="right") - 1
    points = []
    for label in config.shown("test"):
        point, tokens = of_label(label, config), frame[frame["point"] == label]
        if point is None or not point.key[2]:
            continue
        cells = tokens.groupby(["document", "span"])["rolled_back"].agg(["sum", "count"])
        cells = cells.reindex(pd.MultiIndex.from_product([documents, range(len(FROM))]), fill_value=0)
        sums = {
            f"{what} {span}": cells.xs(span, level=1)[what].to_numpy(dtype=np.float64)
            for what in ("sum", "count")
            for span in range(len(FROM))
        }
        points.append(Point(point.key, point.detector, point.seeds, documents, sums))
    draws = Draws.of(len(documents), config, "test")
    rows: list[Row] = []
    for point in pooled(points):
        row: Row = {"point": name_in_words(point, config), "detector": point.detector, "seeds": len(point.seeds)}
        for span, first in enumerate(FROM):
            spread(row, f"from_{first}_pct", point.estimate(f"sum {span}", f"count {span}", draws), 100)
        rows.append(row)
    return framed(rows, len(documents))
