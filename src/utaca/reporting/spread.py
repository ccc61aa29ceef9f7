"""Detectors side by side with their spread over seeds: the table "detection" as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from utaca.errors import UserError
from utaca.reporting import palette
from utaca.reporting.detection import DETECTORS
from utaca.reporting.figures import SMALL, drawing, of_table
from utaca.settings import schema

# Columns of the table and their names.
METRICS = {
    "auroc": "AUROC",
    "value_auroc": "AUROC, values",
    "balanced_accuracy_pct": "balanced accuracy %",
    "recall_n_pct": "Recall N %",
    "recall_p_pct": "Recall P %",
}


def spread(frame: pd.DataFrame, directory: str | Path, _: schema.Config) -> list[Path]:
    """A row a detector that ran, a panel a metric, from the frame of that table; ``detectors.png`` and ``.svg``.

    Bars are the 95 % interval over documents and seeds; detectors of one run are drawn open. UT-ACA's detector has the
    method's colour. Raises :class:`UserError` where the table has no detector that ran.
    """
    frame = frame[frame["run"]].iloc[::-1]
    if frame.empty:
        raise UserError("the table of detection has no detector that ran; make it again")
    with drawing(directory, "detectors", (8.4, 1.2 + 0.27 * len(frame))) as (figure, paths):
        panels = figure.subplots(1, len(METRICS), sharey=True)
        for axes, (column, name) in zip(panels, METRICS.items(), strict=True):
            for place, row in enumerate(frame.to_dict("records")):
                value, seeded = row[column], row["seeds"] > 1
                bars = [value - row[f"{column}_low"], row[f"{column}_high"] - value]
                color = palette.FAMILIES["utaca"] if row["detector"] == DETECTORS["utaca"] else palette.INK
                axes.errorbar(
                    value, place, xerr=np.nan_to_num(np.transpose([bars])).clip(0), color=color, marker="o",
                    markersize=5, markerfacecolor=color if seeded else palette.WHITE, capsize=2, linewidth=1,
                )  # fmt: skip
            axes.set_title(name, fontsize=9)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.tick_params(labelsize=SMALL)
            axes.grid(axis="x")
        panels[0].set_yticks(range(len(frame)), frame["detector"])
        panels[0].set_ylim(-0.6, len(frame) - 0.4)
        figure.supxlabel("95 % interval over documents and, where filled, seeds", fontsize=SMALL)
    return paths


MAKERS = {"detectors": of_table}
DRAW = {"detectors": spread}
