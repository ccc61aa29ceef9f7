"""Documents without the evidence that answers their question: examples of a reader's failures for detectors.

The paper trains its detector under complete, partial and missing evidence in RULER alone (appendix "Calibration"). A
good reader seldom fails under complete evidence, which leaves a detector of three classes little to learn from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from utaca.biographies.source import biography_spans, sentences
from utaca.settings.schema import EVIDENCE

_COMPLETE, _PARTIAL, _ = EVIDENCE
_SPACES, _BREAKS = re.compile(" *"), re.compile(r"\n{3,}")


def variants(document: Mapping[str, Any], conditions: Collection[str]) -> Iterator[dict[str, Any]]:
    """Id, person, facts and text of a document under each of the ``conditions`` of its evidence.

    ``document`` is a row of schema "documents". Complete evidence leaves the text as it is. Missing evidence removes
    every sentence of the biography that states the value of a fact. Partial evidence removes those of half of the
    facts, rounded up, drawn by the document's id; of an only fact it removes the second half of the value's words, or
    of its letters. A sentence may state the values of several facts. Ids are those of :func:`named`.
    """
    attributes = [fact["attribute"] for fact in document["facts"]]
    half = random.Random(f"evidence {document['id']}").sample(attributes, -(-len(attributes) // 2))
    for condition in conditions:
        if condition == _COMPLETE:
            text = document["text"]
        elif condition == _PARTIAL and len(attributes) == 1:
            text = _halved(document)
        else:
            text = _without(document, half if condition == _PARTIAL else attributes)
        asking = {key: document[key] for key in ("person", "facts")}
        yield {"id": named(document["id"], condition), **asking, "text": text}


def named(document: str, condition: str) -> str:
    """The id of a document under a condition of its evidence."""
    return document if condition == _COMPLETE else f"{document}/{condition}"


def original(document: str) -> str:
    """The id of a document under complete evidence."""
    return document.partition("/")[0]


def condition_of(document: str) -> str:
    """The condition of evidence in the id of a document."""
    return document.partition("/")[2] or _COMPLETE


def _stated(document: Mapping[str, Any], attributes: Collection[str]) -> re.Pattern[str]:
    """A pattern of the values of some facts, as in the reference and as in the document."""
    values = {fact["value"] for fact in document["facts"] if fact["attribute"] in attributes}
    values |= {place["text"] for place in document["evidence"] if place["attribute"] in attributes}
    longest = sorted(values, key=lambda value: (-len(value), value))
    return re.compile("|".join(rf"(?<!\w){re.escape(value)}(?!\w)" for value in longest), re.IGNORECASE)


def _halved(document: Mapping[str, Any]) -> str:
    """The text with the first half of the value of its only fact."""
    stated = _stated(document, [document["facts"][0]["attribute"]])

    def half(match: re.Match[str]) -> str:
        words = match[0].split()
        return " ".join(words[: -(-len(words) // 2)]) if len(words) > 1 else match[0][: -(-len(match[0]) // 2)]

    text, kept, end = document["text"], [], 0
    for first, last in biography_spans(document):
        kept += [text[end:first], stated.sub(half, text[first:last])]
        end = last
    return "".join([*kept, text[end:]])


def _without(document: Mapping[str, Any], lost: Collection[str]) -> str:
    """The text without the sentences that state the values of the facts ``lost``."""
    places = [place for place in document["evidence"] if place["attribute"] in lost]
    text, stated, kept, end = document["text"], _stated(document, lost), [], 0
    for span in biography_spans(document):
        for first, last in sentences(text, *span):
            overlaps = any(place["start"] < last and first < place["end"] for place in places)
            if overlaps or stated.search(text, first, last):
                kept.append(text[end:first])
                end = _SPACES.match(text, last).end()
    return _BREAKS.sub("\n\n", "".join([*kept, text[end:]]))
