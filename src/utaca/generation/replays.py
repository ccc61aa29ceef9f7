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
    """A wrong decision of a detector: at ``step`` of the answer about ``document``, on a token of this ``text``."""

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
        if row["label"] is None or row["uncertain"] != (row["label"] == CORRECT):
            continue
        kind = FALSE_POSITIVE if row["uncertain"] else FALSE_NEGATIVE
        found.append(Decision(row["document"], row["step"], kind, row["text"]))
    return found


def drawn(decisions: Sequence[Decision], count: int, seed: int) -> list[Decision]:
    """At most ``count`` decisions of each kind, drawn by ``seed`` with equal chances; more of them hold the fewer."""
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
    """Rows of schema "replays": of each document with ``decisions``, its answer as decided and one answer a decision.

    ``label`` is the operating point's. The answer as decided is decoded again beside the others, so that all of them
    are rounded alike. ``together``: answers about a document share passes.
    """
    tables = [SCHEMAS["replays"].empty_table()]
    wanted = [(one, [x for x in decisions if x.document == one.document]) for one in asked]
    wanted = [(one, own) for one, own in wanted if own]
    for one, own in progress(wanted, total=len(wanted), unit="document", desc="replays"):

        def make(one: Asked = one, own: Sequence[Decision] = own) -> pa.Table:
            found = _generations(reader, one, method, detector, own, TOGETHER if together else 1)
            kinds = [None, *own]
            rows = [_row(one, label, decision, x) for decision, x in zip(kinds, found, strict=True)]
            return pa.Table.from_pylist(rows, SCHEMAS["replays"])

        about = digest([repr(method), label, repr(one), repr(own), together])
        tables.append(journal.table(f"{one.document}/{about}", make))
    return pa.concat_tables(tables)


def _generations(
    reader: Reader, one: Asked, method: Adaptive, detector: Detector, decisions: Sequence[Decision], together: int
) -> list[Generation]:
    """The answer to a question as decided, and with each of the ``decisions`` turned."""
    memory = method.base.read(reader, one.text, 0)
    options = method.options(detector) | {"max_new_tokens": one.longest, "prefix": one.prefix}
    turned: list[dict[int, bool]] = [{}, *({x.step: x.kind == FALSE_NEGATIVE} for x in decisions)]
    decodings = [
        Decoding(memory, one.question, **options | {"trigger": Replayed(options["trigger"], each)}) for each in turned
    ]
    generations = []
    for first in range(0, len(decodings), together):
        with side_by_side_room(together):
            generations += generate_together(decodings[first : first + together])
    return generations


def _row(one: Asked, label: str, decision: Decision | None, generation: Generation) -> dict[str, Any]:
    return {
        "document": one.document,
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
