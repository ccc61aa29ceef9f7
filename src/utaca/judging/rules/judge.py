"""Conceptual accuracy by rules: does a prediction mean the reference value, whatever its surface?

Rules in order: the same value; an abstention or a negation; then by the kind of the value. Dates are compared as
dates, numbers and codes by their characters, and places by name and region. All other values are compared by their
words, with aliases, initialisms, legal forms and paraphrases taken into account. If only a part of a value is right,
the score is the share of that part, at most a half for names. A misspelling costs a quarter of the score, but the
misspelt word must not be another word or name. Source of the score's definition: paper, appendix on CAS.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, takewhile

from utaca.judging.rules import dates, names, numbers, statements
from utaca.judging.rules.names import BRACKET, BREAK, STOP

ANOTHER_REGION = "in another region"
"""The reason for the score of a place whose name is right and whose region is wrong."""
CONTAINED = "contains the reference"
"""The reason for the score of a text that has further words around the reference."""
TOLD_APART = ("all that tells the reference apart", "the same university")
"""The reasons for the score of a name without the words that many names have, such as University or Group."""
_WRONG_REGION = 0.25
_REGION_ONLY = 0.3
_PART = 0.5
_WITHOUT_EXTENSION = 0.75
_MISSPELT = 0.75

_ADDRESSES = {
    "email": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "domain": re.compile(r"(?:https?://)?(?:www\.)?([\w-]+(?:\.[\w-]+)+)"),
}
_EXTENSION = re.compile(r",?\s*(?:x|ext\.?|extension)\s*(\d+)\b", re.IGNORECASE)
_PHONE = re.compile(rf"[+(]?\d[\d\s().-]{{3,}}\d(?:{_EXTENSION.pattern})?(?!\w)", re.IGNORECASE)
_BARE_CODE = re.compile(r"\S*\d\S*|[\d\s().+-]+|[^\s@]+@[^\s@]+")


def score(question: str, attribute: str, prediction: str, reference: str) -> tuple[float, str]:
    """Score the conceptual accuracy, in [0, 1], of a prediction about one attribute; returns score and reason.

    The prediction may be a bare value, a sentence, or an answer about several attributes.
    """
    whole = statements.clean(prediction, attribute)
    if whole.casefold() == reference.strip().casefold():
        return 1.0, "the same value"
    value = statements.about(question, attribute, whole)
    kind = names.group(attribute)
    is_empty = not any(map(str.isalnum, value)) and not names.tokens(value, kind)
    if is_empty:
        return 0.0, f"gives no {attribute}"
    if equivalent(value, reference, attribute):
        return 1.0, "the same value"
    # If the reference itself reads like a refusal or a denial, refusals and denials in the value are not left out.
    literal = statements.ABSTENTION.search(reference) or statements.NEGATION.search(reference)
    claims = [(value, False)] if literal else statements.claims(value)
    if not claims:
        return 0.0, "abstains" if statements.ABSTENTION.search(value) else "denies"
    text = ". ".join(claim for claim, _ in claims)
    share, reason = _agreement(text, reference, attribute, question)
    is_of_words = dates.expected(reference, attribute) is None and not names.is_group(kind, "of codes")
    # A corrected text scores at most _MISSPELT, so that correcting a better one cannot help.
    corrected = names.corrected(text, reference) if is_of_words and share < _MISSPELT else text
    if corrected != text:
        share, reason = _agreement(corrected, reference, attribute, question)
        share = share * _MISSPELT
        reason = f"misspelt; {reason}"
    if share < 1 and statements.ABSTENTION.search(text):
        return 0.0, "abstains"
    if any(is_guess for _, is_guess in claims):
        return share / 2, f"a guess; {reason}"
    return share, reason


def equivalent(prediction: str, reference: str, attribute: str) -> bool:
    """Whether two values, without a sentence around them, are the same.

    A date must be the same day, a number or code have the same characters; any other value is compared as a name.
    """
    expected = dates.expected(reference, attribute)
    if expected is not None:
        date = dates.whole_date(dates.in_figures(prediction))
        return date is not None and date.same(expected)
    if prediction.strip().casefold() == reference.strip().casefold():
        return True
    kind = names.group(attribute)
    if names.is_group(kind, "of codes") or reference.strip().isdecimal():
        is_bare = _BARE_CODE.fullmatch(prediction.strip()) is not None
        return is_bare and _by_character(prediction, reference, kind) == 1
    return names.alike(prediction, reference, kind)


def _agreement(text: str, reference: str, attribute: str, question: str) -> tuple[float, str]:
    """Score what a text asserts, in [0, 1], by the kind of the reference; returns score and reason."""
    kind = names.group(attribute)
    expected = dates.expected(reference, attribute)
    if expected is not None:
        share = dates.agreement(dates.of_event(text, attribute), expected)
        return share, _reason(share, "the same date", "part of the date", "another date or none")
    if names.is_group(kind, "of codes") or reference.strip().isdecimal():
        share = _by_character(text, reference, kind)
        return share, _reason(share, "the same value", "part of the value", "another value")
    _, _, person = question.partition(f"{attribute} of ")
    question_words = frozenset([*names.words(person), *names.tokens(attribute, kind)])
    # A timezone is compared by its words (Europe/Paris); other names may stand with a year that is not a part of them.
    text = text.replace("/", " ") if kind == "timezone" else statements.pattern("since").sub("", text)
    return _Names(kind, question_words).agreement(text, reference)


def _reason(share: float, whole: str, part: str, none: str) -> str:
    """One of three reasons: for a score of 1, for one between 0 and 1, and for 0."""
    if share == 1:
        return whole
    return part if share else none


def _by_character(text: str, reference: str, kind: str) -> float:
    """Score a text in [0, 1] if the reference is a number or a code, which must match character by character."""
    if kind in _ADDRESSES:
        # The signs of an address may be written out: at, dot.
        with_signs = statements.pattern("at").sub("@", text)
        with_signs = statements.pattern("dot").sub(".", with_signs)
        matches = set(_ADDRESSES[kind].findall(with_signs.lower()))
        wanted = set(_ADDRESSES[kind].findall(reference.lower()))
        # For an e-mail address, only the part before the @.
        if not matches and text.strip().lower() == reference.strip().lower().partition("@")[0]:
            return _PART
        # The share of the stated addresses that are right.
        return len(matches & wanted) / max(len(matches), 1)
    if kind == "phone":
        scores = [_phone(phone[0], reference) for phone in _PHONE.finditer(text)]
        return max(scores, default=0.0)
    if reference.strip().isdecimal():
        if statements.pattern("range").search(text):
            return 0.0
        stated = set(numbers.numbers(text))
        return (float(reference) in stated) / max(len(stated), 1)
    # The reference between word boundaries, spaces and punctuation aside.
    characters = r"[\W_]*".join(names.bare(reference))
    return float(re.search(rf"(?<![^\W_]){characters}(?![^\W_])", names.fold(text)) is not None)


def _phone(phone: str, reference: str) -> float:
    """Score a phone number in [0, 1].

    A number without the other's country code scores in full. A missing extension costs a part of the score, and so do
    missing first digits.
    """
    extension = _EXTENSION.findall(phone)
    reference_extension = _EXTENSION.findall(reference)
    if extension and reference_extension and extension != reference_extension:
        return 0.0
    share = 1.0 if extension == reference_extension else _WITHOUT_EXTENSION
    digits, has_code = _digits(_EXTENSION.sub("", phone))
    wanted, wanted_has_code = _digits(_EXTENSION.sub("", reference))
    if digits == wanted:
        return share
    # `international` has the country code. `national` may begin with a 0 that is dropped behind a country code.
    international, national = (digits, wanted) if has_code else (wanted, digits)
    national = national.removeprefix("0")
    length_of_code = len(international) - len(national)
    # Codes of countries have one to three digits.
    if has_code != wanted_has_code and international.endswith(national) and 1 <= length_of_code <= 3:
        return share
    is_end = wanted.endswith(digits) and len(digits) >= 6
    return share * _PART if is_end else 0.0


def _digits(phone: str) -> tuple[str, bool]:
    """Digits of a phone number without the trunk zero in brackets, and whether they start with a country's code."""
    digits = re.sub(r"\D", "", phone.replace("(0)", ""))
    if digits.startswith("00"):
        return digits[2:], True
    is_north_american = len(digits) == 11 and digits.startswith("1")
    return digits, is_north_american or phone.lstrip(" (").startswith("+")


