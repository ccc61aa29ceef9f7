"""Find where a document states its facts, and make variants without these statements, to train detectors on.

The evidence of a fact is the sentence of the document that states it. The paper trains its detector under complete,
partial and missing evidence only in RULER (appendix "Calibration"). A good reader seldom fails under complete evidence,
which leaves a detector of three classes little to learn from.
"""

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from typing import Any

from utaca.settings.schema import EVIDENCE

_COMPLETE, _PARTIAL, _MISSING = EVIDENCE

SENTENCE_END = re.compile(r"(?:[.!?][\"'”’)\]]*(?=\s|$)|[。！？।۔؟][」』”’）]*)")
"""The end of a sentence in padding; a match of the full stop of a title ("Dr.") does no harm there."""
# In a biography, the full stop of a title or an initial ends no sentence.
_SENTENCE_END = re.compile(
    r"(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bProf)(?<!\bSt)(?<!\b[A-Z])" + SENTENCE_END.pattern
)
_WORD = re.compile(r"\w+")
_SPACES = re.compile(" *")
_BREAKS = re.compile(r"\n{3,}")


def source(document: Mapping[str, Any], value: str) -> tuple[int, int] | None:
    """Find the sentence of a document's biography that states ``value``; returns its character offsets [start, end).

    Of these sentences it is the first one that the document has: the sentence at the place that ``evidence`` gives for
    a fact with this value; the first sentence that contains the value, up to letter case and spaces; the sentence with
    most words of the value, if it has at least half of them. None if there is none of these. ``document`` has ``text``
    and ``spans``; ``facts`` and ``evidence`` may be missing.
    """
    text = document["text"]
    spans = _biography_spans(document)
    words_of_value = {word.lower() for word in _WORD.findall(value)}
    if not words_of_value:
        return None
    facts = document.get("facts") or ()
    attributes = [fact["attribute"] for fact in facts if fact["value"] == value]
    places = [place for place in document.get("evidence") or () if place["attribute"] in attributes]
    for place in sorted(places, key=lambda place: place["start"]):
        for start, end in spans:
            if start <= place["start"] < end:
                return _sentence_around(text, (place["start"], place["end"]), (start, end))
    literal = re.compile(r"\s+".join(map(re.escape, value.split())), re.IGNORECASE)
    for start, end in spans:
        match = literal.search(text, start, end)
        if match:
            return _sentence_around(text, match.span(), (start, end))

    def n_common(span: tuple[int, int]) -> int:
        """How many words of the value a sentence has."""
        words = _WORD.findall(text[slice(*span)])
        return len(words_of_value & {word.lower() for word in words})

    candidates: list[tuple[int, int]] = []
    for start, end in spans:
        candidates += sentences(text, start, end)
    best = max(candidates, key=n_common, default=None)
    has_half = best is not None and 2 * n_common(best) >= len(words_of_value)
    return best if has_half else None


def _sentence_around(text: str, place: tuple[int, int], span: tuple[int, int]) -> tuple[int, int]:
    """The sentence within ``span`` that has the characters ``place``; all of these are offsets [start, end)."""
    start, end = span
    first, last = place
    # Full stops within the place end no sentence, except one at its very end.
    ends_before = [stop.end() for stop in _SENTENCE_END.finditer(text, start, first)]
    end_after = _SENTENCE_END.search(text, last - 1, end)
    return _stripped(text, ends_before[-1] if ends_before else start, end_after.end() if end_after else end)


def sentence(document: Mapping[str, Any], value: str) -> str:
    """The sentence that :func:`source` locates, or "" if there is none."""
    place = source(document, value)
    return document["text"][slice(*place)] if place else ""


