"""Token labels by rules: 1 correct, 0 hallucinated, 2 unknown (paper, section on label construction).

Rules in order: abstention; another person or attribute; consistency with the reference at the aligned place.
Tokens without letters or digits follow their neighbour.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from utaca.reference import judge

HALLUCINATED, CORRECT, UNKNOWN = 0, 1, 2

_REASONS = {
    HALLUCINATED: "not supported by the reference",
    CORRECT: "consistent with the reference",
    UNKNOWN: "abstains",
}
_SENTENCE = re.compile(r"^\s*The (.+?) of (.+?) is\b", re.IGNORECASE)


def label(
    person: str, attribute: str, answer: str, prediction: str, tokens: Sequence[tuple[int, str]]
) -> list[tuple[int, int, str]]:
    """Label the tokens (index, text) of the value in the sentence ``prediction``: (index, label, reason) each."""
    text = "".join(part for _, part in tokens)
    abstained = {place for match in judge.ABSTENTION.finditer(text) for place in range(*match.span())}
    elsewhere = _elsewhere(person, attribute, prediction)
    consistent = set() if elsewhere else _consistent(text, answer)
    labels: list[int | None] = []
    place = 0
    for _, part in tokens:
        characters = [i for i in range(place, place + len(part)) if text[i].isalnum()]
        place += len(part)
        if not characters:
            labels.append(None)
        elif abstained.intersection(characters):
            labels.append(UNKNOWN)
        else:
            labels.append(CORRECT if consistent.issuperset(characters) else HALLUCINATED)
    same = not elsewhere and text.strip() == answer.strip()
    filled = _filled(labels, CORRECT if same else HALLUCINATED)
    reasons = {**_REASONS, HALLUCINATED: elsewhere} if elsewhere else _REASONS
    return [(index, value, reasons[value]) for (index, _), value in zip(tokens, filled, strict=True)]


def _elsewhere(person: str, attribute: str, prediction: str) -> str:
    """Why a sentence is not about the person and attribute; empty where it is, or names neither."""
    match = _SENTENCE.match(prediction)
    if match is None:
        return ""
    if judge.words(match[1]) != judge.words(attribute):
        return "about another attribute"
    return "" if judge.words(match[2]) == judge.words(person) else "about another person"


def _filled(labels: list[int | None], default: int) -> list[int]:
    """Labels with each gap closed from the left, the first from the right."""
    previous = next((value for value in labels if value is not None), default)
    filled = []
    for value in labels:
        previous = previous if value is None else value
        filled.append(previous)
    return filled


def _consistent(text: str, answer: str) -> set[int]:
    """Offsets of the characters of ``text`` that agree with the answer at the aligned place."""
    if judge.equivalent(text, answer) or _bare(text) == _bare(answer):
        return set(range(len(text)))
    said, wanted = _runs(text), _runs(_in_the_form_of(text, answer))
    matcher = SequenceMatcher(None, [run for run, _ in said], [run for run, _ in wanted], autojunk=False)
    found: set[int] = set()
    for operation, left, left_end, right, right_end in matcher.get_opcodes():
        if operation not in ("equal", "replace"):
            continue
        for (run, places), (expected, _) in zip(said[left:left_end], wanted[right:right_end], strict=False):
            for character, aligned, place in zip(run, expected, places, strict=False):
                if character == aligned:
                    found.add(place)
                elif not run.isdecimal():
                    break  # A word is right as far as it is a prefix; digits each stand for themselves.
    return found


def _bare(text: str) -> str:
    return "".join(character for character in judge.fold(text) if character.isalnum())


def _runs(text: str) -> list[tuple[str, list[int]]]:
    """Words and numbers, folded, with the offset of each character; letters and digits part."""
    folded = [
        (character, place)
        for place, original in enumerate(text)
        for character in unicodedata.normalize("NFKD", original.casefold())
        if not unicodedata.combining(character)
    ]
    runs: list[tuple[str, list[int]]] = []
    kinds = ["" if not c.isalnum() else "digit" if c.isdecimal() else "letter" for c, _ in folded]
    for (before, kind), (character, place) in zip(pairwise(["", *kinds]), folded, strict=True):
        if kind and kind == before:
            run, places = runs[-1]
            runs[-1] = (run + character, [*places, place])
        elif kind:
            runs.append((character, [place]))
    return runs


def _in_the_form_of(text: str, answer: str) -> str:
    """A date written the way ``text`` writes its own; any other answer as it is."""
    said, wanted = judge.whole_date(text), judge.whole_date(answer)
    if said is None or wanted is None:
        return answer

    def agreement(pair: tuple[tuple[int, int, int], tuple[int, int, int]]) -> int:
        return sum(a == b for a, b in zip(*pair, strict=True))

    (_, reading_month, _), best = max(((s, w) for s in said.readings for w in wanted.readings), key=agreement)
    parts = dict(said.parts)
    month = text[slice(*parts["month"])]
    if month.isdigit() and int(month) != reading_month:
        parts["month"], parts["day"] = parts["day"], parts["month"]
    written = text
    for name, number in sorted(zip(("year", "month", "day"), best, strict=True), key=lambda p: -parts[p[0]][0]):
        start, end = parts[name]
        written = written[:start] + _written(text[start:end], number, padded=month.isdigit()) + written[end:]
    return written


def _written(like: str, number: int, padded: bool) -> str:
    if like.isdecimal():
        return f"{number:0{len(like)}d}" if padded or like.startswith("0") else str(number)
    return judge.MONTHS[number - 1] if len(like) > 4 or like.lower() in judge.MONTHS else judge.MONTHS[number - 1][:3]
