"""Counterfactual replays: answers decoded again with one decision of their detector turned.

Paper, appendix "False-Positive and False-Negative Failure Cases": one unnecessary expansion is suppressed, or one
missed expansion is forced, and everything else runs on. The paper shows four decisions that were found by hand; here
decisions are drawn by chance from all that the labels call wrong.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from utaca.decoding.loop import generate_together
from utaca.decoding.options import Decoding
from utaca.decoding.triggers import Replayed
from utaca.detection.detector import Detector
from utaca.generation.answers import Asked, side_by_side_room
from utaca.methods.utaca import Adaptive
from utaca.readers.load import Reader
from utaca.records import SCHEMAS
from utaca.records.journal import Journal
from utaca.records.progress import progress
from utaca.records.schemas import AS_DECIDED, CORRECT, FALSE_NEGATIVE, FALSE_POSITIVE
from utaca.settings.checks import digest
from utaca.trace import Generation

TOGETHER = 16
"""Most answers that share passes."""


@dataclass(frozen=True)
class Decision:
    """A wrong decision of a detector, at a ``step`` of the answer about a ``document`` (its id).

    ``kind`` is :data:`FALSE_POSITIVE` or :data:`FALSE_NEGATIVE`; ``text`` is the token's.
    """

    document: str
    step: int
    kind: str
    text: str


def wrong_decisions(labels: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """The wrong decisions of one operating point, from its rows of schema "trace_labels".

    A token that was correct under the compact budget, and was expanded, is a false positive. A token that was wrong
    there, and was kept, is a false negative. Tokens without a label are neither.
    """
    found = []
    for row in labels:
        if row["label"] is None:
            continue
        expanded = row["uncertain"]
        correct = row["label"] == CORRECT
        if expanded and correct:
            found.append(Decision(row["document"], row["step"], FALSE_POSITIVE, row["text"]))
        elif not expanded and not correct:
            found.append(Decision(row["document"], row["step"], FALSE_NEGATIVE, row["text"]))
    return found


def drawn(decisions: Sequence[Decision], count: int, seed: int) -> list[Decision]:
    """Draw at most ``count`` decisions of each kind by ``seed``, with equal chances.

    A larger ``count`` adds decisions to those that a smaller one draws.
    """
    chosen: list[Decision] = []
    for kind in (FALSE_POSITIVE, FALSE_NEGATIVE):
        of_kind = [decision for decision in decisions if decision.kind == kind]
        order = random.Random(f"{seed}:replays:{kind}").sample(of_kind, len(of_kind))
        chosen += order[:count]
    return chosen


def replays(
    reader: Reader,
    asked: Sequence[Asked],
    label: str,
    method: Adaptive,
    detector: Detector,
    decisions: Sequence[Decision],
    journal: Journal,
    *,
    together: bool,
) -> pa.Table:
    """Decode the answers to ``asked`` again, with each of the ``decisions`` turned in an answer of its own.

    Returns rows of schema "replays". A question whose answer has no decision is left out. For each other question
    there is first the answer as decided: it is decoded again in the same passes as the turned ones, so that all of them
    are rounded alike. ``label`` is the operating point's, ``together`` says whether answers share passes.
    """
    tables = [SCHEMAS["replays"].empty_table()]
    decisions_about: dict[str, list[Decision]] = {question.document: [] for question in asked}
    for decision in decisions:
        if decision.document in decisions_about:
            decisions_about[decision.document].append(decision)
    wanted = [(question, decisions_about[question.document]) for question in asked]
    wanted = [(question, turned) for question, turned in wanted if turned]
    for question, turned in progress(wanted, total=len(wanted), unit="document", desc="replays"):
        # The defaults keep the values of this turn of the loop.

        def make(question: Asked = question, turned: Sequence[Decision] = turned) -> pa.Table:
            generations = _generations(reader, question, method, detector, turned, TOGETHER if together else 1)
            # The first answer is the one as decided.
            answers = zip([None, *turned], generations, strict=True)
            rows = [_row(question, label, decision, generation) for decision, generation in answers]
            return pa.Table.from_pylist(rows, SCHEMAS["replays"])

        identity = digest([repr(method), label, repr(question), repr(turned), together])
        tables.append(journal.table(f"{question.document}/{identity}", make))
    return pa.concat_tables(tables)


def _generations(
    reader: Reader, question: Asked, method: Adaptive, detector: Detector, decisions: Sequence[Decision], at_once: int
) -> list[Generation]:
    """Decode the answer to a question as decided, then with each of the ``decisions`` reversed.

    The passes of ``at_once`` answers are shared.
    Raises :class:`UserError` if memory does not suffice for so many answers side by side.
    """
    # Block memory is read without room for the question and the answer (0 tokens).
    memory = method.base.read(reader, question.text, 0)
    options = method.options(detector) | question.options
    # A missed expansion is forced (True), an unnecessary one suppressed (False).
    overrides: list[dict[int, bool]] = [{}]
    overrides += [{decision.step: decision.kind == FALSE_NEGATIVE} for decision in decisions]
    decodings = []
    for override in overrides:
        replayed = {"trigger": Replayed(options["trigger"], override)}
        decodings.append(Decoding(memory, question.question, **options | replayed))
    generations = []
    for first in range(0, len(decodings), at_once):
        with side_by_side_room(at_once):
            generations += generate_together(decodings[first : first + at_once])
    return generations


def _row(question: Asked, label: str, decision: Decision | None, generation: Generation) -> dict[str, Any]:
    """A row of schema "replays": an answer with ``decision`` turned, or as decided if that is None."""
    return {
        "document": question.document,
        "point": label,
        "kind": decision.kind if decision else AS_DECIDED,
        "step": decision.step if decision else None,
        "token": decision.text if decision else None,
        "text": generation.text,
        "n_generated": len(generation.trace),
        "selected": generation.mean_selected_tokens,
        "selected_with_tentative": generation.mean_selected_with_tentative,
        "rollbacks": generation.rollbacks,
    }
