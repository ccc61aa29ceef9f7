"""Biographies by rules: a narrative that states every fact, in wordings and forms chosen by a hash of the input."""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Annotated

from utaca.data_files import DataFile, Entries, Pair, Sentence, read, slots

Fact = tuple[str, str]

# Sentences of a biography, unless its facts need more.
_SHORTEST = 8
_LONGEST = 16

# Slots that mention the person, by the name or by a pronoun; those with a capital begin a sentence.
_MENTIONS = "Subject Possessive name possessive_name he him his"


class Forms(DataFile):
    """Patterns of the forms that a date and a firm with a legal form may have in a text."""

    date: Entries[Annotated[str, slots("year month day month_name day_number")]]
    firm: Entries[Annotated[str, slots(once="firm")]]


class Templates(DataFile):
    """Sentence patterns: of one fact by attribute or for any ``other`` one, of two facts, and without a fact.

    ``forms`` are those of values, ``legal`` the legal forms at the end of a firm's name.
    """

    facts: dict[str, Entries[Annotated[Sentence, slots(_MENTIONS, once="value")]]]
    other: Entries[Annotated[Sentence, slots(_MENTIONS, once="attribute value")]]
    pairs: dict[Pair[str], Entries[Annotated[Sentence, slots(_MENTIONS, once="first second")]]]
    connecting: Entries[Annotated[Sentence, slots(_MENTIONS)]]
    forms: Forms
    legal: Entries[str]


templates = partial(read, "biographies/writer.yaml", Templates)
"""The wordings; raises :class:`utaca.errors.UserError` if the file of wordings is malformed."""

_NAMED = 0.4
"""How often a sentence that may begin with a pronoun has a name."""
_BY_SURNAME = 0.25
"""How often a name is the surname."""
# The kind of value, a key of ``forms``, by attribute; and the notations in which dates are drawn.
_KINDS = {"birth date": "date", "company": "firm"}
_NOTATIONS = ("%Y-%m-%d", "%m/%d/%Y", "%B %d, %Y", "%d %b, %Y", "%d %B %Y")
# The places of attributes in a life, and that of all other attributes.
_ORDER = {"birth date": 0, "birth place": 1, "university": 2, "major": 3, "company": 5, "work place": 6}
_OTHERS_PLACE = 4


def write(person: str, facts: Sequence[Fact], varied: bool = True) -> list[str]:
    """Write a biography of ``person`` in 8 to 16 sentences, or in more if the facts need more; returns the sentences.

    The full name is in the first sentence. If ``varied``, a value may have another form of its kind, and the surname
    may stand for the name in later sentences; otherwise each value occurs verbatim, and names are full.
    """
    identity = json.dumps([person, [list(fact) for fact in facts]], ensure_ascii=False)
    rng = random.Random(hashlib.sha256(identity.encode()).hexdigest())
    # Forms and surnames are drawn by another generator, so that wordings and their order are the same if not varied.
    varying = random.Random(f"forms {identity}")
    surname = _surname(person, facts) if varied else person
    if varied:
        facts = [(attribute, in_another_form(attribute, value, varying)) for attribute, value in facts]
    wordings = _stated(facts, rng)
    connecting = templates().connecting
    n_sentences = max(rng.randint(_SHORTEST, _LONGEST), len(wordings))
    n_connecting = min(n_sentences - len(wordings), len(connecting))
    for filler in rng.sample(connecting, n_connecting):
        # Not before the first fact's sentence, which introduces the person.
        place = rng.randint(1, len(wordings)) if wordings else 0
        wordings.insert(place, (filler, {}))
    pronouns = _pronouns(person, rng)
    sentences = []
    for number, (template, values) in enumerate(wordings):
        is_first = number == 0
        named = is_first or rng.random() < _NAMED
        mention = surname if not is_first and varying.random() < _BY_SURNAME else person
        sentences.append(_sentence(template, values, mention, pronouns, first=is_first, named=named))
    return sentences


