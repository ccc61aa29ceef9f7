"""Figures, drawn without a display and the same to the byte for the same table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from utaca.records import atomic_path
from utaca.reporting.tables import METHODS, Table, corpus_in_words
from utaca.settings import schema

# Colour, marker, and where the setting is written: offset in points and alignment.
_STYLES = {"InfLLM": ("tab:gray", "s", (5, -9), "left"), "UT-ACA": ("tab:blue", "o", (-5, 5), "right")}


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


def pareto(table: Table, directory: str | Path, config: schema.Config) -> list[Path]:
    """CAS over selected tokens, a line a method with 95 % intervals, from the table "test"; PNG and SVG."""
    with drawing(directory, "pareto", (5.2, 3.6)) as (figure, paths):
        axes = figure.subplots()
        for method in METHODS.values():
            own = table.frame[table.frame["method"] == method].sort_values("mtokens", kind="stable")
            if own.empty:
                continue
            color, marker, offset, alignment = _STYLES[method]
            # An interval may miss its figure by a rounding error.
            bars = [(own["cas_pct"] - own["cas_pct_low"]).clip(0), (own["cas_pct_high"] - own["cas_pct"]).clip(0)]
            axes.errorbar(
                own["mtokens"], own["cas_pct"], yerr=bars, label=method, color=color, marker=marker, capsize=3
            )
            for row in own.to_dict("records"):
                at = (row["mtokens"], row["cas_pct"])
                axes.annotate(
                    row["setting"], at, xytext=offset, textcoords="offset points", ha=alignment, fontsize=6, color=color
                )
        if (table.frame["mtokens"] > 0).all():
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.margins(x=0.15)
        axes.set_xlabel("selected tokens (mTokens)")
        axes.set_ylabel("CAS %")
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
        n_documents = int(table.frame["n_documents"].max())
        axes.set_title(
            f"{config.reader.name}, {corpus_in_words(config)}, judge {config.judge.name}, {n_documents} documents",
            fontsize=8,
        )
    return paths
