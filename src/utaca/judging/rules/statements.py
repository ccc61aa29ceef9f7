"""What an answer states of one attribute: its markup, other subjects, refusals, negations and hedges put aside.

The phrases are in ``phrases.txt``.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Sequence
from importlib import resources

from utaca.judging.rules import names

_LISTS = re.split(
    r"^\[(.+)\]\n", resources.files(__package__).joinpath("phrases.txt").read_text("utf-8"), flags=re.MULTILINE
)
_PHRASES = dict(zip(_LISTS[1::2], _LISTS[2::2], strict=True))


def _lines(name: str) -> list[str]:
    return [line for line in _PHRASES[name].splitlines() if line and not line.startswith("#")]


def _any_of(name: str) -> str:
    phrases = "|".join(_lines(name)).replace(" ", r"\s+").replace("'", "['’]")
    return f"(?:{re.sub('<([a-z]+)>', lambda other: _any_of(other[1]), phrases)})"


@functools.cache
def pattern(name: str) -> re.Pattern[str]:
    """What finds any phrase of a list."""
    return re.compile(_any_of(name), re.IGNORECASE)


ABSTENTION, EXCLUDED, IDIOM = pattern("abstention"), pattern("excluded"), pattern("idiom")
NEGATION, TAKEN_BACK = pattern("negation"), pattern("taken back")
_SENTENCE_END = re.compile(r"\n+|(?<=[^\W_]{2}[.!?])\s+(?=[A-Z])")
_PATTERN = re.compile(r"(?:^|(?<=[.!?]\s)|(?<=\n))The ([\w -]+?) of (.+?) (?:is|was)\b:?\s*", re.IGNORECASE)


def clean(text: str, attribute: str) -> str:
    """Text without markup and in usual characters; a JSON object gives its value for the attribute."""
    visible = "".join(character for character in text if unicodedata.category(character) != "Cf")
    text = unicodedata.normalize("NFKC", visible).strip()
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            fields = {}
        text = str(fields.get(attribute, fields.get("answer", text)))
    for markup in _lines("markup"):
        text = re.sub(rf"(?m:{markup})()", r"\1", text)
    text = re.sub(r"[^\D0-9]", lambda digit: str(unicodedata.decimal(digit[0])), text)
    return re.sub(r"[‐‑‒–—−]", "-", text).strip()


def about(question: str, attribute: str, text: str) -> str:
    """The part of an answer that is about the attribute and the person; empty if it is about others only."""
    text = without_remarks(text)
    subject = re.search(rf"{re.escape(attribute)} of ([^?]+?)\s*(?:[?,.]|$)", question, re.IGNORECASE)
    person = subject[1] if subject else ""
    sentences = list(_PATTERN.finditer(text))
    starts = [match.start() for match in sentences[1:]] + [len(text)]
    for match, end in zip(sentences, starts, strict=False):
        if names.fold(match[1]) == names.fold(attribute) and (not person or same_person(person, match[2])):
            return text[match.end() : end].strip()
    if sentences:
        return ""
    line = re.search(rf"\b{re.escape(attribute)}\W{{0,4}}\s*(?::|\bis\b|\bwas\b|=)\s*([^\n]+)", text, re.IGNORECASE)
    # "It is false that her hobby is chess" is no statement of a hobby.
    if line and not NEGATION.search(text[: line.start()]):
        text = pattern("next fact").sub("", line[1]).strip()
    first_name = re.escape(person.split(" ")[0] or "$")
    for named in re.finditer(rf"(?:[,;]|\b(?:but|while|whereas|and))\s+{first_name}\b(?!['’]s)", text):
        # What a long sentence says of others, or of other times, before it comes to the person.
        if pattern("aside").search(text[: named.start() + 6]):
            text = text[named.start() :].lstrip(",; ")
            break
    other = pattern("other person").match(text)
    return "" if other and person and not same_person(person, other[1]) else text


def in_free_words(text: str, attribute: str) -> str:
    """The sentences of an answer that state an attribute in free words, without pattern sentences about others.

    Empty if there are none, or no list of the phrases of such sentences.
    """
    if (name := f"states {attribute}") not in _PHRASES:
        return ""
    sentences = (sentence.strip() for sentence in _SENTENCE_END.split(text))
    return " ".join(one for one in sentences if pattern(name).search(one) and not _PATTERN.match(one))


def stated_at(text: str, attributes: Sequence[str]) -> list[tuple[int, str]]:
    """The places at which a text in free words begins to state an attribute, by name or by list: (offset, attribute).

    In the order of the text; of two that begin at one place the one of more words. The first attribute of a sentence
    begins with it.
    """
    places, start = [], 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        stated: dict[int, tuple[int, str]] = {}
        for attribute in attributes:
            for match in stating(attribute).finditer(text, start, end):
                if match.end() > stated.get(match.start(), (0, ""))[0]:
                    stated[match.start()] = match.end(), attribute
        # What goes before the first belongs to it: "Ann Lee graduated from ...", "- **Birth date**: ...".
        places += [(place if number else start, stated[place][1]) for number, place in enumerate(sorted(stated))]
        start = end
    return places


@functools.cache
def stating(attribute: str) -> re.Pattern[str]:
    """What finds that a text in free words states an attribute: its name, and the phrases of its list."""
    phrases = [rf"\b{re.escape(attribute)}\b"]
    if (name := f"states {attribute}") in _PHRASES:
        phrases.append(_any_of(name))
    return re.compile("|".join(phrases), re.IGNORECASE)


def without_remarks(text: str, value: bool = False) -> str:
    """A text without the remarks after its statement: explanations, sources, other speakers' turns; a retraction stays.

    If the text is a value, all that follows its paragraph, and each further sentence, is a remark.
    """
    bare = pattern("source").sub("", text)
    text = bare if bare == text else bare.strip().removesuffix(".")
    remark = pattern("remark or more" if value else "remark").search(text)
    if remark is None:
        return text
    kept, rest = text[: remark.start()].rstrip(), text[remark.start() :]
    back = TAKEN_BACK.search(rest)
    if back is None:
        return kept.removesuffix(".")
    sentence = max(rest.rfind(end, 0, back.start()) for end in (". ", "! ", "? ", "\n"))
    return f"{kept} {rest[sentence + 1 :].strip()}"


def same_person(person: str, named: str) -> bool:
    """Whether a name means the person: with initials, a part or more given names, in any order."""
    full = re.findall(r"\w+", names.fold(person))
    words = [word for word in re.findall(r"[\w'’]+", names.fold(named)) if not pattern("title").fullmatch(word)]
    if not words:
        return True
    matching = [word in full or (len(word) == 1 and any(name.startswith(word) for name in full)) for word in words]
    if all(matching):
        return True
    # Further given names stand between the first and the last, and are written like names.
    return matching[0] and matching[-1] and {*full} <= {*words} and not re.search(r"\b[a-z]", named)


def claims(text: str) -> list[tuple[str, bool]]:
    """The stretches of a text that assert something of the person, and whether each is a guess after a refusal.

    Refusals and denials are left out.
    """
    text = EXCLUDED.sub("", IDIOM.sub("", text))
    for aside in pattern("subordinate").findall(text):
        if NEGATION.search(aside) or pattern("beside").search(aside):
            text = text.replace(aside, "")
    stretches: list[tuple[str, bool]] = []
    refused = False
    for clause in pattern("clause").split(text):
        if TAKEN_BACK.search(clause):
            stretches.clear()
            clause = TAKEN_BACK.sub("", clause)
        if ABSTENTION.search(clause):
            refused = True
        elif clause.strip() and not NEGATION.search(clause) and not pattern("relative").search(clause):
            stretches.append((clause.strip(), refused and pattern("guess").search(clause) is not None))
    return stretches
