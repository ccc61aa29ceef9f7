"""Where in an answer tokens are expanded: a detector that takes length for failure expands more and more of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.records import read
from utaca.reporting.points import Point, name_in_words, of_label, pooled
from utaca.reporting.statistics import Draws
from utaca.reporting.tables import Row, Table, build_table, spread
from utaca.settings import schema

FROM = (0, 6, 12, 24, 40, 60, 90)
"""First steps of the spans that are told apart."""


def steps(traces: Sequence[str | Path], config: schema.Config, only: Collection[str]) -> Table:
    """The share of tokens that were rolled back, by their step, of the adaptive points of labels ``only``.

    ``traces`` are of schema "traces". Steps count from 0; columns ``from_{step}_pct`` are empty where no answer is as
    long.
    """
    columns = ["document", "point", "step", "rolled_back"]
    frame = pd.concat([read(path, "traces", columns).to_pandas() for path in traces], ignore_index=True)
    documents = tuple(sorted(frame["document"].unique()))
    frame["span"] = np.searchsorted(FROM, frame["step"], side="right") - 1
    found = []
    for label in dict.fromkeys(only):
        point, own = of_label(label, config), frame[frame["point"] == label]
        if point is None or not point.key[2]:
            continue
        cells = own.groupby(["document", "span"])["rolled_back"].agg(["sum", "count"])
        cells = cells.reindex(pd.MultiIndex.from_product([documents, range(len(FROM))]), fill_value=0)
        sums = {
            f"{what} {span}": cells.xs(span, level=1)[what].to_numpy(dtype=np.float64)
            for what in ("sum", "count")
            for span in range(len(FROM))
        }
        found.append(Point(point.key, point.detector, point.seeds, documents, sums))
    draws = Draws.of(len(documents), config, "test")
    rows: list[Row] = []
    for point in pooled(found):
        row: Row = {"point": name_in_words(point, config), "detector": point.detector, "seeds": len(point.seeds)}
        for span, first in enumerate(FROM):
            spread(row, f"from_{first}_pct", point.estimate(f"sum {span}", f"count {span}", draws), 100)
        rows.append(row)
    return build_table("steps", rows, config, len(documents))


MAKERS = {
    "steps": lambda files, config: steps(files["test_traces"], config, config.shown("test", "generation")),
}
