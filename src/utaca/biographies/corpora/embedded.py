"""Encyclopaedic prose from a seeded grammar: padding that needs no download.

Articles are about real topics and otherwise invented: their people, places, institutions, years and figures exist
nowhere else. They name persons, birth years, universities and companies, so that a biography does not stand out only by
its vocabulary.
"""

import random
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal

from pydantic import Field

from utaca.biographies.corpora.text import article
from utaca.biographies.corpora.topics import DOMAINS, ByDomain, domain_and_phrase
from utaca.data_files import DataFile, Entries, read, slots

REVISION = "grammar 1"
LICENCE = "CC0-1.0"

# The share of paragraphs that are about a person; the shares of sentences about people in these paragraphs, and in
# others.
USUAL = (0.08, 0.55, 0.03)
CROWDED = (0.35, 0.55, 0.12)

SLOTS = """
topic topic_noun who last where it year_a year_b person place city country region year decade century month date
ordinal small n bignum pct age kilo unit adj adverb evaluation thing things role process verb material field name
university company institution title quote evaluations_clause
"""
"""Names of the slots of a pattern; the text of a slot with a capitalised name begins with a capital."""

Words = Entries[str]
Patterns = Entries[Annotated[str, slots(SLOTS, capitals=True)]]

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])@ (?=(\"?\w+))")
_CONSONANT_SOUND = re.compile(r"(uni|use|eu|one)", re.IGNORECASE)


def _plural(noun: str) -> str:
    """The plural of an English noun of the vocabulary."""
    if noun == "species":
        return noun
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    return noun + "s"


def _indefinite_article(match: re.Match[str]) -> str:
    """The article "a " or "an " in place of the "a@ " that :data:`_ARTICLE` matched, by the sound of the next word.

    The match's groups are the letter, which may be a capital, and the next word.
    """
    letter, word = match.groups()
    has_vowel = word.strip('"')[0] in "aeiouAEIOU" and not _CONSONANT_SOUND.match(word)
    return f"{letter}n " if has_vowel else f"{letter} "


SHARED = ("region", "month", "ordinal", "century", "small", "adverb", "evaluation", "unit", "kilo")
"""Slots that are filled from the same words in all domains."""
PARTS = ("thing", "adjective", "role", "process", "verb", "material", "field")
"""Words of a domain by their part in a sentence."""


class Vocabulary(DataFile):
    """Parts of invented names, and words that fill slots: those that all domains share, and each domain's."""

    given_names: Words
    surname_starts: Words
    surname_middles: Words
    surname_ends: Words
    place_starts: Words
    place_ends: Words
    country_ends: Words
    adjectives: Words
    publication_heads: Words
    company_ends: Words
    institutions: Words
    slots: Annotated[dict[Literal[SHARED], Words], Field(min_length=len(SHARED))]
    domains: ByDomain[Annotated[dict[Literal[PARTS], Words], Field(min_length=len(PARTS))]]


class Grammar(DataFile):
    """Patterns of sentences by their place in a paragraph, of quotations and of evaluating clauses."""

    opening: Patterns
    middle: Patterns
    person: Patterns
    closing: Patterns
    quote: Patterns
    clause: Patterns


@cache
def _patterns() -> dict[str, list[list[str]]]:
    """The patterns by kind, split at their slots: items at odd indices are slot names."""
    grammar = read("biographies/grammar.yaml", Grammar)
    return {kind: [_SLOT.split(pattern) for pattern in patterns] for kind, patterns in grammar}


class _Prose:
    """A generator of sentences and paragraphs about one topic; all draws come from ``rng``.

    ``about_people`` is :data:`USUAL` or :data:`CROWDED`. ``fixed`` are the texts of slots that stay the same within a
    paragraph. ``decks`` have, by kind, the indices of the patterns that are still to be used.
    """

    def __init__(self, topic: str, rng: random.Random, about_people: tuple[float, float, float]) -> None:
        self.rng = rng
        self.about_people = about_people
        self.words = read("biographies/vocabulary.yaml", Vocabulary)
        domain, self.phrase = domain_and_phrase(topic)
        # The words of the topic's domain, or of any domain for an unknown topic.
        self.domain = self.words.domains[domain or rng.choice(DOMAINS)]
        self.fixed: dict[str, str] = {}
        # Places, countries and people that an article mentions repeatedly.
        self.places = [self._place() for _ in range(14)]
        self.countries = [self._country() for _ in range(6)]
        self.cast = [self._person() for _ in range(18)]
        self.decks: dict[str, list[int]] = {}
        # The function that draws the text of each slot, by the slot's name.
        self.draws: dict[str, Callable[[], str]] = {}
        for slot, words in (self.words.slots | self.domain).items():
            self.draws[slot] = partial(rng.choice, words)
        self.draws |= {
            "person": self._cast_or_person,
            "place": self._known_or_other_place,
            "city": self._known_or_other_place,
            "country": lambda: rng.choice(self.countries),
            "year": self._year,
            "decade": lambda: str(rng.randrange(1600, 2010, 10)),
            "date": self._date,
            "n": lambda: str(rng.randint(21, 980)),
            "bignum": self._large_number,
            "pct": lambda: str(rng.randint(3, 96)),
            "age": lambda: str(rng.randint(19, 81)),
            "adj": self._adjective,
            "things": lambda: _plural(rng.choice(self.domain["thing"])),
            "name": self._place,
            "university": self._university,
            "company": self._company,
            "institution": self._institution,
            "title": self._title,
            "quote": lambda: self._fill("quote"),
            "evaluations_clause": lambda: self._fill("clause"),
            "topic_noun": lambda: rng.choice(self.domain["process"]),
        }

    # Each method below draws the text of a slot, or a part of it.

    def _surname(self) -> str:
        """An invented surname of two or three parts."""
        rng = self.rng
        middle = rng.choice(self.words.surname_middles) if rng.random() < 0.4 else ""
        return rng.choice(self.words.surname_starts) + middle + rng.choice(self.words.surname_ends)

    def _person(self) -> str:
        rng = self.rng
        initial = f" {rng.choice('ABCDEFGHJKLMNPRSTVW')}." if rng.random() < 0.15 else ""
        return f"{rng.choice(self.words.given_names)}{initial} {self._surname()}"

    def _place(self) -> str:
        return self.rng.choice(self.words.place_starts) + self.rng.choice(self.words.place_ends)

    def _country(self) -> str:
        return self.rng.choice(self.words.surname_starts) + self.rng.choice(self.words.country_ends)

    def _cast_or_person(self) -> str:
        """A person of the article's cast, or another."""
        return self.rng.choice(self.cast) if self.rng.random() < 0.3 else self._person()

    def _known_or_other_place(self) -> str:
        """A place that the article mentions repeatedly, or another."""
        return self.rng.choice(self.places) if self.rng.random() < 0.5 else self._place()

    def _adjective(self) -> str:
        """An adjective of the topic's domain, or one that all domains share."""
        of_domain = self.rng.random() < 0.6
        return self.rng.choice(self.domain["adjective"] if of_domain else self.words.adjectives)

    def _year(self) -> str:
        """A year; three in five are of modern times."""
        is_early = self.rng.random() < 0.4
        return str(self.rng.randint(1100, 1999) if is_early else self.rng.randint(1780, 2015))

    def _large_number(self) -> str:
        """A number of four to six digits, above a round one by less than a thousand."""
        digit = self.rng.randint(1, 9)
        magnitude = self.rng.randint(3, 5)
        return f"{digit * 10**magnitude + self.rng.randint(1, 999):,}"

    def _date(self) -> str:
        month = self.draws["month"]()
        day = self.rng.randint(1, 28)
        year = self.draws["year"]()
        return f"{day} {month} {year}" if self.rng.random() < 0.6 else f"{month} {day}, {year}"

    def _university(self) -> str:
        place = self.draws["place"]()
        names = (f"University of {place}", f"{place} University", f"{place} Polytechnic", f"{place} College")
        return self.rng.choice(names)

    def _company(self) -> str:
        end = self.rng.choice(self.words.company_ends)
        start = self._surname() if self.rng.random() < 0.6 else self._place()
        return f"{start} {end}"

    def _institution(self) -> str:
        kind = self.rng.choice(self.words.institutions)
        place = self.draws["place"]()
        country = self.draws["country"]()
        return self.rng.choice((f"{place} {kind}", f"{kind} of {place}", f"Royal {kind} of {country}"))

    def _title(self) -> str:
        """The title of an invented publication."""
        head = self.rng.choice(self.words.publication_heads)
        thing = self.draws["things"]().title()
        process = self.draws["process"]().title()
        if head == "Inquiry":
            joint = "into"
        elif head in ("Principles", "Elements", "Outline"):
            joint = "of"
        else:
            joint = "on"
        subject = self.rng.choice((f"{thing} and {process}", f"the {process} of {thing}", thing))
        return f"{head} {joint} {subject}"

    def _slot(self, name: str, used: set[str]) -> str:
        """The text of a slot: the fixed one, else a drawn one, if possible none that the sentence has ``used`` already.

        The text is added to ``used``. A slot with a capitalised name has its text so.
        """
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
        """Draw a pattern of this kind and fill its slots."""
        # Patterns are drawn like cards from a deck, so that none comes back before all others were used.
        deck = self.decks.setdefault(kind, [])
        if not deck:
            deck.extend(range(len(_patterns()[kind])))
            self.rng.shuffle(deck)
        pattern = _patterns()[kind][deck.pop()]
        used = set(self.fixed.values())
        texts = []
        for index, part in enumerate(pattern):
            is_slot = index % 2 == 1
            texts.append(self._slot(part, used) if is_slot else part)
        return "".join(texts)

    def sentence(self, kind: str) -> str:
        """Draw a sentence of this kind, which begins with a capital."""
        if "year_a" in self.fixed:
            # A paragraph's two years are drawn for each sentence.
            first = self.rng.randint(1150, 1960)
            self.fixed["year_a"] = str(first)
            self.fixed["year_b"] = str(first + self.rng.randint(4, 74))
        text = _ARTICLE.sub(_indefinite_article, self._fill(kind))
        return text[:1].upper() + text[1:]

    def paragraph(self) -> str:
        """Draw a paragraph of 60 to 160 words: an opening, sentences about things or people, perhaps a closing."""
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
        target = rng.randint(60, 130)  # Words; a paragraph has at most 160.
        closing = self.sentence("closing") if rng.random() < 0.4 else ""
        sentences = [self.sentence("opening")]
        length = len(sentences[0].split()) + len(closing.split())
        share_of_paragraphs, share_in_these, share_in_others = self.about_people
        is_about_people = rng.random() < share_of_paragraphs
        share = share_in_these if is_about_people else share_in_others
        while length < target:
            text = self.sentence("person" if rng.random() < share else "middle")
            n_words = len(text.split())
            if length + n_words > 160:
                continue  # draw another, shorter sentence
            sentences.append(text)
            length += n_words
        if closing:
            sentences.append(closing)
        return " ".join(sentences)


def articles(topics: Sequence[str], seed: int, paragraphs: int = 60, crowded: bool = False) -> list[dict[str, Any]]:
    """Write an article about each topic, as rows of schema ``corpus``.

    The article of a topic does not depend on the other ``topics``. An article has ``paragraphs`` distinct paragraphs of
    60 to 160 words, about 680 characters each. In a ``crowded`` article one sentence in four is about people, far more
    than in an encyclopedia: hard training text.
    """
    rows = []
    for topic in topics:
        prose = _Prose(topic, random.Random(f"{seed}:embedded:{topic}"), CROWDED if crowded else USUAL)
        texts: dict[str, None] = {}
        while len(texts) < paragraphs:
            texts[prose.paragraph()] = None
        row = article("embedded", topic, "\n\n".join(texts), licence=LICENCE, revision=REVISION, synthetic=True)
        rows.append(row)
    return rows
