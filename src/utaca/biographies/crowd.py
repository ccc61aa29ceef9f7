"""People with names like a person's, who have the same attributes with other values.

They are told of by the project's own rules, as the person is: by the reference writer where a model writes the split's
biographies, also where that is a remote one, and by a summary among a few fillers elsewhere. So a crowd asks no
endpoint for anything.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from utaca.biographies.attributes import draw_value
from utaca.biographies.dataset import among_fillers
from utaca.biographies.forms import meaning
from utaca.biographies.people import faker, normalised, split_of
from utaca.reference.writer import write

_FILLERS = (0, 4)
_VOWELS, _CONSONANTS = "aeiou", "bcdfghklmnprstvwz"


@dataclass(frozen=True)
class Other:
    """One of the crowd, and the sentences that tell of them."""

    name: str
    facts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]


def crowd(biography: Mapping[str, Any], number: int, rng: random.Random) -> list[Other]:
    """The crowd of a row of schema "biographies"; a smaller one is the beginning of a larger one.

    Their names are of the biography's split, all different, none within the person's or around it. No value means
    what the person's of that attribute does.
    """
    names = alike(biography["person"], biography["locale"], biography["split"], rng)
    return [_other(next(names), biography, random.Random(rng.getrandbits(64))) for _ in range(number)]


def _other(name: str, biography: Mapping[str, Any], rng: random.Random) -> Other:
    facts = tuple(
        (fact["attribute"], another(fact["attribute"], [fact["value"]], biography["locale"], rng))
        for fact in biography["facts"]
    )
    if biography["split"] == "test":
        return Other(name, facts, tuple(write(name, facts)))
    attribute, value = facts[0]
    return Other(name, facts, tuple(among_fillers(attribute, name, value, rng, _FILLERS)))


def another(attribute: str, values: Iterable[str], locale: str, rng: random.Random) -> str:
    """A drawn value that means none of ``values`` (:func:`utaca.biographies.forms.meaning`)."""
    taken = {meaning(attribute, value) for value in values}
    while True:
        drawn = draw_value(attribute, rng, locale)
        if meaning(attribute, drawn) not in taken:
            return drawn


def alike(person: str, locale: str, split: str, rng: random.Random) -> Iterator[str]:
    """Endless names like a person's, of the same split: the surname, the first name, or all but a letter is theirs."""
    seen = [normalised(person)]
    source = faker(locale)
    while True:
        source.random = rng
        first, *rest = person.split()
        kind = rng.randrange(3)
        if kind == 0:
            name = " ".join([source.first_name(), *rest])
        elif kind == 1:
            name = f"{first} {source.last_name()}"
        else:
            name = _one_letter_apart(person, rng)
        key = normalised(name)
        within = key in seen[0] or seen[0] in key
        if key not in seen and not within and not any(m in name for m in ".,") and split_of(name) == split:
            seen.append(key)
            yield name


def _one_letter_apart(name: str, rng: random.Random) -> str:
    """The name with one of its small letters replaced by another of its kind; as it is where it has none."""
    places = [i for i, letter in enumerate(name) if letter in _VOWELS + _CONSONANTS]
    if not places:
        return name
    place = rng.choice(places)
    kind = _VOWELS if name[place] in _VOWELS else _CONSONANTS
    return name[:place] + rng.choice([letter for letter in kind if letter != name[place]]) + name[place + 1 :]