@dataclass(frozen=True)
class _Names:
    """Compares a text with a reference that is a name: the value of an attribute in the group ``kind``.

    Texts are lists of canonical words and tokens for punctuation (:func:`utaca.judging.rules.names.tokens`), called
    ``words``. A *window* is where a name stands in them: the indices of its first and last word.
    """

    kind: str
    question_words: frozenset[str]
    """Words of the person's name and of the attribute's name, which do not count as a name of something else."""

    def agreement(self, text: str, reference: str) -> tuple[float, str]:
        """Score from 0 to 1 how far a text, which may be a sentence with several names, names the reference.

        The second result is the reason.
        """
        words = names.tokens(text, self.kind)
        name, regions = names.parted(reference, self.kind)
        parts = self._parts(name)
        # Where the text names each part of the reference; None for a part that it does not name.
        windows = [self._window(words, part, text, reference) for part in parts]
        matched = [window for window in windows if window is not None]
        if not matched:
            return self._score_of_part(words, name, regions)
        if self.kind == "address" and any(token.isdecimal() and token not in name for token in words):
            return 0.0, "another number"
        # Words directly around a match that make it a longer name: University of York St John.
        extended = [self._extended(words, window, name) for window in matched]
        share = len(matched) / len(parts)
        if any(extended) and not names.paraphrases(words, name, self.kind):
            further = set(chain.from_iterable(extended))
            modifiers = names.listed("modifiers", self.kind)
            if names.is_group(self.kind, "narrowed by a word") and further.isdisjoint(modifiers):
                return _PART * share, "the reference, narrowed"
            return 0.0, "a longer name"
        last = max(last_word for _, last_word in matched)
        stated_regions, end = names.regions_after(words, last, self.kind)
        is_elsewhere = regions and not stated_regions and self._has_unknown_region(words, last)
        if not names.compatible(stated_regions, regions) or is_elsewhere:
            return _WRONG_REGION, ANOTHER_REGION
        n_others = self._n_other_values(words, [*matched, (end, end)], name)
        share = len(matched) / (len(parts) + n_others)
        return (1.0, CONTAINED) if share == 1 else (share, "one of several values")

    def _parts(self, name: list[str]) -> list[list[str]]:
        """Split a name at "and" if that separates values of this kind; returns the content words of each part."""
        has_parts = names.is_group(self.kind, "of one thing or more")
        parts = groupby(name, lambda token: has_parts and token == "and")
        return [names.content(part, self.kind) for is_separator, part in parts if not is_separator]

    def _window(self, words: list[str], wanted: list[str], text: str, reference: str) -> tuple[int, int] | None:
        """The window of the first words that name ``wanted``, if possible not within a longer name; None if none do.

        ``words`` are those of ``text``, ``wanted`` the content words of the ``reference`` or of a part of it. Either
        may be the initialism of the other.
        """
        skipped = names.skipped(self.kind)
        written = re.findall(r"[^\s,;()]+", text)
        initialisms = {names.fold(word).replace(".", "") for word in written if names.initialism(word, wanted)}
        # The indices of the words that count.
        places = []
        for place, token in enumerate(words):
            if token not in skipped or token in initialisms or token in wanted:
                places.append(place)
        letters = reference.strip(" .").replace(".", "")
        windows: list[tuple[int, int]] = []
        for first in range(len(places)):
            # The name may be written in one word less or more (Master Card), as one word (an initialism, say), or in as
            # many words as the reference, an initialism, has letters.
            for length in {len(wanted) - 1, len(wanted), len(wanted) + 1, 1, len(letters)}:
                if not 0 < length <= len(places) - first:
                    continue
                piece = [words[place] for place in places[first : first + length]]
                is_initialism = length == 1 and piece[0] in initialisms
                # The reference is the initialism of the piece; two initials match too easily by chance.
                is_expansion = length == len(letters) > 2 and names.initialism(letters, piece)
                if is_initialism or is_expansion or names.same(piece, wanted, self.kind):
                    windows.append((places[first], places[first + length - 1]))

        def order(window: tuple[int, int]) -> tuple[bool, tuple[int, int]]:
            """Windows within a longer name come last, and the others from left to right."""
            return bool(self._extended(words, window, wanted)), window

        return min(windows, key=order, default=None)

    def _extended(self, words: list[str], window: tuple[int, int], name: list[str]) -> list[str]:
        """The words next to a ``window`` that make the name in it another, longer name; empty if there are none.

        ``name`` has the content words of the name.
        """
        first, last = window

        def neighbour(outwards: list[str]) -> list[str]:
            """The word next to the window, or beyond a binding word ("of") there; empty if it can be part of no name.

            ``outwards`` are the two words on one side of the window, the nearer one first.
            """
            place = 1 if len(outwards) > 1 and outwards[0] in names.listed("binding") else 0
            return [word for word in outwards[place : place + 1] if self._names(word, name)]

        before = words[max(first - 2, 0) : first][::-1]
        after = words[last + 1 : last + 3]
        _, length_of_region = names.region_at(words, last + 1, self.kind)
        # A region after a name does not make it another name, but "City" does: Kansas City is not Kansas.
        if length_of_region:
            after = []
        elif self.kind == "place" and after[:1] == ["city"]:
            return ["city"]
        return neighbour(before) + neighbour(after)

    def _names(self, token: str, name: Sequence[str]) -> bool:
        """Whether a word can be part of a name other than the one at hand."""
        idle = names.is_plain(token, self.kind) or token in names.skipped(self.kind)
        return not idle and token not in name and token not in self.question_words

    def _has_unknown_region(self, words: list[str], last: int) -> bool:
        """Whether the name that ends at index ``last`` is followed by a comma and words that name an unknown region."""
        rest = [*takewhile(lambda token: token not in (BREAK, BRACKET, STOP), words[last + 2 :])]
        follows = words[last + 1 : last + 2] == [BREAK] and 0 < len(rest) <= 4
        return follows and all(self._names(token, ()) for token in rest)

    def _n_other_values(self, words: list[str], windows: list[tuple[int, int]], name: Sequence[str]) -> int:
        """Count the other values in the list that the right one is in, as two in "MIT, Yale or NUS".

        ``windows`` are those of the parts of the right value, and one of the end of its region; ``name`` has the
        reference's words.
        """
        pieces = self._pieces(words)

        def has_the_value(begin: int, end: int) -> bool:
            return any(first < end and begin <= last for first, last in windows)

        right = [piece for piece in pieces if has_the_value(*piece)]
        if not right:  # The name is itself "and" or "or".
            return 0
        # Words in brackets are an aside; BRACKET stands for both of them, so that an odd number is before those inside.
        listed = []
        for piece in pieces:
            begin, _ = piece
            is_aside = words[:begin].count(BRACKET) % 2 == 1
            if piece in right or not is_aside:
                listed.append(piece)
        first_right = listed.index(right[0])
        last_right = listed.index(right[-1])
        # If words of a sentence stand before the value in its piece ("He studied at MIT"), no list leads up to it.
        start = right[0][0]
        previous = words[start - 1] if start else ""
        idle = {"the", "a", "an"} if previous == BREAK else names.skipped(self.kind)
        is_led_by_words = bool({*words[start : windows[0][0]]} - idle) and previous != STOP

        def other_value(piece: tuple[int, int]) -> tuple[str, ...]:
            return self._other_value(words, piece, name)

        # Outwards from the right value, up to the first piece that is not another value.
        before = () if is_led_by_words else takewhile(bool, map(other_value, reversed(listed[:first_right])))
        after = takewhile(bool, map(other_value, listed[last_right + 1 :]))
        return len({*before, *after})

    def _pieces(self, words: list[str]) -> list[tuple[int, int]]:
        """Split words at what separates the values of a list; returns the indices [begin, end) of pieces with words."""
        separators = {"or", "and", STOP, BRACKET, BREAK}
        if names.is_group(self.kind, "with commas inside"):
            separators -= {BREAK}
        bounds = [-1, *(place for place, word in enumerate(words) if word in separators), len(words)]
        return [(before + 1, end) for before, end in pairwise(bounds) if end > before + 1]

    def _other_value(self, words: list[str], piece: tuple[int, int], name: Sequence[str]) -> tuple[str, ...]:
        """The words of another value than ``name`` in a piece of a list, words [begin, end); empty if it has none."""
        begin, end = piece
        of_piece = words[begin:end]
        if of_piece[0] in ("a", "an", "the", "either"):
            of_piece = of_piece[1:]
        # A region after a comma belongs to the name before it.
        head = of_piece[: of_piece.index(BREAK)] if BREAK in of_piece else of_piece
        is_name = 0 < len(head) <= 4 and all(self._names(word, ()) for word in head)
        is_other = is_name and not {*head} <= {*name}
        is_region = self.kind != "place" and names.region_at(words, begin, self.kind)[1] == len(head)
        return tuple(head) if is_other and not is_region else ()

    def _score_of_part(
        self, words: list[str], name: list[str], regions: list[frozenset[names.Region]]
    ) -> tuple[float, str]:
        """Score a text that lacks the whole name, for a paraphrase, a part or the region; returns score and reason."""
        if self.kind == "place":
            stated = [token for token in words if self._names(token, ())]
            region, length = names.region_at(stated, 0, self.kind)
            is_region = length and length == len(stated) and regions and names.compatible([region], regions)
            if is_region and " ".join(name) in names.listed("states of one city"):
                return 1.0, "the same place"
            return (_REGION_ONLY, "the region alone") if is_region else (0.0, "another value")
        if names.paraphrases(words, name, self.kind):
            return 1.0, "the reference in other words"
        generic = names.listed("generic", self.kind)
        stated = [token for token in words if token in generic or self._names(token, ())]
        wanted = [token for token in name if token in generic or self._names(token, ())]
        is_divisible = names.is_group(self.kind, "of meaning in parts")
        has_further_words = bool(Counter(stated) - Counter(wanted))
        if not is_divisible or generic.issuperset(stated) or has_further_words:
            return 0.0, "another value"
        if names.same(stated, wanted, self.kind):
            return 1.0, TOLD_APART[0]
        if self.kind == "university" and Counter(wanted) - Counter(stated) == Counter(["university"]):
            return 1.0, TOLD_APART[1]
        # Of the names of these, only the first words stand for the whole, as "Goldman" for "Goldman Sachs".
        if self.kind in ("university", "company") and stated != wanted[: len(stated)]:
            return 0.0, "another value"
        return min(len(stated) / len(wanted), _PART), "part of the reference"
