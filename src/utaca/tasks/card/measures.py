"""What the answers of a reader score: values found, exact values, abstentions, SQuAD's scores, and CAS by the judge.

SQuAD's F1 and exact match are those of its official script (evaluate-v1.1.py), to the digit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from utaca.biographies.sentences import abstention, summary
from utaca.judging.alignment import about
from utaca.judging.cas import extract, score
from utaca.judging.strings import normalise, token_f1
from utaca.reference.statements import in_free_words
from utaca.settings import schema
from utaca.tasks.card.written import WRITTEN, XQUAD

EXACT, ABSTAINED, WRONG, FOUND = "exact value", "abstained", "another value", "value found"
F1, EXACT_MATCH, CAS = "F1", "exact match", "CAS"
FULL = "full attention"
ABSENT, PRESENT = "absent facts", "summary and natural"
"""Cells that take the questions of several together: for facts that are absent, and for those that are there."""

_UNKNOWN = "unknown"
FURTHER_WORDS, FREE_WORDS = 4, 16
"""A value is found where an answer gives it with at most so many further words: in the pattern asked for, or as a bare
value; and in sentences of free words that state the attribute."""


class Score(NamedTuple):
    """What a question about a document scores in a cell; None where the judge failed."""

    cell: str
    setting: str
    measure: str
    document: str
    score: float | None


def scores(readings: pa.Table, judge: schema.Endpoint, store: Path | str) -> pd.DataFrame:
    """Scores, columns as of :class:`Score`, of rows of schema "readings".

    Facts about drawn people are scored by CAS where they were read through block memory, and by the outcome of the
    answer unless the prefill's budget was another than the reader's. Raises :class:`UserError` where the judge cannot
    be asked.
    """
    rows = readings.to_pylist()
    asked = Counter(map(_answer, rows))
    scored = [one for row in rows for one in _scores(row, alone=asked[_answer(row)] == 1)]
    judged = [row for row in rows if row["budget"] is not None and not row["cell"].startswith(WRITTEN)]
    scored += _judged(judged, judge, store)
    return pd.DataFrame(scored, columns=Score._fields).astype({"score": float})


def _answer(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What rows of one answer have in common."""
    return row["document"], row["question"], row["prefill_budget"], row["budget"]


def _setting(row: Mapping[str, Any]) -> str:
    if row["budget"] is None:
        return FULL
    decoding = f"K={row['budget']}"
    return decoding if row["prefill_budget"] is None else f"prefill K={row['prefill_budget']}, {decoding}"


def _scores(row: Mapping[str, Any], alone: bool) -> Iterator[Score]:
    """What a row scores but for CAS; ``alone``: nothing else was asked with it."""
    cell, setting, document, answer = row["cell"], _setting(row), row["document"], row["answer"]
    attribute, person, value = row["attribute"], row["person"], row["value"]
    golds, scored = [value, *(row["also"] or [])], {}
    if cell == XQUAD:
        scored = {F1: f1(answer, golds), EXACT_MATCH: exact_match(answer, golds)}
        scored[ABSTAINED] = float(normalise(answer) == [_UNKNOWN])
    elif cell.startswith(WRITTEN):
        if value is not None:
            scored[FOUND] = float(found(answer, attribute, person, golds))
        scored[ABSTAINED] = float(abstains(answer, attribute, person))
    elif row["prefill_budget"] is None:
        kind = outcome(answer, attribute, person, value, alone)
        scored = {measure: float(kind == measure) for measure in (EXACT, ABSTAINED, WRONG)}
    if value is None:
        cell = f"{WRITTEN}, {ABSENT}" if cell.startswith(WRITTEN) else ABSENT
        scored.pop(EXACT, None)
    for measure, of in scored.items():
        yield Score(cell, setting, measure, document, of)
    if EXACT in scored and setting == FULL:
        yield Score(cell, attribute, EXACT, document, scored[EXACT])
        yield Score(PRESENT, setting, ABSTAINED, document, scored[ABSTAINED])


def _judged(rows: Iterable[Mapping[str, Any]], judge: schema.Endpoint, store: Path | str) -> Iterator[Score]:
    """CAS of rows, those of an answer one after another."""
    rows, answers, documents = list(rows), [], {}
    for (document, question, *_), answered in groupby(rows, _answer):
        facts, name = list(answered), f"{document}/{question}"
        documents[name] = {"id": name, "person": facts[0]["person"], "facts": facts}
        answers.append({"document": name, "suite": "card", "point": "", "text": facts[0]["answer"]})
    for row, given in zip(rows, score(answers, documents.values(), judge, store), strict=True):
        yield Score(row["cell"], _setting(row), CAS, row["document"], given["cas"])


def outcome(answer: str, attribute: str, person: str, value: str | None, alone: bool) -> str:
    """What an answer makes of an attribute: :data:`EXACT`, :data:`ABSTAINED` or :data:`WRONG`.

    ``value`` is None where the document does not state it; ``alone`` where nothing else was asked: the answer must
    then be the one sentence and nothing else.
    """
    if alone:
        if value is not None and answer == summary(attribute, person, value):
            return EXACT
        return ABSTAINED if answer == abstention(attribute, person) else WRONG
    stated = extract(answer, attribute, person)
    if stated == value:
        return EXACT
    return ABSTAINED if summary(attribute, person, stated) == abstention(attribute, person) else WRONG


def f1(answer: str, golds: Iterable[str]) -> float:
    """SQuAD's F1 of an answer's tokens, against the best of the gold answers."""
    return max(token_f1(answer, gold) for gold in golds)


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """SQuAD's exact match: 1 where the answer is a gold answer in normal form."""
    return float(any(normalise(answer) == normalise(gold) for gold in golds))


def abstains(answer: str, attribute: str, person: str) -> bool:
    """Whether an answer says that the value is unknown."""
    return " ".join(normalise(extract(answer, attribute, person))).startswith(_UNKNOWN)


def found(answer: str, attribute: str, person: str, values: Iterable[str]) -> bool:
    """Whether an answer gives one of the values, in SQuAD's normal form and in one piece, see :data:`FURTHER_WORDS`."""
    words = normalise(extract(answer, attribute, person))
    free = not about(answer, attribute, person) and in_free_words(answer, attribute)
    most = FREE_WORDS if free else FURTHER_WORDS
    for wanted in map(normalise, values):
        places = range(len(words) - len(wanted) + 1)
        if len(words) <= len(wanted) + most and any(words[n : n + len(wanted)] == wanted for n in places):
            return True
    return False
