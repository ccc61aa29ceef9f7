"""Find dates in texts, in many notations and languages, whole or in part, and compare them.

A date may have several readings: 03/04/1980 is in March or in April.
"""

from __future__ import annotations

import functools
import re
from calendar import month_name, monthrange
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, product

from babel import Locale
from dateutil import parser

from utaca.judging.rules import names, numbers

Reading = tuple[int, int, int]
"""Year, month and day; a year below 100 leaves the century open."""

# The name may hold combining marks above or below a letter, which do not count as letters.
_MONTH = r"(?P<month>[^\W\d_](?:[^\W\d_]|[^\s\w!-/:-@])*)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th|er|[oºª°]|-?(?:го|ого|е|й))?"
_YEAR = r"(?:(?P<year>[12]\d{3})|['’]?(?P<short>\d{2}))"
_GAP = r"(?:[\s.,/-]|\b(?:of|de|del|di|d|da|den|dello|the|in|year|day|año|anno|ano|jahres?|im)\b)"
_DATES = [
    re.compile(rf"(?<!\w){pattern}(?!\w)", re.IGNORECASE)
    for pattern in (
        r"(?P<year>[12]\d{3})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})",
        rf"(?P<month>\d{{1,2}})(?P<mark>[-/])(?P<day>\d{{1,2}})(?P=mark){_YEAR}",
        rf"(?P<day>\d{{1,2}})(?P<mark>[-/]|\.\s?)(?P<month>\d{{1,2}})(?P=mark){_YEAR}",
        rf"{_DAY}{_GAP}*{_MONTH}{_GAP}*{_YEAR}",
        rf"{_MONTH}{_GAP}*{_DAY}{_GAP}+{_YEAR}",
        rf"(?P<year>[12]\d{{3}}){_GAP}*{_MONTH}{_GAP}*{_DAY}",
        r"(?P<year>[12]\d{3})\s?[年년]\s?(?P<month>\d{1,2})\s?[月월]\s?(?P<day>\d{1,2})\s?[日일]",
        r"(?P<day>\d{1,2})\s+tháng\s+(?P<month>\d{1,2}),?\s+năm\s+(?P<year>[12]\d{3})",
    )
]
_COMPACT = re.compile(r"(?<!\w)(\d{4})(\d{2})(\d{2})(?!\w)")
_CLOCK = re.compile(r"(?<=\d)T\d{2}:\d{2}\S*")
_DECADE = re.compile(r"\b(\d{3})0['’]?s\b")
_DAY_ALONE = re.compile(r"\d(?!(?:st|nd|rd|th|er|º)\b)\b")


@dataclass(frozen=True)
class Date:
    """A date in a text: its place (``span``), its readings, and the places of year, month and day (``parts``).

    Places are character offsets [start, end).
    """

    span: tuple[int, int]
    readings: tuple[Reading, ...]
    parts: tuple[tuple[int, int], ...]

    def same(self, other: Date) -> bool:
        """Whether two dates are the same day; if both have two readings, both are read in the same order."""
        for (year, *day), (other_year, *other_day) in self.pairs(other):
            if day == other_day and same_year(year, other_year):
                return True
        return False

    def pairs(self, other: Date) -> list[tuple[Reading, Reading]]:
        """The pairs of readings to compare: in the same order if both dates have two readings, else all pairs."""
        if len(self.readings) == len(other.readings) == 2:
            return list(zip(self.readings, other.readings, strict=True))
        return list(product(self.readings, other.readings))


def same_year(left: int, right: int) -> bool:
    """Whether two years are the same as far as they are written out."""
    return left % 100 == right % 100 if min(left, right) < 100 else left == right


