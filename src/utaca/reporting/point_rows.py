"""Rows of tables of operating points: who a point is, and of its measures, counts and paper figures those that a table
declares.

A table declares them by its columns in ``tables.yaml``. Comparisons between points are code of the table's own.
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
"""Counts of a point, by their columns."""


def identified(point: PointResult, config: schema.Config) -> Row:
    """The columns that every table of points has: the point's name, what it consists of, and why it was not run."""
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
        "seeds": len(point.seeds),
        "lacks": point.not_run,
    }


def measured(columns: Iterable[str], figure: Callable[[Measure], Resampled]) -> Row:
    """The measures among ``columns``, each with its interval; ``figure`` gives a measure's ratio."""
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
    alone: PointResult | None = None,
) -> Row:
    """The row of a point in a table; a point that was not run has a row without figures.

    Args:
        table: Its columns say what the row shows.
        draws: The draws of the bootstrap that the intervals come from.
        figures: What the paper reports of the point, if it does.
        alone: The results of those answers of the point that were decoded each by itself, from which times and peak
            memory are then taken.
    """
    clocked = alone or point
    draws_of_time = Draws.of(len(clocked.documents), config, "time")

    def figure(measure: Measure) -> Resampled:
        if point.not_run:
            return Resampled()
        if measure.timed:
            return clocked.resampled(measure, draws_of_time)
        return point.resampled(measure, draws)

    row = identified(point, config)
    row |= {column: 0 if point.not_run else count(point) for column, count in COUNTS.items() if column in table.names}
    row |= measured(table.names, figure)
    row["n_timed"] = len(clocked.documents)
    row["peak_gib"] = NAN if point.not_run else peak_gib(clocked)
    return row | paper.reference(table.of_paper, figures)


def peak_gib(point: PointResult) -> float:
    """The highest peak memory of any answer of a point, in GiB; NaN if peak memory was not measured."""
    return float(pd.Series(point.sums["peak_bytes"]).max()) / 2**30