def verbatim(text: str, person: str, facts: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Find where a biography's text has the values of ``facts`` verbatim; returns ``stated`` of schema "biographies".

    A fact whose value does not occur gets no entry. Longer values match first, so that "Law" does not match inside the
    name of a law school; nothing matches inside the person's name. Facts that share a value get successive occurrences
    of the value, in order, and the last one if there are too few.
    """
    facts = list(facts)
    occurrences: dict[str, list[tuple[int, int]]] = {fact["value"]: [] for fact in facts}
    for match in re.finditer(any_of({*occurrences, person}), text):
        if match[0] in occurrences:
            occurrences[match[0]].append(match.span())
    places = []
    for fact in facts:
        of_value = occurrences[fact["value"]]
        if of_value:
            start, end = of_value.pop(0) if len(of_value) > 1 else of_value[0]
            places.append({"attribute": fact["attribute"], "start": start, "end": end})
    return places


def evidence(document: Mapping[str, Any], stated: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert places in a biography to places in its document: ``evidence`` of schema "documents".

    ``document`` has ``text`` and ``spans``, in which the biography's sentences are whole and in order. ``stated`` has
    the places of the facts in these sentences joined by spaces, as in schema "biographies".
    """
    # For each part of the biography: its end in the joined sentences, and its offset in the document minus that there.
    parts = []
    joined_start = 0
    for start, end in _biography_spans(document):
        parts.append((joined_start + end - start, start - joined_start))
        joined_start += end - start + 1
    places = []
    for place in stated:
        shift = next(shift for joined_end, shift in parts if place["end"] <= joined_end)
        start = place["start"] + shift
        end = place["end"] + shift
        text = document["text"][start:end]
        places.append({"attribute": place["attribute"], "text": text, "start": start, "end": end})
    return places


def variants(document: Mapping[str, Any], conditions: Collection[str]) -> Iterator[dict[str, Any]]:
    """Make a document's variants, one under each of the ``conditions`` of evidence, with id, person, facts and text.

    ``document`` is a row of schema "documents". Complete evidence leaves the text as it is. Missing evidence removes
    every sentence of the biography that states the value of a fact. Partial evidence removes those of half of the
    facts, rounded up, drawn by the document's id; if there is only one fact, it removes the second half of the value's
    words (or of a single word's letters). A sentence may state the values of several facts. Ids are those of
    :func:`named`.
    """
    attributes = [fact["attribute"] for fact in document["facts"]]
    # The attributes whose evidence a partial variant lacks.
    half = random.Random(f"evidence {document['id']}").sample(attributes, _half_of(attributes))
    for condition in conditions:
        if condition == _COMPLETE:
            text = document["text"]
        elif condition == _PARTIAL and len(attributes) == 1:
            text = _halved(document)
        else:
            text = _without(document, half if condition == _PARTIAL else attributes)
        yield {
            "id": named(document["id"], condition),
            "person": document["person"],
            "facts": document["facts"],
            "text": text,
        }


def _half_of(things: Sized) -> int:
    """Half the number of things, rounded up."""
    return (len(things) + 1) // 2


def named(document: str, condition: str) -> str:
    """The id of a document under a condition of its evidence."""
    return document if condition == _COMPLETE else f"{document}/{condition}"


def original(document: str) -> str:
    """The id of a document under complete evidence."""
    return re.sub(rf"/({_PARTIAL}|{_MISSING})\Z", "", document)


def condition_of(document: str) -> str:
    """The condition of evidence in the id of a document."""
    return document[len(original(document)) + 1 :] or _COMPLETE


def _biography_spans(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Character offsets [start, end) of the parts of a document's text that belong to the biography."""
    return [(span["start"], span["end"]) for span in document["spans"] if span["kind"] == "biography"]


def sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets [start, end) of the sentences in characters [``start``, ``end``) of a biography's text.

    The spaces between sentences belong to none.
    """
    stops = [match.end() for match in _SENTENCE_END.finditer(text, start, end)]
    for stop in [*stops, end]:
        first, _ = _stripped(text, start, stop)
        if first < stop:
            yield first, stop
        start = stop


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The offsets [start, end) of a part of a text without the white space at its beginning."""
    return end - len(text[start:end].lstrip()), end


def any_of(words: Iterable[str]) -> str:
    """A regular expression that matches any of some whole words or phrases, trying the longest first.

    A match has no letter or digit directly before or after it.
    """
    longest = sorted(words, key=len, reverse=True)
    # In Thai, Lao, Japanese, Chinese and Korean, no space need stand between a word and what follows: their characters
    # do not count as letters.
    letter = r"[^\W\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"
    return "|".join(rf"(?<!{letter}){re.escape(word)}(?!{letter})" for word in longest)


def _pattern_of_values(document: Mapping[str, Any], attributes: Collection[str]) -> re.Pattern[str]:
    """A pattern that matches the values of these attributes, as in ``facts`` and as the document writes them."""
    values = {fact["value"] for fact in document["facts"] if fact["attribute"] in attributes}
    values |= {place["text"] for place in document["evidence"] if place["attribute"] in attributes}
    return re.compile(any_of(values), re.IGNORECASE)


def _halved(document: Mapping[str, Any]) -> str:
    """The text of a document that has one fact, with the fact's value cut to its first half wherever it is stated."""
    value = _pattern_of_values(document, [document["facts"][0]["attribute"]])

    def half(match: re.Match[str]) -> str:
        """The first half of a value's words, or of the letters if it is a single word."""
        words = match[0].split()
        if len(words) > 1:
            return " ".join(words[: _half_of(words)])
        return match[0][: _half_of(match[0])]

    text = document["text"]
    kept = []
    end = 0  # text[:end] was copied or left out
    for first, last in _biography_spans(document):
        kept += [text[end:first], value.sub(half, text[first:last])]
        end = last
    return "".join([*kept, text[end:]])


def _without(document: Mapping[str, Any], lost: Collection[str]) -> str:
    """The text without the biography's sentences that state the values of the attributes ``lost``."""
    places = [place for place in document["evidence"] if place["attribute"] in lost]
    text = document["text"]
    values = _pattern_of_values(document, lost)
    kept = []
    end = 0  # text[:end] was copied or left out
    for span in _biography_spans(document):
        for first, last in sentences(text, *span):
            has_evidence = any(place["start"] < last and first < place["end"] for place in places)
            if has_evidence or values.search(text, first, last):
                kept.append(text[end:first])
                end = _SPACES.match(text, last).end()
    # A paragraph that lost all its sentences leaves no more than one blank line.
    return _BREAKS.sub("\n\n", "".join([*kept, text[end:]]))
