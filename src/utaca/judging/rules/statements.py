"""Find what an answer states about one attribute, apart from markup, other subjects, refusals, negations and hedges.

The phrases are in ``phrases.txt``.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Sequence
from importlib import resources

from utaca.judging.rules import names
from utaca.sentences import SENTENCE_END

_LISTS = re.split(
    r"^\[(.+)\]\n", resources.files(__package__).joinpath("phrases.txt").read_text("utf-8"), flags=re.MULTILINE
)
_PHRASES = dict(zip(_LISTS[1::2], _LISTS[2::2], strict=True))


def _lines(name: str) -> list[str]:
    """The phrases of a list, each a regular expression."""
    return [line for line in _PHRASES[name].splitlines() if line and not line.startswith("#")]


def _any_of(name: str) -> str:
    """The regular expression that matches any phrase of a list; ``<other>`` in a phrase stands for another list."""
    phrases = "|".join(_lines(name)).replace(" ", r"\s+").replace("'", "['’]")
    with_others = re.sub("<([a-z]+)>", lambda other: _any_of(other[1]), phrases)
    return f"(?:{with_others})"


@functools.cache
def pattern(name: str) -> re.Pattern[str]:
    """The regular expression that matches any phrase of the list ``name``."""
    return re.compile(_any_of(name), re.IGNORECASE)


ABSTENTION = pattern("abstention")
EXCLUDED = pattern("excluded")
IDIOM = pattern("idiom")
NEGATION = pattern("negation")
TAKEN_BACK = pattern("taken back")
_PATTERN = r"(?i)(?:^|(?<=[.!?]\s)|(?<=\n))The ({}|[\w -]+?) of (.+?) (?:is|was)\b:?\s*"


def clean(text: str, attribute: str) -> str:
    """Remove markup and normalise characters; from a JSON object, take only the value of the attribute."""
    visible = "".join(character for character in text if unicodedata.category(character) != "Cf")
    text = unicodedata.normalize("NFKC", visible).strip()
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            fields = {}
        text = str(fields.get(attribute, fields.get("answer", text)))
    for markup in _lines("markup"):
        # Group 1 is what the markup encloses, which stays; without such a group, it is the empty one after it.
        text = re.sub(rf"(?m:{markup})()", r"\1", text)
    # Digits of other scripts as ASCII digits.
    text = re.sub(r"[^\D0-9]", lambda digit: str(unicodedata.decimal(digit[0])), text)
    return re.sub(r"[‐‑‒–—−]", "-", text).strip()


def about(question: str, attribute: str, text: str) -> str:
    """The part of an answer about the attribute and the person of the question; "" if it has only other subjects.

    If the answer has pattern sentences ("The ATTRIBUTE of PERSON is ..."), that is the value of the first right one.
    Otherwise it is what follows "ATTRIBUTE:" or "ATTRIBUTE is", or the whole text.
    """
    text = without_remarks(text)
    # A full stop or comma may belong to the name: Dr. Ann Lee, Martin Luther King, Jr.
    subject = re.search(rf"(?i:{re.escape(attribute)} of )([^?]+?)\s*(?:\?|,(?= [a-z])|\.?\s*$)", question)
    person = subject[1] if subject else ""
    openings = list(re.finditer(_PATTERN.format(re.escape(attribute)), text))
    # A pattern sentence ends where the next one opens.
    # Without an opening there still is one end, which the zip drops.
    ends = [opening.start() for opening in openings[1:]] + [len(text)]
    for opening, end in zip(openings, ends, strict=False):
        is_attribute = names.fold(opening[1]) == names.fold(attribute)
        if is_attribute and (not person or same_person(person, opening[2])):
            return text[opening.end() : end].strip()
    if openings:
        return ""
    line = re.search(rf"\b{re.escape(attribute)}\W{{0,4}}\s*(?::|\bis\b|\bwas\b|=)\s*([^\n]+)", text, re.IGNORECASE)
    # "It is false that her hobby is chess" is not a statement of a hobby.
    if line and not NEGATION.search(text[: line.start()]):
        text = pattern("next fact").sub("", line[1]).strip()
    first_name = re.escape(person.split(" ")[0] or "$")
    for named in re.finditer(rf"(?:[,;]|\b(?:but|while|whereas|and))\s+{first_name}\b(?!['’]s)", text):
        # A long sentence may speak of other people or times before it names the person. The six characters are for a
        # conjunction before the name, as "while", which speaks of another too.
        if pattern("aside").search(text[: named.start() + 6]):
            text = text[named.start() :].lstrip(",; ")
            break
    other = pattern("other person").match(text)
    is_about_another = other is not None and person and not same_person(person, other[1])
    return "" if is_about_another else text


def in_free_words(text: str, attribute: str) -> str:
    """The sentences of an answer that state an attribute in free words; pattern sentences are left out.

    Empty if there are no such sentences, or if ``phrases.txt`` has no list for the attribute.
    """
    name = f"states {attribute}"
    if name not in _PHRASES:
        return ""
    in_pattern = re.compile(_PATTERN.format(re.escape(attribute)))
    stating_it = []
    for part in SENTENCE_END.split(text):
        sentence = part.strip()
        if pattern(name).search(sentence) and not in_pattern.match(sentence):
            stating_it.append(sentence)
    return " ".join(stating_it)


def stated_at(text: str, attributes: Sequence[str]) -> list[tuple[int, str]]:
    """Find the statements of attributes in a text in free words; returns (character offset of the start, attribute).

    Statements are in the order of the text; if two begin at the same offset, the longer one is kept. The first
    statement of a sentence begins where the sentence begins.
    """
    statements = []
    start = 0
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    for end in [*ends, len(text)]:
        # The end and the attribute of the longest statement at each offset of the sentence.
        by_offset: dict[int, tuple[int, str]] = {}
        for attribute in attributes:
            for match in stating(attribute).finditer(text, start, end):
                longest_end, _ = by_offset.get(match.start(), (0, ""))
                if match.end() > longest_end:
                    by_offset[match.start()] = match.end(), attribute
        for number, offset in enumerate(sorted(by_offset)):
            _, attribute = by_offset[offset]
            is_first = number == 0
            # Words before the first statement belong to it: "Ann Lee graduated from ...", "- **Birth date**: ...".
            statements.append((start if is_first else offset, attribute))
        start = end
    return statements


@functools.cache
def stating(attribute: str) -> re.Pattern[str]:
    """The regular expression for statements of an attribute in free words: its name, and the phrases of its list."""
    phrases = [rf"\b{re.escape(attribute)}\b"]
    name = f"states {attribute}"
    if name in _PHRASES:
        phrases.append(_any_of(name))
    return re.compile("|".join(phrases), re.IGNORECASE)


def without_remarks(text: str, value: bool = False) -> str:
    """Remove the remarks after a statement (explanations, sources, other speakers' turns), but keep a retraction.

    If the text is a ``value``, further sentences and paragraphs are remarks too.
    """
    without_sources = pattern("source").sub("", text)
    if without_sources != text:
        text = without_sources.strip().removesuffix(".")
    remark = pattern("remark or more" if value else "remark").search(text)
    if remark is None:
        return text
    kept = text[: remark.start()].rstrip()
    rest = text[remark.start() :]
    retraction = TAKEN_BACK.search(rest)
    if retraction is None:
        return kept.removesuffix(".")
    # From the beginning of the sentence that retracts.
    end_before = max(rest.rfind(end, 0, retraction.start()) for end in (". ", "! ", "? ", "\n"))
    return f"{kept} {rest[end_before + 1 :].strip()}"


def same_person(person: str, named: str) -> bool:
    """Whether ``named`` means ``person``: with initials, only a part of the name, or more given names, in any order."""
    person_words = _words_of(person)
    words = [word for word in _words_of(named) if not pattern("title").fullmatch(word)]
    if not words:
        return True
    initials = {word[0] for word in person_words}
    # Whether each of the words is one of the person's, or an initial of one.
    matching = [word in person_words or word in initials for word in words]
    if all(matching):
        return True
    # Further given names stand between the first and the last, and are written like names.
    has_all_words = {*person_words} <= {*words}
    return matching[0] and matching[-1] and has_all_words and not re.search(r"\b[a-z]", named)


def _words_of(name: str) -> list[str]:
    """The words of a person's name, folded, without apostrophes."""
    return re.findall(r"\w+", re.sub("['’]", "", names.fold(name)))


def claims(text: str) -> list[tuple[str, bool]]:
    """Split a text into the clauses that assert something, each with whether it is a guess after a refusal.

    Refusals, denials and clauses that the text retracts are left out.
    """
    text = EXCLUDED.sub("", IDIOM.sub("", text))
    # Clauses between commas that deny something, or speak of other times or people ("after leaving Yale", "whose ...").
    for aside in pattern("subordinate").findall(text):
        if NEGATION.search(aside) or pattern("beside").search(aside):
            text = text.replace(aside, "")
    asserted: list[tuple[str, bool]] = []
    has_refused = False  # "I do not know; perhaps 1974" is a guess, and "perhaps 1974" is not
    for clause in pattern("clause").split(text):
        if TAKEN_BACK.search(clause):
            # "Paris, no, wait: Rome": what was asserted so far is retracted, and only the rest of the clause counts.
            asserted.clear()
            clause = TAKEN_BACK.sub("", clause)
        if ABSTENTION.search(clause):
            has_refused = True
        elif clause.strip() and not NEGATION.search(clause) and not pattern("relative").search(clause):
            is_guess = pattern("guess").search(clause) is not None
            asserted.append((clause.strip(), has_refused and is_guess))
    return asserted
