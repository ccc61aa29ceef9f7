"""Draw the figures of a run, without a display; the same table gives the same bytes."""

from collections.abc import Iterable, Iterator, Mapping
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
        _draw_curves(axes, points, "mtokens")
        _log_axis(axes, points["mtokens"])
        axes.set_xlabel("selected tokens per generated token (mTokens)")
        axes.set_ylabel("correct facts (CAS, %)")
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=SMALL)
        axes.set_title(title(points, config), fontsize=SMALL, loc="left")
    return paths


def cost(points: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw CAS over the tokens of all passes, and over the seconds that decoding a token takes; return the paths.

    ``points`` are the rows of a table of operating points.
    """
    with drawing(directory, "cost", (9.6, 4.8)) as (canvas, paths):
        left, right = canvas.subplots(1, 2, sharey=True)
        _draw_curves(left, points, "mtokens_with_tentative")
        _log_axis(left, points["mtokens_with_tentative"])
        left.set_xlabel("selected tokens per generated token, all passes")
        left.set_ylabel("correct facts (CAS, %)")
        timed = points[points["seconds_per_token"].notna()]
        if len(timed):
            _draw_curves(right, timed, "seconds_per_token")
        else:
            right.text(0.5, 0.5, "no seconds were measured", ha="center", transform=right.transAxes)
        right.set_xlabel("seconds of decoding per generated token")
        right.margins(x=0.08, y=0.08)
        right.grid()
        canvas.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=SMALL)
        canvas.suptitle(title(points, config), fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths


def _draw_curves(axes: Axes, points: pd.DataFrame, x: str) -> None:
    """Draw CAS over the column ``x``, one curve per method, policy, detector and number of drafts."""
    for _, of_method in points.groupby("decoder", sort=False):
        # Points with another policy, trigger or number of drafts are another curve.
        curves_of_method = of_method.groupby(["variant", "drafts"], sort=False)
        for number, ((variant, drafts), line) in enumerate(curves_of_method):
            words = [variant, f"{drafts} drafts" if drafts else ""]
            _draw_curve(axes, line, ", ".join(filter(None, words)), number, x)


def _log_axis(axes: Axes, tokens: pd.Series) -> None:
    """Give axes over numbers of ``tokens`` a logarithmic scale if all numbers are positive, and a grid."""
    if (tokens > 0).all():
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.margins(x=0.08, y=0.08)
    axes.grid()


def _draw_curve(axes: Axes, points: pd.DataFrame, variant: str, number: int, x: str) -> None:
    """Draw one curve of a method over the column ``x``: its points with intervals, joined in the order of mTokens.

    ``variant`` is the points' policy, trigger and drafts in words; ``number`` counts the method's curves from 0.
    """
    line = points.sort_values("mtokens", kind="stable")
    mark = palette.MARKS[palette.known(line["family"].iloc[0])]
    budget = "K_max" if line["policy"].iloc[0] else "K"
    budgets = ", ".join(map(str, line["budget"]))
    name = f"{line['method'].iloc[0]} {budget}={budgets}"
    remark = all_passes(line["family"].iloc[0], line["mtokens_with_tentative"])
    axes.errorbar(
        line[x],
        line["cas_pct"],
        xerr=bars(line, x) if x == "seconds_per_token" else None,
        yerr=bars(line, "cas_pct"),
        label="\n".join(filter(None, ["; ".join(filter(None, [name, variant])), remark])),
        capsize=2,
        elinewidth=0.7,
        markersize=5,
        color=mark.color,
        linestyle=palette.LINES[number % len(palette.LINES)],
        # A method's first curve has filled markers, its second the same ones open, and each further one another shape:
        # a curve of a single point has no line that shows the difference.
        marker=mark.marker if number < 2 else palette.MARKERS[number % len(palette.MARKERS)],
        markerfacecolor=palette.WHITE if number else mark.color,
    )
    if x == "mtokens":
        # At each point, a line from the tokens that its accepted passes select to those that all its passes select.
        ends = line["mtokens"], line["mtokens_with_tentative"]
        axes.hlines(line["cas_pct"], *ends, color=mark.color, linewidth=0.8)


def all_passes(family: str, tokens: Iterable[float]) -> str:
    """A remark for the agreement oracle: the tokens of all its passes; "" for any other ``family``.

    The oracle needs the pass under K_max for every token, which mTokens do not count.
    """
    if family != "agreement":
        return ""
    return f"{', '.join(f'{number:.0f}' for number in tokens)} tokens in all passes"


def differences(verdict: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw the gains of the verdict's table with their intervals, one line per row; return the paths of the files.

    A marker is open if the point was compared with InfLLM at another number of tokens.
    """
    rows = verdict.to_dict("records")
    # The names of a comparison of two points and of the agreement oracle take two lines.
    n_two_lines = sum(1 for row in rows if row["over"] or row["family"] == "agreement")
    height = 1.3 + 0.27 * max(len(rows), 1) + 0.1 * n_two_lines
    with drawing(directory, "differences", (6.4, height)) as (canvas, paths):
        axes = canvas.subplots()
        axes.axvline(0, color=palette.INK, linewidth=1)
        names = []
        for row in rows:
            remark = all_passes(row["family"], [row["mtokens_with_tentative"]]) if row["n_points"] == 1 else ""
            names.append("\n".join(filter(None, [row["name"].replace(" over ", "\nover "), remark])))
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
            "CAS minus InfLLM's CAS at equal tokens, percentage points\n← InfLLM is better      InfLLM is worse →",
            fontsize=SMALL,
        )
        text = title(verdict, config) + ("" if rows else ": no points to compare")
        canvas.suptitle(text, fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths


def detector(curves: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw ROC curves of detectors, and the reliability diagram of the config's; return the paths of the files.

    ``curves`` are the rows of :func:`utaca.reporting.tables.tokens.detector_curves`.
    """
    with drawing(directory, "detector", (9.0, 4.6)) as (canvas, paths):
        left, right = canvas.subplots(1, 2)
        _draw_roc(left, curves)
        _draw_reliability(right, curves[curves["panel"] == "reliability"])
        for axes in (left, right):
            axes.plot([0, 1], [0, 1], color=palette.INK, linewidth=0.8, linestyle=":")
            axes.set_xlim(-0.02, 1.02)
            axes.set_ylim(-0.02, 1.02)
            axes.grid()
        documents = f"{curves['n_documents'].max()} documents" if len(curves) else "no documents"
        text = f"{config.reader.name}, labeller {config.labeller.name}, {documents}"
        canvas.suptitle(text, fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths


def _draw_roc(axes: Axes, curves: pd.DataFrame) -> None:
    """Draw the ROC curve of each detector, with a mark at the rates of its own decisions."""
    others = [palette.MARKS[family].color for family in palette.MARKS if family != "utaca"]
    number = 0
    for name, rows in curves[curves["panel"] == "roc"].groupby("detector", sort=False):
        is_main = bool(rows["is_main"].iloc[0])
        color = palette.MARKS["utaca"].color if is_main else others[number % len(others)]
        style = "-" if is_main else palette.LINES[1 + number % (len(palette.LINES) - 1)]
        number += not is_main
        label = f"{name}: {rows['area'].iloc[0]:.3f}"
        axes.plot(rows["x"], rows["y"], color=color, linestyle=style, linewidth=2 if is_main else 1.2, label=label)
        decision = curves[(curves["panel"] == "decision") & (curves["detector"] == name)]
        axes.plot(decision["x"], decision["y"], color=color, marker="o", linestyle="", markersize=5)
    axes.set_xlabel("correct tokens that are distrusted (share)")
    axes.set_ylabel("uncertain tokens that are distrusted (share)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=SMALL, title="area under the curve", title_fontsize=SMALL)


def _draw_reliability(axes: Axes, bins: pd.DataFrame) -> None:
    """Draw the share of uncertain tokens over the detector's probability, for each seed and for all seeds together.

    Lines of single seeds are thin. Grey bars are the share of the tokens in each bin.
    """
    color = palette.MARKS["utaca"].color
    for _, rows in bins.groupby("seed"):
        filled = rows[rows["n"] > 0]
        axes.plot(filled["x"], filled["y"], color=color, linewidth=0.6, alpha=0.45)
    if len(bins):
        by_bin = bins.assign(place=bins.groupby("seed").cumcount())
        by_bin = by_bin.assign(above=by_bin["x"] * by_bin["n"], uncertain=by_bin["y"] * by_bin["n"])
        totals = by_bin.groupby("place")[["above", "uncertain", "n"]].sum()
        edges = np.arange(len(totals)) / len(totals)
        axes.bar(edges, totals["n"] / totals["n"].sum(), 1 / len(totals), align="edge", color="#d5d8db", zorder=0)
        filled = totals[totals["n"] > 0]
        pooled = filled["above"] / filled["n"], filled["uncertain"] / filled["n"]
        error = bins.drop_duplicates("seed")["area"].mean()
        name = bins["detector"].iloc[0]
        axes.plot(*pooled, color=color, marker="o", linewidth=2, label=f"{name}: calibration error {error:.3f}")
        axes.legend(loc="upper left", fontsize=SMALL)
    axes.set_xlabel("probability that a token is uncertain (p_N)")
    axes.set_ylabel("share of uncertain tokens")


def class_shares(shares: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw the shares of the classes of tokens, one bar for each budget; return the paths of the files.

    ``shares`` are the rows of :func:`utaca.reporting.tables.tokens.class_shares`.
    """
    with drawing(directory, "class_shares", (6.4, 1.3 + 0.34 * len(shares))) as (canvas, paths):
        axes = canvas.subplots()
        places = np.arange(len(shares))
        start = np.zeros(len(shares))
        for name, color in palette.CLASSES.items():
            share = shares[f"{name}_pct"].fillna(0).to_numpy()
            axes.barh(places, share, left=start, color=color, label=name, height=0.7)
            start += share
        for place, row in zip(places, shares.to_dict("records"), strict=True):
            words = " / ".join(f"{row[f'{name}_pct']:.1f}" for name in palette.CLASSES)
            axes.annotate(words, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL)
        axes.set_yticks(places, [f"{row.budget} ({row.n_tokens} tokens)" for row in shares.itertuples()])
        axes.set_ylim(len(shares) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the labelled tokens, %")
        canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=SMALL)
        documents = f"{shares['n_documents'].max()} documents" if len(shares) else "no documents"
        text = f"{config.reader.name}, labeller {config.labeller.name}, {documents}"
        canvas.suptitle(text, fontsize=SMALL, x=0.01, horizontalalignment="left")
    return paths


def expansions(shares: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """Draw the share of tokens that each point expands along its answers; return the paths of the files.

    ``shares`` are the rows of :func:`utaca.reporting.tables.tokens.expansions`.
    """
    with drawing(directory, "expansions", (6.4, 4.4)) as (canvas, paths):
        axes = canvas.subplots()
        drawn: dict[str, int] = {}
        for name, rows in shares.groupby("name", sort=False):
            family = palette.known(rows["family"].iloc[0])
            number = drawn.setdefault(family, 0)
            drawn[family] += 1
            mark = palette.MARKS[family]
            axes.errorbar(
                rows["position"] - 0.5,
                rows["share_pct"],
                yerr=bars(rows, "share_pct"),
                label=name,
                color=mark.color,
                marker=mark.marker if number < 2 else palette.MARKERS[number % len(palette.MARKERS)],
                markerfacecolor=palette.WHITE if number else mark.color,
                linestyle=palette.LINES[number % len(palette.LINES)],
                markersize=4,
                elinewidth=0.6,
                capsize=1.5,
            )
        axes.set_xlim(0, 10)
        axes.set_xticks(range(0, 11, 2), [f"{10 * tenth} %" for tenth in range(0, 11, 2)])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("place in the answer")
        axes.set_ylabel("tokens that are expanded, %")
        axes.grid()
        if len(shares):
            canvas.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=SMALL)
        axes.set_title(title(shares, config), fontsize=SMALL, loc="left")
    return paths
