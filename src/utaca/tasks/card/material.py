"""Documents and questions of the reader card."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from utaca.biographies.padding import Padder

SPLIT = "reader_validation"
"""The split of drawn people, which is no part of any training."""


@dataclass(frozen=True)
class Fact:
    """An attribute that is asked for: its value, None where the document has none, and other ways to write it."""

    attribute: str
    value: str | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """The facts that are asked of a person at once; ``text`` is the question where it is not asked in the pattern."""

    person: str
    facts: tuple[Fact, ...]
    text: str = ""


@dataclass(frozen=True)
class Document:
    """A document and its questions; ``text`` makes the text, since a long one takes seconds to make."""

    id: str
    text: Callable[[], str]
    questions: tuple[Question, ...]


def padded(
    name: str, person: str, facts: Mapping[str, str], sentences: Sequence[str], length: int, padder: Padder, seed: int
) -> str:
    """Sentences that state facts (value by attribute) between paragraphs of a corpus, ``length`` tokens together."""
    stated = [{"attribute": attribute, "value": value} for attribute, value in facts.items()]
    biography = {"id": name, "split": SPLIT, "person": person, "facts": stated, "sentences": sentences}
    return padder.document(biography, length, random.Random(seed))["text"]
