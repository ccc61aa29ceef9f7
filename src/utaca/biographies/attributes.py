"""The 27 biographical attributes and the drawing of fictitious values for them."""

import datetime
import random
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from faker import Faker
from pydantic import Field, StringConstraints

from utaca.biographies.people import LOCALES, faker
from utaca.data_files import DataFile, Entries, read, slots

HELD_OUT_ATTRIBUTES: tuple[str, ...] = ("birth date", "birth place", "university", "major", "company", "work place")

MAX_LENGTH = 100
"""Largest length of a value, in characters."""

# Attributes whose values must be shorter than MAX_LENGTH, with the largest length in characters.
_LONGEST = {"user agent": 80, "catch phrase": 60}

Listed = Entries[Annotated[str, StringConstraints(max_length=MAX_LENGTH)]]


class Values(DataFile):
    """Lists from which values are drawn; ``countries`` maps the locale of a city to its country."""

    hobbies: Listed
    marital_statuses: Listed
    personality_types: Listed
    timezones: Listed
    universities: Listed
    university_names: Entries[Annotated[str, slots(once="name")]]
    companies: Listed
    majors: Listed
    major_branches: Listed
    major_fields: Annotated[Listed, Field(min_length=2)]
    places: Listed
    countries: Annotated[dict[Literal[LOCALES], str], Field(min_length=len(LOCALES))]


_values = partial(read, "biographies/values.yaml", Values)


def _date(rng: random.Random, first_year: int, last_year: int) -> str:
    """Draw a day from ``first_year`` to ``last_year``, both included, written in one of five notations."""
    first = datetime.date(first_year, 1, 1).toordinal()
    last = datetime.date(last_year, 12, 31).toordinal()
    day = datetime.date.fromordinal(rng.randint(first, last))
    notations = (
        day.isoformat(),
        f"{day:%B} {day.day}, {day.year}",
        f"{day.month:02}/{day.day:02}/{day.year}",
        f"{day.day} {day:%b}, {day.year}",
        f"{day.day} {day:%B} {day.year}",
    )
    return rng.choice(notations)


def _source(rng: random.Random, locale: str) -> Faker:
    """The Faker of a locale, which draws from ``rng``."""
    source = faker(locale)
    source.random = rng
    return source


def _some_locale(rng: random.Random, locale: str) -> str:
    """The person's locale, or a random one in 40 % of the draws, because people move."""
    return locale if rng.random() < 0.6 else rng.choice(LOCALES)


def _city(rng: random.Random, locale: str) -> str:
    """A city of a locale, without the underscore at the end of some of Faker's names."""
    return _source(rng, locale).city().rstrip("_")


def _place(rng: random.Random, locale: str) -> str:
    """A place of the list, or a city with its state or country; one in five such cities is put into any country."""
    if rng.random() < 0.3:
        return rng.choice(_values().places)
    locale = _some_locale(rng, locale)
    city = _city(rng, locale)
    if locale == "en_US" and rng.random() < 0.7:
        return f"{city}, {_source(rng, locale).state()}"
    if rng.random() < 0.2:
        return f"{city}, {_source(rng, 'en_US').country()}"
    return f"{city}, {_values().countries[locale]}"


def _university(rng: random.Random, locale: str) -> str:
    """A university of the list, or one that is named for a surname or a city."""
    if rng.random() < 0.35:
        return rng.choice(_values().universities)
    locale = _some_locale(rng, locale)
    name = _source(rng, locale).last_name() if rng.random() < 0.3 else _city(rng, locale)
    return rng.choice(_values().university_names).format(name=name)


def _major(rng: random.Random, locale: str) -> str:
    """A major of the list, a branch of a field, or two fields."""
    draw = rng.random()
    values = _values()
    if draw < 0.65:
        return rng.choice(values.majors)
    if draw < 0.85:
        return f"{rng.choice(values.major_branches)} {rng.choice(values.major_fields)}"
    return " and ".join(rng.sample(values.major_fields, 2))


