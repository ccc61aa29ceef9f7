"""Trajectories: answers under compact budgets, or along paths, with the signals that the detector learns from.

Paper, section 4.1: the context window is constrained during decoding, logits and embeddings are recorded.
"""

from collections.abc import Sequence
from functools import cache, partial

import pyarrow as pa
import torch

from utaca.decoding.loop import generate_together
from utaca.decoding.options import Decoding
from utaca.decoding.policies import parse, path
from utaca.generation.answers import Asked, side_by_side_room
from utaca.generation.points import side_by_side
from utaca.memory import BlockMemory, prefill
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader
from utaca.records import trajectory_schema
from utaca.records.journal import Journal
from utaca.records.progress import progress
from utaca.settings import schema
from utaca.settings.checks import digest
from utaca.settings.schema import PathSettings, TrajectorySettings
from utaca.trace import Generation


def trajectories(
    reader: Reader,
    asked: Sequence[Asked],
    budgets: Sequence[int | PathSettings],
    recorded: TrajectorySettings,
    journal: Journal,
    saved: SavedDocuments | None = None,
    *,
    signals: Sequence[str] = schema.RECORDED,
    together: bool = True,
) -> pa.Table:
    """One answer per document and budget or path, one row per token (:func:`utaca.records.trajectory_schema`).

    The budgets of a document and, with ``together``, several short documents share passes, which take little longer
    than passes of a single row. ``signals`` are those that are recorded. ``saved``, if given, saves the documents for a
    later stage that asks about them.
    """
    rows = len(budgets) * (2 if recorded.expanded else 1) if together else 0
    bar = progress(total=len(asked), unit="document", desc="trajectories")
    tables: list[pa.Table] = []
    for group in side_by_side([[one] for one in asked], rows):
        questions = [one for document in group for one in document]
        decoded = cache(partial(_decoded, reader, questions, budgets, recorded, signals, saved))
        for place, one in enumerate(questions):
            # Rounding depends on what shares passes, so if one question is missing, its whole group is decoded again.
            make = lambda decoded=decoded, place=place: decoded()[place]  # noqa: E731
            tables.append(journal.table(f"{one.document}/{digest(one)}", make))
        bar.update(len(questions))
    bar.close()
    return pa.concat_tables(tables)


def _decoded(
    reader: Reader,
    questions: Sequence[Asked],
    budgets: Sequence[int | PathSettings],
    recorded: TrajectorySettings,
    signals: Sequence[str],
    saved: SavedDocuments | None,
) -> list[pa.Table]:
    """The trajectories of each question, decoded in shared passes."""
    decodings = []
    with side_by_side_room(len(questions) * len(budgets)):
        for one in questions:
            about = {"max_new_tokens": one.longest, "prefix": one.prefix, "measured": signals}
            each = [_steps(budget, one.longest) for budget in budgets]
            memories = _memories(reader, one.text, [max(steps) for steps in each], saved)
            for steps in each:
                expanded = recorded.expanded if recorded.expanded >= max(steps) else 0
                decodings.append(Decoding(memories[max(steps)], one.question, steps, expanded=expanded, **about))
        generations = generate_together(decodings)
    answers = iter(generations)
    return [
        pa.concat_tables(
            _table(reader, one.document, getattr(budget, "budget", budget), next(answers), recorded.sites, signals)
            for budget in budgets
        )
        for one in questions
    ]


def _memories(
    reader: Reader, text: str, budgets: Sequence[int], saved: SavedDocuments | None
) -> dict[int, BlockMemory]:
    """A document as it is read for answers under each budget: once, or once a budget if the reader wants it so."""

    def read(budget: int) -> BlockMemory:
        return saved.read(reader, text, budget).memory if saved else prefill(reader, text, budget=budget)

    if reader.settings.memory.prefill_budget == schema.OWN:
        return {budget: read(budget) for budget in budgets}
    return dict.fromkeys(budgets, read(budgets[0]))


def _steps(budget: int | PathSettings, longest: int) -> list[int]:
    """The budget of each of ``longest`` steps."""
    if isinstance(budget, PathSettings):
        return path(parse(budget.policy), budget.budget, budget.every, longest)
    return [budget]


def _table(
    reader: Reader, document: str, budget: int, generation: Generation, sites: Sequence[str], signals: Sequence[str]
) -> pa.Table:
    trace = generation.trace
    finish = [""] * (len(trace) - 1) + [generation.finish]

    def embedding(site: str) -> pa.Array:
        rows = torch.stack([token.embeddings[site] for token in trace]).float().cpu().to(torch.float16)
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.flatten().numpy()), reader.width)

    expanded = [token.probe for token in trace]
    logits = [logit for token in trace for logit in token.top_logits]
    columns = [
        pa.array([document] * len(trace)),
        pa.array([budget] * len(trace), pa.int32()),
        pa.array(range(len(trace)), pa.int32()),
        pa.array([token.k for token in trace], pa.int32()),
        pa.array([token.token for token in trace], pa.int32()),
        pa.array([token.text for token in trace]),
        pa.array([token.logprob for token in trace], pa.float32()),
        *(pa.array([token.signals[name] for token in trace], pa.float32()) for name in signals),
        pa.FixedSizeListArray.from_arrays(pa.array(logits, pa.float32()), 10),
        *(embedding(site) for site in sites),
        pa.array([one and one.token for one in expanded], pa.int32()),
        pa.array([one and one.logprob for one in expanded], pa.float32()),
        pa.array([token.selected.tolist() for token in trace], pa.list_(pa.list_(pa.int32()))),
        pa.array(finish),
    ]
    return pa.Table.from_arrays(columns, schema=trajectory_schema(reader.width, sites, signals))
