"""What counts as found in prose that nobody here generated, and SQuAD's scores.

SQuAD's F1 and exact match are those of its official script (evaluate-v1.1.py), to the digit.
"""

from __future__ import annotations

from collections.abc import Iterable

from utaca.judging.alignment import about
from utaca.judging.cas import extract
from utaca.judging.strings import normalise, token_f1
from utaca.reference.statements import in_free_words

UNKNOWN = "unknown"
FURTHER_WORDS, FREE_WORDS = 4, 16
"""A value is found where an answer gives it with at most so many further words: in the pattern asked for, or as a bare
value; and in sentences of free words that state the attribute."""


def f1(answer: str, golds: Iterable[str]) -> float:
    """SQuAD's F1 of an answer's tokens, against the best of the gold answers."""
    return max(token_f1(answer, gold) for gold in golds)


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """SQuAD's exact match: 1 where the answer is a gold answer in normal form."""
    return float(any(normalise(answer) == normalise(gold) for gold in golds))


def stated(answer: str, attribute: str, person: str) -> list[str]:
    """The words of what an answer says of an attribute, in SQuAD's normal form."""
    return normalise(extract(answer, attribute, person))


def abstains(answer: str, attribute: str, person: str) -> bool:
    """Whether an answer says that the value is unknown."""
    return " ".join(stated(answer, attribute, person)).startswith(UNKNOWN)


def found(answer: str, attribute: str, person: str, values: Iterable[str]) -> bool:
    """Whether an answer gives one of the values, in SQuAD's normal form and in one piece, see :data:`FURTHER_WORDS`."""
    words = stated(answer, attribute, person)
    free = not about(answer, attribute, person) and in_free_words(answer, attribute)
    most = FREE_WORDS if free else FURTHER_WORDS
    for wanted in map(normalise, values):
        places = range(len(words) - len(wanted) + 1)
        if len(words) <= len(wanted) + most and any(words[n : n + len(wanted)] == wanted for n in places):
            return True
    return False
