"""Figures, drawn without a display and the same to the byte for the same table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from utaca.records import atomic_path
from utaca.reporting import palette
from utaca.reporting.registry import Files
from utaca.reporting.render import bracketed
from utaca.reporting.tables import corpus_in_words, read_frame
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


def title(frame: pd.DataFrame, config: schema.Config, role: str = "judge") -> str:
    """What a figure was made with: reader, corpus, the endpoint of ``role``, and the frame's documents."""
    n = frame.attrs.get("n_documents") or (frame["n_documents"].max() if "n_documents" in frame else None)
    documents = "" if n is None or pd.isna(n) else f", {int(n)} documents"
    return f"{config.reader.name}, {corpus_in_words(config)}, {role} {getattr(config, role).name}{documents}"


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


def bars(rows: pd.DataFrame | Mapping[str, Any], column: str) -> np.ndarray:
    """Error bars [2, rows] of a column of a frame or row: how far the limits of its interval lie below and above it."""
    value, low, high = (np.atleast_1d(rows[f"{column}{end}"]) for end in ("", "_low", "_high"))
    # A limit may miss its figure by a rounding error.
    return np.maximum([value - low, high - value], 0)


def pareto(points: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """CAS over selected tokens, a line a method, policy and detector, with 95 % intervals; ``curves.png`` and ``.svg``.

    ``points`` is the frame of a table of generation (:func:`utaca.reporting.generation.generation`). The legend has the
    budgets of a line's points in their order.
    """
    with drawing(directory, "curves", (6.4, 4.6)) as (figure, paths):
        axes = figure.subplots()
        for (name, look), own in _curves(points):
            axes.errorbar(
                own["mtokens"],
                own["cas_pct"],
                yerr=bars(own, "cas_pct"),
                label=name,
                capsize=2,
                elinewidth=0.7,
                markersize=5,
                **look,
            )
        if (points["mtokens"] > 0).all():
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.margins(x=0.08, y=0.08)
        axes.set_xlabel("selected tokens (mTokens)")
        axes.set_ylabel("CAS %")
        axes.grid()
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=SMALL)
        axes.set_title(title(points, config), fontsize=SMALL, loc="left")
    return paths


def _curves(points: pd.DataFrame) -> Iterator[tuple[tuple[str, dict[str, object]], pd.DataFrame]]:
    """Name, look and points of every curve: a method's points of one policy, detector and seed."""
    for method, of_method in points.groupby("decoder", sort=False):
        mark = palette.mark(str(method))
        # What a setting says beyond its budget: points of another policy or detector are another curve.
        families = of_method["setting"].str.partition(", ")[2]
        for number, family in enumerate(dict.fromkeys(families)):
            own = of_method[families == family].sort_values("mtokens", kind="stable")
            budgets = f"{own['setting'].iloc[0].partition('=')[0]}={', '.join(map(str, own['budget']))}"
            name = "; ".join(filter(None, (f"{own['method'].iloc[0]} {budgets}", family)))
            # A curve may be one point, which has no line that tells it apart.
            marker = mark.marker if number < 2 else palette.MEMBER_MARKERS[number % len(palette.MEMBER_MARKERS)]
            look: dict[str, object] = {"color": mark.color, "marker": marker, "markeredgecolor": mark.edge}
            look["linestyle"] = palette.LINES[number % len(palette.LINES)]
            # Only the first family's markers are filled.
            yield (name, look | ({"markerfacecolor": palette.WHITE} if number else {})), own


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
            axes.errorbar(
                row["gain_pct"], place, xerr=bars(row, "gain_pct"), color=mark.color,
                marker="D" if mean else mark.marker, markersize=7 if mean else 5,
                elinewidth=2 if mean else 1.2, capsize=0 if mean else 3,
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
        of = title(verdict, config) + ("" if rows else ": no points to compare")
        figure.suptitle(of, fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths


def _open(row: dict[str, Any]) -> bool:
    """Whether a row of the verdict is held against InfLLM at other numbers of tokens than its own."""
    return bool(row["note"]) and row["n_points"] == 1 and not row["over"]


def of_table(files: Files, _: schema.Config) -> pd.DataFrame:
    """The table that a figure is drawn from, its one file."""
    ((path,),) = files.values()
    return read_frame(path)


MAKERS = {"curves": of_table, "differences": of_table}
DRAW = {"curves": pareto, "differences": differences}
