"""What the adapter of SmolLM2 is tuned on: documents with questions about them, each with its answer.

People: passages and sentences written for this training, whose slots are filled anew at every use, the tiny reader's
narratives, and summary sentences, among paragraphs of prose. Real questions: SQuAD 2.0, but for articles and paragraphs
that benchmarks are to be measured on (:data:`APART`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.narratives import narrative
from training.squad import articles
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.people import Person, faker, people
from utaca.biographies.sentences import abstention, summary
from utaca.readers.prompts import SEPARATOR, Prompts, question
from utaca.records.texts import records

APART = (
    "Normans",
    "Computational_complexity_theory",
    "Huguenot",
    "Yuan_dynasty",
    "Immune_system",
    "Packet_switching",
)
"""Articles of SQuAD's development set that no training sees: test and calibration of benchmarks."""

UNKNOWN = "unknown"
ATTRIBUTES = (*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES)
VALIDATION_EVERY = 8
"""Every so many'th passage is kept for validation."""

SHARES = {"people": 0.7, "squad": 0.3}
SEVERAL, NATURAL, ABSENT = 0.3, 0.3, 0.7
"""Shares: questions about several attributes, questions as people ask, people asked about absent attributes too."""

VALUE, TEMPLATE, ABSTAINED = 1.0, 0.1, 0.5
"""Weights of an answer's tokens: of values, of the pattern around them, of abstentions."""

SELDOM = (
    "marriage date", "email address", "phone number", "favorite color", "user agent", "credit card provider",
    "currency used", "catch phrase", "street address", "vehicle license plate", "favorite file extension",
    "domain name", "cryptocurrency", "timezone", "isbn code", "lucky number", "personality type",
)  # fmt: skip
"""Attributes that prose does not imply in passing: where no slot gives them, a passage does not have them."""

_DRAWS = 200
"""Paragraphs drawn, at most, to fill a document."""

_NAME = re.compile(r"\{(full|first|last|he|him|his|himself|He|His)(\d?)\}")
_FACT = re.compile(r"\[\[(?:(\d):)?([^\]=]+?)(?:=([^\]]+))?\]\]")
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[\"'A-Z{\[])")
_PRONOUNS = ({"he": "he", "him": "him", "his": "his", "himself": "himself"},
             {"he": "she", "him": "her", "his": "her", "himself": "herself"})  # fmt: skip
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_UNITS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_TEENS = (
    "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth",
    "nineteenth",
)  # fmt: skip
_ORDINALS = (*_UNITS, *_TEENS, "twentieth", *(f"twenty-{unit}" for unit in _UNITS))
"""Ordinals of days, up to the twenty-ninth."""


@dataclass(frozen=True)
class Asking:
    """What is asked about a document.

    ``most`` questions, and of a person ``absent`` absent attributes at most, that share of them ``unmentioned``
    anywhere. Of that share of the passages a sentence is ``omitted``: what it alone stated is absent then.
    ``abstained`` is the weight of an abstention's tokens.
    """

    most: int = 12
    absent: int = 1
    unmentioned: float = 0.0
    omitted: float = 0.0
    abstained: float = ABSTAINED


FACTS = Asking()
DOUBTS = Asking(most=20, absent=3, unmentioned=0.4, omitted=0.5, abstained=1.0)
"""Asked half as often about what is absent as about what is there."""


@dataclass
class Unit:
    """Some prose about people: what it says of each, and what it does not say."""

    text: str
    facts: dict[str, dict[str, str]]
    absent: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Asked:
    """Token ids of a question with its answer, and each token's weight in the loss, 0 in the question.

    ``values`` are the places in ``tokens`` of each value that is asked for, first and behind the last token, and
    whether the document has it.
    """

    tokens: list[int]
    weights: list[float]
    values: list[tuple[int, int, bool]]


@dataclass
class Example:
    """A document's token ids and what is asked about it."""

    document: list[int]
    asked: list[Asked]


