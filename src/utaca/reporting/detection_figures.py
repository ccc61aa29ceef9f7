"""Figures of uncertainty detection: its table, reliability of p_N, logit margins by class."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.ticker import MaxNLocator

from utaca.errors import UserError
from utaca.reporting import palette
from utaca.reporting.detection import DETECTORS, loaded, margin_histogram, reliability_bins
from utaca.reporting.figures import SMALL, bars, drawing, of_table, title
from utaca.settings import schema

LEAST = 50
"""Tokens of a class below which its distribution is not drawn: its bins would show chance."""
# UT-ACA's detectors have the method's colour; what they are held against is ink.
_OWN = {DETECTORS["utaca"]: ("-", "o"), DETECTORS["two_way"]: ("--", "D")}
_MARKERS = ("s", "^", "v", "P", "X")


# Columns of the table and their names.
METRICS = {
    "auroc": "AUROC",
    "value_auroc": "AUROC, values",
    "balanced_accuracy_pct": "balanced accuracy %",
    "recall_n_pct": "Recall N %",
    "recall_p_pct": "Recall P %",
}


def reliability(frame: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Share of uncertain tokens over p_N, a panel for all tokens and for those of values, a line a detector of the
    paper's.

    ``frame`` is that of :func:`utaca.reporting.detection.reliability_bins`; other variants are in their table alone.
    """
    drawn = frame[frame["detector"].isin(list(DETECTORS.values())) & (frame["tokens"] > 0)]
    with drawing(directory, "reliability", (8.4, 4.6)) as (figure, paths):
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, of in zip(panels, ("all tokens", "values"), strict=True):
            axes.plot([0, 1], [0, 1], color=palette.MUTED, linestyle=":", label="calibrated")
            others = iter(_MARKERS * len(drawn))
            for detector, own in drawn[drawn["of"] == of].groupby("detector", sort=False):
                line, marker = _OWN.get(str(detector), ("-.", None))
                color = palette.FAMILIES["utaca"].color if detector in _OWN else palette.INK
                axes.plot(
                    own["mean_p"], own["share_uncertain"], linestyle=line, marker=marker or next(others), markersize=4,
                    color=color, label=detector,
                )  # fmt: skip
            axes.set_xlabel("p_N, mean of the bin")
            axes.set_title(of, fontsize=9, loc="left")
            axes.grid()
        panels[0].set_ylabel("share of uncertain tokens")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=SMALL)
        figure.suptitle(title(frame, config, "labeller"), fontsize=SMALL)
    return paths


def margins(histogram: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Logit margins, a panel a class (:func:`utaca.reporting.detection.margin_histogram`).

    A class of fewer than :data:`LEAST` tokens is named and not drawn.
    """
    classes = list(histogram.groupby("class", sort=False))
    with drawing(directory, "margins", (5.2, 1.2 + 1.1 * len(classes))) as (figure, paths):
        panels = figure.subplots(len(classes), 1, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (name, own) in zip(panels, classes, strict=True):
            tokens = int(own["tokens"].sum())
            axes.set_title(f"{name}, {tokens} tokens", fontsize=9, loc="left")
            if tokens < LEAST:
                axes.text(0.5, 0.5, "too few to draw", transform=axes.transAxes, ha="center", va="center")
            else:
                edges = [*own["low"], own["high"].iloc[-1]]
                axes.stairs(own["share"].fillna(0), edges, fill=True, color=palette.GREY)
            axes.grid()
        panels[-1].set_xlabel("logit margin")
        figure.supylabel("share of the class", fontsize=9)
        figure.suptitle(title(histogram, config, "labeller"), fontsize=SMALL)
    return paths


def detectors(frame: pd.DataFrame, directory: str | Path, _: schema.Config) -> list[Path]:
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
                seeded = row["seeds"] > 1
                color = palette.FAMILIES["utaca"].color if row["detector"] == DETECTORS["utaca"] else palette.INK
                axes.errorbar(
                    row[column], place, xerr=bars(row, column), color=color, marker="o",
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


MAKERS = {
    "detectors": of_table,
    "reliability": lambda files, _: reliability_bins(loaded(files)),
    "margins": lambda files, _: margin_histogram(loaded(files)),
}
DRAW = {"detectors": detectors, "reliability": reliability, "margins": margins}
