"""Where a text states facts, in whatever form: words that the judge takes for a value, and no part of a longer name.

"MIT" states the Massachusetts Institute of Technology, "December 29, 1880" states 12/29/1880, "Seoul" states Seoul,
South Korea; "Seoul, North Korea", "Seoul National University" and a surname that is also a firm's do not.
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
    """Where a text about a person states each of ``facts``, (attribute, value) pairs; facts not stated are left out.

    A value as it is written comes before a value in another form, and a longer value before a shorter one, which may
    be part of it. Facts that share a value get successive statements of it, in order, and the last one if there are
    too few.
    """
    attributes: dict[str, list[str]] = {}
    for attribute, value in facts:
        attributes.setdefault(value, []).append(attribute)
    taken = [match.span() for match in re.finditer(re.escape(person), text)] if person else []
    told = _Text(text, person)
    found: dict[str, list[Span]] = {}
    longest_first = sorted(attributes, key=len, reverse=True)
    for value in longest_first:
        found[value] = [span for span in told.verbatim(value, attributes[value][0]) if not _overlaps(span, taken)]
        taken += found[value]
    for value in longest_first:
        if len(found[value]) < len(attributes[value]):
            forms = [span for span in told.forms(value, attributes[value][0]) if not _overlaps(span, taken)]
            taken += forms
            found[value] = sorted(found[value] + forms)
    return {
        attribute: found[value][min(number, len(found[value]) - 1)]
        for value, sharing in attributes.items()
        if found[value]
        for number, attribute in enumerate(sharing)
    }


def _overlaps(span: Span, taken: Sequence[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in taken)


def _is_of_a_town(value: str) -> bool:
    """Whether what tells a name apart is a town, as in "University of Sheffield" and "Boston University".

    The town alone is no statement of it, where "Stanford" is one of "Stanford University".
    """
    general = names.listed("generic") | names.listed("idle")
    return " of " in value or names.is_city("".join(x for x in value.split() if names.fold(x) not in general))


class _Text:
    """A text about a person, in which values are looked for."""

    def __init__(self, text: str, person: str) -> None:
        self._text = text
        self._sentences = list(sentences(text, 0, len(text)))
        self._name = {names.fold(word) for word in re.findall(r"\w+", person)}

    def verbatim(self, value: str, attribute: str) -> Iterator[Span]:
        """The places at which the text has a value as it is, and not within a longer name.

        Of a value that is a part of the person's name, those that begin a sentence are left out: it is the person.
        """
        of_name = {names.fold(word) for word in re.findall(r"\w+", value)} <= self._name
        for match in re.finditer(any_of([value]), self._text):
            begins = any(match.start() == start for start, _ in self._sentences)
            whole = dates.expected(value, attribute) is not None or self._whole(match.span(), value, attribute)
            if whole and not (of_name and begins):
                yield match.span()

    def forms(self, value: str, attribute: str) -> Iterator[Span]:
        """The places at which the text states a value in a form that the judge takes for the same."""
        expected = dates.expected(value, attribute)
        if expected is not None:
            stated = [date.span for date in dates.dates(self._text) if date.same(expected)]
            yield from stated
            if stated or dates.in_figures(self._text) == self._text:
                return
        for sentence in self._sentences:
            yield from self._named(sentence, value, attribute)

    def _named(self, sentence: Span, value: str, attribute: str) -> Iterator[Span]:
        """The shortest passages of a sentence that the judge takes for a value, none within another."""
        words = [match.span() for match in _WORD.finditer(self._text, *sentence)]
        words = [(start, start + len(_TRAILING.sub("", self._text[start:end]))) for start, end in words]
        if words and names.is_plain(names.fold(self._text[slice(*words[0])]), ""):
            del words[0]  # It has its capital from the sentence.
        kind = names.group(attribute)
        telling = {*names.tokens(value, kind)} - names.listed("idle") - names.skipped(kind)
        accepted: list[Span] = []
        for length in range(1, len(value.split()) + _MOST_FURTHER_WORDS + 1):
            for first in range(len(words) - length + 1):
                span = words[first][0], words[first + length - 1][1]
                if span[0] >= span[1] or _overlaps(span, accepted):
                    continue
                form = self._is_form(self._text[slice(*span)], value, attribute, telling)
                if form and (whole := self._whole(span, value, attribute)):
                    accepted.append(whole)
        yield from sorted(accepted)

    def _is_form(self, piece: str, value: str, attribute: str, telling: set[str]) -> bool:
        kind = names.group(attribute)
        if dates.expected(value, attribute) is None:
            # No ordinary word in lower case begins or ends a name.
            ends = piece.split()[0], piece.split()[-1]
            if any(names.is_plain(word, kind) for word in ends) or len(names.bare(piece)) < _SHORTEST:
                return False
            initials = piece.replace(".", "").isupper() or value.replace(".", "").isupper()
            if not initials and telling.isdisjoint(names.tokens(piece, kind)):
                return False
        said = {names.fold(word) for word in re.findall(r"\w+", piece)}
        if said <= self._name or (piece.islower() and not self._is_lower_form(piece, value, kind)):
            return False
        share, reason = judge.score("", attribute, piece, value)
        town = reason in judge.TOLD_APART and _is_of_a_town(value)
        return share == 1 and reason != judge.CONTAINED and not town

    def _is_lower_form(self, piece: str, value: str, kind: str) -> bool:
        """Whether words in lower case may be a value's: a single one is no initialism, no part and no inflected form.

        "physical" and "was" are no statements of Physics and of Wagner, Arnold & Stein.
        """
        if " " in piece:
            return True
        wanted = names.content(names.tokens(value, kind), kind)
        inflected = names.stem(names.fold(piece)) == names.stem(names.fold(value))
        return len(wanted) == 1 and (names.fold(piece) == names.fold(value) or not inflected)

    def _whole(self, span: Span, value: str, attribute: str) -> Span | None:
        """A statement's place with what belongs to it (a legal form, a region); None if it is another name's part."""
        kind = names.group(attribute)
        start, end = span
        first = max(begin for begin, _ in self._sentences if begin <= start)
        before = _BEFORE.search(self._text, first, start)
        if before and before.start() > first and self._extends(before[1]):
            if not self._still(before.start(), end, before[1], value, attribute):
                return None
            start = before.start()
        if kind in _NAMES and _OWNED.search(self._text, first, start):
            return None
        while (after := _AFTER.match(self._text, end)) and self._extends(after[1]):
            if not self._still(start, after.end(), after[1], value, attribute):
                return None
            end = after.end()
        region = _REGION.match(self._text, end) if kind == "place" else None
        if region and not self._others(region[0]):
            share, reason = judge.score("", attribute, self._text[start : region.end()], value)
            if reason == judge.ANOTHER_REGION:
                return None
            end = region.end() if share == 1 else end
        return start, end

    def _extends(self, word: str) -> bool:
        """Whether a word beside a name may be part of it: it has a capital and is not the person's."""
        folded = {names.fold(part) for part in re.findall(r"\w+", word.removesuffix("'s").removesuffix("’s"))}
        return word[0].isupper() and not folded <= self._name

    def _still(self, start: int, end: int, word: str, value: str, attribute: str) -> bool:
        """Whether a passage that is longer by a ``word`` still is the value.

        The word may be a legal form or, but for places, one that many names have, such as "University".
        """
        kind = names.group(attribute)
        known = names.listed("generic") | names.listed("legal") | {names.fold(one) for one in re.findall(r"\w+", value)}
        if kind == "place" or names.fold(word).strip(".") not in known:
            return False
        return judge.score("", attribute, self._text[start:end], value)[0] == 1

    def _others(self, words: str) -> bool:
        """Whether what looks like a region is the person or a month."""
        said = {names.fold(word) for word in re.findall(r"[A-Z]\w*", words)}
        return bool(said & self._name) or bool(said & {*dates.months()})