def _company(rng: random.Random, locale: str) -> str:
    """A company of the list, or one that Faker invents."""
    if rng.random() < 0.3:
        return rng.choice(_values().companies)
    return _source(rng, _some_locale(rng, locale)).company()


def _user_agent(rng: random.Random, locale: str) -> str:
    """A user agent up to the end of its first comment: the rest may hold a date that depends on the present day."""
    agent = _source(rng, "en_US").user_agent()
    return agent[: agent.index(")") + 1]


def _faked(method: str, local: float = 0.0) -> Callable[[random.Random, str], str]:
    """A function that draws a value by a method of Faker.

    A share ``local`` of the values are of the person's locale, the others of American English.
    """

    def draw(rng: random.Random, locale: str) -> str:
        # No number is drawn for a share of 0 or 1: the values that follow depend on how many are drawn.
        is_local = local == 1 or (local > 0 and rng.random() < local)
        source = _source(rng, locale if is_local else "en_US")
        return getattr(source, method)()

    return draw


def _street_address(rng: random.Random, locale: str) -> str:
    """An address in some locale; its line breaks become commas in :func:`draw_value`."""
    return _source(rng, _some_locale(rng, locale)).street_address()


def _license_plate(rng: random.Random, locale: str) -> str:
    """A licence plate of some locale."""
    return _source(rng, _some_locale(rng, locale)).license_plate()


def _lucky_number(rng: random.Random, locale: str) -> str:
    """A number that mostly has two digits."""
    largest = rng.choice((99, 99, 99, 999, 9999))
    return str(rng.randint(0, largest))


# The function that draws a value of each attribute, from a random generator and the person's locale.
_DRAWS: dict[str, Callable[[random.Random, str], str]] = {
    "marriage date": lambda rng, locale: _date(rng, 1870, 2024),
    "job title": _faked("job", local=0.4),
    "current city": lambda rng, locale: _city(rng, _some_locale(rng, locale)),
    "email address": _faked("email", local=1),
    "phone number": _faked("phone_number", local=1),
    "favorite color": _faked("color_name"),
    "user agent": _user_agent,
    "credit card provider": _faked("credit_card_provider"),
    "currency used": _faked("currency_name"),
    "catch phrase": _faked("catch_phrase", local=0.5),
    "street address": _street_address,
    "vehicle license plate": _license_plate,
    "favorite file extension": _faked("file_extension"),
    "domain name": _faked("domain_name", local=1),
    "cryptocurrency": _faked("cryptocurrency_name"),
    "timezone": lambda rng, locale: rng.choice(_values().timezones),
    "isbn code": _faked("isbn13"),
    "lucky number": _lucky_number,
    "hobby": lambda rng, locale: rng.choice(_values().hobbies),
    "marital status": lambda rng, locale: rng.choice(_values().marital_statuses),
    "personality type": lambda rng, locale: rng.choice(_values().personality_types),
    "birth date": lambda rng, locale: _date(rng, 1850, 2005),
    "birth place": _place,
    "university": _university,
    "major": _major,
    "company": _company,
    "work place": _place,
}
TRAINING_ATTRIBUTES: tuple[str, ...] = tuple(attribute for attribute in _DRAWS if attribute not in HELD_OUT_ATTRIBUTES)
Attribute = Literal[TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES]


def draw_value(attribute: str, rng: random.Random, locale: str) -> str:
    """Draw a fictitious value of an attribute for a person of a Faker locale.

    The value is one non-empty line that neither ends in a full stop nor contains "unknown". Exactly one number is drawn
    from ``rng``, whatever the attribute; it seeds the generator that draws the value.
    """
    draw = _DRAWS[attribute]
    value_rng = random.Random(rng.getrandbits(64))
    while True:
        # Line breaks of addresses become ", ".
        in_one_line = ", ".join(draw(value_rng, locale).splitlines())
        value = " ".join(in_one_line.split()).rstrip(" .,;")
        if value and "unknown" not in value.casefold() and len(value) <= _LONGEST.get(attribute, MAX_LENGTH):
            return value
