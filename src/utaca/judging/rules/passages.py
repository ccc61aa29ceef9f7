"""Find where a text states facts: the words that the judge takes for a value, if they are not a part of a longer name.

The judge is the one by rules (:mod:`utaca.judging.rules.judge`). "MIT" states the Massachusetts Institute of
Technology, "December 29, 1880" states 12/29/1880, "Seoul" states Seoul, South Korea; "Seoul, North Korea", "Seoul
National University" and a surname that is also a firm's do not.
"""

import re
from collections.abc import Iterator, Sequence

from utaca.biographies.evidence import any_of, sentences
from utaca.judging.rules import dates, judge, names

Span = tuple[int, int]
"""Character offsets [start, end) in a text."""

_MOST_FURTHER_WORDS = 4
"""The most words that a form may have beyond those of the value."""
_SHORTEST = 3
"""Fewest letters of a form: two initials stand for too many names."""

_WORD = re.compile(r"[^\s,;:()\"“”]+")
_TRAILING = re.compile(r"(?:['’]s|[.!?'’])+$")
_BEFORE = re.compile(r"([\w'’.-]+)[ -]$")
_AFTER = re.compile(r"[ -]([\w'’-]+)")
_OWNED = re.compile(r"\b[A-Z][\w'’-]+ (?:of|de|del|di|da|do|for) $")
_REGION = re.compile(r"(?:, | in | \()(?:the )?[A-Z][\w'’-]*(?: (?:(?:of|and) )?[A-Z][\w'’-]*)*\)?")
_NAMES = ("place", "university", "company")


def passages(text: str, person: str, facts: Sequence[tuple[str, str]]) -> dict[str, Span]:
    """Find where a text about a person states each of ``facts``, (attribute, value) pairs; returns places by attribute.

    Facts that are not stated are left out. Values as they are written are looked for before other forms, and longer
    values before shorter ones, which may be part of them. Facts that share a value get successive statements of it, in
    order, and the last one if there are too few.
    """
    attributes: dict[str, list[str]] = {}  # by value
    for attribute, value in facts:
        attributes.setdefault(value, []).append(attribute)
    # Places that state no further value: those of the person's full name, and those of values found so far.
    taken = [match.span() for match in re.finditer(re.escape(person), text)] if person else []
    searched = _Text(text, person)
    statements: dict[str, list[Span]] = {}  # by value
    longest_first = sorted(attributes, key=len, reverse=True)
    for value in longest_first:
        verbatim = searched.verbatim(value, attributes[value][0])
        statements[value] = [span for span in verbatim if not _overlaps(span, taken)]
        taken += statements[value]
    for value in longest_first:
        if len(statements[value]) < len(attributes[value]):
            in_other_forms = searched.forms(value, attributes[value][0])
            forms = [span for span in in_other_forms if not _overlaps(span, taken)]
            taken += forms
            statements[value] = sorted(statements[value] + forms)
    places = {}
    for value, sharing in attributes.items():
        spans = statements[value]
        if not spans:
            continue
        for number, attribute in enumerate(sharing):
            places[attribute] = spans[min(number, len(spans) - 1)]
    return places


def _overlaps(span: Span, taken: Sequence[Span]) -> bool:
    """Whether a span has a character in common with any of ``taken``."""
    first, last = span
    return any(first < end and start < last for start, end in taken)


def _is_of_a_town(value: str) -> bool:
    """Whether a name's own words are those of a town, as in "University of Sheffield" and "Boston University".

    The town's name without the other words does not state such a value; "Stanford" does state "Stanford University".
    """
    general_words = names.listed("generic") | names.listed("idle")
    own_words = [word for word in value.split() if names.fold(word) not in general_words]
    return " of " in value or names.is_city("".join(own_words))