def dates(text: str) -> list[Date]:
    """The full dates in a text, left to right; 03/04/1980 has two readings."""
    by_span: dict[tuple[int, int], Date] = {}
    for match in chain.from_iterable(pattern.finditer(text) for pattern in _DATES):
        span = match.span()
        year_group = "year" if match["year"] else "short"
        month_text = match["month"]
        month = int(month_text) if month_text.isdecimal() else months().get(names.fold(month_text), 0)
        day = int(match["day"])
        if not 1 <= month <= 12 or not 1 <= day <= _days_of(month):
            continue
        reading = int(match[year_group]), month, day
        if span in by_span:
            # Another pattern reads the same text: month and day may be the other way round.
            readings = dict.fromkeys([*by_span[span].readings, reading])
            by_span[span] = replace(by_span[span], readings=tuple(readings))
        elif not any(match.start() < end and start < match.end() for start, end in by_span):
            # Of overlapping matches, that of the first pattern counts.
            by_span[span] = Date(span, (reading,), (match.span(year_group), match.span("month"), match.span("day")))
    return [by_span[span] for span in sorted(by_span)]


def _days_of(month: int) -> int:
    """The number of days that a month may have."""
    _, days = monthrange(2000, month)  # a leap year
    return days


@functools.cache
def expected(value: str, attribute: str) -> Date | None:
    """The date of a reference value; None if the value is not a date, or is a code, which may look like a date."""
    if names.is_group(names.group(attribute), "of codes"):
        return None
    return whole_date(in_figures(value))


def whole_date(text: str) -> Date | None:
    """The date that a text consists of, apart from weekday and articles; None if the text holds anything else."""
    matches = dates(text)
    if len(matches) != 1:
        return None
    start, end = matches[0].span
    around = re.findall(r"\w+", f"{text[:start]} {text[end:]}")
    return matches[0] if all(names.fold(word) in _idle() for word in around) else None


@functools.cache
def _idle() -> frozenset[str]:
    """Words next to a date that add nothing: days of the week, articles, the word for a year."""
    return names.listed("beside a date") | names.listed("idle") | {*_calendar("days")}


def of_event(text: str, attribute: str) -> str:
    """The parts of a text that have a date and speak of an attribute's event, as birth; the whole text if none does."""
    # "$^" matches nothing: an attribute without an event.
    event = re.compile(names.table()["events"].get(attribute.partition(" ")[0], "$^"), re.IGNORECASE)
    # At commas, full stops and "and", but not within a date such as "December 29, 1880" or "29. December".
    parts = re.split(r"(?:[,;]|(?:(?<=\d{4})|(?<!\d))\.)\s+(?!\d)|\band\s+(?=[a-z])", text)
    dating = [part for part in parts if event.search(part) and dates(in_figures(part))]
    return ". ".join(dating) or text


def in_figures(text: str) -> str:
    """Replace the names of holidays in a text by day and month, and number words by digits."""
    pattern, days = _named_days()
    return numbers.in_digits(pattern.sub(lambda named: days[_key(named[0])], text))


@functools.cache
def _named_days() -> tuple[re.Pattern[str], dict[str, str]]:
    """The regular expression for days that have a name, and "DAY MONTH" by the name's :func:`_key`."""
    days: dict[str, str] = {}
    for date, written in names.table()["days"].items():
        month, day = map(int, date.split("-"))
        days |= dict.fromkeys(written, f"{day} {month_name[month]}")
    longest_first = sorted(days, key=len)[::-1]
    any_of = "|".join(re.escape(name) for name in longest_first).replace("'", "['’]?")
    # "St" is also written "St." or "Saint"; a name such as "first day of" needs a year after it.
    any_of = any_of.replace("st\\ ", r"(?:st\.*|saint)\s+").replace("day\\ of|", r"day\ of(?=\s+\d{4})|")
    pattern = re.compile(rf"(?<!\w)(?:{any_of})(?!\w)", re.IGNORECASE)
    return pattern, {_key(name): day for name, day in days.items()}


def _key(name: str) -> str:
    """The name of a day without what texts write in several ways: case, punctuation, "Saint" or "St"."""
    return names.bare(name).replace("saint", "st")


