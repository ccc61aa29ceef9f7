"""Training examples of the tiny reader: documents that look like use, and questions about them.

A document mixes prose with facts about several invented people of the split ``reader``: some in the summary
pattern, some in natural prose, often several people with the same attributes, so that a value can only be found by
person and attribute together. Where several people appear, every passage names its own; where there is but one, later
passages may say "she". Questions ask for one or several attributes of a person; some ask for facts that the document
does not hold, most of them facts that it holds of another, and are answered with the abstention pattern.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from training.narratives import narrative
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.people import Person, people, split_of
from utaca.biographies.sentences import summary
from utaca.readers.prompts import SEPARATOR, frame
from utaca.readers.questions import question

ALL_ATTRIBUTES = (*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES)

SPLIT = "reader"

FOREIGN = 0.7
"""Of the facts asked for that the document does not hold, the share that it holds of another."""

SINK = (0, 1)
"""Where to look for what the document does not hold: its first token, which every step attends to."""

ALONE, SUMMARISED = 0.25, 0.4
"""Shares of documents about one person alone, and of people whose facts stand in the summary pattern."""

STRANGE = 0.06
"""Share of names, and of values, made of words of the prose: whatever the vocabulary holds is to be copied."""

TRIES = 5
"""Questions drawn in search of one that was not asked yet."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a training batch: ``documents`` of ``length`` tokens, each with questions of ``rows`` tokens together.

    ``attributes`` is the most that one question asks for, ``people`` the fewest and most in a document that is not
    about one alone. ``full`` documents are read with full attention, others through block memory. A share ``single`` of
    the questions asks for one attribute, the others for ``least`` or more; a share ``absent`` asks for facts that the
    document does not hold.
    """

    documents: int
    length: int
    rows: int
    attributes: int
    people: tuple[int, int]
    full: bool = False
    single: float = 0.4
    least: int = 1
    absent: float = 0.2


@dataclass(frozen=True)
class Batch:
    """Token ids and what is known of them.

    ``document`` [B, N]. The questions about a document, answers included, lie behind one another in ``tokens``
    [B, R]: ``question`` says which one a token belongs to (-1: padding), ``place`` its place there, ``weight`` the
    loss weight of predicting it (0 for prompts and padding). ``decoding`` marks the tokens from the last of a prompt
    on, which retrieve blocks. ``source`` [B, R, 2] is the document span from which the *next* token is to be copied
    (token positions [first, end), or -1): the token itself, and for a value's first token all from there to the
    end of the sentence, since what the value is may be said behind it; of an absent fact it is :data:`SINK`, so that
    what nothing in the document matches goes somewhere else than to what matches best. For document tokens that tell a
    value, from its first to the end of the sentence, ``named`` [B, N] is the last token of the name of whom it is told
    and ``attribute`` [B, N] the place in :data:`ALL_ATTRIBUTES` of what is told; both -1 elsewhere.
    """

    document: Tensor
    named: Tensor
    attribute: Tensor
    tokens: Tensor
    question: Tensor
    place: Tensor
    weight: Tensor
    decoding: Tensor
    source: Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on ``device``."""
        return Batch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


@dataclass(frozen=True)
class Passage:
    """Sentences that stay together, and which (person, attribute, value) each of them states."""

    sentences: tuple[str, ...]
    facts: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    def places(self, start: int) -> Iterator[tuple[tuple[str, str], tuple[int, int, int]]]:
        """Characters where each fact's value begins and ends and its sentence ends; the passage is at ``start``."""
        text = self.text
        for person, attribute, value in self.facts:
            at = text.index(value)
            end = 0
            for sentence in self.sentences:
                end += len(sentence)
                if at < end:
                    break
                end += 1
            yield (person, attribute), (start + at, start + at + len(value), start + end)

    def names(self, start: int) -> Iterator[tuple[int, int, int]]:
        """For each fact the characters from its value, or from a name in between, to its sentence's end, and where
        that name ends; nothing where the passage does not name the person before."""
        text = self.text
        for (person, _), (value, _, end) in self.places(0):
            name = text.rfind(person, 0, end)
            if name >= 0:
                told = name + len(person)
                yield start + max(value, told), start + end, start + told - 1