class _Text:
    """A text about a person, in which values are looked for."""

    def __init__(self, text: str, person: str) -> None:
        self._text = text
        self._sentences = list(sentences(text, 0, len(text)))
        self._name = {names.fold(word) for word in re.findall(r"\w+", person)}

    def verbatim(self, value: str, attribute: str) -> Iterator[Span]:
        """Yield the places at which the text has a value as it is, and not within a longer name.

        If the value is a part of the person's name, places at the beginning of a sentence are left out: they mean the
        person.
        """
        folded = {names.fold(word) for word in re.findall(r"\w+", value)}
        is_of_name = folded <= self._name
        is_date = dates.expected(value, attribute) is not None
        for match in re.finditer(any_of([value]), self._text):
            begins_sentence = any(match.start() == start for start, _ in self._sentences)
            is_whole = is_date or self._whole(match.span(), value, attribute) is not None
            if is_whole and not (is_of_name and begins_sentence):
                yield match.span()

    def forms(self, value: str, attribute: str) -> Iterator[Span]:
        """Yield the places at which the text states a value in a form that the judge takes for the same."""
        expected = dates.expected(value, attribute)
        if expected is not None:
            stated = [date.span for date in dates.dates(self._text) if date.same(expected)]
            yield from stated
            # Only a text with number words or names of holidays may state the date in a further form.
            if stated or dates.in_figures(self._text) == self._text:
                return
        for sentence in self._sentences:
            yield from self._named(sentence, value, attribute)

    def _named(self, sentence: Span, value: str, attribute: str) -> Iterator[Span]:
        """Yield the shortest passages of a sentence that the judge takes for a value, none within another."""
        words = []  # the places of the words, without punctuation and a possessive at their end
        for match in _WORD.finditer(self._text, *sentence):
            without_end = _TRAILING.sub("", match[0])
            words.append((match.start(), match.start() + len(without_end)))
        if words and names.is_plain(names.fold(self._text[slice(*words[0])]), ""):
            del words[0]  # It has its capital from the sentence.
        kind = names.group(attribute)
        own_words = {*names.tokens(value, kind)} - names.listed("idle") - names.skipped(kind)
        accepted: list[Span] = []
        # The shortest first, so that no longer passage around an accepted one is tried.
        for length in range(1, len(value.split()) + _MOST_FURTHER_WORDS + 1):
            for first in range(len(words) - length + 1):
                start = words[first][0]
                end = words[first + length - 1][1]
                if start >= end or _overlaps((start, end), accepted):
                    continue
                if self._is_form(self._text[start:end], value, attribute, own_words):
                    span = self._whole((start, end), value, attribute)
                    if span is not None:
                        accepted.append(span)
        yield from sorted(accepted)

    def _is_form(self, piece: str, value: str, attribute: str, own_words: set[str]) -> bool:
        """Whether the judge takes a piece of the text for the value, and not by accident.

        ``own_words`` are the value's words without articles and the like.
        """
        kind = names.group(attribute)
        if dates.expected(value, attribute) is None:
            # No ordinary word in lower case begins or ends a name.
            ends = piece.split()[0], piece.split()[-1]
            if any(names.is_plain(word, kind) for word in ends) or len(names.bare(piece)) < _SHORTEST:
                return False
            may_be_initialism = piece.replace(".", "").isupper() or value.replace(".", "").isupper()
            if not may_be_initialism and own_words.isdisjoint(names.tokens(piece, kind)):
                return False
        words = {names.fold(word) for word in re.findall(r"\w+", piece)}
        if words <= self._name or (piece.islower() and not self._is_lower_form(piece, value, kind)):
            return False
        share, reason = judge.score("", attribute, piece, value)
        # CONTAINED: the piece has more words than the value, which is also found as a shorter piece.
        # "Sheffield" means the town, and not the University of Sheffield.
        is_town = reason in judge.TOLD_APART and _is_of_a_town(value)
        return share == 1 and reason != judge.CONTAINED and not is_town

    def _is_lower_form(self, piece: str, value: str, kind: str) -> bool:
        """Whether words in lower case may state a value.

        A single such word must not be an initialism, a part of the value or an inflected form of it: "physical" does
        not state Physics, and "was" does not state Wagner, Arnold & Stein.
        """
        if " " in piece:
            return True
        wanted = names.content(names.tokens(value, kind), kind)
        folded = names.fold(piece)
        folded_value = names.fold(value)
        is_inflected = folded != folded_value and names.stem(folded) == names.stem(folded_value)
        return len(wanted) == 1 and not is_inflected

    def _whole(self, span: Span, value: str, attribute: str) -> Span | None:
        """A value's place ``span`` with the legal form or region after it; None if it is a part of another name."""
        kind = names.group(attribute)
        start, end = span
        sentence_start = max(begin for begin, _ in self._sentences if begin <= start)
        before = _BEFORE.search(self._text, sentence_start, start)
        # The first word of a sentence has a capital in any case.
        if before and before.start() > sentence_start and self._extends(before[1]):
            if not self._is_still_value(before.start(), end, before[1], value, attribute):
                return None
            start = before.start()
        if kind in _NAMES and _OWNED.search(self._text, sentence_start, start):
            return None  # "Bank of Scotland" is not a place.
        while (after := _AFTER.match(self._text, end)) and self._extends(after[1]):
            if not self._is_still_value(start, after.end(), after[1], value, attribute):
                return None
            end = after.end()
        region = _REGION.match(self._text, end) if kind == "place" else None
        if region and not self._is_person_or_month(region[0]):
            share, reason = judge.score("", attribute, self._text[start : region.end()], value)
            if reason == judge.ANOTHER_REGION:
                return None
            end = region.end() if share == 1 else end
        return start, end

    def _extends(self, word: str) -> bool:
        """Whether a word next to a name may be part of it: it has a capital and is not of the person's name."""
        without_possessive = word.removesuffix("'s").removesuffix("’s")
        folded = {names.fold(part) for part in re.findall(r"\w+", without_possessive)}
        return word[0].isupper() and not folded <= self._name

    def _is_still_value(self, start: int, end: int, word: str, value: str, attribute: str) -> bool:
        """Whether the passage [start, end) of the text, which is longer than a value by a ``word``, still is the value.

        The word may be a legal form, one that many names have, such as "University", or another word of the value, as
        after "Stanford" for "Stanford University". No word may stand next to a place: "Seoul National University" is
        none.
        """
        kind = names.group(attribute)
        words_of_value = {names.fold(part) for part in re.findall(r"\w+", value)}
        known = names.listed("generic") | names.listed("legal") | words_of_value
        if kind == "place" or names.fold(word).strip(".") not in known:
            return False
        return judge.score("", attribute, self._text[start:end], value)[0] == 1

    def _is_person_or_month(self, region: str) -> bool:
        """Whether words that look like a region (", Ann", " in May") name the person or a month."""
        words = {names.fold(word) for word in re.findall(r"[A-Z]\w*", region)}
        return bool(words & self._name) or bool(words & {*dates.months()})
