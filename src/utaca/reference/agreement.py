"""How far the rules of the judge agree with scores given by hand.

The pairs are a CSV file with the columns kind, part, attribute, prediction, reference, score and note; the answers are
about :data:`PERSON`. The rules are made with the part "development" in view. Every third pair of each kind is "held
out". The tables of names come from the hand that wrote those two; pairs "later" were written and scored when the rules
and tables stood. By the "second development", of answers as people write them, both were mended; "kept" is its other
half, which nobody looked at until they stood: it tells best how far the rules can be trusted. Where the note of a pair
says "whole answer", the judge is handed what :func:`utaca.judging.cas.extract` takes from the prediction.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from utaca.errors import UserError
from utaca.judging.cas import extract
from utaca.reference import judge

PERSON = "Clara Weiss"
PASS = 0.5
TOLERANCE = 0.25

PARTS = ("development", "held out", "later", "second development", "kept")

_COLUMNS = ["kind", "part", "attribute", "prediction", "reference", "score", "note"]
_EXACT = 0.01  # Hand scores are written with two decimals.


@dataclass(frozen=True)
class Pair:
    """A prediction with its score by hand (``wanted``) and by the rules (``given``)."""

    kind: str
    part: str
    attribute: str
    prediction: str
    reference: str
    note: str
    wanted: float
    given: float
    reason: str

    @property
    def difference(self) -> float:
        return abs(self.given - self.wanted)

    @property
    def exact(self) -> bool:
        return self.difference <= _EXACT

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE

    @property
    def false_pass(self) -> bool:
        return self.given >= PASS and self.wanted == 0


def read(path: Path) -> list[Pair]:
    """The pairs of a file, each with its score by the rules."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(lines)
            if rows.fieldnames != _COLUMNS:
                raise UserError(f"{path} must have the columns {', '.join(_COLUMNS)}")
            pairs = []
            for row in rows:
                question = f"What is the {row['attribute']} of {PERSON}?"
                if "whole answer" in row["note"]:
                    row["prediction"] = extract(row["prediction"], row["attribute"], PERSON)
                given, reason = judge.score(question, row["attribute"], row["prediction"], row["reference"])
                own = {name: row[name] for name in _COLUMNS if name != "score"}
                pairs.append(Pair(**own, wanted=float(row["score"]), given=given, reason=reason))
    except OSError as fault:
        raise UserError(f"{path} cannot be read ({fault.strerror})") from fault
    except ValueError as fault:
        raise UserError(f"{path} has a score that is no number ({fault})") from fault
    return pairs


def table(pairs: Sequence[Pair]) -> str:
    """Agreement by kind and by part, as a Markdown table, and the disagreements below it."""
    kinds: dict[str, Callable[[Pair], bool]] = {
        kind: lambda pair, kind=kind: pair.kind == kind for kind in dict.fromkeys(pair.kind for pair in pairs)
    }
    parts: dict[str, Callable[[Pair], bool]] = {
        **{f"**{part}**": lambda pair, part=part: pair.part == part for part in PARTS},
        "**all**": lambda pair: True,
    }
    lines = [
        f"| kind | pairs | exact | within {TOLERANCE} | mean difference | false passes |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_line(name, list(filter(chosen, pairs))) for name, chosen in (kinds | parts).items()),
    ]
    differing = [
        f"- {pair.kind} ({pair.part}): {pair.attribute}, {pair.prediction!r} for "
        f"{pair.reference!r}: {pair.given:.2f} by rule ({pair.reason}), {pair.wanted:.2f} by hand"
        for pair in pairs
        if not pair.agrees
    ]
    return "\n".join([*lines, "", f"Further apart than {TOLERANCE}: {len(differing)}", "", *differing])


def _line(name: str, pairs: Sequence[Pair]) -> str:
    count = len(pairs)
    exact, agreed = _share(pair.exact for pair in pairs), _share(pair.agrees for pair in pairs)
    mean = sum(pair.difference for pair in pairs) / max(count, 1)
    return f"| {name} | {count} | {exact} | {agreed} | {mean:.3f} | {sum(pair.false_pass for pair in pairs)} |"


def _share(hits: Iterable[bool]) -> str:
    found = list(hits)
    return f"{sum(found) / len(found):.1%}" if found else "-"
