"""How a document tells of a person: the passages that a biography is dealt into, and what makes them harder to read.

A sentence has parts, its plain text and the values that it states, so that a value can be given in another form and the
person by a number without one being taken for the other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from utaca.biographies.crowd import another
from utaca.biographies.forms import other_form
from utaca.settings import schema

_GROUPS = (2, 4)

_ENTERED = (
    "{name} is entered in the register as no. {number}.",
    "In the register, no. {number} stands for {name}.",
    "The register has {name} under no. {number}.",
    "Those who look up {name} in the register are sent to no. {number}.",
)
_LEADS = ("More about {label}: ", "As for {label}: ", "To return to {label}: ", "Of {label} this is told: ")
_REVISIONS = (
    "Correction: the {attribute} of {label} is not {old}, as was said before, but {new}.",
    "What was said before of {label} is wrong: the {attribute} is {new} and not {old}.",
    "The {attribute} of {label} was first taken to be {old}; the records have since shown that it is {new}.",
    "It is to be corrected that {old} was given as the {attribute} of {label}, for which {new} is right.",
)
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Stated:
    """A value as a sentence states it; ``attribute`` is empty where the value does not hold."""

    text: str
    attribute: str = ""


Part = str | Stated
Sentence = tuple[Part, ...]


@dataclass(frozen=True)
class Passage:
    """Sentences that stand together. ``naming`` is the sentence, some blocks before, that says whom they are about."""

    parts: tuple[Part, ...]
    kind: str
    source: str
    naming: str = ""

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def values(self) -> Iterator[tuple[str, str, int, int]]:
        """Attribute, text, start and end of the values stated here that hold."""
        start = 0
        for part in self.parts:
            text = part if isinstance(part, str) else part.text
            if isinstance(part, Stated) and part.attribute:
                yield part.attribute, text, start, start + len(text)
            start += len(text)


@dataclass(frozen=True)
class Subject:
    """Whom passages tell of; ``number`` is the one in the register."""

    name: str
    locale: str
    facts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]
    kind: str
    source: str
    number: int


def joined(passages: Sequence[Passage]) -> Passage:
    """Several passages as one, the first one's naming before all."""
    return replace(passages[0], parts=_join([passage.parts for passage in passages]))


def passages(
    subject: Subject, taken: Mapping[str, str], options: schema.Documents, dealing: random.Random, rng: random.Random
) -> list[Passage]:
    """The passages that tell of a person, in their order.

    Several facts are dealt into two to four groups of sentences, or into single sentences, by ``dealing``; one fact
    stays together. All that the other options draw is drawn from ``rng``. ``taken`` has, by attribute, a value that
    none of the outdated ones may mean.
    """
    sentences = _parsed(subject.sentences, subject.name, subject.facts)
    held = {part.attribute for part in chain.from_iterable(sentences) if isinstance(part, Stated)}
    forms = {attribute: value for attribute, value in subject.facts if attribute in held}
    outdated: dict[str, str] = {}
    for attribute, value in forms.items():
        if rng.random() < options.revised:
            outdated[attribute] = another(attribute, [value, taken[attribute]], subject.locale, rng)
    if options.formats == "varied":
        forms = {attribute: other_form(attribute, value, rng) for attribute, value in forms.items()}
        outdated = {attribute: other_form(attribute, value, rng) for attribute, value in outdated.items()}
    label = f"no. {subject.number}" if options.apart else subject.name
    if options.apart:
        sentences = [_renamed(sentence, subject.name, label) for sentence in sentences]
    first = [_restated(sentence, forms, outdated) for sentence in sentences]
    found = _dealt(first, len(subject.facts) > 1, options.spread, dealing)
    if options.crowd or options.apart or options.spread == "sentences":
        found = [_led(parts, label, rng) for parts in found]
    for attribute, old in outdated.items():
        slots = {
            "attribute": attribute,
            "label": label,
            "old": Stated(old),
            "new": Stated(forms[attribute], attribute),
        }
        told = max(i for i, parts in enumerate(found) if Stated(old) in parts)
        found.insert(rng.randint(told + 1, len(found)), _filled(rng.choice(_REVISIONS), slots))
    varied = options.formats == "varied"
    made = [Passage(_opened(parts, varied), subject.kind, subject.source) for parts in found]
    if not options.apart:
        return made
    slots = {"name": subject.name, "number": str(subject.number)}
    return [
        replace(passage, naming=rng.choice(_ENTERED).format(**slots)) if _states(passage.parts) else passage
        for passage in made
    ]


