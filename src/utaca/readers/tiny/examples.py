"""Training examples of the tiny reader: documents that look like use, and questions about them.

A document mixes prose with facts about several invented people of the split ``reader``: some in the summary
pattern, some in natural prose, often several people with the same attributes, so that a value can only be found by
person and attribute together. Questions ask for one or several attributes of a person; some ask for facts that the
document does not hold, which are answered with the abstention pattern.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.narratives import narrative
from utaca.biographies.people import Person, people
from utaca.biographies.sentences import abstention, summary
from utaca.readers.prompts import SEPARATOR, frame, question

ALL_ATTRIBUTES = (*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES)

ABSENT = 0.15
"""Share of questions about facts that the document does not hold."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a training batch: ``documents`` of ``length`` tokens, ``questions`` on each, of ``width`` tokens.

    ``attributes`` is the most that one question asks for, ``people`` the fewest and most in a document.
    """

    documents: int
    length: int
    questions: int
    width: int
    attributes: int
    people: tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """Token ids and what is known of them.

    ``document`` [B, N]; ``question`` [B, Q, S], padded on the right; ``weight`` [B, Q, S] is the loss weight of
    predicting that token (0 for question and padding); ``decoding`` [B, Q, S] marks the tokens from the last of the
    prompt on, which retrieve blocks; ``source`` [B, Q, S, 2] is the document span (tokens) of the value that the
    *next* token belongs to, or -1.
    """

    document: Tensor
    question: Tensor
    weight: Tensor
    decoding: Tensor
    source: Tensor


@dataclass(frozen=True)
class Reading:
    """A document's tokens [N], the facts of its people, and where their values are: token spans [first, end)."""

    tokens: Tensor
    facts: dict[str, list[tuple[str, str]]]
    places: dict[tuple[str, str], tuple[int, int]]


