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
# %s: names that may hold any words ("date of birth"), each with "|" after it.
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
    """Find the pattern sentences of an answer, about ``attributes`` or others, in order.

    A sentence lasts until the next pattern sentence opens (so a value may contain full stops) or the answer ends. Text
    before the first sentence belongs to none.
    """
    longest_first = sorted(attributes, key=len, reverse=True)
    any_attribute = "".join(f"(?i:{re.escape(name)})|" for name in longest_first)
    openings = list(re.finditer(_OPENING % any_attribute, answer))
    result = []
    # Where each sentence must end; without an opening there still is the end of the answer, which the zip drops.
    limits = [*(opening.start() for opening in openings[1:]), len(answer)]
    for opening, limit in zip(openings, limits, strict=False):
        start = opening.start("attribute") - len("The ")
        person_start = opening.end()
        # Without the white space before the next sentence.
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
    valid: Sentence | None = None
    for sentence in sentences(answer, [attribute]):
        stated_person = answer[sentence.person_start : sentence.person_end]
        is_about = sentence.attribute.lower() == attribute.lower() and stated_person.lower() == person.lower()
        if not is_about or sentence.value_start is None:
            continue
        if valid is None or TAKEN_BACK.search(answer[valid.value_start : sentence.start]):
            valid = sentence
    return valid


def _opening(attribute: str, person: str) -> str:
    """The requested sentence up to its value: "The ATTRIBUTE of PERSON is "."""
    return summary(attribute, person, "")[: -len(".")]


def _common(stated: str, wanted: str) -> int:
    """Length in characters of the common prefix of two texts, ignoring case."""
    # As lists, because İ is two characters in lower case.
    lower_stated = [character.lower() for character in stated]
    lower_wanted = [character.lower() for character in wanted]
    return Prefix.similarity(lower_stated, lower_wanted)


def _without_cut_opening(answer: str, last: Sentence, opening: str) -> Sentence:
    """The ``last`` sentence of an answer without the beginning of a further one, which was cut off in its ``opening``.

    :func:`sentences` takes that beginning for a part of the value.
    """
    if last.value_start is not None and not last.finished:
        stop = answer.rfind(". ", last.value_start + 1)
        after_stop = answer[stop + 2 :]
        if stop > 0 and after_stop and opening.startswith(after_stop):
            return replace(last, end=stop, finished=True)
    return last


def _without_others(answer: str, sentence: Sentence, others: Sequence[str]) -> Sentence:
    """A pattern sentence without sentences in free words after it that state one of the attributes ``others``.

    :func:`sentences` takes these for a part of its value.
    """
    if sentence.value_start is None:
        return sentence
    value = answer[sentence.value_start : sentence.end]
    for place, _ in stated_at(value, others):
        # Only a statement after a full stop is a sentence of its own; otherwise it may be a part of the value.
        before = value[:place].rstrip()
        if before.endswith((".", "!", "?")):
            end = sentence.value_start + len(before) - 1
            return replace(sentence, end=end, finished=end > sentence.value_start)
    return sentence


def align(answer: str, person: str, attributes: Sequence[str]) -> Alignment:
    """Align an answer with the requested sentences about ``attributes`` of ``person`` (rules: see the module)."""
    return _Aligner(answer, person, attributes).align()