class Examples:
    """Examples of any length, each a function of the seed and its number alone.

    ``folder`` holds the wordings (``passages.jsonl``, ``sentences.jsonl``, ``questions.json``, ``values.json``),
    ``prose`` are paragraphs that go between, ``squad`` are articles of SQuAD.
    """

    def __init__(
        self, prompts: Prompts, folder: Path, prose: Sequence[str], squad: Sequence[dict[str, Any]], seed: int
    ) -> None:
        self._prompts, self._prose, self._squad, self._seed = prompts, prose, squad, seed
        self._asking = FACTS
        passages = lines(folder / "passages.jsonl")
        self._passages = {
            False: [p for n, p in enumerate(passages) if n % VALIDATION_EVERY],
            True: passages[::VALIDATION_EVERY],
        }
        sentences = lines(folder / "sentences.jsonl")
        self._sentences = {
            False: [s for n, s in enumerate(sentences) if n % VALIDATION_EVERY],
            True: sentences[::VALIDATION_EVERY],
        }
        self._forms = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
        self._values = json.loads((folder / "values.json").read_text(encoding="utf-8"))

    def example(self, number: int, length: int, asking: Asking = FACTS, validation: bool = False) -> Example:
        """The example of this number: a document of about ``length`` tokens, or less where that is as well."""
        self._asking = asking
        rng = random.Random(f"{self._seed}:{'validation' if validation else 'tuning'}:{number}")
        split = "reader_validation" if validation else "reader"
        self._crowd = people(split, rng.getrandbits(32))
        (kind,) = rng.choices(list(SHARES), weights=list(SHARES.values()))
        if kind == "squad" and not validation and self._squad:
            return self._from_squad(rng, length)
        return self._from_people(rng, length, validation)

    def _from_people(self, rng: random.Random, length: int, validation: bool) -> Example:
        units, size = [], 0
        most = 1 if rng.random() < 0.25 else rng.randint(2, 7)
        while not units or (len(units) < most and size < 0.8 * length):
            unit = self._unit(rng, validation)
            units.append(unit)
            size += len(self._prompts.text(unit.text))
        texts = self._among_prose([unit.text for unit in units], length - size, rng)
        asked: list[Asked] = []
        for unit in units:
            asked += self._questions(unit, units, rng)
        rng.shuffle(asked)
        return Example(self._prompts.document(SEPARATOR.join(texts)), asked[: self._asking.most])

    def _among_prose(self, texts: list[str], room: int, rng: random.Random) -> list[str]:
        found = list(texts)
        for _ in range(_DRAWS):
            if room < 60 or not self._prose:
                break
            paragraph = rng.choice(self._prose)
            size = len(self._prompts.text(paragraph))
            if size <= room + 40:
                found.insert(rng.randint(0, len(found)), paragraph)
                room -= size
        return found

    def _unit(self, rng: random.Random, validation: bool) -> Unit:
        draw = rng.random()
        if validation or draw < 0.6:
            return self._passage(rng.choice(self._passages[validation]), rng)
        if draw < 0.8:
            return self._told_in_sentences(rng, validation)
        person = next(self._crowd)
        attributes = HELD_OUT_ATTRIBUTES if rng.random() < 0.5 else rng.sample(ATTRIBUTES, rng.randint(2, 6))
        facts = [(a, self._value(a, rng, person) if rng.random() < 0.5 else draw_value(a, rng, person.locale))
                 for a in attributes]  # fmt: skip
        told = narrative(person.name, facts, rng) if draw < 0.95 else [summary(a, person.name, v) for a, v in facts]
        return Unit(" ".join(told), {person.name: dict(facts)})

    def _passage(self, passage: dict[str, Any], rng: random.Random) -> Unit:
        template, omitted = passage["text"], {}
        if self._asking.omitted and rng.random() < self._asking.omitted:
            template, omitted = _without_a_sentence(template, rng)
        text, facts, named = self._filled(template, rng)
        absent = {named[key]: list(value) for key, value in passage.get("absent", {}).items() if key in named}
        for key in named:
            absent.setdefault(named[key], []).extend(omitted.get(key, ()))
        return Unit(text, facts, absent if passage.get("absent") or omitted else {})

    def _told_in_sentences(self, rng: random.Random, validation: bool) -> Unit:
        """A person in sentences of which each was written by itself."""
        chosen: list[str] = []
        has: set[str] = set()
        for sentence in rng.sample(self._sentences[validation], min(24, len(self._sentences[validation]))):
            attributes = {match[2].strip() for match in _FACT.finditer(sentence["text"])}
            if not attributes & has:
                has |= attributes
                chosen.append(sentence["text"])
            if len(chosen) == 6:
                break
        chosen = chosen[: rng.randint(2, 6)]
        # The one that names the person in full comes first.
        chosen.sort(key=lambda text: "{full}" not in text)
        if "{full}" not in chosen[0]:
            chosen.insert(0, rng.choice(("A word about {full}.", "{full}:", "This is about {full}.", "On {full}.")))
        text, facts, _ = self._filled(" ".join(chosen), rng)
        return Unit(text, facts)

    def _filled(self, text: str, rng: random.Random) -> tuple[str, dict[str, dict[str, str]], dict[str, str]]:
        """A text with names, pronouns and values in its slots; the facts by person; the people by number."""
        cast: dict[str, tuple[Person, dict[str, str]]] = {}
        facts: dict[str, dict[str, str]] = {}

        def who(number: str) -> tuple[Person, dict[str, str]]:
            number = number or "1"
            if number not in cast:
                cast[number] = next(self._crowd), rng.choice(_PRONOUNS)
            return cast[number]

        def name(match: re.Match[str]) -> str:
            person, pronouns = who(match[2])
            key = match[1]
            if key in ("full", "first", "last"):
                words = person.name.split()
                return {"full": person.name, "first": words[0], "last": words[-1]}[key]
            word = pronouns[key.lower()]
            return word.capitalize() if key[0].isupper() else word

        def fact(match: re.Match[str]) -> str:
            person, _ = who(match[1])
            attribute = match[2].strip()
            value = match[3].strip() if match[3] else self._value(attribute, rng, person)
            facts.setdefault(person.name, {}).setdefault(attribute, value)
            return value

        text = _NAME.sub(name, _FACT.sub(fact, text))
        return text, facts, {number: person.name for number, (person, _) in cast.items()}

    def _value(self, attribute: str, rng: random.Random, person: Person) -> str:
        values = self._values
        if attribute in ("birth date", "marriage date"):
            return date(rng)
        if attribute in ("birth place", "work place", "current city"):
            return rng.choice(values["place"]) if rng.random() < 0.5 else draw_value("birth place", rng, person.locale)
        if attribute == "university":
            draw, city = rng.random(), faker(person.locale)
            city.random = rng
            if draw < 0.5:
                return rng.choice(values["university"])
            if draw < 0.6:
                return draw_value("university", rng, person.locale)
            return rng.choice(("University of {c}", "{c} University", "{s} College", "{c} Polytechnic",
                               "{s} Institute of Technology", "the {c} Academy of Arts", "{c} State University",
                               "the Technical University of {c}", "St {s}'s College, {c}", "{s} School of Economics",
                               )).format(c=city.city(), s=city.last_name())  # fmt: skip
        if attribute in values and rng.random() < 0.7:
            value = rng.choice(values[attribute])
            return value if attribute != "major" or rng.random() < 0.5 else value.lower()
        value = draw_value(attribute, rng, person.locale) if attribute in ATTRIBUTES else attribute
        return value.lower() if attribute in ("job title", "hobby") else value

    def _questions(self, unit: Unit, units: Iterable[Unit], rng: random.Random) -> list[Asked]:
        found = []
        elsewhere = sorted({a for other in units for facts in other.facts.values() for a in facts})
        for person, facts in unit.facts.items():
            stated = {a.lower() for a in facts}
            lacking = [a for a in unit.absent.get(person, ()) if a.lower() not in stated]
            foreign = [a for a in elsewhere if a in ATTRIBUTES and a not in facts and unit.absent.get(person) is None]
            lacking += foreign
            present = rng.sample(list(facts), min(len(facts), 5))
            wanted: list[tuple[str, str | None]] = [(a, facts[a]) for a in present]
            if (lacking or self._asking.unmentioned) and rng.random() < ABSENT:
                wanted += [(a, None) for a in self._absent(lacking, stated, rng)]
            rng.shuffle(wanted)
            while wanted:
                count = rng.randint(2, 6) if rng.random() < SEVERAL else 1
                group, wanted = wanted[:count], wanted[count:]
                if len(group) == 1 and rng.random() < NATURAL:
                    found.append(self._natural(person, *group[0], rng))
                else:
                    found.append(self._pattern(person, group))
        return found

    def _absent(self, lacking: list[str], stated: set[str], rng: random.Random) -> list[str]:
        """Absent attributes to ask for: of those that the passage's author named or that others here have."""
        unmentioned = [a for a in SELDOM if a not in stated] if self._asking.unmentioned else []
        found = []
        for _ in range(self._asking.absent):
            easy = unmentioned and (not lacking or rng.random() < self._asking.unmentioned)
            found.append(rng.choice(unmentioned if easy else lacking))
        return list(dict.fromkeys(found))

    def _pattern(self, person: str, group: Sequence[tuple[str, str | None]]) -> Asked:
        text = question([attribute for attribute, _ in group], person, "compact")
        answer, spans = "", []
        for attribute, value in group:
            sentence = summary(attribute, person, value) if value else abstention(attribute, person)
            answer += " " * bool(answer) + sentence
            end = len(answer) - 1
            spans.append((end - len(value or UNKNOWN), end, value is not None))
        return self._asked(text, answer, spans, self._asking.abstained)

    def _natural(self, person: str, attribute: str, value: str | None, rng: random.Random) -> Asked:
        forms = self._forms.get(attribute, self._forms["*"])
        text = rng.choice(forms).replace("{full}", person).replace("{attribute}", attribute)
        return self._asked(text, value or UNKNOWN, [(0, len(value or UNKNOWN), value is not None)],
                           self._asking.abstained)  # fmt: skip

    def _from_squad(self, rng: random.Random, length: int) -> Example:
        article = rng.choice(self._squad)
        paragraph = rng.choice(article["paragraphs"])
        texts, size = [paragraph["context"]], len(self._prompts.text(paragraph["context"]))
        asked = self._real(paragraph, rng)
        for _ in range(_DRAWS):
            if size >= 0.8 * length or len(texts) == 40:
                break
            other = rng.choice(rng.choice(self._squad)["paragraphs"] if rng.random() < 0.5 else article["paragraphs"])
            if other["context"] not in texts:
                texts.insert(rng.randint(0, len(texts)), other["context"])
                size += len(self._prompts.text(other["context"]))
                if len(asked) < self._asking.most:
                    asked += self._real(other, rng)
        rng.shuffle(asked)
        return Example(self._prompts.document(SEPARATOR.join(texts)), asked[: self._asking.most])

    def _real(self, paragraph: dict[str, Any], rng: random.Random) -> list[Asked]:
        """Questions about a paragraph, with their shortest answers; few of those that it does not answer."""
        found = []
        for row in rng.sample(paragraph["qas"], len(paragraph["qas"])):
            answers = [answer["text"] for answer in row["answers"]] if not row.get("is_impossible") else []
            if not answers and rng.random() > 0.2:
                continue
            answer = min(answers, key=len) if answers else UNKNOWN
            found.append(self._asked(row["question"].strip(), answer, [(0, len(answer), bool(answers))]))
        return found[:8]

    def _asked(
        self, text: str, answer: str, spans: Sequence[tuple[int, int, bool]], abstained: float = ABSTAINED
    ) -> Asked:
        prompt = self._prompts.question(text)
        ids, offsets = self._prompts.with_offsets(answer)
        weights = [TEMPLATE] * len(ids)
        values = []
        for start, end, present in spans:
            inside = [n for n, (low, high) in enumerate(offsets) if low < end and high > start]
            for n in inside:
                weights[n] = VALUE if present else abstained
            values.append((len(prompt) + inside[0], len(prompt) + inside[-1] + 1, present))
        # What ends the answer belongs to a short one's value: it must not run on.
        last = TEMPLATE if answer.endswith(".") else VALUE / 2
        return Asked([*prompt, *ids, self._prompts.end], [0.0] * len(prompt) + [*weights, last], values)