class Examples:
    """An endless, seeded stream of training batches.

    ``paragraphs`` is the prose; ``people_split`` names the split whose people appear ("reader" to train,
    "reader_validation" to evaluate).
    """

    VALUE_WEIGHT, TEMPLATE_WEIGHT = 1.0, 0.3

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        paragraphs: Sequence[str],
        seed: int,
        people_split: str = "reader",
    ) -> None:
        self.tokenizer = tokenizer
        self.paragraphs = paragraphs
        self.rng = random.Random(f"{seed}:{people_split}:examples")
        self.people: Iterator[Person] = people(people_split, seed)
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
        examples = [self._document(shape) for _ in range(shape.documents)]
        return Batch(*(torch.stack(parts) for parts in zip(*examples, strict=True)))

    def _person(self, attributes: int) -> tuple[Person, list[tuple[str, str]]]:
        rng, person = self.rng, self._next_person()
        if attributes >= len(HELD_OUT_ATTRIBUTES) and rng.random() < 0.7:
            chosen = list(HELD_OUT_ATTRIBUTES)
        elif rng.random() < 0.5:
            chosen = rng.sample(HELD_OUT_ATTRIBUTES, rng.randint(1, len(HELD_OUT_ATTRIBUTES)))
        else:
            chosen = rng.sample(ALL_ATTRIBUTES, rng.randint(1, 5))
        return person, [(a, draw_value(a, rng, person.locale)) for a in chosen]

    def _groups(self, person: Person, facts: list[tuple[str, str]]) -> list[str]:
        """The person's sentences, in one to three groups that stay together."""
        rng = self.rng
        if rng.random() < 0.4:
            sentences = [summary(attribute, person.name, value) for attribute, value in facts]
        else:
            sentences = narrative(person.name, facts, rng)
        cuts = sorted(rng.sample(range(1, len(sentences)), min(rng.randint(0, 2), len(sentences) - 1)))
        return [" ".join(sentences[i:j]) for i, j in zip([0, *cuts], [*cuts, len(sentences)], strict=True)]

    def reading(self, shape: Shape) -> Reading:
        """The next document, without questions."""
        rng = self.rng
        facts: dict[str, list[tuple[str, str]]] = {}
        groups: list[list[str]] = []
        for _ in range(rng.randint(*shape.people)):
            person, known = self._person(shape.attributes)
            facts[person.name] = known
            groups.append(self._groups(person, known))
        text = self.before + self._interleave(groups, shape.length)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        while len(encoded["input_ids"]) < shape.length:
            text += SEPARATOR + self._prose(shape.length)
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"][: shape.length]
        places = self._places(text[: offsets[-1][1]], facts, groups, [start for start, _ in offsets])
        return Reading(torch.tensor(encoded["input_ids"][: shape.length]), facts, places)

    def _document(self, shape: Shape) -> tuple[Tensor, ...]:
        reading = self.reading(shape)
        questions = [self._question(reading.facts, reading.places, shape) for _ in range(shape.questions)]
        return (reading.tokens, *(torch.stack(p) for p in zip(*questions, strict=True)))

    def _prose(self, length: int) -> str:
        """A paragraph, cut to a few sentences where documents are short."""
        paragraph = self.rng.choice(self.paragraphs)
        if length > 800:
            return paragraph
        sentences = paragraph.split(". ")
        count = self.rng.randint(1, 2)
        start = self.rng.randint(0, max(0, len(sentences) - count))
        return ". ".join(sentences[start : start + count]).rstrip(".") + "."

    def _interleave(self, groups: list[list[str]], length: int) -> str:
        """Groups of all people at random places, each person's in order, prose between."""
        rng = self.rng
        order = [i for i, person in enumerate(groups) for _ in person]
        rng.shuffle(order)
        queues = [iter(person) for person in groups]
        pieces = [next(queues[i]) for i in order]
        room = length * 3.6 - sum(map(len, pieces))
        while room > 0:
            prose = self._prose(length)
            room -= len(prose)
            pieces.insert(rng.randint(0, len(pieces)), prose)
        return SEPARATOR.join(pieces)

    @staticmethod
    def _places(
        text: str, facts: dict[str, list[tuple[str, str]]], groups: list[list[str]], starts: list[int]
    ) -> dict[tuple[str, str], tuple[int, int]]:
        """Token span [first, end) of every value that is in the document; the person must be named there too."""
        places = {}
        for (person, known), pieces in zip(facts.items(), groups, strict=True):
            if person not in text:
                continue
            for attribute, value in known:
                piece = next(piece for piece in pieces if value in piece)
                at = text.find(piece[: piece.index(value) + len(value)])
                if at >= 0:
                    at += piece.index(value)
                    places[person, attribute] = (
                        bisect_right(starts, at) - 1,
                        bisect_right(starts, at + len(value) - 1),
                    )
        return places

    def _question(
        self,
        facts: dict[str, list[tuple[str, str]]],
        places: dict[tuple[str, str], tuple[int, int]],
        shape: Shape,
    ) -> tuple[Tensor, ...]:
        rng = self.rng
        person = rng.choice(list(facts))
        known = dict(facts[person])
        present = [a for a in known if (person, a) in places]
        wanted = rng.randint(1, shape.attributes)
        if rng.random() < ABSENT or not present:
            strangers = [a for a in ALL_ATTRIBUTES if a not in known]
            asked = rng.sample(present, min(len(present), rng.randint(0, wanted - 1)))
            asked += rng.sample(strangers, min(wanted - len(asked), len(strangers)))
            rng.shuffle(asked)
        elif shape.attributes >= len(HELD_OUT_ATTRIBUTES):
            asked = [a for a in HELD_OUT_ATTRIBUTES if a in present] or present[:wanted]
            if rng.random() < 0.5:
                rng.shuffle(asked)
        else:
            asked = rng.sample(present, min(wanted, len(present)))

        prompt = self.tokenizer(SEPARATOR + question(asked, person, "compact") + self.after, add_special_tokens=False)[
            "input_ids"
        ]
        answer, spans = "", []
        for attribute in asked:
            place = places.get((person, attribute))
            sentence = summary(attribute, person, known[attribute]) if place else abstention(attribute, person)
            answer += " " * bool(answer)
            value = known[attribute] if place else "unknown"
            end = len(answer) + len(sentence) - 1
            spans.append((end - len(value), end, place or (-1, -1)))
            answer += sentence
        encoded = self.tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)
        ids = [*prompt, *encoded["input_ids"], self.tokenizer.eos_token_id]
        weight = [0.0] * len(prompt)
        source = [(-1, -1)] * len(prompt)
        for start, end in encoded["offset_mapping"]:
            inside = [place for low, high, place in spans if start < high + 1 and end > low]
            weight.append(self.VALUE_WEIGHT if inside else self.TEMPLATE_WEIGHT)
            source.append(inside[0] if inside else (-1, -1))
        weight.append(self.TEMPLATE_WEIGHT)
        source.append((-1, -1))
        source = [*source[1:], (-1, -1)]
        decoding = [i >= len(prompt) - 1 for i in range(len(ids))]
        pad = shape.width - len(ids)
        if pad < 0:
            ids, weight, source, decoding = (x[: shape.width] for x in (ids, weight, source, decoding))
            pad = 0
        return (
            torch.tensor(ids + [self.tokenizer.pad_token_id] * pad),
            torch.tensor(weight + [0.0] * pad),
            torch.tensor(decoding + [False] * pad),
            torch.tensor(source + [(-1, -1)] * pad),
        )
