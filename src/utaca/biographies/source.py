"""Sentences of a biography in its document, and the one that states a fact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")
"""An end of a sentence in padding, where it does no harm if it is the full stop of a title."""
# In a biography, the full stop of a title or an initial ends no sentence.
_SENTENCE_END = re.compile(
    r"(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bProf)(?<!\bSt)(?<!\b[A-Z])" + SENTENCE_END.pattern
)
_WORD = re.compile(r"\w+")


def biography_spans(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Characters [start, end) of a document's text in which the biography stands."""
    return [(span["start"], span["end"]) for span in document["spans"] if span["kind"] == "biography"]


def source(document: Mapping[str, Any], value: str) -> tuple[int, int] | None:
    """Characters [start, end) of the sentence that states ``value``; ``document`` has ``text`` and ``spans``.

    This is the first sentence of the biography that has the value verbatim, letter case and spaces aside. If there is
    none (a date in another notation), it is the sentence with most words of the value, at least half of them, or None.
    """
    text, spans = document["text"], biography_spans(document)
    wanted = {word.lower() for word in _WORD.findall(value)}
    if not wanted:
        return None
    literal = re.compile(r"\s+".join(map(re.escape, value.split())), re.IGNORECASE)
    for start, end in spans:
        if match := literal.search(text, start, end):
            # Full stops within the value end no sentence.
            before = [stop.end() for stop in _SENTENCE_END.finditer(text, start, match.start())]
            after = _SENTENCE_END.search(text, match.end() - 1, end)
            first = before[-1] if before else start
            return first + len(text[first:end]) - len(text[first:end].lstrip()), after.end() if after else end
    best = max(
        (span for start, end in spans for span in sentences(text, start, end)),
        key=lambda span: len(wanted & _words(text, span)),
        default=None,
    )
    return best if best and 2 * len(wanted & _words(text, best)) >= len(wanted) else None


def sentence(document: Mapping[str, Any], value: str) -> str:
    """The text of :func:`source`, or ""."""
    place = source(document, value)
    return document["text"][slice(*place)] if place else ""


def _words(text: str, span: tuple[int, int]) -> set[str]:
    return {word.lower() for word in _WORD.findall(text[slice(*span)])}


def sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The sentences from character ``start`` to ``end`` of a text, [start, end) each, without the spaces between."""
    for stop in [*(match.end() for match in _SENTENCE_END.finditer(text, start, end)), end]:
        start += len(text[start:stop]) - len(text[start:stop].lstrip())
        if start < stop:
            yield start, stop
        start = stop