def _without_a_sentence(template: str, rng: random.Random) -> tuple[str, dict[str, list[str]]]:
    """A passage without the sentences that state one of its facts, and what it no longer states, by person.

    The passage as it is where too little would be left of it, or somebody's full name would be gone.
    """
    sentences = _SENTENCES.split(template)
    slots = [{(m[1] or "1", m[2].strip()) for m in _FACT.finditer(sentence)} for sentence in sentences]
    lost = rng.choice(sorted(set().union(*slots)) or [("1", "")])
    kept = [n for n, inside in enumerate(slots) if lost not in inside]
    text = " ".join(sentences[n] for n in kept)
    people = {match[2] for match in _NAME.finditer(template)}
    if 2 * len(text) < len(template) or any(f"{{full{number}}}" not in text for number in people):
        return template, {}
    gone = set().union(*slots) - set().union(*(slots[n] for n in kept))
    return text, {number: sorted(a for who, a in gone if who == number) for number in {who for who, _ in gone}}


def date(rng: random.Random) -> str:
    """A day of the last hundred years, in one of the ways that people write it."""
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1925, 2008)
    suffix = "th" if 10 < day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    name, ordinal = _MONTHS[month - 1], _ORDINALS[day - 1]
    short = name[:3]
    return rng.choice(
        (
            f"{day} {name} {year}", f"{day} {name} {year}", f"{day} {name}, {year}", f"{name} {day}, {year}",
            f"{name} {day}, {year}", f"{name} {day}{suffix}, {year}", f"{day}{suffix} {name} {year}",
            f"the {day}{suffix} of {name} {year}", f"the {day}{suffix} of {name}, {year}",
            f"the {ordinal} of {name} {year}", f"the {ordinal} of {name}, {year}", f"{year}-{month:02}-{day:02}",
            f"{day:02}/{month:02}/{year}", f"{day}.{month}.{year}", f"{short} {day}, {year}", f"{day} {short} {year}",
            f"{short}. {day}, {year}", f"{name} the {ordinal}, {year}", f"{day} {name[:3]}. {year}",
        )
    )  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file."""
    return [row for _, row in records(path, "fetch it anew from the repository")]


def squad(path: Path, apart: Path | None) -> list[dict[str, Any]]:
    """Articles of a SQuAD file to be trained on: without :data:`APART` and the paragraphs of the file ``apart``."""
    kept = set()
    if apart is not None:
        for article in articles(apart, "adapter.squad_apart"):
            kept |= {_plain(paragraph["context"]) for paragraph in article["paragraphs"]}
    found = []
    for article in articles(path, "adapter.squad"):
        if article["title"] in APART:
            continue
        paragraphs = [p for p in article["paragraphs"] if _plain(p["context"]) not in kept]
        found.append({"title": article["title"], "paragraphs": paragraphs})
    return found


def _plain(text: str) -> str:
    return " ".join(text.split())
