"""The biographies of the training, validation and test splits (paper, appendix on data construction)."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.evidence import verbatim
from utaca.biographies.people import Person, people
from utaca.biographies.sentences import summary

Write = Callable[[str, Sequence[tuple[str, str]]], tuple[Sequence[str], Sequence[Mapping[str, Any]]]]
"""A function that writes a biography from a person's name and (attribute, value) pairs.

It returns the sentences, and where they state the facts, as ``stated`` of schema "biographies"."""


@dataclass(frozen=True)
class Draft:
    """The content of a biography before it is written: a person and (attribute, value) pairs."""

    id: str
    person: Person
    facts: tuple[tuple[str, str], ...]


def drafts(split: str, count: int, seed: int) -> Iterator[Draft]:
    """Draw the people and facts of a split, ``count`` of them; a larger ``count`` continues the same sequence.

    A draft has one attribute in "train" and "validation", in rotation over the split's attributes, and all six held-out
    attributes in "test".
    """
    attributes = TRAINING_ATTRIBUTES if split == "train" else HELD_OUT_ATTRIBUTES
    for index, person in enumerate(islice(people(split, seed), count)):
        rng = random.Random(f"{seed}:facts:{split}:{index}")
        stated = attributes if split == "test" else (attributes[index % len(attributes)],)
        facts = tuple((attribute, draw_value(attribute, rng, person.locale)) for attribute in stated)
        yield Draft(f"{split}-{index:04}", person, facts)


def biographies(
    split: str, count: int, seed: int, write: Write | None = None, writer: str = "pattern"
) -> Iterator[dict]:
    """Make the biographies of a split, as rows of schema "biographies"; ``count`` and ``seed`` as for :func:`drafts`.

    A biography of "train" and "validation" is one sentence, which states its fact. In the document, this sentence
    stands among simple ones (:mod:`utaca.biographies.fillers`). A biography of "test" has the sentences that
    ``write(person's name, facts)`` returns with the places that state the facts; ``writer`` names the model that wrote
    them.
    """
    for draft in drafts(split, count, seed):
        name = draft.person.name
        facts = [{"attribute": attribute, "value": value} for attribute, value in draft.facts]
        if write:
            sentences, stated = write(name, draft.facts)
        else:
            sentences = [summary(attribute, name, value) for attribute, value in draft.facts]
            stated = verbatim(" ".join(sentences), name, facts)
        yield {
            "id": draft.id,
            "split": split,
            "person": name,
            "locale": draft.person.locale,
            "facts": facts,
            "sentences": list(sentences),
            "stated": list(stated),
            "writer": writer,
        }
