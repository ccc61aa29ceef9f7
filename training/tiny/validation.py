"""Biographies of drawn people, no part of the tiny reader's training, as files that task ``biographies`` asks.

Natural prose is worded by the rules of :mod:`utaca.biographies.templates`, the prose around is the trainings'. A
document depends on seed, prose, tokenizer, file and its own number alone: a larger file starts with a smaller one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from training.prose import paragraphs
from training.settings import Settings
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.lengths import counter
from utaca.biographies.padding import SEPARATOR
from utaca.biographies.people import Person, people
from utaca.biographies.sentences import summary
from utaca.biographies.templates import write
from utaca.data_files import root
from utaca.readers.prompts import frame
from utaca.readers.tokenizer import load_tokenizer
from utaca.records.tables import atomic_path

SPLIT = "reader_validation"
"""The split of drawn people, which is no part of any training."""
QUESTIONS = 500
"""Fewest attributes that the documents of a file are asked together."""
ATTRIBUTES = (*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES)
SHORTEST, LONGEST = 256, 1024
"""Lengths of short documents, in tokens."""

_SUMMARY_PEOPLE = (3, 6)
_NATURAL_PEOPLE = (2, 4)
_SHARED = 3
_MOST_FACTS = 0.6
_MOST_QUESTIONS = 6
_JOINED = 0.25
_MOST_SENTENCES = 5
_SENTENCES = re.compile(r"(?<=[.!?])\s+")

Told = dict[Person, dict[str, str]]
"""What a document tells of people: value by attribute."""
About = dict[Person, tuple[dict[str, str], list[str]]]
"""What is asked of people: value by attribute, and attributes that the document does not tell."""


def make(settings: Settings, output: Path) -> None:
    """Write the files ``summary``, ``natural`` and ``absent``, a row a person, into ``output``."""
    tokenizer = load_tokenizer(str(root() / "data" / "readers" / "tiny"), "")
    drawn = Drawn(paragraphs(settings), counter(tokenizer), frame(tokenizer)[0], settings.seed)
    output.mkdir(parents=True, exist_ok=True)
    for kind in Drawn.KINDS:
        with atomic_path(output / f"{kind}.jsonl") as scratch:
            rows = drawn.rows(kind, settings.steps(QUESTIONS))
            scratch.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


class Drawn:
    """Documents of three kinds, each asked of several people.

    "summary": facts in the summary pattern of people who share attributes. "natural": narratives. "absent": documents
    of both kinds in turn, asked for attributes that others in the document have and the person lacks. ``size`` gives
    the tokens of a text, ``before`` is what the chat template puts before a document.
    """

    KINDS = ("summary", "natural", "absent")

    def __init__(self, prose: Sequence[str], size: Callable[[str], int], before: str, seed: int) -> None:
        self._paragraphs = list(prose)
        self._size = size
        self._before = before
        self._seed = seed

    def rows(self, kind: str, questions: int) -> list[dict[str, Any]]:
        """Rows as of :class:`utaca.biographies.handwritten.Biography`, which are asked ``questions`` attributes or
        more."""
        makers = {"summary": self._summary, "natural": self._natural, "absent": self._absent}
        crowd = people(SPLIT, self._seed)
        found = []
        asked = 0
        for number in count():
            rng = random.Random(f"{self._seed}:card:{kind}:{number}")
            text, about = makers[kind](number, crowd, rng)
            for person, (told, lacking) in about.items():
                facts = [{"attribute": attribute, "value": value, "also": []} for attribute, value in told.items()]
                name = f"{kind}-{number:04} {person.name}"
                row = {"id": name, "person": person.name, "text": text, "facts": facts, "absent": lacking}
                found.append(row)
                asked += len(facts) + len(lacking)
            if asked >= questions:
                return found

    def _summary(self, number: int, crowd: Iterator[Person], rng: random.Random) -> tuple[str, About]:
        text, told = self._patterned(number, crowd, rng, share=0.75)
        facts = [(person, *fact) for person, known in told.items() for fact in known.items()]
        about: About = {}
        for person, attribute, value in rng.sample(facts, min(_MOST_QUESTIONS, len(facts))):
            about.setdefault(person, ({}, []))[0][attribute] = value
        return text, about

    def _natural(self, number: int, crowd: Iterator[Person], rng: random.Random) -> tuple[str, About]:
        told: Told = {}
        for _ in range(rng.randint(*_NATURAL_PEOPLE)):
            person = next(crowd)
            told[person] = _values(HELD_OUT_ATTRIBUTES, person, rng)
        text, told = self._narrated(told, 1, rng)
        return text, {person: (known, []) for person, known in told.items()}

    def _absent(self, number: int, crowd: Iterator[Person], rng: random.Random) -> tuple[str, About]:
        if number % 2 == 0:
            text, told = self._patterned(number // 2, crowd, rng, share=0.5)
        else:
            # Everyone lacks two attributes, no two people the same ones.
            order = rng.sample(HELD_OUT_ATTRIBUTES, len(HELD_OUT_ATTRIBUTES))
            told = {}
            for at in range(rng.randint(2, len(order) // 2)):
                person = next(crowd)
                has = [a for a in HELD_OUT_ATTRIBUTES if a not in order[2 * at : 2 * at + 2]]
                told[person] = _values(has, person, rng)
            text, told = self._narrated(told, 2, rng)
        stated = dict.fromkeys(attribute for known in told.values() for attribute in known)
        lacking = [
            (person, attribute) for person, known in told.items() for attribute in stated if attribute not in known
        ]
        about: About = {}
        for person, attribute in rng.sample(lacking, min(_MOST_QUESTIONS, len(lacking))):
            about.setdefault(person, ({}, []))[1].append(attribute)
        return text, about

    def _patterned(self, number: int, crowd: Iterator[Person], rng: random.Random, share: float) -> tuple[str, Told]:
        """A document of summary sentences, and what it tells.

        Three attributes, going round all of them with ``number``; of the first everyone has a value, of each other
        one everyone has with probability ``share``, as long as facts fill no more than part of the document.
        """
        length = rng.randint(SHORTEST, LONGEST)
        told: Told = {next(crowd): {} for _ in range(rng.randint(*_SUMMARY_PEOPLE))}
        room = _MOST_FACTS * length
        for attribute in self._turn(number):
            for person, known in told.items():
                if known and (room <= 0 or rng.random() >= share):
                    continue
                if room <= 0 and sum(map(bool, told.values())) >= _SUMMARY_PEOPLE[0]:
                    continue
                known[attribute] = draw_value(attribute, rng, person.locale)
                room -= self._size(summary(attribute, person.name, known[attribute]))
        told = {person: dict(rng.sample(list(known.items()), len(known))) for person, known in told.items() if known}
        groups = [group for person, known in told.items() for group in _groups(person, known, rng)]
        return self._among_prose(rng.sample(groups, len(groups)), length, _JOINED, rng), told

    def _turn(self, number: int) -> list[str]:
        """Three attributes: each comes once in nine documents, in another company every time round."""
        turns = len(ATTRIBUTES) // _SHARED
        order = random.Random(f"{self._seed}:card:attributes:{number // turns}").sample(ATTRIBUTES, len(ATTRIBUTES))
        return order[number % turns * _SHARED :][:_SHARED]

    def _narrated(self, told: Told, fewest: int, rng: random.Random) -> tuple[str, Told]:
        """A document of narratives, a paragraph each, and the people in it: as many as fit, ``fewest`` in any case."""
        length = rng.randint(SHORTEST, LONGEST)
        texts = {
            person: " ".join(write(person.name, list(known.items()), varied=False)) for person, known in told.items()
        }
        while len(texts) > fewest and self._tokens(texts.values()) > length:
            texts.popitem()
        return self._among_prose(list(texts.values()), length, 0.0, rng), {person: told[person] for person in texts}

    def _among_prose(self, groups: list[str], length: int, joined: float, rng: random.Random) -> str:
        """``groups`` in order with prose at random places, up to ``length`` tokens.

        Neighbours are paragraphs of their own or, with probability ``joined``, of one paragraph.
        """
        room = length - self._tokens(groups)
        while passage := self._passage(room, rng):
            groups.insert(rng.randint(0, len(groups)), passage)
            room -= self._size(SEPARATOR + passage)
        text = groups[0]
        for group in groups[1:]:
            text += (" " if rng.random() < joined else SEPARATOR) + group
        return text

    def _passage(self, room: int, rng: random.Random) -> str:
        """Some consecutive sentences of a paragraph of at most ``room`` tokens; empty where none is found."""
        for _ in range(8 if room > 0 else 0):
            sentences = _SENTENCES.split(rng.choice(self._paragraphs))
            first = rng.randrange(len(sentences))
            for end in range(min(len(sentences), first + rng.randint(1, _MOST_SENTENCES)), first, -1):
                passage = " ".join(sentences[first:end])
                if self._size(SEPARATOR + passage) <= room:
                    return passage
        return ""

    def _tokens(self, parts: Iterable[str]) -> int:
        return self._size(self._before + SEPARATOR.join(parts))


def _values(attributes: Sequence[str], person: Person, rng: random.Random) -> dict[str, str]:
    return {attribute: draw_value(attribute, rng, person.locale) for attribute in attributes}


def _groups(person: Person, values: Mapping[str, str], rng: random.Random) -> list[str]:
    """A person's summary sentences in one to three groups that stay together."""
    sentences = [summary(attribute, person.name, value) for attribute, value in values.items()]
    cuts = sorted(rng.sample(range(1, len(sentences)), rng.randint(0, min(2, len(sentences) - 1))))
    return [" ".join(sentences[a:b]) for a, b in pairwise([0, *cuts, len(sentences)])]
