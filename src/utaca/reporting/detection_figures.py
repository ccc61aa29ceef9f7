"""Figures of uncertainty detection: reliability of p_N, logit margins by class."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from utaca.reporting import palette
from utaca.reporting.detection import DETECTORS, loaded, margin_histogram, reliability_bins
from utaca.reporting.figures import SMALL, drawing, title
from utaca.settings import schema

LEAST = 50
"""Tokens of a class below which its distribution is not drawn: its bins would show chance."""
# UT-ACA's detectors have the method's colour; what they are held against is ink.
_OWN = {DETECTORS["utaca"]: ("-", "o"), DETECTORS["two_way"]: ("--", "D")}
_MARKERS = ("s", "^", "v", "P", "X")


def reliability(bins: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Share of uncertain tokens over p_N, a panel for all tokens and for those of values, a line a detector of the
    paper's.

    ``bins`` are those of :func:`utaca.reporting.detection.reliability_bins`; other variants are in their table alone.
    """
    bins = bins[bins["detector"].isin(list(DETECTORS.values())) & (bins["tokens"] > 0)]
    with drawing(directory, "reliability", (8.4, 4.6)) as (figure, paths):
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, of in zip(panels, ("all tokens", "values"), strict=True):
            axes.plot([0, 1], [0, 1], color=palette.MUTED, linestyle=":", label="calibrated")
            others = iter(_MARKERS * len(bins))
            for detector, own in bins[bins["of"] == of].groupby("detector", sort=False):
                line, marker = _OWN.get(str(detector), ("-.", None))
                color = palette.FAMILIES["utaca"] if detector in _OWN else palette.INK
                axes.plot(
                    own["mean_p"], own["share_uncertain"], linestyle=line, marker=marker or next(others), markersize=4,
                    color=color, label=detector,
                )  # fmt: skip
            axes.set_xlabel("p_N, mean of the bin")
            axes.set_title(of, fontsize=9, loc="left")
            axes.grid()
        panels[0].set_ylabel("share of uncertain tokens")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=SMALL)
        figure.suptitle(title(bins, config, "labeller"), fontsize=SMALL)
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


MAKERS = {
    "reliability": lambda files, _: reliability_bins(loaded(files)),
    "margins": lambda files, _: margin_histogram(loaded(files)),
}
DRAW = {"reliability": reliability, "margins": margins}
