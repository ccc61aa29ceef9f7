"""The biographies of the training, validation and test splits (paper, appendix on data construction)."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.people import Person, people
from utaca.biographies.sentences import summary
from utaca.data_files import DataFile, Entries, Sentence, read

Write = Callable[[str, Sequence[tuple[str, str]]], Sequence[str]]


class Fillers(DataFile):
    """Simple sentences around the summary of a biography with one fact."""

    fillers: Entries[Sentence]


@dataclass(frozen=True)
class Draft:
    """The content of a biography before it is written: a person and (attribute, value) pairs."""

    id: str
    person: Person
    facts: tuple[tuple[str, str], ...]


def drafts(split: str, count: int, seed: int) -> Iterator[Draft]:
    """The people and facts of a split; a larger ``count`` continues the same sequence.

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
    """Rows of schema "biographies".

    A biography of "train" and "validation" is the summary sentence among simple fillers. A biography of "test" has the
    sentences that ``write(person's name, facts)`` returns; ``writer`` names the model that wrote them.
    """
    for draft in drafts(split, count, seed):
        name = draft.person.name
        if write:
            sentences = list(write(name, draft.facts))
        else:
            rng = random.Random(f"{seed}:fillers:{split}:{draft.id}")
            ((attribute, value),) = draft.facts
            sentences = rng.choices(read("biographies/fillers.yaml", Fillers).fillers, k=rng.randint(4, 16))
            sentences.insert(rng.randint(0, len(sentences)), summary(attribute, name, value))
        yield {
            "id": draft.id,
            "split": split,
            "person": name,
            "locale": draft.person.locale,
            "facts": [{"attribute": attribute, "value": value} for attribute, value in draft.facts],
            "sentences": sentences,
            "writer": writer,
        }
