"""Sheets that people fill in on the review pages, checked against the run that they are applied to.

A sheet is CSV as a review page exports it: rows of ``LABEL_COLUMNS`` or ``SCORE_COLUMNS``, in any order, with other
columns beside them if need be. Each row repeats what the person saw, so that a sheet made for another run is refused
and never applied to what nobody looked at.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from utaca.errors import UserError
from utaca.records import SCHEMAS
from utaca.records.texts import opened

LABEL_COLUMNS = ("split", "document", "budget", "step", "text", "label", "sample", "human", "annotator")
SCORE_COLUMNS = ("document", "suite", "point", "attribute", "prediction", "reference", "human", "annotator")
SPLITS = ("train", "validation", "test")
# Why the review page showed an answer: a check doubts its labels, or chance drew it.
DOUBTFUL, RANDOM = "doubtful", "random"

Row = dict[str, Any]


@dataclass(frozen=True)
class Correction:
    """A token that a person looked at: the label it had (None where the labeller failed) and the person's.

    ``where`` names file and row for messages.
    """

    where: str
    split: str
    document: str
    budget: int
    step: int
    text: str
    label: int | None
    sample: str
    human: int
    annotator: str


@dataclass(frozen=True)
class HumanScore:
    """A person's score in [0, 1] of one attribute of an answer; ``where`` names file and row for messages."""

    where: str
    document: str
    suite: str
    point: str
    attribute: str
    prediction: str
    reference: str
    human: float
    annotator: str


def read_corrections(path: Path) -> list[Correction]:
    """The sheet of corrected labels. Raises :class:`UserError` naming the first faulty row, or the missing column."""
    found: dict[tuple[str, str, int, int], Correction] = {}
    for where, row in _rows(path, LABEL_COLUMNS):
        correction = Correction(
            where=where,
            split=_choice(where, "split", row["split"], SPLITS),
            document=row["document"],
            budget=_whole(where, "budget", row["budget"]),
            step=_whole(where, "step", row["step"]),
            text=row["text"],
            label=int(given) if (given := _choice(where, "label", row["label"], ("", "0", "1", "2"))) else None,
            sample=_choice(where, "sample", row["sample"], (DOUBTFUL, RANDOM)),
            human=int(_choice(where, "human", row["human"], ("0", "1", "2"))),
            annotator=_annotator(where, row["annotator"]),
        )
        key = correction.split, correction.document, correction.budget, correction.step
        _once(found, key, correction)
    return list(found.values())


def read_scores(path: Path) -> list[HumanScore]:
    """The sheet of human scores. Raises :class:`UserError` naming the first faulty row, or the missing column."""
    found: dict[tuple[str, str, str, str], HumanScore] = {}
    for where, row in _rows(path, SCORE_COLUMNS):
        texts = {name: row[name] for name in SCORE_COLUMNS if name not in ("human", "annotator")}
        score = HumanScore(
            where, **texts, human=_share(where, "human", row["human"]), annotator=_annotator(where, row["annotator"])
        )
        _once(found, (score.document, score.suite, score.point, score.attribute), score)
    return list(found.values())


def matched_labels(labels: pa.Table, split: str, sheet: Iterable[Correction]) -> list[tuple[Correction, Row]]:
    """The sheet's rows about ``split``, each with its token among the uncorrected ``labels`` of that split.

    Raises :class:`UserError` where a row names no token of them, or saw another text or label.
    """
    own = [correction for correction in sheet if correction.split == split]
    tokens = {(row["document"], row["budget"], row["step"]): row for row in labels.to_pylist()} if own else {}
    pairs = []
    for correction in own:
        row = tokens.get((correction.document, correction.budget, correction.step))
        what = f"document {correction.document!r}, budget {correction.budget}, step {correction.step} of split {split}"
        pairs.append((correction, _same(correction, row, ("text", "label"), what)))
    return pairs


def matched_scores(scores: Iterable[Mapping[str, Any]], sheet: Iterable[HumanScore]) -> list[tuple[HumanScore, Row]]:
    """The sheet's rows, each with its row of schema "scores".

    Raises :class:`UserError` where a row names no judged attribute, or saw another prediction or reference.
    """
    judged = {(row["document"], row["suite"], row["point"], row["attribute"]): dict(row) for row in scores}
    pairs = []
    for score in sheet:
        row = judged.get((score.document, score.suite, score.point, score.attribute))
        what = f"the {score.attribute} of document {score.document!r} under {score.suite}/{score.point}"
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


def _choice(where: str, column: str, text: str, allowed: Sequence[str]) -> str:
    if text in allowed:
        return text
    listed = ", ".join(choice or "empty" for choice in allowed)
    raise UserError(f"{where} has {text!r} in column {column}; give one of {listed}")


def _whole(where: str, column: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise UserError(f"{where} has {text!r} in column {column}; give a whole number, as the review page exports it")


def _share(where: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value <= 1:
        return value
    raise UserError(f"{where} has {text!r} in column {column}; give a number from 0 to 1")


def _annotator(where: str, text: str) -> str:
    if text.strip():
        return text.strip()
    raise UserError(f"{where} names no annotator; write who decided in column annotator")


def _once(found: dict, key: tuple, entry: Correction | HumanScore) -> None:
    if key in found:
        first = found[key].where.rpartition(", ")[2]
        raise UserError(f"{entry.where} decides again what {first} decided; keep one of the two")
    found[key] = entry


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
