"""Figures, drawn without a display and the same to the byte for the same table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import ScalarFormatter
from matplotlib.transforms import Bbox

from utaca.records import atomic_path
from utaca.reporting import palette
from utaca.reporting.render import bracketed
from utaca.reporting.tables import corpus_in_words
from utaca.settings import schema

_LOOK = {
    "svg.hashsalt": "utaca",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": palette.GRID,
    "axes.axisbelow": True,
    "text.color": palette.INK,
    "axes.labelcolor": palette.INK,
    "axes.edgecolor": palette.MUTED,
    "xtick.color": palette.INK,
    "ytick.color": palette.INK,
    "legend.frameon": False,
}
SMALL = 8
"""Points of the smallest text."""


@contextmanager
def drawing(directory: str | Path, name: str, size: tuple[float, float]) -> Iterator[tuple[Figure, list[Path]]]:
    """A figure of ``size`` in inches to draw on, written at the end of the block as ``{name}.png`` and ``.svg``.

    Gives the figure and the paths.
    """
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    paths = [Path(directory) / f"{name}.{kind}" for kind in metadata]
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, paths
        for path, (kind, about) in zip(paths, metadata.items(), strict=True):
            with atomic_path(path) as scratch:
                figure.savefig(scratch, format=kind, dpi=200, metadata=about)


def pareto(points: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """CAS over selected tokens, a line a method, policy and detector, with 95 % intervals; ``curves.png`` and ``.svg``.

    ``points`` is the frame of a table of generation (:func:`utaca.reporting.generation.generation`). A point is
    labelled with its budget alone; the legend says whose it is.
    """
    with drawing(directory, "curves", (6.4, 4.6)) as (figure, paths):
        axes = figure.subplots()
        places, ends, texts, lines = [], [], [], []
        for (name, look), own in _curves(points):
            # An interval may miss its figure by a rounding error.
            bars = [(own["cas_pct"] - own["cas_pct_low"]).clip(0), (own["cas_pct_high"] - own["cas_pct"]).clip(0)]
            axes.errorbar(
                own["mtokens"], own["cas_pct"], yerr=bars, label=name, capsize=2, elinewidth=0.7, markersize=5, **look
            )
            lines.append(own[["mtokens", "cas_pct"]].to_numpy(dtype=np.float64))
            for row in own.to_dict("records"):
                places.append((row["mtokens"], row["cas_pct"]))
                ends.append((row["cas_pct_low"], row["cas_pct_high"]))
                arrow = {"arrowstyle": "-", "linewidth": 0.5, "color": palette.MUTED, "shrinkA": 0, "shrinkB": 3}
                texts.append(
                    axes.annotate(
                        str(row["budget"]), places[-1], xytext=(0, 0), textcoords="offset points", arrowprops=arrow,
                        fontsize=SMALL, ha="center", va="center",
                    )
                )  # fmt: skip
        if (points["mtokens"] > 0).all():
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.margins(x=0.08, y=0.08)
        axes.set_xlabel("selected tokens (mTokens)")
        axes.set_ylabel("CAS %")
        axes.grid()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=SMALL)
        n_documents = int(points["n_documents"].max())
        axes.set_title(f"{_run(config)}, {n_documents} documents", fontsize=SMALL, loc="left")
        place_labels(figure, texts, places, ends, lines)
    return paths


def _curves(points: pd.DataFrame) -> Iterator[tuple[tuple[str, dict[str, object]], pd.DataFrame]]:
    """Name, look and points of every curve: a method's points of one policy, detector and seed."""
    for method, of_method in points.groupby("decoder", sort=False):
        mark = palette.mark(str(method))
        # What a setting says beyond its budget: points of another policy or detector are another curve.
        families = of_method["setting"].str.partition(", ")[2]
        for number, family in enumerate(dict.fromkeys(families)):
            own = of_method[families == family].sort_values("mtokens", kind="stable")
            budget = own["setting"].iloc[0].partition("=")[0]
            name = f"{own['method'].iloc[0]}, {', '.join(filter(None, (budget, family)))}"
            look: dict[str, object] = {"color": mark.color, "marker": mark.marker, "markeredgecolor": mark.edge}
            look["linestyle"] = palette.LINES[number % len(palette.LINES)]
            # Only the first family's markers are filled.
            yield (name, look | ({"markerfacecolor": palette.WHITE} if number else {})), own


def _run(config: schema.Config) -> str:
    return f"{config.reader.name}, {corpus_in_words(config)}, judge {config.judge.name}"


