"""Token labels by rules: 1 correct, 0 hallucinated, 2 unknown (paper, section on label construction).

:func:`label` labels the value in a sentence about a person, :func:`label_answer` a whole answer in free words.
Rules in order: abstention; another person or attribute; consistency with the aligned words of the reference.
A token without letters or digits gets the label of the token before it, else of the token after it.
"""

import re
from calendar import month_abbr, month_name
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain, groupby, pairwise

from rapidfuzz.distance import Prefix

from utaca.judging.rules import dates, names, numbers, statements
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN

Labelled = tuple[int, int, str]
"""A token's index, its label and the reason."""
Run = tuple[str, list[int]]
"""A word or number, folded, and the offset of each of its characters in the text."""

_REASONS = {
    HALLUCINATED: "not supported by the reference",
    CORRECT: "consistent with the reference",
    UNKNOWN: "abstains",
}
_ARTICLES = ("the", "a", "an")
# Characters next to a word or number that make it another one: 1,200 is not 200, and 2nd is not 2.
_LONGER_BEFORE = re.compile(r"(?:\w|\d[.,])\Z")
_LONGER_AFTER = re.compile(r"\w|[.,]\d")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# The end of a statement in an answer: unlike in prose, a semicolon or a line break ends a statement too.
_SENTENCE_END = re.compile(r"[.;!?](?=\s|\Z)|\n")
_ENCLOSING = re.compile(r"[,;@/()\n]")
_SENTENCE = re.compile(r"^\s*The (.+?) of (.+?) is\b", re.IGNORECASE)


def label(
    person: str, attribute: str, answer: str, prediction: str, tokens: Sequence[tuple[int, str]]
) -> list[Labelled]:
    """Label the tokens (index, text) of the value in the sentence ``prediction`` by the reference value ``answer``."""
    text = "".join(part for _, part in tokens)
    value = text.strip()
    words = _words(text)
    question_words = _words(f"{person}'s {attribute}")
    stating: set[str] = set()  # words that state the attribute, such as "born", and not its value
    for match in statements.stating(attribute).finditer(text):
        stating |= _words(match[0])
    stating -= _words(answer)
    repeated = words & (question_words | stating)
    is_in_free_words = bool(repeated) and not _SENTENCE.match(prediction)
    has_no_remarks = statements.without_remarks(value, value=True) in (value, value.removesuffix("."))
    is_same = _same(text, answer, attribute)
    abstained = set() if is_same else _refused(text, question_words)
    fault = _subject_fault(person, attribute, prediction)
    reasons = _REASONS
    if fault:
        consistent = set()
        reasons = {**_REASONS, HALLUCINATED: fault}
    elif is_same:
        consistent = set(range(len(text)))
    elif has_no_remarks and not is_in_free_words:
        # The text is a value and nothing else, so that it can be compared with the reference word by word.
        consistent = _consistent(text, answer, attribute)
    else:
        # The value must first be found among words that assert nothing.
        idle = repeated | {word for word in words if names.is_plain(word, "")}
        consistent = _supported(text, answer, idle, attribute)
    return _labelled(tokens, consistent, abstained, reasons)


def label_answer(question: str, answers: Sequence[str], tokens: Sequence[tuple[int, str]]) -> list[Labelled]:
    """Label the tokens (index, text) of a whole answer in free words; any of the references ``answers`` is right.

    Labels compare with the reference that makes most tokens correct (the first of equals). A word that asserts
    nothing, or that is also in the question, is right if the value that it belongs to is right: the next value in the
    sentence of the word, else the value before the word.
    """
    text = "".join(part for _, part in tokens)
    question_forms = set(chain.from_iterable(_forms(word) for word in _words(question)))
    idle = set()  # words that assert nothing, or are in the question
    for word in _words(text):
        if any(form in question_forms or names.is_plain(form, "") for form in _forms(word)):
            idle.add(word)
    refused = _refused(text, idle)
    candidates = []  # the labels by each reference
    for answer in answers:
        if _same(text, answer, ""):
            candidates.append(_labelled(tokens, set(range(len(text))), set(), _REASONS))
        else:
            candidates.append(_labelled(tokens, _supported(text, answer, idle), refused, _REASONS))

    def n_correct(labelled: list[Labelled]) -> int:
        return sum(value == CORRECT for _, value, _ in labelled)

    return max(candidates, key=n_correct)