def _parsed(sentences: Sequence[str], name: str, facts: Sequence[tuple[str, str]]) -> list[Sentence]:
    """Sentences in parts.

    Longer values are looked for first, so that "Law" is not found in the name of a law school, and none in the person's
    name. Where facts share a value, each has one of its places, the last one all that are left.
    """
    named: dict[str, list[str]] = {}
    for attribute, value in facts:
        named.setdefault(value, []).append(attribute)
    known = sorted({*named, name}, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(each)}(?!\w)" for each in known))
    found = []
    for sentence in sentences:
        parts: list[Part] = []
        end = 0
        for match in pattern.finditer(sentence):
            if own := named.get(match[0]):
                parts += [sentence[end : match.start()], Stated(match[0], own.pop(0) if len(own) > 1 else own[0])]
                end = match.end()
        found.append(tuple(part for part in [*parts, sentence[end:]] if part != ""))
    return found


def _restated(sentence: Sentence, forms: Mapping[str, str], outdated: Mapping[str, str]) -> Sentence:
    """The sentence with its values in their forms, outdated ones in the place of those that are revised later."""
    return tuple(
        part
        if isinstance(part, str)
        else Stated(outdated[part.attribute])
        if part.attribute in outdated
        else Stated(forms[part.attribute], part.attribute)
        for part in sentence
    )


def _renamed(sentence: Sentence, name: str, label: str) -> Sentence:
    """The sentence with the label in place of the person's name and of parts of it."""
    parts = sorted({name, *(word for word in name.split() if len(word) > 2)}, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, parts))})(?!\w)(?:'(?!\w))?")

    def label_for(match: re.Match[str]) -> str:
        return f"{label}'s" if match[0].endswith("'") else label

    return tuple(pattern.sub(label_for, part) if isinstance(part, str) else part for part in sentence)


def _dealt(sentences: Sequence[Sentence], several: bool, spread: str, rng: random.Random) -> list[Sentence]:
    least, most = _GROUPS
    if several and spread == "sentences":
        return list(sentences)
    if not several or len(sentences) < least:
        return [_join(sentences)]
    number = rng.randint(least, min(most, len(sentences)))
    cuts = [0, *sorted(rng.sample(range(1, len(sentences)), number - 1)), len(sentences)]
    return [_join(sentences[a:b]) for a, b in pairwise(cuts)]


def _led(parts: Sentence, label: str, rng: random.Random) -> Sentence:
    """The sentences of a passage, opened by whom they are about where they state something and do not say of whom."""
    lead = rng.choice(_LEADS)
    if not _states(parts) or any(label in part for part in parts if isinstance(part, str)):
        return parts
    return (lead.format(label=label), *parts)


def _opened(parts: Sentence, varied: bool) -> Sentence:
    """The parts with a capital where a sentence opens with the number of a person, or with a value in another form."""
    opened: list[Part] = []
    before = ""
    for part in parts:
        opens = not before or before.endswith((". ", "! ", "? "))
        if isinstance(part, str):
            part = re.sub(r"(^|[.!?] )no\. (?=\d)" if opens else r"([.!?] )no\. (?=\d)", r"\1No. ", part)
        elif varied and opens:
            part = replace(part, text=part.text[0].upper() + part.text[1:])
        opened.append(part)
        before = part if isinstance(part, str) else part.text
    return tuple(opened)


def _filled(wording: str, slots: Mapping[str, Part]) -> Sentence:
    cuts = _SLOT.split(wording)
    return tuple(part for i, cut in enumerate(cuts) if (part := slots[cut] if i % 2 else cut) != "")


def _states(parts: Sentence) -> bool:
    return any(isinstance(part, Stated) for part in parts)


def _join(sentences: Sequence[Sentence]) -> Sentence:
    """Sentences with a space between."""
    return tuple(part for i, sentence in enumerate(sentences) for part in ((" ", *sentence) if i else sentence))
