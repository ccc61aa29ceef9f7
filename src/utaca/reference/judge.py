"""Conceptual accuracy by rules: does a prediction mean the reference value, whatever its surface?

Dates are compared as dates; names after expanding abbreviations, with initialisms and with state and country
codes left out where only one side has them. Source of the score's definition: paper, appendix on CAS.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip

_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s+)?"
_DATES = [
    re.compile(rf"(?<![\w]){pattern}(?![\w])", re.IGNORECASE)
    for pattern in (
        rf"{_YEAR}(?P<mark>[-/.])(?P<month>\d{{1,2}})(?P=mark)(?P<day>\d{{1,2}})",
        rf"(?P<month>\d{{1,2}})(?P<mark>[-/.])(?P<day>\d{{1,2}})(?P=mark){_YEAR}",
        rf"(?P<day>\d{{1,2}})(?P<mark>[-/.])(?P<month>\d{{1,2}})(?P=mark){_YEAR}",
        rf"{_WEEKDAY}(?:the\s+)?{_DAY}[\s-]+(?:of\s+)?{_MONTH}[\s,-]+{_YEAR}",
        rf"{_WEEKDAY}{_MONTH}[\s-]+(?:the\s+)?{_DAY}[\s,-]+{_YEAR}",
        rf"{_YEAR}[\s,-]+{_MONTH}[\s-]+{_DAY}",
    )
]
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

ABSTENTION = re.compile(
    r"\b(?:(?:is|are|was|were|has|have|had|it's)\s+)?(?:"
    r"unknown|unspecified|undisclosed|unavailable|unclear|unstated|(?:not|isn't|wasn't)\s+(?:\w+\s+)?(?:known|mentioned|stated|specified|"
    r"provided|given|available|disclosed|described|included|listed|found|clear|reported|indicated|revealed|recorded)"
    r"|(?:can\s*not|can't|could\s+not|couldn't)\s+(?:be\s+)?"
    r"(?:determined?|identified|identify|found|find|inferred|infer|say|tell|answer)"
    r"|no\s+(?:\w+\s+)?(?:information|mention|data|record|details?|answer)"
    r"|(?:does|do|did)\s+(?:not|n't)\s+(?:mention|state|specify|say|provide|know|include|contain)"
    r"|(?:doesn't|don't|didn't)\s+(?:mention|state|specify|say|provide|know|include|contain)"
    r"|n/a)(?:\s+(?:about|on|of|for|in|by|from|to|within)\b[^.;]*)?",
    re.IGNORECASE,
)

_ABBREVIATIONS = {
    "admin": "administration", "assoc": "association", "biol": "biology", "bldg": "building", "bus": "business",
    "calif": "california", "chem": "chemical", "civ": "civil", "comm": "communication", "comms": "communications",
    "comp": "computer", "cs": "computer science", "dept": "department", "dev": "development", "econ": "economics",
    "ee": "electrical engineering", "elec": "electrical", "eng": "engineering", "engr": "engineering",
    "env": "environmental", "fin": "finance", "ft": "fort", "govt": "government", "hist": "history",
    "inst": "institute", "int'l": "international", "intl": "international", "lit": "literature",
    "mass": "massachusetts", "math": "mathematics", "maths": "mathematics", "mech": "mechanical", "med": "medicine",
    "mgmt": "management", "mt": "mount", "natl": "national", "phil": "philosophy", "phys": "physics",
    "pol": "political", "poli": "political", "psych": "psychology", "rel": "relations", "sci": "science",
    "soc": "sociology", "st": "saint", "stats": "statistics", "tech": "technology", "uni": "university",
    "uk": "united kingdom", "univ": "university", "us": "united states", "usa": "united states",
}  # fmt: skip
_IDLE = {"the", "of", "and", "for", "in", "at", "de", "la", "du", "del", "di", "da", "des", "a", "an", "on", "to"}
_LEGAL = {
    "inc", "incorporated", "corp", "corporation", "ltd", "limited", "llc", "plc", "co", "company", "gmbh", "ag", "sa",
}  # fmt: skip
_SENTENCE = re.compile(r"(?:^|(?<=[.!?]\s)|(?<=\n))The ([\w -]+?) of (.+?) (?:is|was)\b:?\s*", re.IGNORECASE)
_CODE = re.compile(r",\s*([A-Z]{2,3}|U\.S\.A?\.|U\.K\.)(?=\s*(?:,|\.?\s*$))")


@dataclass(frozen=True)
class Date:
    """A date found in a text: its readings as (year, month, day) and where its parts stand (character offsets)."""

    span: tuple[int, int]
    readings: tuple[tuple[int, int, int], ...]
    parts: dict[str, tuple[int, int]]


def dates(text: str) -> list[Date]:
    """The full dates in a text, left to right; 03/04/1980 has two readings."""
    found: dict[tuple[int, int], Date] = {}
    for match, reading in _readings(text):
        earlier = found.get(match.span())
        if earlier is None:
            parts = {name: match.span(name) for name in ("year", "month", "day")}
            found[match.span()] = Date(match.span(), (reading,), parts)
        elif reading not in earlier.readings:
            found[match.span()] = Date(earlier.span, (*earlier.readings, reading), earlier.parts)
    return sorted(found.values(), key=lambda date: date.span)


def _readings(text: str) -> Iterator[tuple[re.Match[str], tuple[int, int, int]]]:
    for pattern in _DATES:
        for match in pattern.finditer(text):
            month = match["month"]
            number = int(month) if month.isdigit() else 1 + [m[:3] for m in MONTHS].index(month[:3].lower())
            if 1 <= number <= 12 and 1 <= int(match["day"]) <= _DAYS[number - 1]:
                yield match, (int(match["year"]), number, int(match["day"]))


def whole_date(text: str) -> Date | None:
    """The date that a text consists of, or None."""
    found = dates(text)
    if len(found) != 1 or text[: found[0].span[0]].strip() or text[found[0].span[1] :].strip(" .,;!\n"):
        return None
    return found[0]


def fold(text: str) -> str:
    """Text in lower case without accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def words(text: str) -> list[str]:
    """Normalised words: case, accents, punctuation and possessives gone, abbreviations written out."""
    text = re.sub(r"\b(?:[a-z]\.)+[a-z]\b\.?", lambda dotted: dotted[0].replace(".", ""), fold(text).replace("’", "'"))
    text = text.replace("int'l", "intl")
    text = re.sub(r"'s\b|(?<=s)'(?!\w)", "", text).replace("&", " and ")
    return [part for word in re.findall(r"\w+", text) for part in _ABBREVIATIONS.get(word, word).split()]


