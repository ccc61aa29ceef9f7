"""Documents on which the budget matters (``documents=hard``): one recipe, beside the paper's documents.

Each sentence stands at a depth of its own. A crowd of people with names like the person's has the same attributes with
other values. A sentence names each of them with a number in a register; some blocks on, their values are stated of that
number alone. Some facts are first stated with an outdated value and corrected further on. Values stand in another form
than the reference (:mod:`utaca.biographies.forms`).

The crowd is told of by the project's rules, also where the writer is a remote model: it asks no endpoint for anything.
The wordings are in ``data/biographies/hard.yaml``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Annotated, Any

from utaca.biographies.attributes import draw_value
from utaca.biographies.dataset import among_fillers
from utaca.biographies.forms import meaning, other_form
from utaca.biographies.passages import Facts, Part, Passage, Piece, Sentence, Stated, facts_of, join, parsed
from utaca.biographies.people import faker, normalised, split_of
from utaca.biographies.source import SENTENCE_END
from utaca.biographies.templates import write
from utaca.data_files import Entries, Text, read, slots

CROWD = 12
"""People told of beside a document's person."""
APART = 96
"""Tokens of padding, six blocks, between the sentence that names a person and the one that states a value."""
REVISED = 0.25
"""Share of facts that are corrected."""

_NUMBERS = range(1000, 10000)
_FILLERS = (0, 4)
_VOWELS, _CONSONANTS = "aeiou", "bcdfghklmnprstvwz"
_SLOT = re.compile(r"\{(\w+)\}")


class Wordings(Text):
    """Sentences that give a person a number, openings that say of whom a passage is, and corrections."""

    numbers: Entries[Annotated[str, slots(once="name number")]]
    leads: Entries[Annotated[str, slots(once="label")]]
    revisions: Entries[Annotated[str, slots(once="attribute label old new")]]


def _wordings() -> Wordings:
    return read("biographies/hard.yaml", Wordings)


@dataclass(frozen=True)
class Subject:
    """Whom passages tell of: the person of a document, or one of the crowd, whose ``source`` is their name."""

    name: str
    facts: Facts
    sentences: tuple[str, ...]
    kind: str
    source: str


def threads(biography: Mapping[str, Any], rng: random.Random) -> list[list[Passage]]:
    """The passages of the person of a row of schema "biographies", then of each of the crowd, in their order.

    One fact stays together; of several, each sentence is a passage.
    """
    facts = facts_of(biography)
    own = random.Random(rng.getrandbits(64))
    people, *seeds = (random.Random(own.getrandbits(64)) for _ in range(CROWD + 2))
    person = Subject(biography["person"], facts, tuple(biography["sentences"]), "biography", biography["id"])
    subjects = [person, *crowd(biography, people)]
    numbers = own.sample(_NUMBERS, CROWD + 1)
    return [
        _passages(subject, number, biography["locale"], dict(facts), seed)
        for subject, number, seed in zip(subjects, numbers, seeds, strict=True)
    ]


def placed(
    passages: Iterable[Sequence[Passage]], pieces: Sequence[Piece], rng: random.Random
) -> list[tuple[tuple[int, int], Passage]]:
    """What is told and where, in order: before which piece, or after which character of it.

    ``passages`` are those of each person. Each is placed at random among the pieces, the value's some padding behind
    the name's. Those of one place stand in random order, but each person's in theirs.
    """
    room = list(accumulate((piece.size for piece in reversed(pieces)), initial=0))
    gaps = range(sum(tokens >= APART for tokens in room))
    found: list[tuple[tuple[int, int], float, Passage]] = []
    for thread in passages:
        chosen = sorted(rng.choices(gaps, k=len(thread)))
        ties = sorted(rng.random() for _ in thread)
        for gap, tie, passage in zip(chosen, ties, thread, strict=True):
            if passage.naming:
                found.append(((gap, 0), tie, replace(passage, parts=(passage.naming,))))
            found.append((_further(pieces, gap), tie, passage))
    found.sort(key=lambda each: each[:2])
    return [(place, passage) for place, _, passage in found]


def _further(pieces: Sequence[Piece], gap: int) -> tuple[int, int]:
    """The first place at a sentence end that at least :data:`APART` tokens of padding part from a gap."""
    place, tokens = gap, APART
    while tokens > 0 and place < len(pieces):
        piece = pieces[place]
        if piece.size > tokens:
            # Tokens are taken to be spread evenly over a paragraph.
            ends = (match.end() for match in SENTENCE_END.finditer(piece.text))
            within = (end for end in ends if end * piece.size >= tokens * len(piece.text))
            end = next(within, len(piece.text))
            return (place, end) if end < len(piece.text) else (place + 1, 0)
        tokens -= piece.size
        place += 1
    return place, 0


