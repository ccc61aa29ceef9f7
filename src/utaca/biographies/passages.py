"""The parts of a document: passages that tell of a person, and pieces of padding prose.

A sentence has parts, its plain text and the values that it states, so that a value can be given in another form and the
person by a number without one being taken for the other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

_GROUPS = (2, 4)

Facts = tuple[tuple[str, str], ...]
"""Attribute and value of each fact."""


@dataclass(frozen=True)
class Stated:
    """A value as a sentence states it; ``attribute`` is empty where the value does not hold."""

    text: str
    attribute: str = ""


Part = str | Stated
Sentence = tuple[Part, ...]


@dataclass(frozen=True)
class Passage:
    """Sentences that stand together. ``naming`` is the sentence, some blocks before, that says whom they are about."""

    parts: Sentence
    kind: str
    source: str
    naming: str = ""

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def values(self) -> Iterator[tuple[str, str, int, int]]:
        """Attribute, text, start and end of the values stated here that hold."""
        start = 0
        for part in self.parts:
            text = part if isinstance(part, str) else part.text
            if isinstance(part, Stated) and part.attribute:
                yield part.attribute, text, start, start + len(text)
            start += len(text)


@dataclass(frozen=True)
class Piece:
    """A paragraph of the article ``source``, or a part of one, and how many tokens it has."""

    source: str
    text: str
    size: int
    kind: ClassVar[str] = "article"


def facts_of(biography: Mapping[str, Any]) -> Facts:
    """The facts of a row of schema "biographies"; raises :class:`ValueError` for an attribute that comes twice."""
    facts = tuple((fact["attribute"], fact["value"]) for fact in biography["facts"])
    if len(dict(facts)) < len(facts):
        raise ValueError(f"biography {biography['id']} has an attribute twice")
    return facts


def dealt(biography: Mapping[str, Any], rng: random.Random) -> list[Passage]:
    """A biography in two to four groups of whole sentences (the paper's documents); one fact stays together."""
    facts = facts_of(biography)
    sentences = parsed(biography["sentences"], biography["person"], facts)
    least, most = _GROUPS
    cuts = [0, len(sentences)]
    if len(facts) > 1 and len(sentences) >= least:
        number = rng.randint(least, min(most, len(sentences)))
        cuts[1:1] = sorted(rng.sample(range(1, len(sentences)), number - 1))
    return [Passage(join(sentences[a:b]), "biography", biography["id"]) for a, b in pairwise(cuts)]


def parsed(sentences: Sequence[str], name: str, facts: Facts) -> list[Sentence]:
    """Sentences in parts.

    Longer values are looked for first, so that "Law" is not found in the name of a law school, and none in the person's
    name. Where facts share a value, each has one of its places, the last one all that are left.
    """
    named: dict[str, list[str]] = {}
    for attribute, value in facts:
        named.setdefault(value, []).append(attribute)
    longest = sorted({*named, name}, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(each)}(?!\w)" for each in longest))
    found = []
    for sentence in sentences:
        parts: list[Part] = []
        end = 0
        for match in pattern.finditer(sentence):
            if attributes := named.get(match[0]):
                attribute = attributes.pop(0) if len(attributes) > 1 else attributes[0]
                parts += [sentence[end : match.start()], Stated(match[0], attribute)]
                end = match.end()
        found.append(tuple(part for part in [*parts, sentence[end:]] if part != ""))
    return found


def join(sentences: Sequence[Sentence]) -> Sentence:
    """Sentences as one, a space between."""
    return tuple(part for i, sentence in enumerate(sentences) for part in ((" ", *sentence) if i else sentence))


def joined(passages: Sequence[Passage]) -> Passage:
    """Several passages as one."""
    return replace(passages[0], parts=join([passage.parts for passage in passages]))