def _labelled(
    tokens: Sequence[tuple[int, str]], consistent: set[int], abstained: set[int], reasons: Mapping[int, str]
) -> list[Labelled]:
    """Label tokens by two sets of characters: those ``consistent`` with the reference, and those in an abstention.

    Characters are offsets in the tokens' text; ``reasons`` has the reason by label. A token is unknown if one of its
    letters or digits is in an abstention, else correct if all of them are consistent. A token without any gets the
    label of the token before it, or of the first token that has some.
    """
    text = "".join(part for _, part in tokens)
    in_words = set(chain.from_iterable(places for _, places in _runs(text)))
    own_labels: list[int | None] = []  # None: a token without letters or digits
    place = 0
    for _, part in tokens:
        characters = in_words.intersection(range(place, place + len(part)))
        place += len(part)
        if not characters:
            own_labels.append(None)
        elif abstained.intersection(characters):
            own_labels.append(UNKNOWN)
        else:
            own_labels.append(CORRECT if consistent.issuperset(characters) else HALLUCINATED)
    # The label of tokens before the first one with letters or digits; of all tokens, if none has any.
    known = [own for own in own_labels if own is not None]
    if known:
        current = known[0]
    elif abstained:
        current = UNKNOWN
    else:
        is_all_consistent = bool(text) and consistent.issuperset(range(len(text)))
        current = CORRECT if is_all_consistent else HALLUCINATED
    result = []
    for (index, _), own in zip(tokens, own_labels, strict=True):
        if own is not None:
            current = own
        result.append((index, current, reasons[current]))
    return result


def _same(text: str, answer: str, attribute: str) -> bool:
    """Whether a text is the reference ``answer`` in another notation.

    That is: the same date, the same name, or the same thing in other words. For longer texts and partial values, judge
    and labeller have different rules, so that scores and labels do not make the same errors.
    """
    text = statements.IDIOM.sub("", text)
    expected = dates.expected(answer, attribute)
    if expected is not None:
        date = dates.whole_date(dates.in_figures(text))
        return date is not None and date.same(expected)
    kind = names.group(attribute)
    if not names.is_group(kind, "of codes"):
        text = names.corrected(text, answer)
    if _digits(text) != _digits(answer):
        return False
    if names.alike(text, answer, kind):
        return True
    is_paraphrase = names.paraphrases(names.tokens(text, kind), names.tokens(answer, kind), kind)
    return is_paraphrase and not _denied(text, answer)


def _digits(text: str) -> list[str]:
    """The numbers of a text, as digits without separators of thousands."""
    return re.findall(r"\d+", _THOUSANDS.sub("", text))


def _refused(text: str, question_words: set[str]) -> set[int]:
    """Character offsets of refusals, and of the words next to a refusal that only repeat the question."""
    refused: set[int] = set()
    for match in statements.ABSTENTION.finditer(text):
        refused.update(range(*match.span()))
    if refused:
        runs = _runs(text)
        # A refusal spreads to the next words, first forwards and then backwards.
        for in_order in (runs, runs[::-1]):
            for (_, before), (run, places) in pairwise(in_order):
                between = text[min(before[-1], places[-1]) + 1 : max(before[0], places[0])]
                is_joined = refused.issuperset(before) and not _ENCLOSING.search(between) and "." not in between
                if is_joined and (names.is_plain(run, "") or run in question_words):
                    refused.update(places)
    return refused


def _subject_fault(person: str, attribute: str, prediction: str) -> str:
    """The reason "about another attribute" or "about another person" if a pattern sentence is; "" for all others."""
    # The attribute's name is tried first, because it may contain "of" itself, as "date of birth".
    match = re.match(rf"\s*The ({re.escape(attribute)}|.+?) of (.+?) is\b", prediction, re.IGNORECASE)
    if match is None:
        return ""
    if names.words(match[1]) != names.words(attribute):
        return "about another attribute"
    return "" if names.words(match[2]) == names.words(person) else "about another person"


def _consistent(text: str, answer: str, attribute: str) -> set[int]:
    """Offsets of the characters of ``text`` that agree with the aligned words of the reference ``answer``.

    A word or number is right up to its first wrong character; the rest of the same part is wrong. Parts are separated
    by commas, brackets and the like; the parts of a date are year, month and day.
    """
    expected = dates.expected(answer, attribute)
    is_date = expected is not None
    if is_date and _is_part_of_date(text, expected):
        return set(range(len(text)))
    runs = _runs(text)
    wanted = _runs(_in_the_form_of(text, answer, expected))
    right: set[int] = set()
    wrong_parts: set[int] = set()
    for (run, places), wanted_run in _aligned(runs, wanted, word_by_word=is_date):
        # What identifies a part: of a date its place, otherwise the number of separators before it.
        part = places[0] if is_date else len(_ENCLOSING.findall(text[: places[0]]))
        if part in wrong_parts:
            continue
        n_right = Prefix.similarity(run, wanted_run)
        if n_right < len(run):
            if is_date and wrong_parts:
                # After a wrong part of a date, the first digits of another part are right only by chance.
                n_right = 0
            wrong_parts.add(part)
        right.update(places[:n_right])
    is_next_right = False
    for run, places in reversed(runs):
        # Words that assert nothing (in, the, probably) are right if the word after them is.
        if is_next_right and names.is_plain(run, ""):
            right.update(places)
        is_next_right = right.issuperset(places)
    return right - _denied(text, answer)