@dataclass(frozen=True)
class Reading:
    """A document's tokens [N] and their first characters, its people's facts, and where their values are.

    ``places`` holds characters: where the value begins and ends, where its sentence ends; ``names`` the stretches that
    tell a value, [first, end), and the last character of the name before them.
    """

    tokens: Tensor
    starts: list[int]
    facts: dict[str, dict[str, str]]
    places: dict[tuple[str, str], tuple[int, int, int]]
    names: list[tuple[int, int, int]]

    def token(self, character: int) -> int:
        """Position of the token that holds a character."""
        return bisect_right(self.starts, character) - 1


class Examples:
    """An endless, seeded stream of training batches.

    ``paragraphs`` is the prose; the people are of the split ``reader``. The first token of a value, which takes
    understanding, weighs more than those that only continue it, and these more than the pattern around them.
    """

    FIRST_WEIGHT = 3.0
    VALUE_WEIGHT = 1.0
    TEMPLATE_WEIGHT = 0.3

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        paragraphs: Sequence[str],
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.paragraphs = paragraphs
        self.rng = random.Random(f"{seed}:{SPLIT}:examples")
        self.people: Iterator[Person] = people(SPLIT, seed)
        self.before, self.after = frame(tokenizer)
        self._drawn = 0

    def state(self) -> tuple[int, Any]:
        """Where the stream is, for :meth:`restore`."""
        return self._drawn, self.rng.getstate()

    def restore(self, state: tuple[int, Any]) -> None:
        """Go on from a recorded :meth:`state` of a stream with the same arguments."""
        while self._drawn < state[0]:
            self._next_person()
        self.rng.setstate(state[1])

    def _next_person(self) -> Person:
        self._drawn += 1
        return next(self.people)

    def batch(self, shape: Shape) -> Batch:
        """The next batch."""
        examples = [self._example(shape) for _ in range(shape.documents)]
        return Batch(*(torch.stack(parts) for parts in zip(*examples, strict=True)))

    def _person(self, attributes: int, alone: bool) -> tuple[Person, list[tuple[str, str]]]:
        rng = self.rng
        person = self._next_person()
        if rng.random() < STRANGE:
            person = self._stranger(person.locale)
        if (alone or attributes >= len(HELD_OUT_ATTRIBUTES)) and rng.random() < 0.7:
            chosen = list(HELD_OUT_ATTRIBUTES)
        elif rng.random() < 0.5:
            chosen = rng.sample(HELD_OUT_ATTRIBUTES, rng.randint(1 + 2 * alone, len(HELD_OUT_ATTRIBUTES)))
        else:
            chosen = rng.sample(ALL_ATTRIBUTES, rng.randint(1 + 2 * alone, 5))
        return person, [
            (a, self._words(rng.randint(2, 4)).title() if rng.random() < STRANGE else draw_value(a, rng, person.locale))
            for a in chosen
        ]

    def _stranger(self, locale: str) -> Person:
        """A person of the split with a name of words of the prose."""
        while split_of(name := f"{self._words(1).title()} {self._words(1).title()}") != SPLIT:
            pass
        return Person(name, locale)

    def _words(self, count: int) -> str:
        """A run of words of the prose, no short ones, none with a mark in it."""
        while True:
            words = self.rng.choice(self.paragraphs).split()
            first = self.rng.randrange(len(words))
            run = words[first : first + count]
            if len(run) == count and all(word.isalpha() and len(word) > 2 for word in run) and "unknown" not in run:
                return " ".join(run)

    def _passages(self, person: Person, known: list[tuple[str, str]], alone: bool) -> list[Passage]:
        """One to four passages about a person; each names the person, unless that person is ``alone``."""
        rng = self.rng
        facts = [(person.name, *fact) for fact in known]
        if rng.random() < SUMMARISED:
            sentences = [summary(attribute, person.name, value) for attribute, value in known]
            return [Passage(tuple(sentences[i:j]), tuple(facts[i:j])) for i, j in self._cuts(len(facts))]
        if not alone:
            return [
                Passage(tuple(narrative(person.name, known[i:j], rng)), tuple(facts[i:j]))
                for i, j in self._cuts(len(facts))
            ]
        sentences = narrative(person.name, known, rng)
        parts = [tuple(sentences[i:j]) for i, j in self._cuts(len(sentences))]
        return [Passage(part, tuple(f for f in facts if any(f[2] in s for s in part))) for part in parts]

    def _cuts(self, count: int) -> list[tuple[int, int]]:
        """``count`` things in one to four runs."""
        cuts = self.rng.sample(range(1, count), min(self.rng.randint(0, 3), count - 1))
        return list(pairwise([0, *sorted(cuts), count]))

    def reading(self, shape: Shape) -> Reading:
        """The next document, without questions. No passage is cut; facts that find no room are left out."""
        rng = self.rng
        count = 1 if rng.random() < ALONE else rng.randint(*shape.people)
        room = shape.length - self._size(self.before)
        facts: dict[str, dict[str, str]] = {}
        queues: list[Iterator[Passage]] = []
        order: list[int] = []
        for _ in range(count):
            person, known = self._person(shape.attributes, count == 1)
            # A value within another could not be told apart from it.
            known = [f for f in known if sum(f[1] in value for _, value in known) == 1] or known[:1]
            while known:
                passages = self._passages(person, known, count == 1)
                needed = sum(self._size(p.text + SEPARATOR) for p in passages)
                if needed <= room:
                    room -= needed
                    facts[person.name] = dict(known)
                    order += [len(queues)] * len(passages)
                    queues.append(iter(passages))
                    break
                known = known[: len(known) // 2]
        rng.shuffle(order)
        return self._assemble([next(queues[i]) for i in order], facts, shape.length, room)

    def _assemble(
        self, pieces: list[Passage | str], facts: dict[str, dict[str, str]], length: int, room: int
    ) -> Reading:
        """Passages with prose between; the first or last piece is prose and cut so that ``length`` is met."""
        while (needed := self._size((filler := self._prose(length)) + SEPARATOR)) < room:
            pieces.insert(self.rng.randint(0, len(pieces)), filler)
            room -= needed
        at_end = self.rng.random() < 0.5
        while True:
            text = self.before
            places = {}
            names = []
            for i, piece in enumerate([*pieces, filler] if at_end else [filler, *pieces]):
                text += SEPARATOR * bool(i)
                if isinstance(piece, Passage):
                    places.update(piece.places(len(text)))
                    names += piece.names(len(text))
                    text += piece.text
                else:
                    text += piece
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids = encoded["input_ids"]
            starts = [start for start, _ in encoded["offset_mapping"]]
            if len(ids) >= length:
                break
            filler += " " + self._prose(length)
        kept = length if at_end else self._size(self.before)
        rest = len(ids) - (length - kept)
        return Reading(torch.tensor(ids[:kept] + ids[rest:]), starts[:kept] + starts[rest:], facts, places, names)

    def _size(self, text: str) -> int:
        return len(self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False))

    def _prose(self, length: int) -> str:
        """A paragraph, cut to a few sentences where documents are short."""
        paragraph = self.rng.choice(self.paragraphs)
        if length > 800:
            return paragraph
        sentences = paragraph.split(". ")
        count = self.rng.randint(1, 2)
        start = self.rng.randint(0, max(0, len(sentences) - count))
        return ". ".join(sentences[start : start + count]).rstrip(".") + "."

    def _example(self, shape: Shape) -> tuple[Tensor, ...]:
        """One document and its questions, the fields of :class:`Batch` without the batch dimension."""
        reading = self.reading(shape)
        tokens = []
        question = []
        place = []
        weight = []
        decoding = []
        source = []
        before: set[tuple[str, ...]] = set()
        for number in itertools.count():
            for _ in range(TRIES):
                person, asked = self._asked(reading, shape)
                if (person, *asked) not in before:
                    break
            before.add((person, *asked))
            ids, weights, spans, prompt = self._question(reading, person, asked)
            if number and len(tokens) + len(ids) > shape.rows:
                break
            tokens += ids
            question += [number] * len(ids)
            place += range(len(ids))
            weight += weights
            decoding += [i >= prompt - 1 for i in range(len(ids))]
            source += [*spans[1:], (-1, -1)]
        pad = max(0, shape.rows - len(tokens))
        named = torch.full_like(reading.tokens, -1)
        for first, end, name in reading.names:
            named[reading.token(first) : reading.token(end - 1) + 1] = reading.token(name)
        told = torch.full_like(reading.tokens, -1)
        for (_, attribute), (first, _, end) in sorted(reading.places.items(), key=lambda item: item[1]):
            told[reading.token(first) : reading.token(end - 1) + 1] = ALL_ATTRIBUTES.index(attribute)
        return (
            reading.tokens,
            named,
            told,
            torch.tensor(tokens + [self.tokenizer.pad_token_id] * pad)[: shape.rows],
            torch.tensor(question + [-1] * pad)[: shape.rows],
            torch.tensor(place + [0] * pad)[: shape.rows],
            torch.tensor(weight + [0.0] * pad)[: shape.rows],
            torch.tensor(decoding + [False] * pad)[: shape.rows],
            torch.tensor(source + [(-1, -1)] * pad)[: shape.rows],
        )

    def _asked(self, reading: Reading, shape: Shape) -> tuple[str, list[str]]:
        """Whom and what to ask about."""
        rng = self.rng
        facts = reading.facts
        person = rng.choice(list(facts)) if facts else self._next_person().name
        known = list(facts.get(person, ()))
        wanted = 1 if rng.random() < shape.single else rng.randint(shape.least, shape.attributes)
        if known and rng.random() >= shape.absent:
            if wanted < len(HELD_OUT_ATTRIBUTES):
                return person, rng.sample(known, min(wanted, len(known)))
            asked = [a for a in HELD_OUT_ATTRIBUTES if a in known] or known
            return person, asked if rng.random() < 0.5 else rng.sample(asked, len(asked))
        if rng.random() < 0.2:
            person = self._next_person().name
            known = []
        strangers = [a for a in ALL_ATTRIBUTES if a not in known]
        foreign = [a for a in strangers if any(a in own for own in facts.values())]
        asked = rng.sample(known, min(len(known), rng.randint(0, wanted - 1)))
        for _ in range(wanted - len(asked)):
            pool = foreign if foreign and rng.random() < FOREIGN else strangers
            asked.append(rng.choice(pool))
        asked = list(dict.fromkeys(asked))
        rng.shuffle(asked)
        return person, asked

    def _question(
        self, reading: Reading, person: str, asked: Sequence[str]
    ) -> tuple[list[int], list[float], list[tuple[int, int]], int]:
        """Token ids of prompt and answer, the weight and the source of each, and how many are the prompt's."""
        known = reading.facts.get(person, {})
        prompt = self.tokenizer(SEPARATOR + question(asked, person, "compact") + self.after, add_special_tokens=False)[
            "input_ids"
        ]
        answer = ""
        values: list[tuple[int, int, tuple[int, int, int] | None]] = []
        for attribute in asked:
            value = known.get(attribute)
            sentence = summary(attribute, person, value or "unknown")
            answer += " " * bool(answer) + sentence
            end = len(answer) - 1
            values.append((end - len(value or "unknown"), end, reading.places[person, attribute] if value else None))
        encoded = self.tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)
        weights = [0.0] * len(prompt)
        sources = [(-1, -1)] * len(prompt)
        for start, end in encoded["offset_mapping"]:
            weight = self.TEMPLATE_WEIGHT
            source = (-1, -1)
            for low, high, at in values:
                if start < high + 1 and end > low:
                    weight = self.FIRST_WEIGHT if start <= low else self.VALUE_WEIGHT
                    if at is None:
                        source = SINK if start <= low else source
                    elif start < high:
                        first = reading.token(at[0] + max(start, low) - low)
                        source = (first, reading.token(at[2] - 1) + 1 if start <= low else first + 1)
            weights.append(weight)
            sources.append(source)
        ids = [*prompt, *encoded["input_ids"], self.tokenizer.eos_token_id]
        return ids, [*weights, self.TEMPLATE_WEIGHT], [*sources, (-1, -1)], len(prompt)
