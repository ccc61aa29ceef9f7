"""Biographies by rules: a narrative that states every fact verbatim, in wordings chosen by a hash of the input."""

import hashlib
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Annotated

from utaca.data_files import DataFile, Entries, Pair, Sentence, read, slots

Fact = tuple[str, str]

_SHORTEST, _LONGEST = 8, 16

_MENTIONS = "Subject Possessive name possessive_name he him his"


class Templates(DataFile):
    """Sentence patterns: of one fact by attribute or for any ``other`` one, of two facts, and without a fact."""

    facts: dict[str, Entries[Annotated[Sentence, slots(_MENTIONS, once="value")]]]
    other: Entries[Annotated[Sentence, slots(_MENTIONS, once="attribute value")]]
    pairs: dict[Pair[str], Entries[Annotated[Sentence, slots(_MENTIONS, once="first second")]]]
    connecting: Entries[Annotated[Sentence, slots(_MENTIONS)]]


templates = partial(read, "biographies/writer.yaml", Templates)
"""The wordings; raises :class:`utaca.errors.UserError` if the file of wordings is malformed."""

_ORDER = {"birth date": 0, "birth place": 1, "university": 2, "major": 3, "company": 5, "work place": 6}
_OTHERS_PLACE = 4


def write(person: str, facts: Sequence[Fact]) -> list[str]:
    """A biography of ``person`` in 8 to 16 sentences, or more if the facts need more.

    Each value occurs verbatim; the full name is in the first sentence and wherever the wording has a name.
    """
    identity = json.dumps([person, [list(fact) for fact in facts]], ensure_ascii=False)
    rng = random.Random(hashlib.sha256(identity.encode()).hexdigest())
    stated, connecting = _stated(facts, rng), templates().connecting
    n_sentences = max(rng.randint(_SHORTEST, _LONGEST), len(stated))
    for filler in rng.sample(connecting, min(n_sentences - len(stated), len(connecting))):
        stated.insert(rng.randint(1, len(stated)) if stated else 0, (filler, {}))
    pronouns = _pronouns(person, rng)
    return [
        _sentence(template, values, person, pronouns, first=place == 0, named=place == 0 or rng.random() < 0.4)
        for place, (template, values) in enumerate(stated)
    ]


def _stated(facts: Sequence[Fact], rng: random.Random) -> list[tuple[str, dict[str, str]]]:
    """Wordings and their values for the facts, in the order of a life; some pairs share a sentence."""
    left = sorted(facts, key=lambda fact: _ORDER.get(fact[0].lower(), _OTHERS_PLACE))
    stated: list[tuple[str, dict[str, str]]] = []
    texts = templates()
    while left:
        attribute, value = left.pop(0)
        pair = (attribute.lower(), left[0][0].lower()) if left else ("", "")
        if pair in texts.pairs and rng.random() < 0.4:
            stated.append((rng.choice(texts.pairs[pair]), {"first": value, "second": left.pop(0)[1]}))
        else:
            wordings = texts.facts.get(attribute.lower(), texts.other)
            stated.append((rng.choice(wordings), {"attribute": attribute, "value": value}))
    return stated


def _pronouns(person: str, rng: random.Random) -> dict[str, str]:
    """Feminine pronouns for a first name with a feminine ending, else feminine or masculine ones by chance."""
    feminine = person.split()[0].lower().endswith(("a", "ie", "ette", "elle")) if person.split() else False
    if feminine or rng.random() < 0.5:
        return {"he": "she", "him": "her", "his": "her"}
    return {"he": "he", "him": "him", "his": "his"}


def _sentence(
    template: str, values: dict[str, str], person: str, pronouns: dict[str, str], first: bool, named: bool
) -> str:
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