def _is_part_of_date(text: str, expected: dates.Date) -> bool:
    """Whether a text states only correct parts of ``expected``, such as its month and year, and nothing else."""
    # A complete date is no part of one.
    if dates.dates(text) or dates.agreement(text, expected) == 0:
        return False
    others = [word for word in _words(text) if not names.is_plain(word, "") and not word.isdecimal()]
    return all(word in dates.months() for word in others)


def _aligned(runs: list[Run], wanted: list[Run], *, word_by_word: bool) -> Iterator[tuple[Run, str]]:
    """Pair the words of a text with words of the reference, by their common sequences; some words have no partner.

    With ``word_by_word``, the words of texts with equally many words are paired in their order instead.
    """
    words = [run for run, _ in runs]
    wanted_words = [run for run, _ in wanted]
    if word_by_word and len(runs) == len(wanted):
        yield from zip(runs, wanted_words, strict=True)
        return
    for operation, start, end, first, last in SequenceMatcher(None, words, wanted_words, autojunk=False).get_opcodes():
        if operation in ("equal", "replace"):
            yield from zip(runs[start:end], wanted_words[first:last], strict=False)


def _supported(text: str, answer: str, idle: set[str], attribute: str = "") -> set[int]:
    """Offsets of the characters of a text in free words that agree with the reference ``answer``.

    ``idle`` are the words of the text that assert nothing. Each is right if the value that it belongs to is: the next
    value in its sentence, else the last one before it, else the next one.
    """
    runs = _runs(text)
    right = _stated(text, runs, answer) or _reworded(text, runs, answer, idle, attribute)
    if not right:
        right = _consistent(text, answer, "")
        if all(run in idle or right.isdisjoint(places) for run, places in runs):
            right = set()  # Function words that the two happen to share.
    if names.bare(answer) not in ("yes", "no"):
        right -= _denied(text, answer)
    return right | _of_idle_words(text, runs, idle, right)


def _of_idle_words(text: str, runs: list[Run], idle: set[str], right: set[int]) -> set[int]:
    """Offsets of the ``idle`` words whose value is right.

    ``runs`` are the words of the text, ``right`` the offsets of the characters that are right without these words.
    The value that a word belongs to is as for :func:`_supported`.
    """
    right_too: set[int] = set()
    # The number of each word's sentence.
    sentence = [len(_SENTENCE_END.findall(text[: places[0]])) for _, places in runs]
    # Indices of the words that are values, and of those that assert nothing but are right already.
    values = [number for number, (run, places) in enumerate(runs) if run not in idle or right.issuperset(places)]
    for number, (run, places) in enumerate(runs):
        if run not in idle:
            continue
        following = [value for value in values if value >= number]
        in_sentence = [value for value in following if sentence[value] == sentence[number]]
        before = [value for value in values if value < number]
        nearest_first = in_sentence or before[::-1] or following
        if nearest_first:
            _, places_of_value = runs[nearest_first[0]]
            if right.issuperset(places_of_value):
                right_too.update(places)
    return right_too


def _stated(text: str, runs: list[Run], answer: str) -> set[int]:
    """Offsets of the characters of ``text`` that repeat ``answer`` without its article, or agree with it as a date.

    ``runs`` are those of the text.
    """
    expected = dates.expected(answer, "")
    stating: set[int] = set()
    if expected is not None:
        for date in dates.dates(text):
            start, end = date.span
            agreeing = set(range(end - start)) if date.same(expected) else _consistent(text[start:end], answer, "")
            stating.update(start + offset for offset in agreeing)
        return stating
    words = [run for run, _ in _runs(answer)]
    if len(words) > 1 and words[0] in _ARTICLES:
        del words[0]
    for first in range(len(runs) - len(words) + 1):
        candidate = runs[first : first + len(words)]
        # The words of the reference, one after another; not the 200 of 1,200 or the 2 of 2nd.
        if candidate and [run for run, _ in candidate] == words:
            start = candidate[0][1][0]
            end = candidate[-1][1][-1] + 1
            if not _LONGER_BEFORE.search(text[:start]) and not _LONGER_AFTER.match(text[end:]):
                stating.update(range(start, end))
    return stating


