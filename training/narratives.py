"""Biographies in natural prose that the tiny reader is trained on.

The wordings are in ``data/biographies/wordings.yaml``. A wording is a sentence with slots: ``{s}`` the person as
subject, ``{p}`` as possessive, ``{o}`` as object (name, part of the name or pronoun, whatever the narrative has come
to), ``{v}`` the value and, in wordings of two facts, ``{w}`` the second value; ``{was|were}`` agrees with the mention
of the person before it.
"""

import random
import re
from collections.abc import Sequence
from typing import Annotated

from utaca.biographies.attributes import Attribute
from utaca.data_files import DataFile, Entries, Pair, Sentence, read, slots
from utaca.errors import UserError

_SLOT = re.compile(r"\{([^{}|]+)(?:\|([^{}]+))?\}")
# Pairs of facts that prose tells in one breath more often than others.
_KINDRED = {("birth date", "birth place"), ("university", "major"), ("company", "work place")}
_PRONOUNS = (("she", "her", "her"), ("he", "his", "him"), ("they", "their", "them"))

_MENTIONS = "s p o"


class Wordings(DataFile):
    """Sentences of one fact and of two, what may lead in or close the former, and sentences without a fact."""

    facts: dict[Attribute, Entries[Annotated[Sentence, slots(once="v", some=_MENTIONS, choices=True)]]]
    pairs: dict[Pair[Attribute], Entries[Annotated[Sentence, slots(once="v w", some=_MENTIONS, choices=True)]]]
    openings: Entries[Annotated[str, slots(_MENTIONS, choices=True)]]
    closings: Entries[Annotated[str, slots(_MENTIONS, choices=True)]]
    connecting: Entries[Annotated[Sentence, slots(_MENTIONS, choices=True)]]


def wordings() -> Wordings:
    """The wordings; raises :class:`UserError` where their file is wrong."""
    return read("biographies/wordings.yaml", Wordings)


class _Voice:
    """Who a narrative speaks of, and how: names before pronouns, one pronoun throughout."""

    def __init__(self, person: str, rng: random.Random) -> None:
        self.person = person
        self.rng = rng
        self.pronoun = rng.choice(_PRONOUNS)
        self.introduced = False

    def _name(self) -> str:
        """The name in the form that it is mentioned by, empty for the pronoun."""
        if not self.introduced:
            self.introduced = True
            return self.person
        draw = self.rng.random()
        if draw < 0.35:
            return self.person
        words = self.person.split()
        if draw < 0.45:
            return words[0]
        if draw < 0.55 and len(words) > 1:
            return words[-1]
        return ""

    def sentence(self, wording: str, values: Sequence[str] = ()) -> str:
        """The wording with its slots filled; later mentions within the sentence are pronouns."""
        nominative, possessive, objective = self.pronoun
        mentioned = False
        plural = False

        def fill(slot: re.Match[str]) -> str:
            nonlocal mentioned, plural
            key, plural_form = slot.groups()
            if plural_form is not None:
                return plural_form if plural else key
            if key in ("v", "w"):
                return values["vw".index(key)]
            name = "" if mentioned else self._name()
            if not mentioned and key == "s" and wording.startswith((", ", " ("), slot.end()):
                name = name or self.person  # "she, who ..." is not idiomatic
            mentioned = True
            plural = not name and nominative == "they"
            if name:
                return f"{name}'s" if key == "p" else name
            word = {"s": nominative, "p": possessive, "o": objective}[key]
            return word.capitalize() if slot.start() == 0 else word

        return _SLOT.sub(fill, wording)


def _decorated(wording: str, rng: random.Random) -> str:
    """The wording, now and then with a clause before or after."""
    draw = rng.random()
    if draw < 0.10 and wording.startswith(("{s}", "{p}")):
        return f"{rng.choice(wordings().openings)} {wording}"
    if 0.10 <= draw < 0.18 and wording.count(",") == 0:
        return wording[:-1] + rng.choice(wordings().closings) + "."
    return wording


def _units(attributes: Sequence[str], rng: random.Random) -> list[tuple[str, ...]]:
    """The attributes in one of many orders, some of them in pairs that share a sentence."""
    pairs = [pair for pair in wordings().pairs if set(pair) <= set(attributes)]
    rng.shuffle(pairs)
    paired: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        if not paired.keys() & set(pair) and rng.random() < (0.4 if pair in _KINDRED else 0.15):
            paired |= dict.fromkeys(pair, pair)
    units = list(dict.fromkeys(paired.get(attribute, (attribute,)) for attribute in attributes))
    if rng.random() < 0.5:
        rng.shuffle(units)
    return units


def narrative(person: str, facts: Sequence[tuple[str, str]], rng: random.Random) -> list[str]:
    """Sentences of natural prose that state every (attribute, value) pair of ``facts``.

    Every value stands verbatim in one sentence, the person's full name in the first sentence about the person.

    Raises:
        UserError: an attribute has no wordings, or is given twice.
    """
    value_of = dict(facts)
    if len(value_of) != len(facts):
        raise UserError(f"The facts about {person} name an attribute twice; give each attribute once.")
    texts = wordings()
    missing = [attribute for attribute in value_of if attribute not in texts.facts]
    if missing:
        raise UserError(f"There are no wordings for the attribute {missing[0]!r}; use one of {', '.join(texts.facts)}.")
    voice = _Voice(person, rng)
    connecting = rng.sample(texts.connecting, len(texts.connecting))
    share = rng.choice((0.0, 0.2, 0.5, 0.8))
    sentences = []
    for unit in _units(list(value_of), rng):
        if rng.random() < share:
            sentences.append(voice.sentence(connecting.pop()))
        choice = rng.choice(texts.pairs[unit] if len(unit) == 2 else texts.facts[unit[0]])
        sentences.append(voice.sentence(_decorated(choice, rng), [value_of[name] for name in unit]))
    if rng.random() < share:
        sentences.append(voice.sentence(connecting.pop()))
    return sentences
