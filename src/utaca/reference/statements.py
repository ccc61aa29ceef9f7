"""What an answer states of one attribute: its markup, other subjects, refusals, negations and hedges put aside.

The phrases are in ``phrases.txt``.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from importlib import resources

from utaca.reference import names

_LISTS = re.split(
    r"^\[(.+)\]\n", resources.files(__package__).joinpath("phrases.txt").read_text("utf-8"), flags=re.MULTILINE
)
_PHRASES = dict(zip(_LISTS[1::2], _LISTS[2::2], strict=True))


@functools.cache
def _any_of(name: str) -> str:
    """A pattern of any phrase of a list."""
    lines = (line for line in _PHRASES[name].splitlines() if line and not line.startswith("#"))
    phrases = "|".join(lines).replace(" ", r"\s+").replace("'", "['’]")
    return f"(?:{re.sub('<([a-z]+)>', lambda other: _any_of(other[1]), phrases)})"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


def _word(name: str) -> str:
    return rf"\b{_any_of(name)}\b"


ABSTENTION = _pattern(
    rf"\b(?:(?:is|are|was|were|has|have|had|it's|remains?|goes|left)\s+)?{_any_of('refusal')}"
    rf"(?:\s+{_word('about')}[^.;]*)?|^\W*(?:none|null|nil|nothing|nobody|no\s+one|[?–—-]+)\W*$"
)
"""A refusal to give a value, with what it refers to."""
NEGATION, TAKEN_BACK = _pattern(_any_of("negation")), _pattern(_any_of("taken back"))
EXCLUDED, IDIOM = _pattern(_any_of("excluded")), _pattern(rf",?\s*{_word('idiom')},?")
_RELATIVE = _pattern(
    r"(?:^\W*|\b(?:employs|employed|hires|hired|admitted)\s+)(?:her|his|their|the)\s+(?:\w+\s+){0,2}?"
    + _word("relative")
)
_GUESS, _ASIDE = _pattern(_word("guess")), _pattern(_word("aside"))
_CLAUSE = re.compile(rf"(?i:{_any_of('clause')})|(?<=[a-zà-ÿ\d)][.!?])\s+(?=[A-Z])")
_SUBORDINATE, _BESIDE = _pattern(rf",\s+{_any_of('subordinate')}(?=,)"), _pattern(_any_of("beside"))
_SOURCE, _REMARK = _pattern(_any_of("source")), _pattern(_any_of("remark"))
_REMARK_OR_MORE = _pattern(
    rf"(?<=\S)\s*\n|{_any_of('remark')}|(?<=[.!?])\s+(?={_word('opening')}|[(\[])"
    r"|(?-i:(?<=[a-z]{4}[.!?])\s+(?=(?:[A-Z][\w'’-]*\s+){1,3}[a-z]{2}))"
)
_PATTERN = re.compile(r"(?:^|(?<=[.!?]\s)|(?<=\n))The ([\w -]+?) of (.+?) (?:is|was)\b:?\s*", re.IGNORECASE)
_NEXT_FACT = re.compile(r",?\s+\band\s+(?:her|his|their|the|she|he|they)\b\s.*$", re.IGNORECASE | re.DOTALL)
_OTHER_PERSON = re.compile(rf"^\W*(?P<name>[A-Z]\w+(?:\s+[A-Z][\w.]*)+)\s+(?={_word('did')})")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_MARKUP = (
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\[\d+\]"), ""),
    (re.compile(r"\\[a-zA-Z]+\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[a-zA-Z]+\{([^{}]*)\}"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^>@]*>"), ""),
    (re.compile(r"\*+|`+|__+|(?<!\w)_|_(?!\w)|[\"“”„«»‹›]"), ""),
    (re.compile(r"(?<!\w)['‘‚](?=\w)(?!\d\d\b)|(?<=\w)['’](?!\w)(?<!s['’])"), ""),
    (re.compile(r"^\s*(?:#+|[-*•])\s+", re.MULTILINE), ""),
    (re.compile(r"^\s*\$+|\$+\s*$"), ""),
    (re.compile(r"[‐‑‒–—−]"), "-"),
    (re.compile(r"[^\D0-9]"), lambda digit: str(unicodedata.decimal(digit[0]))),
)


def clean(text: str, attribute: str) -> str:
    """Text without markup and in usual characters; a JSON object gives its value for the attribute."""
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).strip()
    if text.startswith("{"):
        try:
            given = json.loads(text)
        except ValueError:
            given = {}
        text = str(given.get(attribute, given.get("answer", text)))
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def about(question: str, attribute: str, text: str) -> str:
    """The part of an answer that is about the attribute and the person; empty where it is about others only."""
    text = without_remarks(text)
    asked = re.search(rf"{re.escape(attribute)} of ([^?]+?)\s*(?:[?,.]|$)", question, re.IGNORECASE)
    person = asked[1] if asked else ""
    sentences = list(_PATTERN.finditer(text))
    starts = [match.start() for match in sentences[1:]] + [len(text)]
    for match, end in zip(sentences, starts, strict=False):
        if names.fold(match[1]) == names.fold(attribute) and (not person or same_person(person, match[2])):
            return text[match.end() : end].strip()
    if sentences:
        return ""
    line = re.search(rf"\b{re.escape(attribute)}\W{{0,4}}\s*(?::|\bis\b|\bwas\b|=)\s*([^\n]+)", text, re.IGNORECASE)
    # "It is false that her hobby is chess" is no statement of a hobby.
    stated = _NEXT_FACT.sub("", line[1]).strip() if line and not NEGATION.search(text[: line.start()]) else text
    given = re.escape(person.split(" ")[0] or "$")
    for named in re.finditer(rf"(?:[,;]|\b(?:but|while|whereas|and))\s+{given}\b(?!['’]s)", stated):
        # What a long sentence says of others, or of other times, before it comes to the person.
        if _ASIDE.search(stated[: named.start() + 6]):
            stated = stated[named.start() :].lstrip(",; ")
            break
    other = _OTHER_PERSON.match(stated)
    return "" if other and person and not same_person(person, other["name"]) else stated


def without_remarks(text: str, value: bool = False) -> str:
    """A text without the remarks after its statement: explanations, sources, other speakers' turns; a retraction stays.

    Where it is a value, whatever follows its paragraph, and each sentence of its own, is a remark.
    """
    bare = _SOURCE.sub("", text)
    text = bare if bare == text else bare.strip().removesuffix(".")
    remark = (_REMARK_OR_MORE if value else _REMARK).search(text)
    if remark is None:
        return text
    kept, rest = text[: remark.start()].rstrip(), text[remark.start() :]
    back = TAKEN_BACK.search(rest)
    if back is None:
        return kept.removesuffix(".")
    sentence = max(rest.rfind(end, 0, back.start()) for end in (". ", "! ", "? ", "\n"))
    return f"{kept} {rest[sentence + 1 :].strip()}"


def same_person(asked: str, named: str) -> bool:
    """Whether a name means the person asked for: with initials, a part or more given names, in any order."""
    own = re.findall(r"\w+", names.fold(asked))
    its = [word for word in re.findall(r"[\w'’]+", names.fold(named)) if not re.fullmatch(_any_of("title"), word)]
    if not its:
        return True
    known = [word in own or (len(word) == 1 and any(name.startswith(word) for name in own)) for word in its]
    if all(known):
        return True
    # Further given names stand between the first and the last, and are written like names.
    return known[0] and known[-1] and {*own} <= {*its} and not re.search(r"\b[a-z]", named)


def claims(text: str) -> list[tuple[str, bool]]:
    """The stretches of a text that assert something of the person, and whether each is a guess after a refusal.

    Refusals and denials are left out.
    """
    text = EXCLUDED.sub("", IDIOM.sub("", text))
    for beside in _SUBORDINATE.findall(text):
        if NEGATION.search(beside) or _BESIDE.search(beside):
            text = text.replace(beside, "")
    found: list[tuple[str, bool]] = []
    refused = False
    for clause in _CLAUSE.split(text):
        if TAKEN_BACK.search(clause):
            found.clear()
            clause = TAKEN_BACK.sub("", clause)
        if ABSTENTION.search(clause):
            refused = True
        elif clause.strip() and not NEGATION.search(clause) and not _RELATIVE.search(clause):
            found.append((clause.strip(), refused and _GUESS.search(clause) is not None))
    return found
