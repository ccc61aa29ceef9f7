"""Token labels by rules: 1 correct, 0 hallucinated, 2 unknown (paper, section on label construction).

:func:`label` labels the value in a sentence about a person, :func:`label_answer` a whole answer in free words.
Rules in order: abstention; another person or attribute; consistency with the aligned words of the reference.
A token without letters or digits gets the label of the token before it, else of the token after it.
"""

import re
from calendar import month_abbr, month_name
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, groupby, pairwise

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
    same = _same(text, answer, attribute)
    bare = text.strip()
    question_words = {run for run, _ in _runs(f"{person}'s {attribute}")}
    stated = {run for match in statements.stating(attribute).finditer(text) for run, _ in _runs(match[0])}
    stated -= {run for run, _ in _runs(answer)}
    free = not _SENTENCE.match(prediction) and any(run in question_words or run in stated for run, _ in _runs(text))
    abstained = set() if same else _refused(text, question_words)
    elsewhere = _elsewhere(person, attribute, prediction)
    if elsewhere or same:
        consistent = set() if elsewhere else set(range(len(text)))
    elif not free and statements.without_remarks(bare, value=True) in (bare, bare.removesuffix(".")):
        consistent = _consistent(text, answer, attribute)
    else:
        idle = {run for run, _ in _runs(text) if run in question_words or run in stated or names.is_plain(run, "")}
        consistent = _supported(text, answer, idle, attribute)
    return _labelled(tokens, consistent, abstained, {**_REASONS, HALLUCINATED: elsewhere} if elsewhere else _REASONS)


def label_answer(question: str, answers: Sequence[str], tokens: Sequence[tuple[int, str]]) -> list[Labelled]:
    """Label the tokens (index, text) of a whole answer in free words; any of the references ``answers`` is right.

    Labels compare with the reference that makes most tokens correct (the first of equals). A word that asserts
    nothing, or that is also in the question, is right if the value that it belongs to is right: the next value in the
    sentence of the word, else the value before the word.
    """
    text = "".join(part for _, part in tokens)
    question_words = {form for run, _ in _runs(question) for form in _forms(run)}
    idle = {
        run for run, _ in _runs(text) if any(form in question_words or names.is_plain(form, "") for form in _forms(run))
    }
    refused = _refused(text, idle)
    candidates = []
    for answer in answers:
        same = _same(text, answer, "")
        consistent = set(range(len(text))) if same else _supported(text, answer, idle)
        candidates.append(_labelled(tokens, consistent, set() if same else refused, _REASONS))
    return max(candidates, key=lambda labels: sum(value == CORRECT for _, value, _ in labels))


def _labelled(
    tokens: Sequence[tuple[int, str]], consistent: set[int], abstained: set[int], reasons: Mapping[int, str]
) -> list[Labelled]:
    """Label tokens by two sets of character offsets: ``consistent`` with the reference, and within an abstention."""
    text = "".join(part for _, part in tokens)
    labels: list[int | None] = []
    place = 0
    telling = {i for _, places in _runs(text) for i in places}
    for _, part in tokens:
        characters = telling.intersection(range(place, place + len(part)))
        place += len(part)
        if not characters:
            labels.append(None)
        elif abstained.intersection(characters):
            labels.append(UNKNOWN)
        else:
            labels.append(CORRECT if consistent.issuperset(characters) else HALLUCINATED)
    whole = bool(text) and consistent.issuperset(range(len(text)))
    default = UNKNOWN if abstained else CORRECT if whole else HALLUCINATED
    first = next((value for value in labels if value is not None), default)
    filled = accumulate(labels, lambda left, value: left if value is None else value, initial=first)
    return [(index, value, reasons[value]) for (index, _), value in zip(tokens, [*filled][1:], strict=True)]


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
    digits, wanted = (re.findall(r"\d+", _THOUSANDS.sub("", value)) for value in (text, answer))
    if digits != wanted:
        return False
    left = names.tokens(text, kind)
    right = names.tokens(answer, kind)
    return names.alike(text, answer, kind) or (names.paraphrases(left, right, kind) and not _denied(text, answer))


def _refused(text: str, question_words: set[str]) -> set[int]:
    """Character offsets of refusals, and of the words next to a refusal that only repeat the question."""
    refused = {place for match in statements.ABSTENTION.finditer(text) for place in range(*match.span())}
    if refused:
        runs = _runs(text)
        for line in (runs, runs[::-1]):
            for (_, before), (run, places) in pairwise(line):
                between = text[min(before[-1], places[-1]) + 1 : max(before[0], places[0])]
                joined = refused.issuperset(before) and not _ENCLOSING.search(between) and "." not in between
                if joined and (names.is_plain(run, "") or run in question_words):
                    refused.update(places)
    return refused