def differences(verdict: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """CAS less InfLLM's at equal tokens, a row a point with its 95 % interval; ``differences.png`` and ``.svg``.

    ``verdict`` is the frame of :func:`utaca.reporting.verdict.verdict`. A mean over a detector's points is a diamond, a
    point beyond InfLLM's range is open, a comparison of two points has a name of two lines.
    """
    rows = verdict.to_dict("records")
    height = 1.3 + 0.27 * max(len(rows), 1) + 0.1 * sum(bool(row["over"]) for row in rows)
    with drawing(directory, "differences", (6.4, height)) as (figure, paths):
        axes = figure.subplots()
        axes.axvline(0, color=palette.INK, linewidth=1)
        for place, row in enumerate(rows):
            mark, mean = palette.mark(row["decoder"]), row["n_points"] > 1
            bars = np.array([[row["gain_pct"] - row["gain_pct_low"]], [row["gain_pct_high"] - row["gain_pct"]]])
            axes.errorbar(
                row["gain_pct"], place, xerr=bars.clip(0), color=mark.color, marker="D" if mean else mark.marker,
                markersize=7 if mean else 5, elinewidth=2 if mean else 1.2, capsize=0 if mean else 3,
                markerfacecolor=palette.WHITE if _open(row) else mark.color,
            )  # fmt: skip
            told = bracketed(row["gain_pct"], row["gain_pct_low"], row["gain_pct_high"], 1)
            weight = "bold" if mean else "normal"
            axes.annotate(
                told, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL, weight=weight
            )
        axes.set_yticks(range(len(rows)), [row["name"].replace(" over ", "\nover ") for row in rows], fontsize=SMALL)
        for label, row in zip(axes.get_yticklabels(), rows, strict=True):
            label.set_weight("bold" if row["n_points"] > 1 else "normal")
        axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.margins(x=0.08)
        told = "CAS points above InfLLM at equal tokens, 95 % interval\n← InfLLM better      better than InfLLM →"
        told += "\nover: above what the other point gains" if any(row["over"] for row in rows) else ""
        beyond = "\nopen: held against InfLLM at other numbers of tokens" if any(map(_open, rows)) else ""
        axes.set_xlabel(told + beyond, fontsize=SMALL)
        documents = f", {int(rows[0]['n_documents'])} documents" if rows else ": no points to compare"
        figure.suptitle(f"{_run(config)}{documents}", fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths


def _open(row: dict[str, Any]) -> bool:
    """Whether a row of the verdict is held against InfLLM at other numbers of tokens than its own."""
    return bool(row["note"]) and row["n_points"] == 1 and not row["over"]


def place_labels(
    figure: Figure,
    labels: Sequence[Annotation],
    places: Sequence[tuple[float, float]],
    bars: Sequence[tuple[float, float]],
    lines: Sequence[np.ndarray] = (),
) -> None:
    """Move each label beside its own of ``places`` (data coordinates), clear of other labels and points.

    ``bars`` are lower and upper ends of the places' error bars, ``lines`` the curves [points, 2]: labels keep clear of
    them too while there is room, and stay within the axes. They are tried on circles of growing radius, above first.
    """
    if not labels:
        return
    canvas = FigureCanvasAgg(figure)
    # The layout is settled before anything is measured.
    canvas.draw()
    renderer = canvas.get_renderer()
    axes = labels[0].axes
    window = axes.get_window_extent(renderer)
    points = axes.transData.transform(places)
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    drawn = []
    for (x, y), ends in zip(places, bars, strict=True):
        (left, low), (_, high) = axes.transData.transform([(x, y if np.isnan(end) else end) for end in ends])
        drawn.append(Bbox.from_extents(left - 4, low - 2, left + 4, high + 2))
    # A line is what lies within small boxes along it.
    for line in lines:
        corners = axes.transData.transform(line)
        for (x0, y0), (x1, y1) in pairwise(corners):
            steps = np.linspace(0, 1, max(2, int(np.hypot(x1 - x0, y1 - y0) / 4)))
            drawn += [Bbox.from_bounds(x0 + t * (x1 - x0) - 1, y0 + t * (y1 - y0) - 1, 2, 2) for t in steps]
    for label, place in zip(labels, points, strict=True):
        # Its text alone, without the line to its point.
        own = Text.get_window_extent(label, renderer)
        half = np.array((own.width, own.height)) / 2 + 1
        tried = []
        for radius in range(9, 120, 3):
            for angle in np.deg2rad(np.arange(90, 450, 20)):
                offset = np.array((radius * np.cos(angle), radius * np.sin(angle)))
                centre = place + offset * figure.dpi / 72
                box = Bbox([centre - half, centre + half])
                if window.contains(*box.min) and window.contains(*box.max):
                    tried.append((tuple(offset), box))
        free = [one for one in tried if not any(one[1].overlaps(other) for other in taken)]
        near = [one for one in free if np.hypot(*one[0]) < 40]
        clear = [one for one in near if not any(one[1].overlaps(other) for other in drawn)]
        for offset, box in (clear or free)[:1]:
            label.set_position(offset)
            taken.append(box)
