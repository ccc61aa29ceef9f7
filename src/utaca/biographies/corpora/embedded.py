"""Encyclopaedic prose from a seeded grammar: padding that needs no download.

Articles are about real topics and otherwise invented: their people, places, institutions, years and figures exist
nowhere else. They name persons, birth years, universities and companies, so that a biography does not stand out by
its vocabulary alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from utaca.biographies.corpora import vocabulary as words
from utaca.biographies.corpora.topics import DOMAINS, domain_of, phrase_of

REVISION = "grammar 1"
LICENCE = "CC0-1.0"

PARAGRAPH_WORDS = (60, 160)

# Share of paragraphs about a person; of sentences about people within these and elsewhere.
USUAL, CROWDED = (0.08, 0.55, 0.03), (0.35, 0.55, 0.12)

# Slots: {topic} the article's subject; {who}, {last}, {where}, {it} are fixed within a paragraph (a person, the
# surname, a place, a thing of the domain); all others are drawn anew. "a@" becomes "a" or "an".
_OPENINGS = """
{topic} has been described from many points of view, and {role}s in {place} still disagree about its {process}.
The word most often used for this part of {topic} comes from {place}, where it first appeared in {year}.
In {country}, {topic} became a subject of {adj} debate during the {century} century.
Among the {adj} aspects of {topic}, the {it} is usually treated first.
The {adj} {it} known from {where} dates from about {year}.
Between {year_a} and {year_b}, the study of {topic} moved from {city} to {where}.
Most accounts of {topic} begin with {who}, a@ {role} from {where}.
It is not clear when the {it} first reached {where}, although {material} was traded there by {year}.
Several {adj} theories link {topic} with {process}.
By the {ordinal} decade of the {century} century, {where} had become a centre of {process}.
A survey of {year} listed {n} {things}, of which {small} were found near {where}.
The relation between {process} and {process} is one of the oldest questions about {topic}.
{who} ({year_a}–{year_b}) was a@ {adj} {role} who is remembered for work on {topic}.
The {where} {things} are a group of {n} {adj} {things} in {region} {country}.
In its narrow sense, {topic} concerns the {it}; in a wider sense it also covers {process}, {process} and {process}.
Few parts of {topic} changed as much in the {century} century as the {adj} {it}.
Until {year}, {where} was the only place where {things} of this kind were kept.
The term "{adj} {it}" was introduced by the {role} {who} in {year}.
What is now called the {where} school of {topic} had {small} founders, all of them {role}s.
The year {year} is commonly given as the beginning of {adj} {topic_noun}.
""".strip().splitlines()

_MIDDLES = """
The {thing} was {verb} in {year} by {person}, who had earlier {verb} a@ {adj} {thing} in {city}.
About {pct} percent of the {things} consist of {material}, while the rest contain {material} or {material}.
Because {material} was scarce, {role}s in {where} relied on {material} until {year}.
"{Quote}," wrote {person} in {year}.
According to {person}, the {adj} {it} is {evaluation}.
In contrast, {role}s of the {where} tradition held that {process} precedes {process}.
A@ {adj} {thing} of this kind weighs roughly {n} {unit}, although larger ones are known.
The {institution} counted {bignum} {unit} in {year}, compared with {bignum} in {year}.
This view, which was {adverb} accepted after {year}, is now considered {evaluation}.
If the {thing} is {verb} before the {thing}, its {process} changes {adverb}.
{Small} of these {things} were moved to {place} in {month} {year}, where they remain.
Neither the {thing} nor the {thing} can be understood without {process}.
When {place} was rebuilt in the {century} century, the {it} was {adverb} {verb}.
The main types are the {adj} {thing}, the {adj} {thing} and the {adj} {thing}.
Later {role}s {verb} the {thing}, {verb} its {thing}, and {verb} what remained of it.
Its {process} depends on {process}, on the supply of {material}, and on the number of {things}.
A report by the {institution} described the {thing} as "{adj} and {evaluation}".
Some {role}s regard the {it} as {evaluation}; others point to {process} instead.
The distance between {where} and {place} is {n} {kilo}, which explains why {process} remained {adj}.
Since {year} the {it} has been maintained by the {institution}.
There is {adj} evidence that {material} from {place} was used for the {it}.
During the {decade}s, {company} produced {n} {things} a year and sold most of them in {country}.
Only {small} {adj} {things} survive, and none of them was {verb} before {year}.
Where the {thing} is {adj}, the {thing} tends to be {adj} as well.
It was {adverb} assumed that {process} would end with the {thing}, but in {place} it continued for {small} years.
The {adj} {thing} differs from the {adj} one in its {process}, its {process}, and the role of the {thing}.
As {person} observed, "{quote}".
Under the agreement of {date}, {country} received {n} {unit} of {material} each year.
Although the {thing} is {adj}, it is {adverb} {verb} by {role}s who work with {material}.
The cost rose from {bignum} crowns in {year} to {bignum} crowns {small} years later.
This {process}, together with the {adj} {thing}, made {where} {evaluation} for {role}s.
Examples include the {thing} of {place}, the {adj} {thing} at {place}, and the {things} of {region} {country}.
More than {bignum} people attended when the {it} was opened on {date}.
The {things} that {person} {verb} in {place} are {evaluation}.
Critics replied that such a@ {thing} could not be {verb} without {process}.
In {region} {country} the {it} is called "{name}", after the {role} {person}.
One consequence of {process} is that each {thing} must be {verb} again after {small} years.
No {thing} of comparable size was {verb} until {year}, when {role}s from {city} introduced {process}.
The {ordinal} edition of the catalogue, printed in {city}, lists {n} {things} and {small} {things} of {material}.
A@ {adj} but {adj} method was {verb} at the {university}.
Whether the {thing} caused the {process} or merely followed it is {evaluation}.
The result was {adj}: {process} declined, {process} grew, and the price of {material} fell by {pct} percent.
For this reason the {adj} {things} of {place} are {adverb} compared with those of {where}.
From {year_a} to {year_b}, the {role}s of {where} {verb} the {it} in {small} stages.
Even so, the {institution} did not recognise the {thing} until {year}.
Measured in {unit}, the {it} of {where} is the {ordinal} largest in {country}.
Its {process} was {adverb} {verb} during the {decade}s, and a@ {adj} {thing} took its place.
The {thing}, {adverb} made of {material}, stands at the centre of the {thing}.
Similar {things} are found in {place}, {place} and {city}, but not in {country}.
In a letter of {date}, {person} called the {it} "{evaluation}".
The {institution} in {city} holds {n} {things}, among them a@ {adj} {thing} from {where}.
Once the {thing} had been {verb}, the {role}s turned to {process}.
{Role}s distinguish between {adj} and {adj} {things}, a distinction that {evaluations_clause}.
There were {n} {things} in {where} in {year}; by {year} their number had risen to {bignum}.
{Material} and {material} were {adverb} combined, since neither alone could support the {thing}.
Rather than the {thing}, it was the {adj} {thing} that shaped {process} in {country}.
That the {it} is {adj} was first shown in {year}, by means of {process}.
An attempt in {year} to replace the {it} with a@ {adj} {thing} failed after {small} months.
The law of {date} required every {role} in {country} to keep a@ {thing} of {material}.
{Process} in {where} has been compared to {process} in {place}, most notably by {person}.
""".strip().splitlines()

_PEOPLE = """
{who} was born in {city} in {year} and studied {field} at the {university}.
{last} worked for {company} in {city} for {small} years before turning to {topic}.
Born on {date} in {place}, {person} trained as a@ {role} and later moved to {where}.
After graduating from the {university} with a degree in {field}, {person} joined {company}.
{last} married a@ {role} from {city} in {year}, and the couple settled in {where}.
The {role} {person}, who taught {field} at the {university}, {verb} a@ {adj} {thing} in {year}.
{last} published "{title}" in {year}, at the age of {age}.
In {year}, {person} left {place} for {city} and became head of the {institution}.
{person}, {person} and {person} {verb} the {it} together.
{last} was succeeded by {person}, a@ {role} born in {country}.
{who} received the medal of the {institution} in {year} and died in {city} on {date}.
As a young {role} at {company}, {last} {verb} more than {n} {things}.
The diaries of {person} show that the {it} was {verb} in {month} {year}.
It was {person}, not {last}, who first {verb} the {thing}, according to the {institution}.
The family of {last} came from {place}, where a@ {adj} {thing} still carries the name.
A pupil of {person} at the {university}, {last} {adverb} {verb} the {adj} {thing}.
{Role}s such as {person} and {person} disagreed with {last} about {process}.
{company} was founded in {city} in {year} by {person}, who had {verb} a@ {adj} {thing}.
In the preface to "{title}", {person} thanks {last} for help with {process}.
The {university} named a chair of {field} after {who} in {year}.
""".strip().splitlines()

_CLOSINGS = """
The question was taken up again in {year} by the {institution}, without a clear result.
Today the {it} is {adverb} regarded as {evaluation}.
It remains one of the {adj} {things} of {topic}.
Its influence on {process} is still visible in {where}.
What became of the {adj} {thing} is not known.
Since then, {topic} has been taught in {where} together with {field}.
The {it} was listed by the {institution} in {year}.
A fuller account is given in "{title}" by {person}.
In {country}, however, the {things} went out of use after {year}.
None of this, as {last} remarked, made the {it} any less {adj}.
""".strip().splitlines()

_QUOTES = """
the {thing} is the work of many hands
no {thing} was ever {verb} by {process} alone
we {verb} the {thing} before we understood the {thing}
whoever has {verb} a@ {adj} {thing} knows the value of {material}
{process} without {process} is an empty word
there is nothing so {adj} as a@ {thing} in {place}
I saw {n} {things} in {city}, and not one of them was {adj}
it is the {role}, not the {thing}, that makes {process} possible
a@ {adj} {thing} teaches more than {small} {adj} ones
the {things} of {country} will outlast us all
every {role} begins with {material} and ends with {process}
let us not confuse the {thing} with its {process}
""".strip().splitlines()

_EVALUATION_CLAUSES = """
goes back to {person}
was unknown before {year}
many authors consider {evaluation}
is seldom made outside {country}
became common in the {decade}s
""".strip().splitlines()

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])@ (?=(\"?\w+))")
_CONSONANT_SOUND = re.compile(r"(uni|use|eu|one)", re.IGNORECASE)


def _compiled(patterns: Sequence[str]) -> list[list[str]]:
    # Odd places of a split pattern are slot names.
    return [_SLOT.split(pattern) for pattern in patterns]


_PATTERNS = {
    "opening": _compiled(_OPENINGS),
    "middle": _compiled(_MIDDLES),
    "person": _compiled(_PEOPLE),
    "closing": _compiled(_CLOSINGS),
    "quote": _compiled(_QUOTES),
    "clause": _compiled(_EVALUATION_CLAUSES),
}


def _plural(noun: str) -> str:
    if noun == "species":
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def _split(text: str, separator: str | None = None) -> list[str]:
    return [entry.strip().replace("_", " ") for entry in " ".join(text.split()).split(separator)]


_WORDS = {
    domain: {key: _split(text, "|" if key == "field" else None) for key, text in table.items()}
    for domain, table in words.DOMAINS.items()
}


class _Prose:
    """Sentences about one topic; every draw comes from one generator."""

    def __init__(self, topic: str, rng: random.Random, about_people: tuple[float, float, float]) -> None:
        self.rng, self.about_people = rng, about_people
        self.domain = _WORDS[domain_of(topic) or rng.choice(DOMAINS)]
        self.phrase = phrase_of(topic)
        self.fixed: dict[str, str] = {}
        # Places, people and houses that an article comes back to.
        self.places = [self._place() for _ in range(14)]
        self.countries = [self._country() for _ in range(6)]
        self.cast = [self._person() for _ in range(18)]
        self.decks: dict[str, list[int]] = {}
        self.draws: dict[str, Callable[[], str]] = {
            "person": lambda: rng.choice(self.cast) if rng.random() < 0.3 else self._person(),
            "place": lambda: rng.choice(self.places) if rng.random() < 0.5 else self._place(),
            "city": lambda: rng.choice(self.places) if rng.random() < 0.5 else self._place(),
            "country": lambda: rng.choice(self.countries),
            "region": lambda: rng.choice(words.REGIONS),
            "year": lambda: str(rng.randint(1100, 1999) if rng.random() < 0.4 else rng.randint(1780, 2015)),
            "decade": lambda: str(rng.randrange(1600, 2010, 10)),
            "century": lambda: rng.choice(words.CENTURIES),
            "month": lambda: rng.choice(words.MONTHS),
            "date": self._date,
            "ordinal": lambda: rng.choice(words.ORDINALS),
            "small": lambda: rng.choice(words.SMALL),
            "n": lambda: str(rng.randint(21, 980)),
            "bignum": lambda: f"{rng.randint(1, 9) * 10 ** rng.randint(3, 5) + rng.randint(1, 999):,}",
            "pct": lambda: str(rng.randint(3, 96)),
            "age": lambda: str(rng.randint(19, 81)),
            "kilo": lambda: rng.choice(("kilometres", "leagues", "miles")),
            "unit": lambda: rng.choice(words.UNITS),
            "adj": lambda: rng.choice(self.domain["adjective"] if rng.random() < 0.6 else words.ADJECTIVES),
            "adverb": lambda: rng.choice(words.ADVERBS),
            "evaluation": lambda: rng.choice(words.EVALUATIONS),
            "thing": lambda: rng.choice(self.domain["thing"]),
            "things": lambda: _plural(rng.choice(self.domain["thing"])),
            "role": lambda: rng.choice(self.domain["role"]),
            "process": lambda: rng.choice(self.domain["process"]),
            "verb": lambda: rng.choice(self.domain["verb"]),
            "material": lambda: rng.choice(self.domain["material"]),
            "field": lambda: rng.choice(self.domain["field"]),
            "name": self._place,
            "university": self._university,
            "company": self._company,
            "institution": self._institution,
            "title": self._title,
            "quote": lambda: self._fill("quote"),
            "evaluations_clause": lambda: self._fill("clause"),
            "topic_noun": lambda: rng.choice(self.domain["process"]),
        }

    def _surname(self) -> str:
        rng = self.rng
        middle = rng.choice(words.SURNAME_MIDDLES) if rng.random() < 0.4 else ""
        return rng.choice(words.SURNAME_STARTS) + middle + rng.choice(words.SURNAME_ENDS)

    def _person(self) -> str:
        rng = self.rng
        initial = f" {rng.choice('ABCDEFGHJKLMNPRSTVW')}." if rng.random() < 0.15 else ""
        return f"{rng.choice(words.GIVEN_NAMES)}{initial} {self._surname()}"

    def _place(self) -> str:
        return self.rng.choice(words.PLACE_STARTS) + self.rng.choice(words.PLACE_ENDS)

    def _country(self) -> str:
        return self.rng.choice(words.SURNAME_STARTS) + self.rng.choice(words.COUNTRY_ENDS)

    def _date(self) -> str:
        month, day, year = self.draws["month"](), self.rng.randint(1, 28), self.draws["year"]()
        return f"{day} {month} {year}" if self.rng.random() < 0.6 else f"{month} {day}, {year}"

    def _university(self) -> str:
        place = self.draws["place"]()
        return self.rng.choice(
            (f"University of {place}", f"{place} University", f"{place} Polytechnic", f"{place} College")
        )

    def _company(self) -> str:
        end = self.rng.choice(words.COMPANY_ENDS)
        return f"{self._surname() if self.rng.random() < 0.6 else self._place()} {end}"

    def _institution(self) -> str:
        kind, place = self.rng.choice(words.INSTITUTIONS), self.draws["place"]()
        return self.rng.choice((f"{place} {kind}", f"{kind} of {place}", f"Royal {kind} of {self.draws['country']()}"))

    def _title(self) -> str:
        head = self.rng.choice(words.PUBLICATION_HEADS)
        thing, process = self.draws["things"]().title(), self.draws["process"]().title()
        joint = "into" if head == "Inquiry" else "on" if head not in ("Principles", "Elements", "Outline") else "of"
        return f"{head} {joint} " + self.rng.choice((f"{thing} and {process}", f"the {process} of {thing}", thing))

    def _slot(self, name: str, used: set[str]) -> str:
        if name in self.fixed:
            return self.fixed[name]
        if name[0].isupper():
            text = self._slot(name.lower(), used)
            return text[:1].upper() + text[1:]
        text = self.draws[name]()
        for _ in range(6):
            if text not in used:
                break
            text = self.draws[name]()
        used.add(text)
        return text

    def _fill(self, kind: str) -> str:
        # Patterns are dealt like cards, so that none comes back before the others had their turn.
        deck = self.decks.setdefault(kind, [])
        if not deck:
            deck.extend(range(len(_PATTERNS[kind])))
            self.rng.shuffle(deck)
        pattern = _PATTERNS[kind][deck.pop()]
        used = set(self.fixed.values())
        return "".join(self._slot(part, used) if i % 2 else part for i, part in enumerate(pattern))

    def sentence(self, kind: str) -> str:
        if "year_a" in self.fixed:
            first = self.rng.randint(1150, 1960)
            self.fixed["year_a"], self.fixed["year_b"] = str(first), str(first + self.rng.randint(4, 74))
        text = self._fill(kind)
        text = _ARTICLE.sub(
            lambda m: m[1] + ("n " if m[2].strip('"')[0] in "aeiouAEIOU" and not _CONSONANT_SOUND.match(m[2]) else " "),
            text,
        )
        return text[:1].upper() + text[1:]

    def paragraph(self) -> str:
        rng = self.rng
        person = rng.choice(self.cast) if rng.random() < 0.5 else self._person()
        self.fixed = {
            "topic": self.phrase,
            "who": person,
            "last": person.rsplit(" ", 1)[1],
            "where": self.draws["place"](),
            "it": self.draws["thing"](),
            "year_a": "",
            "year_b": "",
        }
        least, most = PARAGRAPH_WORDS
        target = rng.randint(least, most - 30)
        closing = self.sentence("closing") if rng.random() < 0.4 else ""
        sentences = [self.sentence("opening")]
        length = len(sentences[0].split()) + len(closing.split())
        paragraphs, inside, elsewhere = self.about_people
        about_people = rng.random() < paragraphs
        while length < target:
            text = self.sentence("person" if rng.random() < (inside if about_people else elsewhere) else "middle")
            size = len(text.split())
            if length + size > most:
                continue
            sentences.append(text)
            length += size
        return " ".join(sentences + [closing] * bool(closing))


def articles(topics: Sequence[str], seed: int, paragraphs: int = 60, crowded: bool = False) -> list[dict[str, Any]]:
    """An article a topic, as rows of schema ``corpus``; each depends on its topic and the other arguments alone.

    ``paragraphs`` of 60 to 160 words make an article, about 680 characters each; none is repeated. A ``crowded``
    article tells of people in every fourth sentence, much more than an encyclopedia: hard reading to train on.
    """
    rows = []
    for topic in topics:
        prose = _Prose(topic, random.Random(f"{seed}:embedded:{topic}"), CROWDED if crowded else USUAL)
        texts: dict[str, None] = {}
        while len(texts) < paragraphs:
            texts[prose.paragraph()] = None
        rows.append(
            {
                "title": topic,
                "text": "\n\n".join(texts),
                "url": "",
                "licence": LICENCE,
                "revision": REVISION,
                "source": "embedded",
                "synthetic": True,
            }
        )
    return rows
