"""How far the rules of labeller and judge agree with scores by hand and with a second reading of readers' answers.

``python bench/rules.py`` prints both as Markdown, of the shipped files or of others (``--pairs``, ``--reading``).

Pairs are a CSV file with the columns kind, part, attribute, prediction, reference, score and note; the answers are
about :data:`PERSON`. The rules are made with the part "development" in view. Every third pair of each kind is "held
out". The tables of names come from the hand that wrote those two; pairs "later" were written and scored when the rules
and tables stood. The "second development" has answers as people write them, and both were improved with it in view.
"kept" is its other half. Nobody looked at it until the rules and tables were final, so it shows best how far they can
be trusted. If the note of a pair says "whole answer", the judge is handed what :func:`utaca.judging.cas.extract` takes
from the prediction.

A reading is a JSONL file, a row an answer: the ``set`` that it is of, what was asked (``person``, ``attribute`` and
the ``sentence`` that answers, or a ``question``), ``references``, ``prediction``, its ``score`` from 0 to 1, its
``tokens`` and their ``labels`` (0 hallucinated, 1 correct, 2 unknown, null where a token has neither letter nor digit).
data/annotations/README.md says how the shipped one was made.
"""

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utaca.judging.cas import extract
from utaca.judging.rules import judge, labeller
from utaca.judging.strings import string_match
from utaca.reporting import statistics

ROOT = Path(__file__).parents[1]
PAIRS = ROOT / "tests" / "data" / "judge_pairs.csv"
READING = ROOT / "data" / "annotations" / "reading.jsonl"

PERSON = "Clara Weiss"
PASS = 0.5
TOLERANCE = 0.25
PARTS = ("development", "held out", "later", "second development", "kept")

_EXACT = 0.01  # Hand scores are written with two decimals.

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """A prediction with its score by hand (``wanted``) and by the rules (``scored``)."""

    kind: str
    part: str
    attribute: str
    prediction: str
    reference: str
    note: str
    wanted: float
    scored: float
    reason: str

    @property
    def difference(self) -> float:
        return abs(self.scored - self.wanted)

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE

    @property
    def false_pass(self) -> bool:
        return self.scored >= PASS and self.wanted == 0


def read_pairs(path: Path = PAIRS) -> list[Pair]:
    """The pairs of a file, each with its score by the rules."""
    pairs = []
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            wanted = float(row.pop("score"))
            attribute = row["attribute"]
            if "whole answer" in row["note"]:
                row["prediction"] = extract(row["prediction"], attribute, PERSON)
            question = f"What is the {attribute} of {PERSON}?"
            scored, reason = judge.score(question, attribute, row["prediction"], row["reference"])
            pairs.append(Pair(**row, wanted=wanted, scored=scored, reason=reason))
    return pairs


def table_of_pairs(pairs: Sequence[Pair]) -> str:
    """Agreement by kind and by part, as a Markdown table, and the disagreements below it."""
    groups = {kind: [pair for pair in pairs if pair.kind == kind] for kind in dict.fromkeys(p.kind for p in pairs)}
    groups |= {f"**{part}**": [pair for pair in pairs if pair.part == part] for part in PARTS}
    lines = [
        f"| kind | pairs | exact | within {TOLERANCE} | mean difference | false passes |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_pairs_line(name, group) for name, group in {**groups, "**all**": pairs}.items()),
    ]
    differing = [
        f"- {pair.kind} ({pair.part}): {pair.attribute}, {pair.prediction!r} for "
        f"{pair.reference!r}: {pair.scored:.2f} by rule ({pair.reason}), {pair.wanted:.2f} by hand"
        for pair in pairs
        if not pair.agrees
    ]
    return "\n".join([*lines, "", f"Further apart than {TOLERANCE}: {len(differing)}", "", *differing])


def _pairs_line(name: str, pairs: Sequence[Pair]) -> str:
    if not pairs:
        return f"| {name} | 0 | - | - | 0.000 | 0 |"
    exact = sum(pair.difference <= _EXACT for pair in pairs) / len(pairs)
    agreed = sum(pair.agrees for pair in pairs) / len(pairs)
    mean = sum(pair.difference for pair in pairs) / len(pairs)
    false_passes = sum(pair.false_pass for pair in pairs)
    return f"| {name} | {len(pairs)} | {exact:.1%} | {agreed:.1%} | {mean:.3f} | {false_passes} |"


def read_answers(path: Path = READING) -> list[Row]:
    """The rows of a second reading."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def labels(row: Row) -> list[tuple[int, int]]:
    """Label by the reading and by the rules, of each token of an answer that the reading labels."""
    tokens = list(enumerate(row["tokens"]))
    if "question" in row:
        labelled = labeller.label_answer(row["question"], row["references"], tokens)
    else:
        labelled = labeller.label(row["person"], row["attribute"], row["references"][0], row["sentence"], tokens)
    by_rule = {index: value for index, value, _ in labelled}
    return [(read, by_rule[index]) for index, read in enumerate(row["labels"]) if read is not None]


def scores(row: Row) -> tuple[float, float, float]:
    """Score of an answer by the reading, by the judge's rules and by string match, the best over references."""
    attribute = row.get("attribute", "")
    prediction = row["prediction"]
    question = row.get("question") or f"What is the {attribute} of {row['person']}?"
    return (
        row["score"],
        max(judge.score(question, attribute, prediction, wanted)[0] for wanted in row["references"]),
        max(string_match(prediction, wanted) for wanted in row["references"]),
    )


def table_of_reading(rows: Sequence[Row]) -> str:
    """Agreement and Cohen's kappa of labels, by set and over all, and of scores, as a Markdown table."""
    judged = [scores(row) for row in rows]
    lines = [f"| | what | agreement | Cohen's kappa | within {TOLERANCE} |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in [*dict.fromkeys(row["set"] for row in rows), ""]:
        found = [pair for row in rows if name in (row["set"], "") for pair in labels(row)]
        lines.append(_reading_line(f"labels, {name or 'all'}", f"{len(found)} tokens", found, "–"))
    for place, name in ((1, "CAS"), (2, "string match")):
        passed = [(int(one[0] >= PASS), int(one[place] >= PASS)) for one in judged]
        close = sum(abs(one[0] - one[place]) <= TOLERANCE for one in judged) / max(len(judged), 1)
        lines.append(_reading_line(f"{name}, passed at {PASS}", f"{len(judged)} answers", passed, f"{close:.1%}"))
    return "\n".join(lines)


def _reading_line(name: str, what: str, pairs: Sequence[tuple[int, int]], close: str) -> str:
    agreed = sum(a == b for a, b in pairs) / max(len(pairs), 1)
    return f"| {name} | {what} | {agreed:.1%} | {kappa(pairs):.3f} | {close} |"


def kappa(pairs: Sequence[tuple[int, int]]) -> float:
    """Cohen's kappa of pairs of classes 0, 1, 2; NaN where chance alone agrees always."""
    confusion = np.zeros((3, 3))
    for pair in pairs:
        confusion[pair] += 1
    return float(statistics.kappa(confusion))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="CSV file of pairs scored by hand")
    parser.add_argument("--reading", type=Path, default=READING, help="JSONL file of a second reading")
    arguments = parser.parse_args()
    print(table_of_pairs(read_pairs(arguments.pairs)), table_of_reading(read_answers(arguments.reading)), sep="\n\n")


if __name__ == "__main__":
    main()