class _Aligner:
    """Aligns one answer, from its beginning to its end.

    ``_turn`` is the attribute whose turn it is, None after the last one; ``_stated`` are the attributes that had a
    statement so far, ``_finished`` those that had a pattern sentence with its full stop. ``_parts`` and ``_wrong`` are
    those of :class:`Alignment`.
    """

    def __init__(self, answer: str, person: str, attributes: Sequence[str]) -> None:
        self._answer = answer
        self._person = person
        self._attributes = attributes
        self._by_name = {attribute.lower(): attribute for attribute in attributes}
        self._turn: str | None = attributes[0]
        self._stated: set[str] = set()
        self._finished: set[str] = set()
        self._parts: list[Stretch] = []
        self._wrong = bytearray(len(answer))

    def align(self) -> Alignment:
        """Take the pattern sentences and the texts between them alternately, from left to right."""
        pattern = sentences(self._answer, self._attributes)
        position = 0  # The answer is aligned up to this character.
        for number, sentence in enumerate(pattern):
            self._take_free_words(position, sentence.start)
            if self._turn is None:
                # Every attribute had its turn. All from here on, pattern sentences too, is taken as free words below.
                position = sentence.start
                break
            position = self._take_sentence(sentence, is_last=number == len(pattern) - 1)
        # An answer that was cut off within the opening of the next sentence: these are template tokens, and no value.
        rest = self._answer[position:].lstrip()
        is_cut_opening = self._turn is not None and _opening(self._turn, self._person).startswith(rest)
        if not is_cut_opening:
            self._take_free_words(position, len(self._answer))
        return Alignment(tuple(self._parts), bytes(self._wrong), self._finished == set(self._attributes))

    def _take_sentence(self, sentence: Sentence, *, is_last: bool) -> int:
        """Align a pattern sentence; returns the offset after it and its full stop."""
        due = self._turn
        subject = self._by_name.get(sentence.attribute.lower(), due)
        if subject not in self._stated:
            self._stated.add(subject)
            self._turn = self._turn_after(subject)
        others = [attribute for attribute in self._attributes if attribute != subject]
        sentence = _without_others(self._answer, sentence, others)
        if is_last and self._turn is not None:
            sentence = _without_cut_opening(self._answer, sentence, _opening(self._turn, self._person))
        self._mark(sentence.start + len("The "), sentence.attribute, due)
        stated_person = self._answer[sentence.person_start : sentence.person_end]
        if sentence.value_start is None:
            # The sentence ends before " is ". What goes beyond the pattern counts as a value.
            beyond = sentence.person_start + _common(stated_person, f"{self._person} is")
            if self._answer[beyond : sentence.end].strip():
                self._parts.append(Stretch(subject, beyond, sentence.end, sentence.start))
            return sentence.end
        self._mark(sentence.person_start, stated_person, self._person)
        if sentence.end > sentence.value_start:
            self._parts.append(Stretch(subject, sentence.value_start, sentence.end, sentence.start))
        if not sentence.finished:
            return sentence.end
        self._finished.add(subject)
        return sentence.end + len(".")

    def _take_free_words(self, start: int, end: int) -> None:
        """Align the text [start, end) as free words: split it into statements.

        It has no pattern sentence, or only some after the last turn.
        """
        text = self._answer[start:end].rstrip()
        if _MARKERS.fullmatch(text):
            return
        end = start + len(text)
        text = text.lstrip()
        start = end - len(text)
        statements = [(start + place, attribute) for place, attribute in stated_at(text, self._attributes)]
        if not statements and self._turn is None:
            self._wrong[start:end] = b"\x01" * (end - start)
            return
        # Text before the first statement belongs to it; adjacent statements of one attribute are one part.
        part_start = start
        subject = statements[0][1] if statements else self._turn
        for place, attribute in statements[1:]:
            if attribute != subject:
                self._parts.append(Stretch(subject, part_start, place, start))
                part_start = place
                subject = attribute
        self._parts.append(Stretch(subject, part_start, end, start))
        self._stated.update(attribute for _, attribute in statements)
        if self._turn in self._stated:
            self._turn = self._turn_after(subject)

    def _turn_after(self, attribute: str) -> str | None:
        """The next attribute, in the requested order, that was not stated; None if all were stated."""
        place = self._attributes.index(attribute)
        in_order = [*self._attributes[place + 1 :], *self._attributes[:place]]
        still_open = [other for other in in_order if other not in self._stated]
        return still_open[0] if still_open else None

    def _mark(self, start: int, stated: str, wanted: str) -> None:
        """Mark the name ``stated`` at offset ``start`` as wrong from the first character that ``wanted`` lacks."""
        if stated.lower() != wanted.lower():
            offset = start + _common(stated, wanted)
            # If a name is only too short, the character after the name is the wrong one.
            end = min(len(self._answer), max(start + len(stated), offset + 1))
            self._wrong[offset:end] = b"\x01" * (end - offset)
