"""The figure of retrieval: recall of the gold block by layer, and CAS given recall."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.ticker import MaxNLocator

from utaca.reporting import palette
from utaca.reporting.figures import SMALL, bars, drawing, title
from utaca.reporting.retrieval import by_layer, facts, prompts
from utaca.settings import schema

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = (
    palette.SKY, palette.ORANGE, palette.GREEN, palette.PURPLE, palette.VERMILLION, palette.BLUE, palette.BLACK
)  # fmt: skip
_MARKERS = "osD^vPX"
_GIVEN = {
    "recalled": ("recalled by the best layer", palette.BLUE, palette.BLUE, "o", -0.08),
    "missed": ("not recalled", palette.VERMILLION, palette.WHITE, "s", 0.08),
}


def draw(frame: pd.DataFrame, directory: str | Path, config: schema.Config) -> list[Path]:
    """The frame of :func:`utaca.reporting.retrieval.by_layer`, its fixed budgets alone; ``recall.png`` and ``.svg``.

    On the left a line a K, dotted what blocks drawn at random recall; on the right CAS by K. Bars are 95 % intervals.
    """
    fixed = frame[~frame["adaptive"].astype(bool)]
    with drawing(directory, "recall", (7.4, 4.0)) as (canvas, paths):
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        _recall(left, fixed)
        _given(right, fixed[fixed["best"].astype(bool)])
        for panel, columns in ((left, 4), (right, 1)):
            panel.set_ylim(-2, 102)
            panel.grid(axis="y")
            if len(fixed):
                panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=SMALL)
        canvas.suptitle(title(frame, config) + ("" if len(fixed) else ": no facts to count"), fontsize=SMALL)
    return paths


def _recall(panel: Axes, fixed: pd.DataFrame) -> None:
    for number, (k, own) in enumerate(fixed.groupby("k")):
        color = _COLORS[number % len(_COLORS)]
        panel.errorbar(
            own["layer"], own["recall_pct"], yerr=bars(own, "recall_pct"), label=f"K={k}", color=color, capsize=2,
            markeredgecolor=palette.edge(color), marker=_MARKERS[number % len(_MARKERS)], markersize=5, elinewidth=0.7,
            linestyle=palette.LINES[number // len(_COLORS) % len(palette.LINES)],
        )  # fmt: skip
        panel.axhline(own["chance_pct"].iloc[0], color=color, linewidth=0.9, linestyle=":")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.set_xlabel("layer")
    panel.set_ylabel("recall of the gold block %")
    panel.set_title("Recall by layer; dotted: by chance", fontsize=9, loc="left")


def _given(panel: Axes, best: pd.DataFrame) -> None:
    best = best.sort_values("k", kind="stable").reset_index(drop=True)
    for name, (label, color, face, marker, aside) in _GIVEN.items():
        cas = f"cas_{name}_pct"
        panel.errorbar(
            best.index + aside, best[cas], yerr=bars(best, cas), label=label, color=color,
            markerfacecolor=face, marker=marker, markersize=5, elinewidth=0.7, capsize=2,
        )  # fmt: skip
    panel.set_xticks(range(len(best)), [str(k) for k in best["k"]])
    panel.margins(x=0.1)
    panel.set_xlabel("K (blocks)")
    panel.set_ylabel("CAS %")
    panel.set_title("CAS given recall", fontsize=9, loc="left")


MAKERS = {"recall": lambda files, config: by_layer(facts(files, prompts(config), config), config)}
DRAW = {"recall": draw}
