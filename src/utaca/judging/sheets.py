"""Sheets that people fill in on the review pages, checked against the run that they are applied to.

A sheet is CSV as a review page exports it: rows of ``LABEL_COLUMNS`` or ``SCORE_COLUMNS``, in any order, with other
columns beside them if need be. Each row repeats what the person saw, so that a sheet made for another run is refused
and never applied to what nobody looked at.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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
    """A token that a person looked at: the label it had (None where the labeller failed) and the person's.

    ``where`` names file and row for messages.
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

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.split, self.document, self.budget, self.step


@dataclass(frozen=True)
class HumanScore:
    """A person's score in [0, 1] of one attribute of an answer; ``where`` names file and row for messages."""

    where: str
    document: str
    split: str
    point: str
    attribute: str
    prediction: str
    reference: str
    human: Annotated[float, Field(ge=0, le=1)]
    annotator: Annotator

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.document, self.split, self.point, self.attribute


Entry = TypeVar("Entry", Correction, HumanScore)


def read_corrections(path: Path) -> list[Correction]:
    """The sheet of corrected labels. Raises :class:`UserError` naming the first faulty row, or the missing column."""
    return _read(path, Correction, LABEL_COLUMNS)


def read_scores(path: Path) -> list[HumanScore]:
    """The sheet of human scores. Raises :class:`UserError` naming the first faulty row, or the missing column."""
    return _read(path, HumanScore, SCORE_COLUMNS)


def _read(path: Path, kind: type[Entry], columns: Sequence[str]) -> list[Entry]:
    found: dict[tuple, Entry] = {}
    for where, row in _rows(path, columns):
        try:
            entry = kind(where=where, **row)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            said = f"{fault['input']!r} in column {fault['loc'][0]} ({fault['msg']})"
            raise UserError(f"{where} has {said}; correct it, or export the sheet again") from None
        if entry.key in found:
            first = found[entry.key].where.rpartition(", ")[2]
            raise UserError(f"{where} decides again what {first} decided; keep one of the two")
        found[entry.key] = entry
    return list(found.values())


def matched_labels(labels: pa.Table, split: str, sheet: Iterable[Correction]) -> list[tuple[Correction, Row]]:
    """The sheet's rows about ``split``, each with its token among the uncorrected ``labels`` of that split.

    Raises :class:`UserError` where a row names no token of them, or saw another text or label.
    """
    own = [correction for correction in sheet if correction.split == split]
    tokens = {(row["document"], row["budget"], row["step"]): row for row in labels.to_pylist()} if own else {}
    pairs = []
    for correction in own:
        row = tokens.get(correction.key[1:])
        what = f"document {correction.document!r}, budget {correction.budget}, step {correction.step} of split {split}"
        pairs.append((correction, _same(correction, row, ("text", "label"), what)))
    return pairs


def matched_scores(scores: Iterable[Mapping[str, Any]], sheet: Iterable[HumanScore]) -> list[tuple[HumanScore, Row]]:
    """The sheet's rows, each with its row of schema "scores".

    Raises :class:`UserError` where a row names no judged attribute, or saw another prediction or reference.
    """
    judged = {(row["document"], row["split"], row["point"], row["attribute"]): dict(row) for row in scores}
    pairs = []
    for score in sheet:
        row = judged.get(score.key)
        what = f"the {score.attribute} of document {score.document!r} under {score.split}/{score.point}"
        pairs.append((score, _same(score, row, ("prediction", "reference"), what)))
    return pairs


def correct(labels: pa.Table, split: str, sheet: Sequence[Correction]) -> pa.Table:
    """``labels`` of a split (schema "labels") with the persons' where these differ.

    A changed token has the source "person" and a reason that names the annotator and the label before. Raises
    :class:`UserError` as :func:`matched_labels` does.
    """
    changes = {
        (row["document"], row["budget"], row["step"]): {
            "label": correction.human,
            "source": "person",
            "reason": f"{correction.annotator}; was {'unlabelled' if correction.label is None else correction.label}",
        }
        for correction, row in matched_labels(labels, split, sheet)
        if correction.human != correction.label
    }
    if not changes:
        return labels
    rows = [row | changes.get((row["document"], row["budget"], row["step"]), {}) for row in labels.to_pylist()]
    return pa.Table.from_pylist(rows, schema=SCHEMAS["labels"])


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and cells of every row, numbered as spreadsheets do: the header is row 1."""
    try:
        with opened(path, "export it from the review page again, or move it away", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if missing := [name for name in columns if name not in (reader.fieldnames or [])]:
                raise UserError(
                    f"{path} has no column {missing[0]}; it needs {', '.join(columns)}, separated by commas, as the "
                    "review page exports them"
                )
            for number, row in enumerate(reader, start=2):
                where = f"{path}, row {number}"
                if None in row or None in row.values():
                    raise UserError(f"{where} has not as many cells as the header; mend it or export the sheet again")
                # The page puts it before texts that a spreadsheet would take for a formula, and before itself.
                yield where, {name: row[name].removeprefix("'") for name in columns}
    except csv.Error as error:
        raise UserError(f"{path} is no CSV file ({error}); export it from the review page again") from error


def _same(entry: Correction | HumanScore, row: Row | None, columns: Sequence[str], what: str) -> Row:
    """``row``, which must be there and hold what the person saw."""
    mend = (
        "the sheet was made for another run, or a spreadsheet changed the cell: export it from this run's review page, "
        "and have a spreadsheet take all columns for text, or move it away"
    )
    if row is None:
        raise UserError(f"{entry.where}: {what} is not in this run; {mend}")
    for column in columns:
        seen = getattr(entry, column)
        if row[column] != seen:
            raise UserError(f"{entry.where}: {what} has the {column} {row[column]!r} in this run, not {seen!r}; {mend}")
    return row