def _reworded(text: str, runs: list[Run], answer: str, idle: set[str], attribute: str) -> set[int]:
    """Offsets of the piece of ``text`` that is ``answer`` in other words; empty if there is none.

    The piece must be all of the text, except idle words at its ends. ``runs`` are the text's words, ``idle`` those of
    them that assert nothing.
    """
    asserting = [i for i, (run, _) in enumerate(runs) if run not in idle]
    if not asserting:
        return set()
    # Pieces begin and end with idle words or without them: such a word may belong to the value, as in "The Hague".
    for first in range(asserting[0] + 1):
        for last in (asserting[-1], len(runs) - 1):
            start = runs[first][1][0]
            end = runs[last][1][-1] + 1
            piece = text[start:end]
            if _same(piece, answer, attribute) or numbers.in_digits(piece) == answer.strip():
                return set(range(start, end))
    return set()


def _forms(run: str) -> tuple[str, str, str]:
    """A word, its stem, and the word without a final d: the stemmer leaves short past tenses as they are."""
    return run, names.stem(run), run.removesuffix("d")


def _denied(text: str, answer: str) -> set[int]:
    """Character offsets of the denials in a text, of all if it asserts nothing; none if ``answer`` is a negation."""
    if statements.NEGATION.search(answer):
        return set()
    # Blanks in place of idioms, which only look like denials, so that offsets stay.
    without_idioms = statements.IDIOM.sub(lambda idiom: " " * len(idiom[0]), text)
    if not statements.claims(text) and not statements.ABSTENTION.search(text):
        return set(range(len(text)))
    denied: set[int] = set()
    denials = statements.pattern("denial").finditer(without_idioms)
    for match in [*denials, *statements.EXCLUDED.finditer(without_idioms)]:
        denied.update(range(*match.span()))
    return denied


def _runs(text: str) -> list[Run]:
    """The words and numbers of a text, folded, each with the offsets of its characters in the text.

    Letters, digits and the signs of :data:`utaca.judging.rules.names.SIGNED` are separate runs.
    """
    signed: set[int] = set()
    for match in names.SIGNED.finditer(text):
        signed.update(range(*match.span()))
    folded: list[tuple[str, int]] = []  # characters and their offsets
    for place, original in enumerate(text):
        # A character may become several: ß is ss.
        folded += [(character, place) for character in names.fold(original)]

    def kind(pair: tuple[str, int]) -> tuple[bool, bool, bool]:
        """What adjacent characters of one run have in common; all False: the character belongs to no run."""
        character, place = pair
        return character.isalnum(), character.isdecimal(), place in signed

    runs: list[Run] = []
    for kinds, pairs in groupby(folded, kind):
        if any(kinds):
            characters, places = zip(*pairs, strict=True)
            runs.append(("".join(characters), list(places)))
    return runs


def _words(text: str) -> set[str]:
    """The words and numbers of a text, folded."""
    return {run for run, _ in _runs(text)}


def _in_the_form_of(text: str, answer: str, wanted: dates.Date | None) -> str:
    """The date ``answer`` in the notation of the date ``text``; ``answer`` unchanged if either is not a date.

    ``wanted`` is the date of ``answer``, None if it is not one.
    """
    date = dates.whole_date(text)
    if date is None or wanted is None:
        return answer

    def n_equal_parts(pair: tuple[dates.Reading, dates.Reading]) -> int:
        return sum(number == other for number, other in zip(*pair, strict=True))

    reading, wanted_reading = max(date.pairs(wanted), key=n_equal_parts)
    year, month, day = date.parts
    is_numeric = text[slice(*month)].isdecimal()
    if is_numeric and int(text[slice(*month)]) != reading[1]:
        # In this reading, the month stands where the date's first reading has the day.
        month, day = day, month
    # The last part first, because a replacement moves what stands after it.
    last_first = sorted(zip((year, month, day), wanted_reading, strict=True), reverse=True)
    for (start, end), number in last_first:
        text = text[:start] + _written(text[start:end], number, padded=is_numeric) + text[end:]
    return text


def _written(like: str, number: int, padded: bool) -> str:
    """Write a ``number`` of a date as the part ``like`` is written: a month as digits or name, a year with two or four.

    ``padded``: digits are filled up with zeros to the width of ``like``.
    """
    if like.isdecimal():
        width = len(like) if padded or like.startswith("0") else 0
        # Of a year, as many digits as `like` has; month and day have at most two.
        last_digits = number % 10 ** max(len(like), 2)
        return f"{last_digits:0{width}d}"
    if dates.months()[names.fold(like)] == number:
        return like
    return month_name[number].lower() if len(like) > 4 else month_abbr[number].lower()
