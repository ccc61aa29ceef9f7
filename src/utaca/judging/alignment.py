"""Align an answer with the requested sentences ``The {attribute} of {person} is {value}.``, in the requested order.

Rules of the alignment:

* A token that overlaps a value by at least one character is factual, even if the token also contains a space or the
  full stop of the sentence. All other tokens are template tokens.
* A template token has label 1. If the attribute or the person differs from the requested one, the label is 0 from the
  first character that differs up to the end of the attribute or the person's name.
* Each requested attribute has its turn, in their order. A sentence may state a requested attribute out of turn: the
  name of the attribute is then 0, the value is compared with the reference of that attribute, and the order continues
  after that attribute if it was still open. A sentence about an attribute that was not requested counts for the
  attribute whose turn it was.
* The labeller sees the sentence with the value, and so rejects a value of another person or attribute.
* Sentences after the last requested sentence are 0 throughout.
* Text outside the pattern is factual for the requested attribute that the text states, by the attribute's name or in
  free words, up to the next statement of another attribute. Text that states no attribute belongs to the statement
  before it, else to the attribute whose turn it is. List markers are template tokens.
* A token without text (part of a character) gets the label of the next token with text.
* The end-of-answer token is 1 if the answer has every requested sentence with its full stop; otherwise 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rapidfuzz.distance import Prefix

from utaca.biographies.sentences import summary
from utaca.judging.rules.statements import TAKEN_BACK, stated_at

_WORD = r"[^\W\d_][\w'’-]*"
_MARKER = r"(?:[-*•]|\d{1,2}[.)])"
# %s: names that may hold any words ("date of birth"), each with "|" behind it.
_OPENING = rf"(?:(?<=[.!?:])\s+|(?:\A|\n)\s*(?:{_MARKER}\s+)?)The (?P<attribute>%s{_WORD}(?: {_WORD}){{0,3}}?) of "
_MARKERS = re.compile(rf"\s*{_MARKER}?\s*")


@dataclass(frozen=True)
class Sentence:
    """A sentence of an answer in the pattern (see the module); offsets are character offsets in the answer.

    ``value_start`` is None if the sentence ends before " is ". ``end`` excludes the full stop and the text after the
    full stop.
    """

    start: int
    attribute: str
    person_start: int
    person_end: int
    value_start: int | None
    end: int
    finished: bool


@dataclass(frozen=True)
class Stretch:
    """A factual part of an answer; offsets are character offsets in the answer.

    The part is compared with the reference of ``attribute``. ``sentence`` is the start of the part's sentence.
    """

    attribute: str
    start: int
    end: int
    sentence: int


@dataclass(frozen=True)
class Alignment:
    """An aligned answer: its factual parts, and for each character 1 if it violates the pattern, else 0 (``wrong``).

    It is complete if it has every requested sentence with its full stop.
    """

    parts: tuple[Stretch, ...]
    wrong: bytes
    complete: bool


def sentences(answer: str, attributes: Sequence[str]) -> list[Sentence]:
    """The pattern sentences of an answer, about ``attributes`` or others, in order.

    A sentence lasts until the next pattern sentence opens (so a value may contain full stops) or the answer ends. Text
    before the first sentence belongs to none.
    """
    named = "".join(f"(?i:{re.escape(name)})|" for name in sorted(attributes, key=len, reverse=True))
    openings = list(re.finditer(_OPENING % named, answer))
    result = []
    limits = [*(opening.start() for opening in openings[1:]), len(answer)]
    # Without an opening there still is the end as a limit.
    for opening, limit in zip(openings, limits, strict=False):
        start = opening.start("attribute") - len("The ")
        person_start = opening.end()
        end = max(len(answer[:limit].rstrip()), person_start)
        # The space after "is" may be one that rstrip took off.
        copula = answer.find(" is ", person_start, end + 1)
        if copula < 0:
            result.append(Sentence(start, opening["attribute"], person_start, end, None, end, False))
            continue
        value_start = copula + len(" is ")
        has_full_stop = end > value_start and answer[end - 1] == "."
        if has_full_stop:
            end -= 1
        end = max(end, value_start)
        finished = has_full_stop and end > value_start
        result.append(Sentence(start, opening["attribute"], person_start, copula, value_start, end, finished))
    return result


def about(answer: str, attribute: str, person: str) -> Sentence | None:
    """The first pattern sentence of an answer that states a value of ``attribute`` of ``person``.

    If the answer retracts that value before another such sentence, the other sentence is returned.
    """
    last: Sentence | None = None
    for sentence in sentences(answer, [attribute]):
        stated = answer[sentence.person_start : sentence.person_end]
        named = sentence.attribute.lower() == attribute.lower() and stated.lower() == person.lower()
        taken_back = last is None or TAKEN_BACK.search(answer[last.value_start : sentence.start])
        if named and sentence.value_start is not None and taken_back:
            last = sentence
    return last


def _opening(attribute: str, person: str) -> str:
    """The requested sentence up to its value."""
    return summary(attribute, person, "")[: -len(".")]


def _common(stated: str, wanted: str) -> int:
    """Length of the common prefix in characters, ignoring case."""
    # Character by character, because İ is two characters in lower case.
    lower_stated = [character.lower() for character in stated]
    lower_wanted = [character.lower() for character in wanted]
    return Prefix.similarity(lower_stated, lower_wanted)


def _without_cut_opening(answer: str, last: Sentence, opening: str) -> Sentence:
    """End the last sentence before a further sentence, if that one was cut off within its ``opening``."""
    if last.value_start is not None and not last.finished:
        stop = answer.rfind(". ", last.value_start + 1)
        begun = answer[stop + 2 :]
        if stop > 0 and begun and opening.startswith(begun):
            return replace(last, end=stop, finished=True)
    return last


def _without_others(answer: str, sentence: Sentence, others: Sequence[str]) -> Sentence:
    """End a pattern sentence before a sentence in free words that states one of the attributes ``others``."""
    if sentence.value_start is None:
        return sentence
    value = answer[sentence.value_start : sentence.end]
    for place, _ in stated_at(value, others):
        before = value[:place].rstrip()
        if before.endswith((".", "!", "?")):
            end = sentence.value_start + len(before) - 1
            return replace(sentence, end=end, finished=end > sentence.value_start)
    return sentence


def align(answer: str, person: str, attributes: Sequence[str]) -> Alignment:
    """Align an answer with the requested sentences (rules: see the module)."""
    parts: list[Stretch] = []
    wrong = bytearray(len(answer))
    by_name = {attribute.lower(): attribute for attribute in attributes}
    tried: set[str] = set()
    finished: set[str] = set()
    turn: str | None = attributes[0]

    def turn_after(attribute: str) -> str | None:
        """The next attribute that no sentence has stated; None if all were stated."""
        place = attributes.index(attribute)
        in_turn = [*attributes[place + 1 :], *attributes[:place]]
        still_open = [other for other in in_turn if other not in tried]
        return still_open[0] if still_open else None

    def mark(start: int, stated: str, wanted: str) -> None:
        """Mark a name that starts at ``start`` as wrong from the first character that is not the wanted one."""
        if stated.lower() != wanted.lower():
            offset = start + _common(stated, wanted)
            # If a name is only too short, the character after the name is the wrong one.
            end = min(len(answer), max(start + len(stated), offset + 1))
            wrong[offset:end] = b"\x01" * (end - offset)

    def outside(start: int, end: int) -> None:
        """Take the text [start, end), which has no pattern sentence, for statements in free words."""
        nonlocal turn
        text = answer[start:end].rstrip()
        if _MARKERS.fullmatch(text):
            return
        end = start + len(text)
        start += len(text) - len(text.lstrip())
        stated = [(start + place, attribute) for place, attribute in stated_at(answer[start:end], attributes)]
        if not stated and turn is None:
            wrong[start:end] = b"\x01" * (end - start)
            return
        first = start
        subject = stated[0][1] if stated else turn
        for place, attribute in stated[1:]:
            if attribute != subject:
                parts.append(Stretch(subject, first, place, start))
                first = place
                subject = attribute
        parts.append(Stretch(subject, first, end, start))
        tried.update(attribute for _, attribute in stated)
        turn = turn_after(subject) if turn in tried else turn

    pattern = sentences(answer, attributes)
    position = 0
    for number, sentence in enumerate(pattern):
        outside(position, sentence.start)
        if turn is None:
            position = sentence.start
            break
        due = turn
        subject = by_name.get(sentence.attribute.lower(), due)
        if subject not in tried:
            tried.add(subject)
            turn = turn_after(subject)
        others = [attribute for attribute in attributes if attribute != subject]
        sentence = _without_others(answer, sentence, others)
        if number == len(pattern) - 1 and turn is not None:
            sentence = _without_cut_opening(answer, sentence, _opening(turn, person))
        mark(sentence.start + len("The "), sentence.attribute, due)
        position = sentence.end
        if sentence.value_start is None:
            stated = answer[sentence.person_start : sentence.end]
            rest = sentence.person_start + _common(stated, f"{person} is")
            if answer[rest : sentence.end].strip():
                parts.append(Stretch(subject, rest, sentence.end, sentence.start))
            continue
        mark(sentence.person_start, answer[sentence.person_start : sentence.person_end], person)
        if sentence.end > sentence.value_start:
            parts.append(Stretch(subject, sentence.value_start, sentence.end, sentence.start))
        if sentence.finished:
            position += 1
            finished.add(subject)
    if turn is None or not _opening(turn, person).startswith(answer[position:].lstrip()):
        outside(position, len(answer))
    return Alignment(tuple(parts), bytes(wrong), finished == set(attributes))
