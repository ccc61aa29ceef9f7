"""Make tables of operating points from their declarations in ``tables.yaml``, without code for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from utaca.reporting import paper
from utaca.reporting.point_rows import point_row
from utaca.reporting.registry import ENTRIES, Files, TableEntry
from utaca.reporting.results import Identity, PointResult, points_shown, timed
from utaca.reporting.statistics import Draws, Row
from utaca.reporting.table import framed
from utaca.settings import schema


def points(files: Files, config: schema.Config, name: str) -> pd.DataFrame:
    """Make the table ``name``, with a row for each operating point that it shows."""
    table = PointTable.of(name, files, config)
    return table.framed(table.rows())


@dataclass(frozen=True)
class PointTable:
    """A table of the operating points of a split, as its ``entry`` declares it.

    ``one_at_a_time`` has the results of the answers that were decoded one at a time; it is empty if all were. All
    points are resampled by the same ``draws``.
    """

    entry: TableEntry
    config: schema.Config
    points: Sequence[PointResult]
    draws: Draws
    one_at_a_time: Mapping[Identity, PointResult]

    @classmethod
    def of(cls, name: str, files: Files, config: schema.Config) -> PointTable:
        """Read the points that the table ``name`` shows."""
        entry = ENTRIES[name]
        # The first section of `decode` that a table shows has the name of the table's split.
        split = entry.points[0]
        points = points_shown(files, config, split, *entry.points)
        draws = Draws.of(len(points[0].documents), config, split)
        return cls(entry, config, points, draws, timed(files.get("timed_answers", ())))

    @property
    def reported(self) -> Mapping[str, Mapping[paper.PointKey, paper.Figures]]:
        """The paper's figures by reader and point; {} if the table shows none."""
        return getattr(paper.tables(), self.entry.paper) if self.entry.paper else {}

    @property
    def reader(self) -> str:
        """The paper's reader whose figures the table shows."""
        return paper.reference_reader(self.reported, self.config.reader.name)

    def rows(self) -> list[Row]:
        """A row for each point, with the paper's figures if it reports the point."""
        reported = self.reported.get(self.reader, {})
        rows = []
        for point in self.points:
            figures = reported.get(point.key) if point.in_paper else None
            row = point_row(
                self.entry,
                point,
                self.config,
                self.draws,
                figures=figures,
                one_at_a_time=self.one_at_a_time.get(point.identity),
            )
            rows.append(row)
        return rows

    def framed(self, rows: Sequence[Row]) -> pd.DataFrame:
        """Make the frame of the table from its ``rows``, with the words that captions of such tables use."""
        # The fewest documents over which the times of a point were measured.
        n_timed = min(row["n_timed"] for row in rows)
        documents = f"{n_timed} document{'s' * (n_timed != 1)}"
        return framed(
            rows,
            len(self.points[0].documents),
            reader=self.reader,
            split=self.entry.points[0].replace("test", "long-context test"),
            timed=f"{documents}, decoded one at a time" if self.one_at_a_time else documents,
        )
