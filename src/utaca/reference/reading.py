"""How far the rules of labeller and judge, and string match, agree with a second reading of readers' answers.

The reading is a JSONL file, a row an answer: the ``set`` that it is of, what was asked (``person``, ``attribute`` and
the ``sentence`` that answers, or a ``question``), ``references``, ``prediction``, its ``score`` from 0 to 1, its
``tokens`` and their ``labels`` (0 hallucinated, 1 correct, 2 unknown, null where a token has neither letter nor digit).
data/annotations/README.md says how the shipped one was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from utaca.errors import UserError
from utaca.judging.strings import string_match
from utaca.reference import judge, labeller
from utaca.reference.agreement import PASS, TOLERANCE
from utaca.reporting import statistics

Row = Mapping[str, Any]
_NEEDED = ("set", "references", "prediction", "score", "tokens", "labels")


def read(path: Path) -> list[Row]:
    """The rows of a file. Raises :class:`UserError` where it cannot be read or a row lacks something."""
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except OSError as fault:
        raise UserError(f"{path} cannot be read ({fault.strerror})") from fault
    except ValueError as fault:
        raise UserError(f"{path} holds a line that is no JSON ({fault})") from fault
    for number, row in enumerate(rows, 1):
        asked = ("question",) if "question" in row else ("person", "attribute", "sentence")
        if lacking := [key for key in (*asked, *_NEEDED) if key not in row]:
            raise UserError(f"{path} line {number} has no {lacking[0]}; data/annotations/README.md lists the keys")
        if len(row["tokens"]) != len(row["labels"]):
            raise UserError(f"{path} line {number} has {len(row['tokens'])} tokens and {len(row['labels'])} labels")
    return rows


def labels(row: Row) -> list[tuple[int, int]]:
    """Label by the reading and by the rules, of each token of an answer that the reading labels."""
    tokens = list(enumerate(row["tokens"]))
    if "question" in row:
        given = labeller.label_answer(row["question"], row["references"], tokens)
    else:
        given = labeller.label(row["person"], row["attribute"], row["references"][0], row["sentence"], tokens)
    by_rule = {index: value for index, value, _ in given}
    return [(read, by_rule[index]) for index, read in enumerate(row["labels"]) if read is not None]


def scores(row: Row) -> tuple[float, float, float]:
    """Score of an answer by the reading, by the judge's rules and by string match, the best over references."""
    attribute = row.get("attribute", "")
    question = row.get("question") or f"What is the {attribute} of {row['person']}?"
    said = row["prediction"]
    return (
        row["score"],
        max(judge.score(question, attribute, said, wanted)[0] for wanted in row["references"]),
        max(string_match(said, wanted) for wanted in row["references"]),
    )


def table(rows: Sequence[Row]) -> str:
    """Agreement and Cohen's kappa of labels, by set and over all, and of scores, as a Markdown table."""
    judged = [scores(row) for row in rows]
    lines = [f"| | what | agreement | Cohen's kappa | within {TOLERANCE} |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in [*dict.fromkeys(row["set"] for row in rows), ""]:
        found = [pair for row in rows if name in (row["set"], "") for pair in labels(row)]
        lines.append(_line(f"labels, {name or 'all'}", f"{len(found)} tokens", found, "–"))
    for place, name in ((1, "CAS"), (2, "string match")):
        passed = [(int(one[0] >= PASS), int(one[place] >= PASS)) for one in judged]
        close = sum(abs(one[0] - one[place]) <= TOLERANCE for one in judged) / max(len(judged), 1)
        lines.append(_line(f"{name}, passed at {PASS}", f"{len(judged)} answers", passed, f"{close:.1%}"))
    return "\n".join(lines)


def _line(name: str, what: str, pairs: Sequence[tuple[int, int]], close: str) -> str:
    agreed = sum(a == b for a, b in pairs) / max(len(pairs), 1)
    return f"| {name} | {what} | {agreed:.1%} | {kappa(pairs):.3f} | {close} |"


def kappa(pairs: Sequence[tuple[int, int]]) -> float:
    """Cohen's kappa of pairs of classes 0, 1, 2; NaN where chance alone agrees always."""
    confusion = np.zeros((3, 3))
    for pair in pairs:
        confusion[pair] += 1
    return float(statistics.kappa(confusion))
