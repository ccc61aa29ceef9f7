"""Figures of uncertainty detection: reliability of p_N, logit margins by class."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from utaca.reporting.detection import DETECTORS
from utaca.reporting.figures import drawing

_COLORS = {"hallucinated": "tab:red", "correct": "tab:green", "unknown": "tab:orange"}


def reliability(bins: pd.DataFrame, directory: str | Path, title: str) -> list[Path]:
    """Share of uncertain tokens over p_N, a line a detector of the paper's.

    ``bins`` are those of :func:`utaca.reporting.detection.reliability_bins`; other variants are in their table alone.
    """
    bins = bins[bins["detector"].isin(list(DETECTORS.values())) & (bins["tokens"] > 0)]
    with drawing(directory, "reliability", (5.2, 4.2)) as (figure, paths):
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="tab:gray", linestyle=":", label="calibrated")
        for detector, own in bins.groupby("detector", sort=False):
            axes.plot(own["mean_p"], own["share_uncertain"], marker="o", markersize=3, label=detector)
        axes.set_xlabel("p_N, mean of the bin")
        axes.set_ylabel("share of uncertain tokens")
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize=6)
        axes.set_title(title, fontsize=8)
    return paths


def margins(histogram: pd.DataFrame, directory: str | Path, title: str) -> list[Path]:
    """Logit margins, a step line a class (:func:`utaca.reporting.detection.margin_histogram`)."""
    with drawing(directory, "margins", (5.2, 3.6)) as (figure, paths):
        axes = figure.subplots()
        for name, own in histogram.groupby("class", sort=False):
            edges = [*own["low"], own["high"].iloc[-1]]
            label = f"{name} ({int(own['tokens'].sum())} tokens)"
            axes.stairs(own["share"].fillna(0), edges, label=label, color=_COLORS[str(name)])
        axes.set_xlabel("logit margin")
        axes.set_ylabel("share of the class")
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
        axes.set_title(title, fontsize=8)
    return paths
