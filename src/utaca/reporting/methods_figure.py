"""The figure of context-management methods: quality over what is attended to and over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from utaca.reporting import palette
from utaca.reporting.figures import SMALL, bars, drawing, title
from utaca.reporting.methods import compared, split
from utaca.reporting.points import CAS, Point
from utaca.reporting.statistics import Draws
from utaca.reporting.tables import counted
from utaca.settings import schema

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BESIDE = ("infllm", "utaca")
"""Methods that stand in every panel."""
_MEASURES = {"attended": "attended keys a token", "seconds": "seconds a token"}


def draw(frame: pd.DataFrame, directory: str | Path, config: schema.Config) -> None:
    """CAS over attended keys and over time a token, with 95 % intervals; ``compared.png`` and ``.svg``.

    A column a family of methods, a line a method over its nominal budgets, an open marker under the settings of its
    source; UT-ACA and InfLLM stand in every panel. ``frame`` is that of :func:`figures`.
    """
    families = list(dict.fromkeys(name for name in frame["family"] if name not in _BESIDE))
    # A trigger on another method is UT-ACA's and has a panel of its own.
    triggers = frame["decoder"].str.startswith("utaca-").any()
    columns = families + (["utaca"] if triggers or not families else [])
    with drawing(directory, "compared", (1.2 + 2.7 * len(columns), 6.4)) as (canvas, _):
        grid = canvas.subplots(2, len(columns), sharey=True, sharex="row", squeeze=False)
        for column, name in enumerate(columns):
            for panel, measure in zip(grid[:, column], _MEASURES, strict=True):
                _panel(panel, frame, name, measure)
            grid[0, column].set_title(palette.FAMILIES[name].title, fontsize=9, loc="left")
            handles, labels = grid[0, column].get_legend_handles_labels()
            grid[1, column].legend(
                handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.24), fontsize=SMALL, handlelength=3
            )
        for panel in grid[:, 0]:
            panel.set_ylabel("CAS %")
        canvas.suptitle(f"{title(frame, config)}; open: its source's settings", fontsize=SMALL)


def figures(own: Sequence[Point], blocks: Sequence[Point], config: schema.Config) -> pd.DataFrame:
    """A row a point that generated anything: what it attends to, its time a token, its CAS with 95 % interval.

    ``own`` and ``blocks`` are as in :func:`utaca.reporting.methods.methods`, of all suites.
    """
    shown = [point for point in own if not point.lacks] + compared(blocks, config)
    draws, rows = Draws.of(len(own[0].documents), config, "test"), []
    for point in shown:
        if not point.sums["n_generated"].sum() > 0:
            continue
        cas = point.estimate(*CAS, draws)
        rows.append(
            {
                "method": point.method,
                "decoder": point.key[0],
                "family": palette.family(point.key[0]),
                "budget": point.key[1],
                "attended": point.ratio("attended", "n_generated"),
                "seconds": point.ratio("decode_seconds", "n_generated"),
                "cas_pct": 100 * cas.value,
                "cas_pct_low": 100 * cas.low,
                "cas_pct_high": 100 * cas.high,
            }
        )
    names = ["method", "decoder", "family", "budget", *_MEASURES, "cas_pct", "cas_pct_low", "cas_pct_high"]
    return counted(pd.DataFrame(rows, columns=names), own[0].documents)


def _panel(panel: Axes, frame: pd.DataFrame, family: str, measure: str) -> None:
    """A family's methods over one measure, before UT-ACA and InfLLM."""
    for number, decoder in enumerate(dict.fromkeys(frame["decoder"])):
        own = frame[frame["decoder"] == decoder]
        beside = decoder in _BESIDE
        if not beside and own["family"].iloc[0] != family:
            continue
        mark = palette.mark(decoder)
        style: dict[str, Any] = {"color": mark.color, "marker": mark.marker, "markeredgecolor": mark.edge}
        style |= {
            "linestyle": palette.LINES[0 if beside else number % len(palette.LINES)],
            "markersize": 5,
            "capsize": 2,
            "elinewidth": 0.7,
            "alpha": 0.55 if beside else 1,
        }
        if not beside and decoder.partition("-")[0] in _BESIDE:
            style["marker"] = palette.MEMBER_MARKERS[number % len(palette.MEMBER_MARKERS)]
        for budgets, plain in ((True, style), (False, style | {"linestyle": "none", "markerfacecolor": palette.WHITE})):
            points = own[(own["budget"] > 0) == budgets].sort_values([measure, "cas_pct"], kind="stable")
            if points.empty:
                continue
            # In the legend once, be it with budgets or without.
            name = own["method"].iloc[0] if budgets or not (own["budget"] > 0).any() else None
            panel.errorbar(points[measure], points["cas_pct"], yerr=bars(points, "cas_pct"), label=name, **plain)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(axis="x", labelsize=SMALL)
    panel.set_xlabel(_MEASURES[measure], fontsize=9)
    panel.grid()


MAKERS = {"compared": lambda files, config: figures(*split(files, ["methods", "budgets"], config), config)}
DRAW = {"compared": draw}