def in_another_form(attribute: str, value: str, rng: random.Random) -> str:
    """Draw a form of a value: the value as it is, or one of its other :func:`forms`, all equally likely."""
    return rng.choice([value, *forms(attribute, value)])


def forms(attribute: str, value: str) -> list[str]:
    """Other forms of a value by the patterns in ``writer.yaml``: of a date, and of a firm with a legal form.

    All other values have none.
    """
    texts = templates()
    kind = _KINDS.get(attribute)
    if kind == "date":
        for notation in _NOTATIONS:
            with suppress(ValueError):
                day = datetime.strptime(value, notation)
                parts = {
                    "year": f"{day.year:04}",
                    "month": f"{day.month:02}",
                    "day": f"{day.day:02}",
                    "month_name": f"{day:%B}",
                    "day_number": str(day.day),
                }
                return [form.format(**parts) for form in texts.forms.date]
    if kind == "firm":
        name, _, last = value.rpartition(" ")
        if name and last in texts.legal:
            return [form.format(firm=name) for form in texts.forms.firm]
    return []


def _stated(facts: Sequence[Fact], rng: random.Random) -> list[tuple[str, dict[str, str]]]:
    """Choose wordings for the facts, each with the values of its slots; some pairs of facts share a wording.

    The facts are ordered as in a life: from birth to work.
    """
    remaining = sorted(facts, key=lambda fact: _ORDER.get(fact[0].lower(), _OTHERS_PLACE))
    chosen: list[tuple[str, dict[str, str]]] = []
    texts = templates()
    while remaining:
        attribute, value = remaining.pop(0)
        next_attribute, next_value = remaining[0] if remaining else ("", "")
        pair = (attribute.lower(), next_attribute.lower())
        if pair in texts.pairs and rng.random() < 0.4:
            remaining.pop(0)
            chosen.append((rng.choice(texts.pairs[pair]), {"first": value, "second": next_value}))
        else:
            wordings = texts.facts.get(attribute.lower(), texts.other)
            chosen.append((rng.choice(wordings), {"attribute": attribute, "value": value}))
    return chosen


def _surname(person: str, facts: Sequence[Fact]) -> str:
    """The last word of a name; the whole name if a value, as a firm's name, has that word too."""
    last = person.split()[-1] if person.split() else person
    in_values: set[str] = set()
    for _, value in facts:
        in_values |= _folded_words(value)
    return person if in_values & _folded_words(last) else last


def _folded_words(text: str) -> set[str]:
    """The words of a text in lower case."""
    return {word.casefold() for word in re.findall(r"\w+", text)}


def _pronouns(person: str, rng: random.Random) -> dict[str, str]:
    """Feminine pronouns for a first name with a feminine ending, else feminine or masculine ones by chance."""
    first_name = person.split()[0] if person.split() else ""
    feminine = first_name.lower().endswith(("a", "ie", "ette", "elle"))
    if feminine or rng.random() < 0.5:
        return {"he": "she", "him": "her", "his": "her"}
    return {"he": "he", "him": "him", "his": "his"}


def _sentence(
    template: str, values: dict[str, str], person: str, pronouns: dict[str, str], first: bool, named: bool
) -> str:
    """Fill a sentence's template with ``values`` and with mentions of the person.

    Slots that may have a name or a pronoun get the name ``person`` if ``named``, else a pronoun. The ``first`` sentence
    of a biography has the name in any case.
    """
    # A first sentence without a slot that gets the name has it in place of its first possessive pronoun.
    possessive = f"{person}'" if person.endswith("s") else f"{person}'s"
    if first and not any(field in template for field in ("{Subject}", "{Possessive}", "{name}")):
        template = template.replace("{his}", "{possessive_name}", 1)
    text = template.format(
        Subject=person if named else pronouns["he"].capitalize(),
        Possessive=possessive if named else pronouns["his"].capitalize(),
        name=person,
        possessive_name=possessive,
        **pronouns,
        **values,
    )
    # A value such as "Acme Inc." brings the full stop along.
    return text[:-1] if text.endswith("..") else text