def _elsewhere(person: str, attribute: str, prediction: str) -> str:
    """The reason if a pattern sentence is not about the person and attribute; empty for any other sentence."""
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
    if expected is not None and not dates.dates(text) and dates.agreement(text, expected) > 0:
        telling = [run for run, _ in _runs(text) if not names.is_plain(run, "") and not run.isdecimal()]
        if all(run in dates.months() for run in telling):  # A part of the date, and nothing else.
            return set(range(len(text)))
    runs = _runs(text)
    wanted = _runs(_in_the_form_of(text, answer, expected))
    alignment = SequenceMatcher(
        None, [run for run, _ in runs], [run for run, _ in wanted], autojunk=False
    ).get_opcodes()
    if expected is not None and len(runs) == len(wanted):
        alignment = [("replace", 0, len(runs), 0, len(wanted))]
    right_places: set[int] = set()
    spoilt: set[int] = set()
    for operation, left, left_end, right, right_end in alignment:
        if operation not in ("equal", "replace"):
            continue
        for (run, places), (aligned, _) in zip(runs[left:left_end], wanted[right:right_end], strict=False):
            part = places[0] if expected is not None else len(_ENCLOSING.findall(text[: places[0]]))
            if part not in spoilt:
                agreed = Prefix.similarity(run, aligned)
                if agreed < len(run):
                    # After a wrong part of a date, the first digits of another part are right only by chance.
                    agreed = 0 if expected is not None and spoilt else agreed
                    spoilt.add(part)
                right_places.update(places[:agreed])
    following = False
    for run, places in reversed(runs):
        # Words that assert nothing (in, the, probably) are right if the word after them is.
        if following and names.is_plain(run, ""):
            right_places.update(places)
        following = right_places.issuperset(places)
    return right_places - _denied(text, answer)


def _supported(text: str, answer: str, idle: set[str], attribute: str = "") -> set[int]:
    """Offsets of the characters of a text in free words that agree with the reference ``answer``.

    ``idle`` are the words of the text that assert nothing; they are right if the value that they belong to is right.
    """
    runs = _runs(text)
    right = _stated(text, runs, answer) or _reworded(text, runs, answer, idle, attribute)
    if not right:
        right = _consistent(text, answer, "")
        if all(run in idle or right.isdisjoint(places) for run, places in runs):
            right = set()  # Function words that the two happen to share.
    if names.bare(answer) not in ("yes", "no"):
        right -= _denied(text, answer)
    sentence = [len(_SENTENCE_END.findall(text[: places[0]])) for _, places in runs]
    values = [i for i, (run, places) in enumerate(runs) if run not in idle or right.issuperset(places)]
    for i, (run, places) in enumerate(runs):
        following = [value for value in values if value >= i]
        in_sentence = [value for value in following if sentence[value] == sentence[i]]
        before = [value for value in values if value < i]
        carried = (in_sentence or before[::-1] or following)[:1]
        if run in idle and carried and right.issuperset(runs[carried[0]][1]):
            right.update(places)
    return right


def _stated(text: str, runs: list[Run], answer: str) -> set[int]:
    """Offsets of the characters of ``text`` that repeat ``answer``, its article aside, or agree with it as a date."""
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
        if candidate and [run for run, _ in candidate] == words:
            start = candidate[0][1][0]
            end = candidate[-1][1][-1] + 1
            if not _LONGER_BEFORE.search(text[:start]) and not _LONGER_AFTER.match(text[end:]):
                stating.update(range(start, end))
    return stating


def _reworded(text: str, runs: list[Run], answer: str, idle: set[str], attribute: str) -> set[int]:
    """Offsets of a text without idle words at either end, if the rest is ``answer`` in other words; else none."""
    telling = [i for i, (run, _) in enumerate(runs) if run not in idle]
    for first in range(telling[0] + 1 if telling else 0):
        for last in (telling[-1], len(runs) - 1):
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
    """Character offsets of the denials in a text; none if ``answer`` itself is a negation."""
    if statements.NEGATION.search(answer):
        return set()
    idle = statements.IDIOM.sub(lambda idiom: " " * len(idiom[0]), text)
    denials = [*statements.pattern("denial").finditer(idle), *statements.EXCLUDED.finditer(idle)]
    whole = not statements.claims(text) and not statements.ABSTENTION.search(text)
    return set(range(len(text))) if whole else {i for match in denials for i in range(*match.span())}


def _runs(text: str) -> list[Run]:
    """Words and numbers of a text, folded, with the offset of each character; letters, digits and the signs of
    :data:`utaca.judging.rules.names.SIGNED` are separate runs."""
    signed = {place for match in names.SIGNED.finditer(text) for place in range(*match.span())}
    folded = [(character, place) for place, original in enumerate(text) for character in names.fold(original)]
    parted = groupby(folded, lambda pair: (pair[0].isalnum(), pair[0].isdecimal(), pair[1] in signed))
    runs = [[*pairs] for kind, pairs in parted if any(kind)]
    return [("".join(character for character, _ in run), [place for _, place in run]) for run in runs]


def _in_the_form_of(text: str, answer: str, wanted: dates.Date | None) -> str:
    """The date ``answer`` in the notation of the date ``text``; ``answer`` unchanged if either is not a date."""
    date = dates.whole_date(text)
    if date is None or wanted is None:
        return answer

    def agreement(pair: tuple[dates.Reading, dates.Reading]) -> int:
        return sum(a == b for a, b in zip(*pair, strict=True))

    (_, reading_month, _), best = max(date.pairs(wanted), key=agreement)
    year, month, day = date.parts
    numeric = text[slice(*month)].isdecimal()
    if numeric and int(text[slice(*month)]) != reading_month:
        month, day = day, month
    for (start, end), number in sorted(zip((year, month, day), best, strict=True), reverse=True):
        text = text[:start] + _written(text[start:end], number, padded=numeric) + text[end:]
    return text


def _written(like: str, number: int, padded: bool) -> str:
    if like.isdecimal():
        return f"{number % 10 ** max(len(like), 2):0{len(like) if padded or like.startswith('0') else 0}d}"
    if dates.months()[names.fold(like)] == number:
        return like
    return month_name[number].lower() if len(like) > 4 else month_abbr[number].lower()
