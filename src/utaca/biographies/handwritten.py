"""Biographies that people wrote by hand: a JSONL file with a :class:`Biography` on each line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from utaca.biographies.evidence import verbatim
from utaca.errors import UserError
from utaca.records.texts import Filled, checked, records
from utaca.sizes import FACTS

REMEDY = "correct it, or name another JSONL file of biographies"


class _Fact(TypedDict):
    """A fact that the text states with this ``value``; ``also`` are other forms of the value."""

    attribute: Filled
    value: Filled
    also: list[str]


class Biography(TypedDict):
    """A handwritten biography: its ``facts``, and the attributes that are ``absent`` from its text."""

    id: Filled
    person: Filled
    text: Filled
    facts: list[_Fact]
    absent: list[Filled]


def biographies(path: str | Path) -> list[Biography]:
    """Read the biographies of a JSONL file; raises :class:`UserError` if it is missing or a row is malformed."""
    rows: dict[str, Biography] = {}
    for where, record in records(path, REMEDY):
        row = checked(Biography, record, where, REMEDY)
        for fact in row["facts"]:
            if fact["value"] not in row["text"]:
                raise UserError(f"{where} has the value {fact['value']!r}, but its text does not contain it; {REMEDY}")
        attributes = [fact["attribute"] for fact in row["facts"]] + row["absent"]
        repeated = [attribute for attribute in attributes if attributes.count(attribute) > 1]
        if repeated:
            raise UserError(f"{where} has the attribute {repeated[0]!r} twice; {REMEDY}")
        if rows.setdefault(row["id"], row) is not row:  # an earlier row has this id
            raise UserError(f"{where} has the same id {row['id']!r} as an earlier row; {REMEDY}")
    if not rows:
        raise UserError(f"{path} has no biographies; {REMEDY}")
    return list(rows.values())


def handwritten(path: str | Path, count: int) -> Iterator[dict[str, Any]]:
    """Take the first ``count`` biographies of a file for the test split, as rows of schema "biographies".

    A row has the whole text as its only sentence, and at most the first six facts. Raises :class:`UserError` as
    :func:`biographies` does, and if the file has fewer biographies, or one has no facts.
    """
    rows = biographies(path)
    if len(rows) < count:
        raise UserError(f"{path} has {len(rows)} biographies, but {count} are asked for; ask for fewer")
    for row in rows[:count]:
        if not row["facts"]:
            raise UserError(f"{path}: the biography {row['id']!r} states no fact to ask for; {REMEDY}")
        asked = row["facts"][: FACTS["test"]]
        facts = [{"attribute": fact["attribute"], "value": fact["value"]} for fact in asked]
        yield {
            "id": row["id"],
            "split": "test",
            "person": row["person"],
            "locale": "",
            "facts": facts,
            "sentences": [row["text"]],
            "stated": verbatim(row["text"], row["person"], facts),
            "writer": "people",
        }
