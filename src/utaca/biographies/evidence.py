"""Documents that have lost what answers their question, so that a reader's failures can be learned from.

The paper trains its detector under complete, partial and missing evidence in RULER alone (appendix "Calibration"). A
reader that can answer seldom fails otherwise, and a detector of three classes has little to learn them from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from utaca.biographies.source import sentences
from utaca.settings.schema import EVIDENCE

_COMPLETE, _PARTIAL, _ = EVIDENCE
_SPACES, _BREAKS = re.compile(" *"), re.compile(r"\n{3,}")


def variants(document: Mapping[str, Any], conditions: Collection[str]) -> Iterator[dict[str, Any]]:
    """The document under each of the ``conditions`` of its evidence: what it is asked by, its facts and its text.

    ``document`` is a row of schema "documents". Complete evidence leaves it as it is. Missing evidence takes every
    sentence of the biography that states the value of a fact; partial evidence those of half of the facts, rounded up,
    which the document's id draws. A sentence may state the values of several facts. What is told of other people, and
    values that a person had before, stay. Ids are those of :func:`named`.
    """
    asked = {key: document[key] for key in ("id", "person", "facts", "text")}
    attributes = [fact["attribute"] for fact in document["facts"]]
    for condition in conditions:
        if condition == _COMPLETE:
            yield asked
            continue
        half = random.Random(f"evidence {document['id']}").sample(attributes, -(-len(attributes) // 2))
        lost = half if condition == _PARTIAL else attributes
        yield asked | {"id": named(document["id"], condition), "text": _without(document, lost)}


def named(document: str, condition: str) -> str:
    """The id of a document under a condition of its evidence."""
    return document if condition == _COMPLETE else f"{document}/{condition}"


def original(document: str) -> str:
    """The id of the document that :func:`named` was given."""
    return document.partition("/")[0]


def condition_of(document: str) -> str:
    """The condition of evidence in the id of a document."""
    return document.partition("/")[2] or _COMPLETE


def _without(document: Mapping[str, Any], lost: Collection[str]) -> str:
    """The text without the sentences that state the values of the facts ``lost``."""
    places = [place for place in document["evidence"] if place["attribute"] in lost]
    values = {fact["value"] for fact in document["facts"] if fact["attribute"] in lost}
    values |= {place["text"] for place in places}
    stated = re.compile("|".join(rf"(?<!\w){re.escape(value)}(?!\w)" for value in sorted(values)), re.IGNORECASE)
    text, kept, end = document["text"], [], 0
    for span in document["spans"]:
        if span["kind"] != "biography":
            continue
        for first, last in sentences(text, span["start"], span["end"]):
            overlaps = any(place["start"] < last and first < place["end"] for place in places)
            if overlaps or stated.search(text, first, last):
                kept.append(text[end:first])
                end = _SPACES.match(text, last).end()
    return _BREAKS.sub("\n\n", "".join([*kept, text[end:]]))
