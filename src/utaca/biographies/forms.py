"""Values in another form than the reference: what a document says where the two are to differ on the surface only.

The forms are ones that the reference judge takes for the value itself, which the tests prove.
"""

from __future__ import annotations

import random
import re

from utaca.biographies.attributes import Attribute, day_of
from utaca.biographies.people import normalised
from utaca.data_files import Entries, Text, read

_DATES = ("birth date", "marriage date")
_PLACES = ("birth place", "work place")
_LOWERED = ("major", "hobby", "marital status")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LEGAL = re.compile(
    r",? (?:(?:AG|GmbH) & Co\. )?"
    r"(?:Inc|LLC|Ltd|PLC|GmbH|mbH|AG|KG|KGaA|OHG|SA|S\.A|S\.L|SAS|SARL|SL|SPA|s\.r\.l|AB|HB|AS|ASA|Oy|Oyj|ApS|BV|NV)$"
)
_OTHER_LEGAL = re.compile(r" (?:Stiftung & Co\. \S+|S\.\S+|S/A|RFH|BA|EI|ME|ry|GbR|e\.G|e\.V|co)$")
_LEGAL_FORMS = ("Ltd", "Inc", "plc")
# Places that are not as well known without what follows them.
_NO_COUNTRY = re.compile(r"^\W|\(|, Netherlands Antilles$")
_IDLE = {"a", "an", "and", "of", "the"}


class Forms(Text):
    """Other names of values by attribute, towns in other words, and words that keep their capital in a sentence."""

    aliases: dict[Attribute, dict[str, str]]
    towns: dict[str, str]
    capitalised: Entries[str]


def _forms() -> Forms:
    return read("biographies/forms.yaml", Forms)


def meaning(attribute: str, value: str) -> frozenset[str]:
    """What values have in common that may be taken for each other: a date's day; else the words, in any order.

    Neither the country of a place counts nor the legal form of a firm.
    """
    day = day_of(value) if attribute in _DATES else None
    words = re.findall(r"\w+", normalised(_bare(attribute, value)))
    return frozenset({day.isoformat()} if day else {*words} - _IDLE or words)


def _bare(attribute: str, value: str) -> str:
    """A place without its country, a firm without its legal form; any other value as it is."""
    if attribute in _PLACES:
        return value.rsplit(", ", 1)[0]
    return _LEGAL.sub("", value) if attribute == "company" else value


def other_form(attribute: str, value: str, rng: random.Random) -> str:
    """The value in another form, inside a sentence; verbatim where none is natural.

    A date in digits is written out and one in words given in digits or as an ordinal; fields of study, pastimes and
    marital states are in lower case or under another name; a place loses its country; a firm gains or loses its legal
    form; a colour is written as words; some names are given as their initials, or in full. One number is taken from
    ``rng``, whatever the attribute.
    """
    own, forms = random.Random(rng.getrandbits(64)), _forms()
    if alias := forms.aliases.get(attribute, {}).get(value):
        return alias
    if attribute in _DATES:
        return _date(value, own)
    if attribute in _PLACES and not _NO_COUNTRY.search(value):
        town = _bare(attribute, value)
        return forms.towns.get(town, town)
    if attribute in _LOWERED:
        return " ".join(word if word in forms.capitalised else _lowered(word) for word in value.split())
    if attribute == "company" and len(value) > 2 and not _OTHER_LEGAL.search(value):
        return without if (without := _bare(attribute, value)) != value else f"{value} {own.choice(_LEGAL_FORMS)}"
    if attribute == "favorite color":
        return _CAMEL.sub(" ", value).lower()
    return value


def _lowered(word: str) -> str:
    """A word in lower case, but for one of capitals or digits, such as 3D."""
    return word if word.upper() == word else word.lower()


def _date(value: str, rng: random.Random) -> str:
    date = day_of(value)
    if date is None:
        return value
    day, year = date.day, date.year
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day // 10 != 1 else 0, "th")
    ordinal = f"the {day}{ending} of {date:%B} {year}"
    if any(character.isalpha() for character in value):
        return ordinal if rng.random() < 0.3 else date.isoformat()
    return rng.choice((ordinal, f"{day} {date:%B} {year}", f"{date:%B} {day}, {year}"))
