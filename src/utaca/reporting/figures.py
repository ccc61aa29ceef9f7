"""Figures, drawn without a display and the same to the byte for the same table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import ScalarFormatter
from matplotlib.transforms import Bbox

from utaca.records import atomic_path
from utaca.reporting.tables import corpus_in_words
from utaca.settings import schema

_STYLES = {"InfLLM": ("tab:gray", "s"), "UT-ACA": ("tab:blue", "o"), "Oracle": ("tab:orange", "^")}
_OTHERS = ["tab:red", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan", "black"]


@contextmanager
def drawing(directory: str | Path, name: str, size: tuple[float, float]) -> Iterator[tuple[Figure, list[Path]]]:
    """A figure of ``size`` in inches to draw on, written at the end of the block as ``{name}.png`` and ``.svg``.

    Gives the figure and the paths.
    """
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    paths = [Path(directory) / f"{name}.{kind}" for kind in metadata]
    with matplotlib.rc_context({"svg.hashsalt": "utaca", "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, paths
        for path, (kind, about) in zip(paths, metadata.items(), strict=True):
            with atomic_path(path) as scratch:
                figure.savefig(scratch, format=kind, dpi=200, metadata=about)


def pareto(points: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """CAS over selected tokens, a line a method, policy and detector, with 95 % intervals; PNG and SVG.

    ``points`` is the frame of a table of generation (:func:`utaca.reporting.generation.generation`).
    """
    with drawing(directory, "pareto", (6.4, 4.4)) as (figure, paths):
        axes = figure.subplots()
        places, ends, texts = [], [], []
        # Points of another policy or detector are another curve.
        families = points["setting"].str.partition(", ")[2]
        others = iter(_OTHERS * len(points))
        for method, (plain, marker) in _STYLES.items():
            of_method = points["method"] == method
            for number, family in enumerate(dict.fromkeys(families[of_method])):
                own = points[of_method & (families == family)].sort_values("mtokens", kind="stable")
                color = next(others) if number else plain
                # An interval may miss its figure by a rounding error.
                bars = [(own["cas_pct"] - own["cas_pct_low"]).clip(0), (own["cas_pct_high"] - own["cas_pct"]).clip(0)]
                axes.errorbar(
                    own["mtokens"], own["cas_pct"], yerr=bars, label=", ".join(filter(None, (method, family))),
                    color=color, marker=marker, markersize=4, capsize=2, elinewidth=0.6, alpha=0.8,
                )  # fmt: skip
                for row in own.to_dict("records"):
                    places.append((row["mtokens"], row["cas_pct"]))
                    ends.append((row["cas_pct_low"], row["cas_pct_high"]))
                    style = {"fontsize": 6, "color": color, "ha": "center", "va": "center"}
                    arrow = {"arrowstyle": "-", "linewidth": 0.4, "color": color, "shrinkA": 0, "shrinkB": 2}
                    texts.append(
                        axes.annotate(
                            row["setting"].partition(", ")[0], places[-1], xytext=(0, 0), textcoords="offset points",
                            arrowprops=arrow, **style,
                        )
                    )  # fmt: skip
        if (points["mtokens"] > 0).all():
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.margins(x=0.12, y=0.12)
        axes.set_xlabel("selected tokens (mTokens)")
        axes.set_ylabel("CAS %")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=8 if len(axes.get_legend_handles_labels()[0]) < 5 else 6)
        n_documents = int(points["n_documents"].max())
        axes.set_title(
            f"{config.reader.name}, {corpus_in_words(config)}, judge {config.judge.name}, {n_documents} documents",
            fontsize=8,
        )
        place_labels(figure, texts, places, ends)
    return paths


def place_labels(
    figure: Figure,
    labels: Sequence[Annotation],
    places: Sequence[tuple[float, float]],
    bars: Sequence[tuple[float, float]],
) -> None:
    """Move each label beside its own of ``places`` (data coordinates), clear of other labels, points and the legend.

    ``bars`` are lower and upper ends of the places' error bars: labels keep clear of them too while there is room, and
    stay within the axes. They are tried on circles of growing radius, above first.
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
    taken = [Bbox.from_extents(x - 8, y - 8, x + 8, y + 8) for x, y in points]
    if (legend := axes.get_legend()) is not None:
        taken.append(legend.get_window_extent(renderer))
    upright = []
    for (x, _), ends in zip(places, bars, strict=True):
        (left, low), (_, high) = axes.transData.transform([(x, end) for end in ends])
        upright.append(Bbox.from_extents(left - 4, low - 2, left + 4, high + 2))
    for label, place in zip(labels, points, strict=True):
        # Its text alone, without the line to its point.
        own = Text.get_window_extent(label, renderer)
        half = np.array((own.width, own.height)) / 2 + 1
        tried = []
        for radius in range(10, 120, 4):
            for angle in np.deg2rad(np.arange(90, 450, 20)):
                # Wider than high, as labels are.
                offset = np.array((1.6 * radius * np.cos(angle), radius * np.sin(angle)))
                centre = place + offset * figure.dpi / 72
                box = Bbox([centre - half, centre + half])
                if window.contains(*box.min) and window.contains(*box.max):
                    tried.append((tuple(offset), box))
        free = [one for one in tried if not any(one[1].overlaps(other) for other in taken)]
        clear = [one for one in free if not any(one[1].overlaps(bar) for bar in upright)]
        for offset, box in (clear or free)[:1]:
            label.set_position(offset)
            taken.append(box)
