"""Draw the figures of a run, without a display; the same table gives the same bytes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from utaca.records import atomic_path
from utaca.reporting import palette
from utaca.reporting.registry import data
from utaca.reporting.render import bracketed
from utaca.reporting.words import corpus_in_words
from utaca.settings import schema

SMALL = 8
"""Size of the smallest text, in points."""
_POINT_STYLE = {"markersize": 5, "elinewidth": 1.2, "capsize": 3}
_MEAN_STYLE = {"marker": "D", "markersize": 7, "elinewidth": 2, "capsize": 0}
"""How the figure of differences draws a point, and the mean of several."""


def title(frame: pd.DataFrame, config: schema.Config) -> str:
    """The title of a figure of the table ``frame``: reader, corpus, judge, and the number of documents."""
    documents = f", {frame['n_documents'].max()} documents" if len(frame) else ""
    return f"{config.reader.name}, {corpus_in_words(config)}, judge {config.judge.name}{documents}"


@contextmanager
def drawing(directory: str | Path, name: str, size: tuple[float, float]) -> Iterator[tuple[Figure, list[Path]]]:
    """Yield an empty figure of ``size`` [inches] and the paths of its files, which are written when the block ends.

    The files are ``{name}.png`` and ``.svg`` in ``directory``.
    """
    # None keeps out dates and versions, which would change the bytes.
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    paths = [Path(directory) / f"{name}.{kind}" for kind in metadata]
    with matplotlib.rc_context(data("tables/figures.yaml")):
        canvas = Figure(figsize=size, layout="constrained")
        yield canvas, paths
        for path, (kind, about) in zip(paths, metadata.items(), strict=True):
            with atomic_path(path) as scratch:
                canvas.savefig(scratch, format=kind, dpi=200, metadata=about)


def bars(rows: pd.DataFrame | Mapping[str, Any], column: str) -> np.ndarray:
    """Error bars of a column [2, rows]: the distances from its values to the interval's lower and upper limits.

    ``rows`` are one row or several of a table.
    """
    value = np.atleast_1d(rows[column])
    low = np.atleast_1d(rows[f"{column}_low"])
    high = np.atleast_1d(rows[f"{column}_high"])
    # A limit may lie on the other side of its figure by a rounding error.
    return np.maximum([value - low, high - value], 0)


def curves(points: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw CAS over selected tokens, one curve per method, policy and detector; return the paths of the files.

    ``points`` are the rows of a table of operating points.
    """
    with drawing(directory, "curves", (6.4, 4.6)) as (canvas, paths):
        axes = canvas.subplots()
        for _, of_method in points.groupby("decoder", sort=False):
            # Points of another policy or trigger are another curve.
            for number, variant in enumerate(dict.fromkeys(of_method["variant"])):
                _draw_curve(axes, of_method[of_method["variant"] == variant], variant, number)
        if (points["mtokens"] > 0).all():
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.margins(x=0.08, y=0.08)
        axes.set_xlabel("selected tokens (mTokens)")
        axes.set_ylabel("CAS %")
        axes.grid()
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=SMALL)
        axes.set_title(title(points, config), fontsize=SMALL, loc="left")
    return paths


def _draw_curve(axes: Axes, points: pd.DataFrame, variant: str, number: int) -> None:
    """Draw one curve of a method: its points with intervals, joined in the order of mTokens.

    ``variant`` is the points' policy and trigger in words; ``number`` counts the method's curves from 0.
    """
    line = points.sort_values("mtokens", kind="stable")
    mark = palette.MARKS[palette.known(line["family"].iloc[0])]
    budget = "K_max" if line["policy"].iloc[0] else "K"
    budgets = ", ".join(map(str, line["budget"]))
    name = f"{line['method'].iloc[0]} {budget}={budgets}"
    axes.errorbar(
        line["mtokens"],
        line["cas_pct"],
        yerr=bars(line, "cas_pct"),
        label=f"{name}; {variant}" if variant else name,
        capsize=2,
        elinewidth=0.7,
        markersize=5,
        color=mark.color,
        linestyle=palette.LINES[number % len(palette.LINES)],
        # A method's first curve has filled markers, its second the same ones open, and each further one another shape:
        # a curve of a single point has no line that would tell it apart.
        marker=mark.marker if number < 2 else palette.MARKERS[number % len(palette.MARKERS)],
        markerfacecolor=palette.WHITE if number else mark.color,
    )
    # At each point, a line from the tokens that its accepted passes select to those that all its passes select.
    ends = line["mtokens"], line["mtokens_with_tentative"]
    axes.hlines(line["cas_pct"], *ends, color=mark.color, linewidth=0.8)


def differences(verdict: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw the gains of the verdict's table with their intervals, one line per row; return the paths of the files.

    A marker is open if the point was compared with InfLLM at another number of tokens.
    """
    rows = verdict.to_dict("records")
    # The name of a comparison of two points takes two lines.
    n_two_lines = sum(1 for row in rows if row["over"])
    height = 1.3 + 0.27 * max(len(rows), 1) + 0.1 * n_two_lines
    with drawing(directory, "differences", (6.4, height)) as (canvas, paths):
        axes = canvas.subplots()
        axes.axvline(0, color=palette.INK, linewidth=1)
        names = [row["name"].replace(" over ", "\nover ") for row in rows]
        axes.set_yticks(range(len(rows)), names, fontsize=SMALL)
        for place, (row, tick) in enumerate(zip(rows, axes.get_yticklabels(), strict=True)):
            mark = palette.MARKS[palette.known(row["family"])]
            is_mean = row["n_points"] > 1
            # The note in a single point's row says that it lies beyond InfLLM's range of tokens.
            is_open = bool(row["note"]) and not is_mean and not row["over"]
            weight = "bold" if is_mean else "normal"
            style = _MEAN_STYLE if is_mean else {**_POINT_STYLE, "marker": mark.marker}
            axes.errorbar(
                row["gain_pct"],
                place,
                xerr=bars(row, "gain_pct"),
                color=mark.color,
                markerfacecolor=palette.WHITE if is_open else mark.color,
                **style,
            )
            # The same gain at the tokens of all passes, below the mark.
            axes.plot(row["gain_all_pct"], place + 0.22, marker="|", markersize=6, color=palette.INK, alpha=0.6)
            label = bracketed(row["gain_pct"], row["gain_pct_low"], row["gain_pct_high"], 1)
            axes.annotate(
                label, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL, weight=weight
            )
            tick.set_weight(weight)
        # Downwards, so that the table's first row is at the top.
        axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.margins(x=0.08)
        axes.set_xlabel(
            "CAS points above InfLLM at equal tokens, 95 % interval\n← InfLLM better      better than InfLLM →",
            fontsize=SMALL,
        )
        text = title(verdict, config) + ("" if rows else ": no points to compare")
        canvas.suptitle(text, fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths
