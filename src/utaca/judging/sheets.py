"""Sheets that people fill in on the review pages, checked against the run that they are applied to.

A sheet is a CSV file that a review page exports: its columns are the fields of :class:`Correction` or
:class:`HumanScore`, in any order; further columns are ignored. Each row repeats what the person saw, so that a sheet
made for another run is refused.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pyarrow as pa
from pydantic import BeforeValidator, Field, NonNegativeInt, StringConstraints, ValidationError
from pydantic.dataclasses import dataclass

from utaca.errors import UserError
from utaca.records import SCHEMAS
from utaca.records.texts import opened

SPLITS = ("train", "validation", "test")
# Why the review page showed an answer: a check doubts its labels, or chance drew it.
DOUBTFUL = "doubtful"
RANDOM = "random"

Row = dict[str, Any]
Label = Annotated[int, Field(ge=0, le=2)]
Annotator = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@dataclass(frozen=True)
class Correction:
    """A token that a person reviewed: ``label`` is from the labeller (None if it failed), ``human`` from the person.

    ``where`` names file and row for messages. The columns ``KEY`` identify the token among a split's labels; the
    columns ``SEEN`` must be the same in the run as the person saw them.
    """

    where: str
    split: Literal[SPLITS]
    document: str
    budget: NonNegativeInt
    step: NonNegativeInt
    text: str
    label: Annotated[Label | None, BeforeValidator(lambda text: text or None)]
    sample: Literal[DOUBTFUL, RANDOM]
    human: Label
    annotator: Annotator

    KEY: ClassVar = ("document", "budget", "step")
    SEEN: ClassVar = ("text", "label")


@dataclass(frozen=True)
class HumanScore:
    """A person's score in [0, 1] of one attribute of an answer; all else is as for :class:`Correction`."""

    where: str
    document: str
    split: str
    point: str
    attribute: str
    prediction: str
    reference: str
    human: Annotated[float, Field(ge=0, le=1)]
    annotator: Annotator

    KEY: ClassVar = ("document", "split", "point", "attribute")
    SEEN: ClassVar = ("prediction", "reference")


Entry = TypeVar("Entry", Correction, HumanScore)


def columns(kind: type[Entry]) -> list[str]:
    """The columns of a sheet whose entries are of this ``kind``: the fields of the class except ``where``."""
    return [field.name for field in fields(kind) if field.name != "where"]


def read_sheet(path: Path, kind: type[Entry]) -> list[Entry]:
    """Read the entries of a sheet; raises :class:`UserError` that names the first faulty row or the missing column."""
    entries: dict[tuple[Any, ...], Entry] = {}
    try:
        for where, cells in _rows(path, columns(kind)):
            entry = kind(where=where, **cells)
            key = [getattr(entry, name) for name in kind.KEY]
            # Keys of corrections lack the split, which is the same for all labels that they are matched with.
            first = entries.setdefault((entry.split, *key), entry)
            if first is not entry:
                earlier = first.where.rpartition(", ")[2]  # "row 2"
                raise UserError(f"{where} repeats the decision of {earlier}; remove one of the two rows")
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error}); export it from the review page again") from error
    except ValidationError as error:
        # `where` is the row at which the loop stopped.
        fault = error.errors(include_url=False)[0]
        cell = f"{fault['input']!r} in column {fault['loc'][0]} ({fault['msg']})"
        raise UserError(f"{where} has {cell}; correct it, or export the sheet again") from None
    return list(entries.values())


def _rows(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of a CSV file: where each is, for messages, and its cells in the ``wanted`` columns.

    Raises :class:`UserError` if the file lacks a column or a row lacks cells, csv.Error if the file is not CSV.
    """
    with opened(path, "export it from the review page again, or move it away", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        header = reader.fieldnames or []
        missing = [name for name in wanted if name not in header]
        if missing:
            raise UserError(
                f"{path} has no column {missing[0]}; it needs {', '.join(wanted)}, separated by commas, as the "
                "review page exports them"
            )
        # Rows are numbered as spreadsheets do: the header is row 1.
        for number, row in enumerate(reader, start=2):
            where = f"{path}, row {number}"
            # DictReader puts surplus cells under the key None, and None for cells that are missing.
            if None in row or None in row.values():
                raise UserError(
                    f"{where} has more or fewer cells than the header; correct the row, or export the sheet again"
                )
            # The page puts an apostrophe before text that begins with one, or that looks like a formula.
            yield where, {name: row[name].removeprefix("'") for name in wanted}


def matched(rows: Iterable[Row], sheet: Sequence[Entry]) -> list[tuple[Entry, Row]]:
    """Find the row of each entry of a sheet among ``rows``, a split's uncorrected labels or a run's scores.

    Raises :class:`UserError` if an entry matches none of the rows, or the row differs from what the person saw.
    """
    advice = (
        "the sheet belongs to another run, or a spreadsheet program changed the cell. Export the sheet from this run's "
        "review page again and open it with all columns as text, or move it away"
    )
    key = sheet[0].KEY if sheet else ()
    by_key = {tuple(row[name] for name in key): row for row in rows}
    pairs = []
    for entry in sheet:
        of_entry = {name: getattr(entry, name) for name in key}
        row = by_key.get(tuple(of_entry.values()))
        what = f"{entry.where}: " + ", ".join(f"{name} {value!r}" for name, value in of_entry.items())
        if row is None:
            raise UserError(f"{what} is not in this run; {advice}")
        # The run may have been decoded, labelled or scored again since the person saw it.
        for column in entry.SEEN:
            seen = getattr(entry, column)
            if row[column] != seen:
                raise UserError(
                    f"{what}: the sheet has the {column} {seen!r}, but this run has {row[column]!r}; {advice}"
                )
        pairs.append((entry, row))
    return pairs


def correct(labels: pa.Table, split: str, sheet: Sequence[Correction]) -> pa.Table:
    """Replace a split's ``labels`` (schema "labels") if a person's label on the sheet differs; returns a new table.

    A changed token has the source "person" and a reason that names the annotator and the previous label. Raises
    :class:`UserError` as :func:`matched` does.
    """
    rows = labels.to_pylist()
    of_split = [correction for correction in sheet if correction.split == split]
    for correction, row in matched(rows, of_split):
        if correction.human != correction.label:
            before = "unlabelled" if correction.label is None else correction.label
            row.update(label=correction.human, source="person", reason=f"{correction.annotator}; was {before}")
    return pa.Table.from_pylist(rows, schema=SCHEMAS["labels"])