def equivalent(prediction: str, reference: str) -> bool:
    """Whether two values are the same: as dates, as normalised words, or one as the initialism of the other."""
    expected = whole_date(reference)
    if expected is not None:
        found = whole_date(prediction)
        return found is not None and bool(set(found.readings) & set(expected.readings))
    left, right = _content(words(prediction)), _content(words(reference))
    if not left or not right:
        return prediction.strip() == reference.strip()
    return left == right or _initialism(prediction, right) or _initialism(reference, left)


def score(question: str, attribute: str, prediction: str, reference: str) -> tuple[float, str]:
    """Conceptual accuracy in [0, 1] of a prediction about one attribute, and why.

    The prediction may be a bare value, a sentence, or an answer about several attributes.
    """
    value = _value(question, attribute, prediction)
    if not value.strip():
        return 0.0, f"gives no {attribute}"
    if ABSTENTION.search(value) and not ABSTENTION.search(reference):
        return 0.0, "abstains"
    expected = whole_date(reference)
    if expected is not None:
        found = dates(value)
        same = bool(found) and all(set(date.readings) & set(expected.readings) for date in found)
        return (1.0, "the same date") if same else (0.0, "another date" if found else "no full date")
    if equivalent(value, reference):
        return 1.0, "the same value"
    predicted, wanted = _without_codes(value, reference)
    content = set(_content(words(wanted)))
    said = set(_content(words(predicted)))
    if content and (content <= said or _contains_initialism(predicted, wanted)):
        return 1.0, "contains the reference"
    if said and said <= content and 2 * len(said) >= len(content):
        return 0.5, "part of the reference"
    return 0.0, "another value"


def _value(question: str, attribute: str, prediction: str) -> str:
    """The part of a prediction that is about the attribute; empty where it is about other things only."""
    named = re.escape(attribute)
    sentences = list(_SENTENCE.finditer(prediction))
    starts = [match.start() for match in sentences[1:]] + [len(prediction)]
    for match, end in zip(sentences, starts, strict=False):
        if fold(match[1]) == fold(attribute):
            asked = re.search(rf"{named} of ([^?]+?)\s*(?:[?,.]|$)", question, re.IGNORECASE)
            if asked and not _same_person(asked[1], match[2]):
                return ""
            return prediction[match.end() : end].strip()
    if sentences:
        return ""
    line = re.search(rf"{named}\W{{0,4}}\s*(?::|\bis\b|\bwas\b|=)\s*([^\n]+)", prediction, re.IGNORECASE)
    return line[1].strip() if line else prediction


def _same_person(asked: str, named: str) -> bool:
    left, right = words(asked), words(named)
    return left[: len(right)] == right or right[: len(left)] == left


def _content(normalised: list[str]) -> list[str]:
    """Words without articles, prepositions and legal forms; all of them where nothing else is left."""
    return [word for word in normalised if word not in _IDLE and word not in _LEGAL] or normalised


def _initialism(text: str, expansion: list[str]) -> bool:
    """Whether a text is the initialism (MIT, N.U.S.) of the words."""
    letters = text.strip(" .,").replace(".", "")
    return (
        letters.isupper()
        and letters.isalpha()
        and len(letters) > 1
        and len(expansion) > 1
        and fold(letters) == "".join(word[0] for word in expansion)
    )


def _contains_initialism(prediction: str, reference: str) -> bool:
    """Whether a prediction has the reference's initialism, or the words that the reference is the initialism of."""
    expansion = _content(words(reference))
    if any(_initialism(word, expansion) for word in re.findall(r"[^\s,;()]+", prediction)):
        return True
    length = len(reference.strip(" .,").replace(".", ""))
    said = _content(words(prediction))
    # Two initials are too easily met by chance.
    return length > 2 and any(_initialism(reference, said[i : i + length]) for i in range(len(said) - length + 1))


def _without_codes(prediction: str, reference: str) -> tuple[str, str]:
    """Both texts without state and country codes, unless they disagree in them."""
    codes = [[code.replace(".", "") for code in _CODE.findall(text)] for text in (prediction, reference)]
    if codes[0] and codes[1] and not set(codes[0]) & set(codes[1]):
        return prediction, reference
    return _CODE.sub("", prediction), _CODE.sub("", reference)
