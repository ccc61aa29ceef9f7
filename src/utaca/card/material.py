"""Test documents and questions: people, values, wordings and articles that are no part of the tiny reader's training.

The people are of the split ``reader_validation``, natural prose is worded by the rules of
:mod:`utaca.biographies.templates`, the prose around comes from the configured corpus. A document depends on seed,
corpus, tokenizer, cell and its own number alone: a larger card starts with the documents of a smaller one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.padding import SEPARATOR, Padder
from utaca.biographies.people import Person, people
from utaca.biographies.sentences import summary
from utaca.biographies.templates import write
from utaca.errors import UserError

SPLIT = "reader_validation"
ATTRIBUTES = (*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES)
SHORT = ("summary", "natural", "absent")
"""Cells of short documents, read with full attention."""

SHORTEST, LONGEST = 256, 1024
"""Lengths of short documents, in tokens."""

_BLOCKS, _PREFILL = "blocks-", "prefill-"
_SUMMARY_PEOPLE, _NATURAL_PEOPLE = (3, 6), (2, 4)
_SHARED, _MOST_FACTS, _MOST_QUESTIONS = 3, 0.6, 6
_JOINED, _MOST_SENTENCES = 0.25, 5
_SENTENCES = re.compile(r"(?<=[.!?])\s+")

Fact = tuple[str, str]
Known = Mapping[Person, Sequence[Fact]]


@dataclass(frozen=True)
class Question:
    """One question about a person: the attributes asked for, each with its value, None where the document has none.

    ``also`` are further ways to write the values of attributes, ``text`` the question where it is not asked in the
    pattern.
    """

    person: str
    facts: tuple[tuple[str, str | None], ...]
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Document:
    """A document and what is asked about it; ``text`` makes the text, for a long one takes seconds to make."""

    id: str
    text: Callable[[], str]
    questions: tuple[Question, ...]


def blocks_cell(length: int) -> str:
    """The cell of documents of ``length`` tokens that are read through block memory."""
    return f"{_BLOCKS}{length}"


class Material:
    """Documents of every cell.

    ``articles`` are rows of schema "corpus" and ``corpus`` their name, ``count`` gives the tokens of a text, ``before``
    is what the chat template puts before a document. Raises :class:`UserError` for a corpus without usable paragraphs.
    """

    def __init__(
        self, articles: Sequence[Mapping[str, str]], corpus: str, count: Callable[[str], int], before: str, seed: int
    ) -> None:
        self._padder = Padder(articles, count, corpus)
        self._paragraphs = list(dict.fromkeys(p for article in articles for p in paragraphs(article["text"])))
        self._count, self._before, self._seed = count, before, seed

    def documents(self, cell: str, questions: int) -> list[Document]:
        """The first documents of a cell that ask for at least ``questions`` attributes together.

        "summary": facts in the summary pattern of people who share attributes, asked one by one. "natural": narratives,
        six attributes a question. "absent": documents of both kinds in turn, asked for attributes that others in the
        document have and the person lacks. "blocks-N", "prefill-N": documents of N tokens as those of the pipeline's
        test split. Raises :class:`UserError` for another cell.
        """
        makers = {"summary": self._summary, "natural": self._natural, "absent": self._absent}
        if cell not in makers and not cell.startswith((_BLOCKS, _PREFILL)):
            raise UserError(f"there is no cell {cell!r} of the reader card; use {', '.join(SHORT)} or {_BLOCKS}N")
        crowd, found, asked = people(SPLIT, self._seed), [], 0
        for number in numbers():
            rng = random.Random(f"{self._seed}:card:{cell}:{number}")
            name = f"{cell}-{number:04}"
            if cell in makers:
                text, questioned = makers[cell](number, crowd, rng)
                document = Document(name, lambda text=text: text, tuple(questioned))
            else:
                document = self._long(name, int(cell.rpartition("-")[2]), next(crowd), rng)
            found.append(document)
            asked += sum(len(question.facts) for question in document.questions)
            if asked >= questions:
                return found
        raise AssertionError("numbers end")

    def _summary(self, number: int, crowd: Iterator[Person], rng: random.Random) -> tuple[str, list[Question]]:
        text, known = self._patterned(number, crowd, rng, share=0.75)
        facts = [(person, fact) for person, own in known.items() for fact in own]
        chosen = rng.sample(facts, min(_MOST_QUESTIONS, len(facts)))
        return text, [Question(person.name, (fact,)) for person, fact in chosen]

    def _natural(self, number: int, crowd: Iterator[Person], rng: random.Random) -> tuple[str, list[Question]]:
        known = {}
        for _ in range(rng.randint(*_NATURAL_PEOPLE)):
            person = next(crowd)
            known[person] = _facts(HELD_OUT_ATTRIBUTES, person, rng)
        text, known = self._narrated(known, 1, rng)
        return text, [Question(person.name, tuple(facts)) for person, facts in known.items()]

    def _absent(self, number: int, crowd: Iterator[Person], rng: random.Random) -> tuple[str, list[Question]]:
        if number % 2 == 0:
            text, known = self._patterned(number // 2, crowd, rng, share=0.5)
        else:
            # Everyone lacks two attributes, no two people the same ones.
            order = rng.sample(HELD_OUT_ATTRIBUTES, len(HELD_OUT_ATTRIBUTES))
            known = {}
            for at in range(rng.randint(2, len(order) // 2)):
                person = next(crowd)
                has = [a for a in HELD_OUT_ATTRIBUTES if a not in order[2 * at : 2 * at + 2]]
                known[person] = _facts(has, person, rng)
            text, known = self._narrated(known, 2, rng)
        stated = dict.fromkeys(attribute for facts in known.values() for attribute, _ in facts)
        lacking = [(person, a) for person, facts in known.items() for a in stated if a not in dict(facts)]
        chosen = rng.sample(lacking, min(_MOST_QUESTIONS, len(lacking)))
        return text, [Question(person.name, ((attribute, None),)) for person, attribute in chosen]

    def _patterned(
        self, number: int, crowd: Iterator[Person], rng: random.Random, share: float
    ) -> tuple[str, dict[Person, list[Fact]]]:
        """A document of summary sentences, and the facts in it.

        Three attributes, going round all of them with ``number``; of the first everyone has a value, of each other
        one everyone has with probability ``share``, as long as facts fill no more than part of the document.
        """
        length = rng.randint(SHORTEST, LONGEST)
        named = [next(crowd) for _ in range(rng.randint(*_SUMMARY_PEOPLE))]
        known: dict[Person, list[Fact]] = {person: [] for person in named}
        room = _MOST_FACTS * length
        for attribute in self._turn(number):
            for person in named:
                if known[person] and (room <= 0 or rng.random() >= share):
                    continue
                if room <= 0 and sum(map(bool, known.values())) >= _SUMMARY_PEOPLE[0]:
                    continue
                fact = (attribute, draw_value(attribute, rng, person.locale))
                known[person].append(fact)
                room -= self._count(summary(fact[0], person.name, fact[1]))
        known = {person: rng.sample(facts, len(facts)) for person, facts in known.items() if facts}
        groups = [group for person, facts in known.items() for group in _groups(person, facts, rng)]
        return self._among_prose(rng.sample(groups, len(groups)), length, _JOINED, rng), known

    def _turn(self, number: int) -> list[str]:
        """Three attributes: each comes once in nine documents, in another company every time round."""
        turns = len(ATTRIBUTES) // _SHARED
        order = random.Random(f"{self._seed}:card:attributes:{number // turns}").sample(ATTRIBUTES, len(ATTRIBUTES))
        return order[number % turns * _SHARED :][:_SHARED]

    def _narrated(self, known: Known, fewest: int, rng: random.Random) -> tuple[str, dict[Person, Sequence[Fact]]]:
        """A document of narratives, a paragraph each, and the people in it: as many as fit, ``fewest`` in any case."""
        length = rng.randint(SHORTEST, LONGEST)
        told = {person: " ".join(write(person.name, facts)) for person, facts in known.items()}
        while len(told) > fewest and self._size(list(told.values())) > length:
            told.popitem()
        return self._among_prose(list(told.values()), length, 0.0, rng), {p: known[p] for p in told}

    def _among_prose(self, groups: Sequence[str], length: int, joined: float, rng: random.Random) -> str:
        """``groups`` in order with prose at random places, up to ``length`` tokens.

        Neighbours are paragraphs of their own or, with probability ``joined``, of one paragraph.
        """
        pieces = list(groups)
        room = length - self._size(pieces)
        while passage := self._passage(room, rng):
            pieces.insert(rng.randint(0, len(pieces)), passage)
            room -= self._count(SEPARATOR + passage)
        text = pieces[0]
        for piece in pieces[1:]:
            text += (" " if rng.random() < joined else SEPARATOR) + piece
        return text

    def _passage(self, room: int, rng: random.Random) -> str:
        """Some consecutive sentences of a paragraph of at most ``room`` tokens; empty where none is found."""
        for _ in range(8 if room > 0 else 0):
            sentences = _SENTENCES.split(rng.choice(self._paragraphs))
            first = rng.randrange(len(sentences))
            for end in range(min(len(sentences), first + rng.randint(1, _MOST_SENTENCES)), first, -1):
                passage = " ".join(sentences[first:end])
                if self._count(SEPARATOR + passage) <= room:
                    return passage
        return ""

    def _size(self, pieces: Sequence[str]) -> int:
        return self._count(self._before + SEPARATOR.join(pieces))

    def _long(self, name: str, length: int, person: Person, rng: random.Random) -> Document:
        facts = _facts(HELD_OUT_ATTRIBUTES, person, rng)
        biography = {
            "id": name,
            "split": SPLIT,
            "person": person.name,
            "facts": [{"attribute": attribute, "value": value} for attribute, value in facts],
            "sentences": write(person.name, facts),
        }
        seed = rng.getrandbits(64)
        return Document(
            name,
            lambda: self._padder.document(biography, length, random.Random(seed))["text"],
            (Question(person.name, tuple(facts)),),
        )


def _facts(attributes: Sequence[str], person: Person, rng: random.Random) -> list[Fact]:
    return [(attribute, draw_value(attribute, rng, person.locale)) for attribute in attributes]


def _groups(person: Person, facts: Sequence[Fact], rng: random.Random) -> list[str]:
    """A person's summary sentences in one to three groups that stay together."""
    sentences = [summary(attribute, person.name, value) for attribute, value in facts]
    cuts = sorted(rng.sample(range(1, len(sentences)), rng.randint(0, min(2, len(sentences) - 1))))
    return [" ".join(sentences[a:b]) for a, b in zip([0, *cuts], [*cuts, len(sentences)], strict=True)]