def agreement(text: str, expected: Date) -> float:
    """Score in [0, 1] how far a text agrees with a date: 0 if it contradicts it, less than 1 if it has only a part.

    If a text has several dates, the score is the share of right ones; a range of dates gets 0.
    """
    text = in_figures(_CLOCK.sub("", _COMPACT.sub(r"\1-\2-\3", text)))
    matches = dates(text)
    if not matches:
        return _partial(text, expected)
    if len(matches) > 1:
        # "From May 1, 1980 to ...", or a dash before the second date: a range.
        before_second = text[: matches[1].span[0]]
        if re.search(r"\b(?:between|from)\b|\d\s*-\s*$", before_second, re.IGNORECASE):
            return 0.0
    distinct: list[Date] = []
    for place, date in enumerate(matches):
        if not any(date.same(earlier) for earlier in matches[:place]):
            distinct.append(date)
    return sum(date.same(expected) for date in distinct) / len(distinct)


def _partial(text: str, expected: Date) -> float:
    """As :func:`agreement`, for a text without a full date: a third for each of year, month, day; a fifth for a decade.

    Any part that contradicts the date makes it 0.
    """
    decade = _DECADE.search(text)
    named = _named(_DECADE.sub(" ", text))
    if not (any(named) or decade):
        return 0.0

    def agrees(reading: Reading) -> bool:
        """Whether each part that the text names is that of a reading."""
        year, month, day = reading
        named_year, named_month, named_day = named
        is_year = not named_year or same_year(named_year, year)
        return is_year and named_month in (0, month) and named_day in (0, day)

    expected_year = expected.readings[0][0]  # readings differ in month and day only
    if decade and expected_year // 10 != int(decade[1]):
        return 0.0
    if not any(map(agrees, expected.readings)):
        return 0.0
    n_named = sum(map(bool, named))
    return max(n_named / 3, 0.2)


class _Months(parser.parserinfo):
    """Parser settings: month names of many languages, years as written, no words for the time of day."""

    HMS = AMPM = ()

    def month(self, name: str) -> int | None:
        # Shorter words, such as "de", are not months.
        return months().get(names.fold(name)) if len(name) > 2 else None

    def convertyear(self, year: int, century_specified: bool = False) -> int:
        return year


def _named(text: str) -> Reading:
    """The year, month and day that a text names, 0 for each that it does not name."""
    reader = parser.parser(_Months())
    try:
        # The parser takes a part that the text does not name from the default. The two defaults differ in all parts, so
        # a part that is equal in both results is named.
        first = reader.parse(text, fuzzy=True, default=datetime(1904, 1, 1))
        second = reader.parse(text, fuzzy=True, default=datetime(1908, 3, 2))
    except (ValueError, OverflowError):
        return 0, 0, 0
    year = first.year if first.year == second.year else 0
    month = first.month if first.month == second.month else 0
    day = first.day if first.day == second.day else 0
    if day and not month and _DAY_ALONE.search(text):
        day = 0  # A number without a month is not a day.
    return year, month, day


@functools.cache
def months() -> dict[str, int]:
    """The number of each month, 1 to 12, by its names and abbreviations in lower case and without accents."""
    return _calendar("months") | names.table()["months"]


@functools.cache
def _calendar(of: str) -> dict[str, int]:
    """The number of each month, or day of the week, by its folded names and usual abbreviations.

    If two languages use a word for different months, as Czech and Croatian do, the language listed first prevails.
    """
    numbered: dict[str, int] = {}
    languages = names.table()["languages"]["months"].split()
    for language in reversed(languages):
        for forms in getattr(Locale.parse(language), of).values():
            for number, name in [*forms["abbreviated"].items(), *forms["wide"].items()]:
                in_hebrew = f"ב{name}"  # "in May" is one word; names of other languages never have this prefix
                for written in (in_hebrew, names.digraphs(name), name):
                    numbered[names.fold(written).strip(". ")] = number
    return numbered
