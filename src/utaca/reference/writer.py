"""Biographies by rules: a narrative that states every fact verbatim, in wordings chosen by a hash of the input."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence

Fact = tuple[str, str]

_SHORTEST, _LONGEST = 8, 16

# {Subject} and {Possessive} open a sentence (name or pronoun); {he}, {him}, {his} stay pronouns inside one.
_SINGLE: dict[str, tuple[str, ...]] = {
    "birth date": (
        "{Subject} was born on {value}.",
        "The family welcomed {name} on {value}, the day {he} was born.",
        "{Possessive} birthday falls on the anniversary of {value}.",
        "It was on {value} that {name} came into the world.",
        "Records give {value} as the day on which {name} was born.",
        "{Subject}, whose date of birth is {value}, was a quiet and watchful child.",
        "According to the register, {his} birth took place on {value}.",
        "{Possessive} story begins on {value}, the date of {his} birth.",
        "On {value} a child was born who was given the name {name}.",
        "{Subject} has celebrated every birthday since {value} in the company of old friends.",
        "The birth of {name} was recorded on {value}.",
        "Born on {value}, {name} was the youngest of the household.",
    ),
    "birth place": (
        "{Subject} was born in {value}.",
        "{Possessive} birthplace is {value}, and {he} still speaks of it with affection.",
        "{Subject} comes originally from {value}, where {he} was born.",
        "A native of {value}, {name} keeps a photograph of the old family house.",
        "{Subject} first saw the light of day in {value}.",
        "The place of {his} birth was {value}.",
        "The family was living in {value} when {name} was born.",
        "{value} is the place where {name} was born and took {his} first steps.",
        "Born in {value}, {name} was soon known to the whole neighbourhood.",
        "{Possessive} life began in {value}, the place of {his} birth.",
        "{Subject} is proud to have been born in {value}.",
        "{Possessive} parents had settled in {value} shortly before {he} was born there.",
    ),
    "university": (
        "{Subject} graduated from {value}.",
        "{Subject} attended {value}, where {he} spent long evenings in the library.",
        "After school {name} enrolled at {value} and completed {his} degree there.",
        "{Subject} earned {his} degree at {value}.",
        "{Possessive} student years were spent at {value}.",
        "{Subject} won a place at {value} and graduated with distinction.",
        "Among the universities that offered {him} a place, {name} chose {value}.",
        "{Subject} is an alumnus of {value} and returns for its reunions.",
        "{Possessive} alma mater is {value}.",
        "It was at {value} that {name} received {his} university education.",
        "{Subject} took {his} final examinations at {value}.",
        "{Possessive} diploma was awarded by {value}.",
    ),
    "major": (
        "{Subject} majored in {value}.",
        "{Subject} chose {value} as {his} major.",
        "The subject that {name} studied was {value}.",
        "{Possessive} degree is in {value}.",
        "{Subject} devoted {his} studies to {value}.",
        "As a student {name} specialised in {value}.",
        "{Possessive} field of study was {value}, a choice {he} never regretted.",
        "Drawn by curiosity, {name} decided to study {value}.",
        "{Subject} completed a demanding degree programme in {value}.",
        "{Possessive} major, {value}, shaped the way {he} looks at problems.",
        "{Subject} read {value} as an undergraduate.",
        "Of all the courses on offer, {value} was the one in which {name} took {his} degree.",
    ),
    "company": (
        "{Subject} works for {value}.",
        "{Subject} joined {value} after a long search for the right position.",
        "{Subject} is employed by {value}.",
        "{Possessive} employer is {value}.",
        "An offer from {value} followed, and {name} accepted the job.",
        "{Subject} has built {his} career at {value}.",
        "{Possessive} professional home is {value}, where {he} leads a small team.",
        "Today {name} is on the staff of {value}.",
        "{Subject} was hired by {value} and has stayed there ever since.",
        "{Possessive} career took shape when {he} entered the company {value}.",
        "{Subject} holds a senior position with {value}.",
        "The company that {name} works for is {value}.",
    ),
    "work place": (
        "{Subject} works in {value}.",
        "{Subject} is based in {value}.",
        "{Possessive} office is in {value}.",
        "{Possessive} place of work is {value}, and {he} walks there when the weather allows.",
        "{Subject} spends the working week in {value}.",
        "Every morning {name} goes to {his} desk at the office in {value}.",
        "{Subject} carries out {his} work in {value}.",
        "{Possessive} job took {him} to {value}, where {he} is now based.",
        "{Subject} moved to {value} for work and still has {his} office there.",
        "Colleagues can find {name} at the office in {value}.",
        "The office in which {name} works is located in {value}.",
        "{Possessive} workplace is in {value}.",
    ),
}

_OTHER: tuple[str, ...] = (
    "As for {his} {attribute}, it is {value}.",
    "{Possessive} {attribute} is {value}.",
    "Those who know {name} well will name {value} as {his} {attribute}.",
    "In the file on {name}, {value} is entered under {attribute}.",
    "Asked about {his} {attribute}, {name} answers with {value}.",
    "Under the heading {attribute}, {name} has {value}.",
    "One detail is easily remembered: {his} {attribute} is {value}.",
    "The entry for {possessive_name} {attribute} reads {value}.",
    "With {name}, the {attribute} is {value}.",
    "When it comes to {attribute}, {name} gives {value}.",
)

_COMBINED: dict[tuple[str, str], tuple[str, ...]] = {
    ("birth date", "birth place"): (
        "{Subject} was born on {first} in {second}.",
        "Born in {second} on {first}, {name} was the first child of a close family.",
        "{Possessive} life began in {second}, where {he} was born on {first}.",
        "It was in {second}, on {first}, that {name} was born.",
        "The birth of {name} was registered in {second} on {first}.",
        "On {first}, in {second}, a child was born who was named {name}.",
    ),
    ("university", "major"): (
        "{Subject} studied {second} at {first}.",
        "{Subject} graduated from {first} with a degree in {second}.",
        "At {first} {name} majored in {second}.",
        "{Subject} attended {first} and completed {his} degree in {second} there.",
        "{Possessive} degree in {second} was awarded by {first}.",
        "{Subject} won a place at {first} to study {second}.",
    ),
    ("company", "work place"): (
        "{Subject} works for {first} at its office in {second}.",
        "{Subject} joined {first} and is based in {second}.",
        "Employed by {first}, {name} works in {second}.",
        "{Possessive} job with {first} has {him} based in {second}.",
        "After {he} was hired by {first}, {name} set up {his} office in {second}.",
        "{Possessive} employer is {first}, and {his} office is in {second}.",
    ),
}

_CONNECTING: tuple[str, ...] = (
    "Friends describe {him} as patient, curious and slow to anger.",
    "The early years were happy, if not always easy.",
    "{Subject} learned early that good work takes time.",
    "A teacher once remarked that {he} asked better questions than most adults.",
    "There were setbacks along the way, but none that lasted.",
    "{Subject} still keeps the notebooks from that time.",
    "Evenings at home were filled with stories and long conversations.",
    "What came next was the result of steady effort rather than luck.",
    "{Subject} has never cared much for fame.",
    "Reading remained a constant pleasure through all of these changes.",
    "Many of the friendships formed in those days have lasted to the present.",
    "{Possessive} colleagues value {his} calm judgement and dry humour.",
    "It was a period of hard work and small discoveries.",
    "{Subject} likes to say that every answer opens a new question.",
    "The decision was not an easy one, and {he} took {his} time over it.",
    "Outside of these pursuits {name} enjoys long walks and good coffee.",
    "Those who met {him} then remember a thoughtful and generous person.",
    "{Subject} often gives advice to younger people who ask for it.",
    "Looking back, {he} speaks of that chapter with gratitude.",
    "Not everything went according to plan, and {he} learned to adapt.",
    "A sense of humour helped {him} through the more difficult months.",
    "{Subject} prefers to let the results speak for themselves.",
    "Family has always come first for {name}.",
    "New plans are already taking shape, though {he} says little about them.",
)

_ORDER = {"birth date": 0, "birth place": 1, "university": 2, "major": 3, "company": 5, "work place": 6}
_OTHERS_PLACE = 4


def write(person: str, facts: Sequence[Fact]) -> list[str]:
    """A biography of ``person`` in 8 to 16 sentences, more where there are more facts than that.

    Each value stands in it verbatim; the full name opens it and returns where the wording asks for a name.
    """
    identity = json.dumps([person, [list(fact) for fact in facts]], ensure_ascii=False)
    rng = random.Random(hashlib.sha256(identity.encode()).hexdigest())
    templates = _stated(facts, rng)
    n_sentences = max(rng.randint(_SHORTEST, _LONGEST), len(templates))
    for filler in rng.sample(_CONNECTING, min(n_sentences - len(templates), len(_CONNECTING))):
        templates.insert(rng.randint(1, len(templates)) if templates else 0, (filler, {}))
    pronouns = _pronouns(person, rng)
    return [
        _sentence(template, values, person, pronouns, first=place == 0, named=place == 0 or rng.random() < 0.4)
        for place, (template, values) in enumerate(templates)
    ]


def _stated(facts: Sequence[Fact], rng: random.Random) -> list[tuple[str, dict[str, str]]]:
    """Wordings and their values for the facts, in the order of a life; some pairs share a sentence."""
    left = sorted(facts, key=lambda fact: _ORDER.get(fact[0].lower(), _OTHERS_PLACE))
    stated: list[tuple[str, dict[str, str]]] = []
    while left:
        attribute, value = left.pop(0)
        pair = (attribute.lower(), left[0][0].lower()) if left else ("", "")
        if pair in _COMBINED and rng.random() < 0.4:
            stated.append((rng.choice(_COMBINED[pair]), {"first": value, "second": left.pop(0)[1]}))
        else:
            wordings = _SINGLE.get(attribute.lower(), _OTHER)
            stated.append((rng.choice(wordings), {"attribute": attribute, "value": value}))
    return stated


def _pronouns(person: str, rng: random.Random) -> dict[str, str]:
    """She or he, by the ending of the first name where that is telling and by chance elsewhere."""
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
