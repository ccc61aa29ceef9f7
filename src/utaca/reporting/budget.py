"""The budget over the steps of an answer: where adaptive decoding spends its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import atomic_path, read
from utaca.reporting import statistics
from utaca.reporting.figures import drawing
from utaca.reporting.tables import corpus_in_words
from utaca.settings import schema

# Steps that fewer documents reach say more of these than of the method.
SHARE = 0.5
COLUMNS = ("point", "step", "n_documents", "k", "k_low", "k_high", "rolled_back_pct")


def budget(traces: Sequence[str | Path], config: schema.Config) -> pd.DataFrame:
    """Mean budget k of the accepted pass, in blocks, by operating point and step, from files of schema "traces".

    Points with a constant budget are left out, and so are steps that fewer than half of the documents reach. Each mean
    has its 95 % bootstrap interval over documents; ``rolled_back_pct`` is the share of them whose token was rolled
    back. Raises :class:`UserError` where there are no traces.
    """
    data = read(traces, "traces", ["document", "point", "step", "k", "rolled_back"]).to_pandas()
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
    """The frame of :func:`budget` as ``budget.csv``, and as a figure, a line a point with its interval."""
    path = Path(directory) / "budget.csv"
    with atomic_path(path) as scratch:
        frame.to_csv(scratch, index=False, float_format="%.6g", lineterminator="\n")
    with drawing(directory, "budget", (7.2, 3.4)) as (figure, paths):
        axes = figure.subplots()
        for point, own in frame.groupby("point", sort=False):
            (line,) = axes.plot(own["step"], own["k"], label=point, linewidth=1.2, drawstyle="steps-mid")
            axes.fill_between(
                own["step"], own["k_low"], own["k_high"], step="mid", alpha=0.15, color=line.get_color(), linewidth=0
            )
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.set_xlabel("step of the answer")
        axes.set_ylabel("budget k (blocks), mean")
        axes.grid(alpha=0.3)
        if not frame.empty:
            axes.legend(loc="best", fontsize=7)
        axes.set_title(f"{config.reader.name}, {corpus_in_words(config)}", fontsize=8)
    return [path, *paths]
