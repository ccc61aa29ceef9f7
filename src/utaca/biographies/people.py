"""Fictitious people and the splits that they belong to."""

import hashlib
import random
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from faker import Faker
from faker.providers.address.it_IT import Provider as ItalianAddresses

from utaca.data_files import DataFile, read

# Shares in hundredths. A name's split is a function of only the name, so no person is in two splits.
SPLIT_SHARES: dict[str, int] = {"reader": 55, "reader_validation": 10, "train": 20, "validation": 5, "test": 10}
SPLITS: tuple[str, ...] = tuple(SPLIT_SHARES)


class Locales(DataFile):
    """By locale of Faker: weight in the draw of people, probability of a second surname, strings that join surnames."""

    locales: dict[str, tuple[int, float, tuple[str, ...]]]


_LOCALES = read("biographies/locales.yaml", Locales).locales
LOCALES: tuple[str, ...] = tuple(_LOCALES)
_SECOND_GIVEN_NAME = 0.12  # share of people who have one


@dataclass(frozen=True)
class Person:
    """A fictitious person; ``locale`` is the Faker locale of the name."""

    name: str
    locale: str


@cache
def faker(locale: str) -> Faker:
    """The process's only Faker of a locale; it draws rare names as often as common ones."""
    source = Faker(locale, use_weighting=False)
    if locale == "it_IT":
        # Faker lists Italy's cities in the order of a set, which differs from process to process.
        for provider in source.factories[0].get_providers():
            if isinstance(provider, ItalianAddresses):
                provider.cities = sorted(provider.cities)
    return source


def normalised(name: str) -> str:
    """The name without case, accents and surplus spaces."""
    folded = unicodedata.normalize("NFKD", name).casefold()
    decomposed = unicodedata.normalize("NFKD", folded)
    plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    return " ".join(plain.split())


def split_of(name: str) -> str:
    """The split that a name belongs to, one of :data:`SPLITS`."""
    # A hash of the name, as a number from 0 to 99, falls into one of the splits' ranges.
    digest = hashlib.sha256(normalised(name).encode()).digest()
    hundredth = int.from_bytes(digest[:8], "big") % 100
    ends = list(accumulate(SPLIT_SHARES.values()))
    return SPLITS[bisect_right(ends, hundredth)]


def draw_person(rng: random.Random) -> Person:
    """Draw a person of any split; the name has neither full stop nor comma, so that it never ends a sentence."""
    weights = [weight for weight, *_ in _LOCALES.values()]
    (locale,) = rng.choices(LOCALES, weights=weights)
    # ``joints`` are the strings that may join two surnames.
    _, p_second_surname, joints = _LOCALES[locale]
    source = faker(locale)
    source.random = rng
    while True:
        given_names = source.first_name()
        if rng.random() < _SECOND_GIVEN_NAME:
            given_names += ("-" if locale == "fr_FR" else " ") + source.first_name()
        surname = source.last_name()
        if rng.random() < p_second_surname:
            surname += rng.choice(joints) + source.last_name()
        name = " ".join(f"{given_names} {surname}".split())
        if not any(mark in name for mark in ".,"):
            return Person(name, locale)


def people(split: str, seed: int) -> Iterator[Person]:
    """Draw people of a split, one of :data:`SPLITS`, without end; no name comes twice (case and accents aside)."""
    rng = random.Random(f"{seed}:people:{split}")
    seen: set[str] = set()
    while True:
        person = draw_person(rng)
        key = normalised(person.name)
        if key not in seen and split_of(person.name) == split:
            seen.add(key)
            yield person
