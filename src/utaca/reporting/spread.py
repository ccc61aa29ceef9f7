"""Detectors side by side with their spread over seeds: the table "detection" as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from utaca.errors import UserError
from utaca.reporting.figures import drawing

# Columns of the table and their names.
METRICS = {
    "auroc": "AUROC",
    "balanced_accuracy_pct": "balanced accuracy %",
    "recall_n_pct": "Recall N %",
    "recall_p_pct": "Recall P %",
}


def spread(table: str | Path, directory: str | Path) -> list[Path]:
    """A row a detector that ran, a panel a metric, from ``detection.csv``; ``detectors.png`` and ``.svg``.

    Bars are the standard deviation over seeds, for detectors of one run the 95 % interval over documents. Raises
    :class:`UserError` where the table has no detector that ran.
    """
    frame = pd.read_csv(table)
    frame = frame[frame["run"]].iloc[::-1]
    if frame.empty:
        raise UserError(f"{table} has no detector that ran; make it again")
    with drawing(directory, "detectors", (8.4, 0.9 + 0.27 * len(frame))) as (figure, paths):
        panels = figure.subplots(1, len(METRICS), sharey=True)
        places = np.arange(len(frame))
        seeded = frame["seeds"].to_numpy() > 1
        for axes, (column, name) in zip(panels, METRICS.items(), strict=True):
            value = frame[column].to_numpy()
            below = np.where(seeded, frame[f"{column}_sd"], value - frame[f"{column}_low"])
            above = np.where(seeded, frame[f"{column}_sd"], frame[f"{column}_high"] - value)
            for mask, colour, marker in ((seeded, "tab:blue", "o"), (~seeded, "tab:gray", "s")):
                bars = np.nan_to_num(np.stack([below, above])[:, mask]).clip(0)
                axes.errorbar(
                    value[mask], places[mask], xerr=bars, color=colour, marker=marker, markersize=4, linestyle="none",
                    capsize=2, linewidth=1,
                )  # fmt: skip
            axes.set_title(name, fontsize=8)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.tick_params(labelsize=7)
            axes.grid(alpha=0.3)
        panels[0].set_yticks(places, frame["detector"])
        panels[0].set_ylim(-0.6, len(frame) - 0.4)
    return paths