def _passages(
    subject: Subject, number: int, locale: str, taken: Mapping[str, str], rng: random.Random
) -> list[Passage]:
    """The passages that tell of a person under a number; no outdated value means that of ``taken``, by attribute."""
    wordings, label = _wordings(), f"no. {number}"
    sentences = parsed(subject.sentences, subject.name, subject.facts)
    held = {part.attribute for part in chain.from_iterable(sentences) if isinstance(part, Stated)}
    values = {attribute: value for attribute, value in subject.facts if attribute in held}
    outdated = {
        attribute: another(attribute, [value, taken[attribute]], locale, rng)
        for attribute, value in values.items()
        if rng.random() < REVISED
    }
    values, outdated = (
        {attribute: other_form(attribute, value, rng) for attribute, value in each.items()}
        for each in (values, outdated)
    )
    said = [_restated(_renamed(sentence, subject.name, label), values, outdated) for sentence in sentences]
    found = [_led(parts, label, rng) for parts in (said if len(subject.facts) > 1 else [join(said)])]
    for attribute, old in outdated.items():
        new = Stated(values[attribute], attribute)
        last = max(i for i, parts in enumerate(found) if Stated(old) in parts)
        place = rng.randint(last + 1, len(found))
        slots = {"attribute": attribute, "label": label, "old": Stated(old), "new": new}
        found.insert(place, _filled(rng.choice(wordings.revisions), slots))
    passages = [Passage(_opened(parts), subject.kind, subject.source) for parts in found]
    return [
        replace(passage, naming=rng.choice(wordings.numbers).format(name=subject.name, number=number))
        if _states(passage.parts)
        else passage
        for passage in passages
    ]


def _restated(sentence: Sentence, values: Mapping[str, str], outdated: Mapping[str, str]) -> Sentence:
    """The sentence with its values in their forms, outdated ones in the place of those that are revised later."""
    return tuple(
        part
        if isinstance(part, str)
        else Stated(outdated[part.attribute])
        if part.attribute in outdated
        else Stated(values[part.attribute], part.attribute)
        for part in sentence
    )


def _renamed(sentence: Sentence, name: str, label: str) -> Sentence:
    """The sentence with the label in place of the person's name and of parts of it."""
    parts = sorted({name, *(word for word in name.split() if len(word) > 2)}, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, parts))})(?!\w)(?:'(?!\w))?")

    def label_for(match: re.Match[str]) -> str:
        return f"{label}'s" if match[0].endswith("'") else label

    return tuple(pattern.sub(label_for, part) if isinstance(part, str) else part for part in sentence)


def _led(parts: Sentence, label: str, rng: random.Random) -> Sentence:
    """The sentences of a passage, opened by whom they are about where they state something and do not say of whom."""
    lead = rng.choice(_wordings().leads)
    if not _states(parts) or any(label in part for part in parts if isinstance(part, str)):
        return parts
    return (f"{lead.format(label=label)} ", *parts)


def _opened(parts: Sentence) -> Sentence:
    """The parts with a capital where a sentence opens with the number of a person, or with a value."""
    opened: list[Part] = []
    before = ""
    for part in parts:
        opens = not before or before.endswith((". ", "! ", "? "))
        if isinstance(part, str):
            part = re.sub(r"(^|[.!?] )no\. (?=\d)" if opens else r"([.!?] )no\. (?=\d)", r"\1No. ", part)
        elif opens:
            part = replace(part, text=part.text[0].upper() + part.text[1:])
        opened.append(part)
        before = part if isinstance(part, str) else part.text
    return tuple(opened)


def _filled(wording: str, slots: Mapping[str, Part]) -> Sentence:
    cuts = _SLOT.split(wording)
    return tuple(part for i, cut in enumerate(cuts) if (part := slots[cut] if i % 2 else cut) != "")


def _states(parts: Sentence) -> bool:
    return any(isinstance(part, Stated) for part in parts)


# The crowd


def crowd(biography: Mapping[str, Any], rng: random.Random) -> list[Subject]:
    """The crowd of a row of schema "biographies".

    Their names are of the biography's split, all different, none within the person's or around it. No value means
    what the person's of that attribute does. Biographies of "test" are told by :mod:`utaca.biographies.templates`,
    others by a summary among a few fillers.
    """
    names = alike(biography["person"], biography["locale"], biography["split"], rng)
    return [_other(next(names), biography, random.Random(rng.getrandbits(64))) for _ in range(CROWD)]


def _other(name: str, biography: Mapping[str, Any], rng: random.Random) -> Subject:
    facts = tuple(
        (attribute, another(attribute, [value], biography["locale"], rng)) for attribute, value in facts_of(biography)
    )
    if biography["split"] == "test":
        sentences = write(name, facts)
    else:
        attribute, value = facts[0]
        sentences = among_fillers(attribute, name, value, rng, _FILLERS)
    return Subject(name, facts, tuple(sentences), "crowd", name)


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
