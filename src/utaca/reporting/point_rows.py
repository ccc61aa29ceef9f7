"""Make the rows of tables of operating points: a point's name and settings, measures, counts and the paper's figures.

Which measures, counts and figures a table shows, it declares by its columns in ``tables.yaml``. Comparisons between
points are made by the module of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from utaca.reporting import paper
from utaca.reporting.measures import MEASURES, Measure
from utaca.reporting.registry import TableEntry
from utaca.reporting.results import PointResult, name_in_words, setting_in_words, variant_in_words
from utaca.reporting.statistics import NAN, Draws, Resampled, Row
from utaca.reporting.table import NOT_RUN
from utaca.settings import schema

COUNTS: dict[str, Callable[[PointResult], int]] = {
    "n_documents": lambda point: len(point.documents),
    "n_judgements": lambda point: point.total("attributes"),
    "n_failed_judgements": lambda point: point.n_failed,
    "n_memory": lambda point: point.total("memory"),
    "n_incoherent": lambda point: point.total("incoherent"),
}
"""How each count of a point is made, by its column."""


def identified(point: PointResult, config: schema.Config) -> Row:
    """The columns that identify a point in every table of points: its name and settings, and why it was not run."""
    return {
        "method": point.name,
        "setting": NOT_RUN if point.not_run else setting_in_words(point, config),
        "point": name_in_words(point, config),
        "decoder": point.decoder,
        "family": point.family,
        "budget": point.budget,
        "policy": point.policy,
        "variant": variant_in_words(point, config),
        "trigger": str(point.trigger or ""),
        "detector": point.detector,
        "drafts": point.drafts,
        "draft_budget": point.draft_budget,
        "seeds": len(point.seeds),
        "lacks": point.not_run,
    }


def measured(columns: Iterable[str], figure: Callable[[Measure], Resampled]) -> Row:
    """The columns of a row that are measures, each with its interval.

    ``columns`` may name others too, which are left out. ``figure`` computes a measure, without its factor.
    """
    row: Row = {}
    for column in columns:
        if column in MEASURES:
            measure = MEASURES[column]
            figure(measure).put(row, column, measure.factor)
    return row


def point_row(
    table: TableEntry,
    point: PointResult,
    config: schema.Config,
    draws: Draws,
    *,
    figures: Mapping[str, float] | None = None,
    one_at_a_time: PointResult | None = None,
) -> Row:
    """Make the row of a point in a table; a point that was not run has a row without figures.

    Args:
        table: Its columns say what the row shows.
        draws: The bootstrap's draws of the point's documents, for the intervals.
        figures: What the paper reports of the point, by column; None if it does not report it.
        one_at_a_time: The point's results over the answers that were decoded one at a time, from which times and peak
            memory are taken; None if all answers were.
    """
    timed_point = one_at_a_time or point
    timed_draws = Draws.of(len(timed_point.documents), config, "time")

    def figure(measure: Measure) -> Resampled:
        if point.not_run:
            return Resampled()
        if measure.timed:
            return timed_point.resampled(measure, timed_draws)
        return point.resampled(measure, draws)

    row = identified(point, config)
    for column, count in COUNTS.items():
        if column in table.names:
            row[column] = 0 if point.not_run else count(point)
    row |= measured(table.names, figure)
    row["n_timed"] = len(timed_point.documents)
    row["peak_gib"] = NAN if point.not_run else peak_gib(timed_point)
    return row | paper.reference(table.of_paper, figures)


def peak_gib(point: PointResult) -> float:
    """The highest peak memory of any answer of a point, in GiB; NaN if peak memory was not measured."""
    return float(pd.Series(point.sums["peak_bytes"]).max()) / 2**30
