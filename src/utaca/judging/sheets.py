"""Sheets that people fill in on the review pages, checked against the run that they are applied to.

A sheet is CSV as a review page exports it: rows of ``LABEL_COLUMNS`` or ``SCORE_COLUMNS``, in any order, with other
columns if need be. Each row repeats what the person saw, so that a sheet made for another run is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pyarrow as pa
from pydantic import BeforeValidator, Field, NonNegativeInt, StringConstraints, ValidationError
from pydantic.dataclasses import dataclass

from utaca.errors import UserError
from utaca.records import SCHEMAS
from utaca.records.texts import opened

LABEL_COLUMNS = ("split", "document", "budget", "step", "text", "label", "sample", "human", "annotator")
SCORE_COLUMNS = ("document", "split", "point", "attribute", "prediction", "reference", "human", "annotator")
SPLITS = ("train", "validation", "test")
# Why the review page showed an answer: a check doubts its labels, or chance drew it.
DOUBTFUL, RANDOM = "doubtful", "random"

Row = dict[str, Any]
Label = Annotated[int, Field(ge=0, le=2)]
Annotator = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@dataclass(frozen=True)
class Correction:
    """A token that a person looked at: the label it had (None if the labeller failed) and the person's.

    ``where`` names file and row for messages. ``KEY`` are the columns that find the token in a split's labels, ``SEEN``
    those that must be as the person saw them.
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


def read_corrections(path: Path) -> list[Correction]:
    """The sheet of corrected labels. Raises :class:`UserError` naming the first faulty row, or the missing column."""
    return _read(path, Correction, LABEL_COLUMNS, ("split", *Correction.KEY))


def read_scores(path: Path) -> list[HumanScore]:
    """The sheet of human scores. Raises :class:`UserError` naming the first faulty row, or the missing column."""
    return _read(path, HumanScore, SCORE_COLUMNS, HumanScore.KEY)


def _read(path: Path, kind: type[Entry], columns: Sequence[str], key: Sequence[str]) -> list[Entry]:
    entries: dict[tuple[Any, ...], Entry] = {}
    try:
        with opened(path, "export it from the review page again, or move it away", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := [name for name in columns if name not in (reader.fieldnames or [])]:
                raise UserError(
                    f"{path} has no column {missing[0]}; it needs {', '.join(columns)}, separated by commas, as the "
                    "review page exports them"
                )
            # Rows are numbered as spreadsheets do: the header is row 1.
            for number, row in enumerate(reader, start=2):
                entry = _entry(f"{path}, row {number}", row, kind, columns)
                first = entries.setdefault(tuple(getattr(entry, name) for name in key), entry)
                if first is not entry:
                    earlier = first.where.rpartition(", ")[2]
                    raise UserError(f"{entry.where} decides again what {earlier} decided; keep one of the two")
    except csv.Error as error:
        raise UserError(f"{path} is no CSV file ({error}); export it from the review page again") from error
    return list(entries.values())


def _entry(where: str, row: Mapping[str | None, Any], kind: type[Entry], columns: Sequence[str]) -> Entry:
    if None in row or None in row.values():
        raise UserError(f"{where} has not as many cells as the header; mend it or export the sheet again")
    try:
        # The page puts an apostrophe before texts that a spreadsheet would take for a formula, and before itself.
        return kind(where=where, **{name: row[name].removeprefix("'") for name in columns})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        cell = f"{fault['input']!r} in column {fault['loc'][0]} ({fault['msg']})"
        raise UserError(f"{where} has {cell}; correct it, or export the sheet again") from None


def matched(rows: Iterable[Mapping[str, Any]], sheet: Sequence[Entry]) -> list[tuple[Entry, Row]]:
    """The entries of a sheet, each with its row among a split's uncorrected labels or a run's scores.

    Raises :class:`UserError` if an entry names none of the rows, or the person saw something else in it.
    """
    mend = (
        "the sheet was made for another run, or a spreadsheet changed the cell: export it from this run's review page, "
        "and have a spreadsheet take all columns for text, or move it away"
    )
    key = sheet[0].KEY if sheet else ()
    by_key = {tuple(row[name] for name in key): dict(row) for row in rows} if sheet else {}
    pairs = []
    for entry in sheet:
        row = by_key.get(tuple(getattr(entry, name) for name in key))
        what = f"{entry.where}: " + ", ".join(f"{name} {getattr(entry, name)!r}" for name in key)
        if row is None:
            raise UserError(f"{what} is not in this run; {mend}")
        for column in entry.SEEN:
            seen = getattr(entry, column)
            if row[column] != seen:
                raise UserError(f"{what} has the {column} {row[column]!r} in this run, not {seen!r}; {mend}")
        pairs.append((entry, row))
    return pairs


def correct(labels: pa.Table, split: str, sheet: Sequence[Correction]) -> pa.Table:
    """``labels`` of a split (schema "labels") with the persons' labels, if these differ.

    A changed token has the source "person" and a reason that names the annotator and the label before. Raises
    :class:`UserError` as :func:`matched` does.
    """
    rows = labels.to_pylist()
    changes = {
        (row["document"], row["budget"], row["step"]): {
            "label": correction.human,
            "source": "person",
            "reason": f"{correction.annotator}; was {'unlabelled' if correction.label is None else correction.label}",
        }
        for correction, row in matched(rows, [correction for correction in sheet if correction.split == split])
        if correction.human != correction.label
    }
    changed = [row | changes.get((row["document"], row["budget"], row["step"]), {}) for row in rows]
    return pa.Table.from_pylist(changed, schema=SCHEMAS["labels"]) if changes else labels
