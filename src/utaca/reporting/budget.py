"""The budget over the steps of an answer: where adaptive decoding spends its blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import read
from utaca.reporting import palette, statistics
from utaca.reporting.figures import SMALL, drawing, title
from utaca.reporting.generation import usual
from utaca.reporting.points import Point, of_label, setting_in_words
from utaca.settings import schema

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Steps that fewer documents reach say more of these than of the method.
SHARE = 0.5
COLUMNS = ("point", "step", "n_documents", "k", "k_low", "k_high", "rolled_back_pct")


def budget(traces: Sequence[str | Path], config: schema.Config, only: Collection[str] = ()) -> pd.DataFrame:
    """Mean budget k of the accepted pass, in blocks, by operating point and step, from files of schema "traces"; of
    labels ``only``, if any.

    Points with a constant budget are left out, and so are steps that fewer than half of the documents reach. Each mean
    has its 95 % bootstrap interval over documents; ``rolled_back_pct`` is the share of them whose token was rolled
    back. Raises :class:`UserError` where there are no traces.
    """
    data = read(traces, "traces", ["document", "point", "step", "k", "rolled_back"]).to_pandas()
    data = data[data["point"].isin(list(only))] if only else data
    if data.empty:
        raise UserError(f"{traces[0]} holds no traces; make it again with at least one document")
    documents = sorted(data["document"].unique())
    counts = statistics.resamples(len(documents), config.scale.bootstrap, config.seed, "budget")
    rows = []
    for point, own in data.groupby("point", sort=False):
        if own["k"].nunique() < 2:
            continue
        k = own.pivot(index="document", columns="step", values="k").reindex(documents).to_numpy(dtype=np.float64)
        back = own.pivot(index="document", columns="step", values="rolled_back").reindex(documents)
        for step in range(k.shape[1]):
            reached = ~np.isnan(k[:, step])
            if reached.sum() < SHARE * len(documents):
                break
            mean = statistics.ratio_interval(np.nan_to_num(k[:, step]), reached.astype(np.float64), counts)
            rolled = 100 * float(back.iloc[reached, step].astype(float).mean())
            rows.append((point, step, int(reached.sum()), mean.value, mean.low, mean.high, rolled))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def draw(frame: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """The frame of :func:`budget`, a panel a K_max and update policy; ``budget.png`` and ``.svg``.

    A panel holds UT-ACA and, where there is one, token agreement of the same setting; dashed: another detector.
    """
    panels: dict[str, list[tuple[str, Point | None]]] = {}
    for label in frame["point"].unique():
        point = of_label(label, config)
        panels.setdefault(point.setting if point else label, []).append((label, point))
    panels = dict(sorted(panels.items(), key=lambda item: item[1][0][1].key[1] if item[1][0][1] else 0))
    width = max(1, min(3, len(panels)))
    height = max(1, -(-len(panels) // width))
    with drawing(directory, "budget", (1.2 + 2.4 * width, 1.1 + 1.9 * height)) as (figure, paths):
        grid = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False).ravel()
        named: dict[str, Artist] = {}
        for axes, (setting, members) in zip(grid, panels.items(), strict=False):
            axes.set_title(setting, fontsize=9, loc="left")
            for label, point in members:
                mark = palette.mark(point.key[0] if point else "")
                line = _line(
                    axes, frame[frame["point"] == label], mark.color, usual=point is None or usual(point, config)
                )
                other = setting_in_words(point, config).removeprefix(point.setting) if point else ""
                named.setdefault((point.method if point else setting) + other, line)
            axes.margins(x=0.01)
            axes.grid()
        grid[0].set_ylim(bottom=0)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[max(len(panels) - width, 0) : len(panels)]:
            axes.set_xlabel("step of the answer")
            axes.tick_params(labelbottom=True)
        figure.supylabel("budget k (blocks), mean", fontsize=9)
        if named:
            figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=SMALL)
        figure.suptitle(title(frame, config), fontsize=SMALL)
    return paths


def _line(axes: Axes, own: pd.DataFrame, color: str, *, usual: bool) -> Artist:
    """A point's mean as steps, with its interval as a band."""
    band = {"step": "mid", "alpha": 0.2 if usual else 0.1, "color": color, "linewidth": 0}
    axes.fill_between(own["step"], own["k_low"], own["k_high"], **band)
    style = palette.LINES[0 if usual else 1]
    return axes.plot(own["step"], own["k"], linewidth=1.4, drawstyle="steps-mid", color=color, linestyle=style)[0]


MAKERS = {
    "budget": lambda files, config: budget(files["test_traces"], config, config.shown("test", "generation")),
}
DRAW = {"budget": draw}
