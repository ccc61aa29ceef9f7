"""The figure of context-management methods: quality over what is attended to and over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from utaca.reporting import statistics
from utaca.reporting.figures import drawing
from utaca.reporting.methods import compared
from utaca.reporting.points import METHODS, Point
from utaca.reporting.tables import corpus_in_words
from utaca.settings import schema

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(own: Sequence[Point], blocks: Sequence[Point], directory: str | Path, config: schema.Config) -> None:
    """CAS over attended keys and over time a token, with 95 % intervals; PNG and SVG.

    A line a method over its nominal budgets, those of :mod:`utaca.methods` and of block memory alike, and a star under
    the settings of its source. ``own`` and ``blocks`` are as in :func:`methods`, of all suites.
    """
    shown = [point for point in own if not point.lacks] + compared(blocks, config)
    documents = len(own[0].documents)
    counts = statistics.resamples(documents, config.scale.bootstrap, config.seed, "test")
    names = list(dict.fromkeys(point.method for point in shown))
    with drawing(directory, "methods", (9.6, 5.2)) as (canvas, _):
        axes = canvas.subplots(1, 2, sharey=True)
        for number, name in enumerate(names):
            style: dict[str, Any] = {"color": f"C{number % 10}", "marker": "os^Dv<>P"[number % 8]}
            style |= {"linestyle": "--" if number >= 10 else "-"}
            style |= {"color": "black", "linewidth": 2.2, "zorder": 3} if name == METHODS["utaca"] else {}
            budgets = [point for point in shown if point.method == name and point.key[1]]
            source = [point for point in shown if point.method == name and not point.key[1]]
            _curve(axes, budgets, counts, label=name, **style)
            star = {"marker": "*", "markersize": 11, "linestyle": "none", "label": None if budgets else name}
            _curve(axes, source, counts, **style | star)
        for panel, label in zip(axes, ("attended keys a token", "seconds a token"), strict=True):
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 4, 7)))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.set_xlabel(label)
            panel.grid(alpha=0.3)
        axes[0].set_ylabel("CAS %")
        canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
        canvas.suptitle(
            f"{config.reader.name}, {corpus_in_words(config)}, judge {config.judge.name}, {documents} documents; "
            "lines: budgets, stars: settings of the sources",
            fontsize=8,
        )


def _curve(axes: Sequence[Axes], points: Sequence[Point], counts: np.ndarray, **style: Any) -> None:
    """A method's points on both panels, joined in the order of what they attend to."""
    found = [
        (
            float(statistics.ratio(*point.pair("attended", "n_generated"))),
            float(statistics.ratio(*point.pair("decode_seconds", "n_generated"))),
            statistics.ratio_interval(*point.cas, counts),
        )
        for point in points
        if point.sums["n_generated"].sum() > 0
    ]
    if not found:
        return
    *places, estimates = zip(*sorted(found, key=lambda each: each[:2]), strict=True)
    cas = np.array([[each.value, each.low, each.high] for each in estimates]).T * 100
    # An interval may miss its figure by a rounding error.
    bars = np.maximum([cas[0] - cas[1], cas[2] - cas[0]], 0)
    for panel, place in zip(axes, places, strict=True):
        panel.errorbar(place, cas[0], yerr=bars, capsize=2, elinewidth=0.8, alpha=0.85, **style)
