"""Trajectories: answers under compact budgets, or along paths, with the signals that the detector learns from.

Paper, section 4.1: the context window is constrained during decoding, logits and embeddings are recorded.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter

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
    """Answer each question under each budget, or along each path, and return one row per token.

    A text is read once for all questions about it that follow each other in ``asked``. The rows have
    :func:`utaca.records.trajectory_schema`. ``recorded`` are the config's settings of trajectories: which embeddings
    are recorded, and whether each token is also decoded under a large budget for comparison. ``signals`` are the
    signals that are recorded. All answers about a document share passes and, with ``together``, so do several short
    documents, because a pass takes little longer for several rows than for one. ``saved``, if given, saves the
    documents for a later stage that asks about them.
    """
    # With a comparison under a large budget, a pass has two rows for each answer.
    rows_per_answer = 2 if recorded.expanded else 1
    rows_per_question = len(budgets) * rows_per_answer
    bar = progress(total=len(asked), unit="document", desc="trajectories")
    tables: list[pa.Table] = []
    # Without `together`, each document is a group of its own.
    by_text = [[*same] for _, same in groupby(asked, key=attrgetter("text"))]
    for group in side_by_side(by_text, rows_per_question if together else 0):
        questions = [question for document in group for question in document]
        decoded = cache(partial(_decoded, reader, questions, budgets, recorded, signals, saved))
        for place, question in enumerate(questions):
            # Rounding depends on what shares passes, so if one question is missing, its whole group is decoded again.
            make = lambda decoded=decoded, place=place: decoded()[place]  # noqa: E731
            tables.append(journal.table(f"{question.document}/{digest(question)}", make))
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
    """Decode all answers to ``questions`` in shared passes; return a table of trajectories for each question."""
    with side_by_side_room(len(questions) * len(budgets)):
        decodings = []
        memories: dict[int, BlockMemory] = {}
        text = None
        for question in questions:
            steps = [_steps(budget, question.longest) for budget in budgets]
            if question.text != text:
                text = question.text
                memories = _memories(reader, text, [max(budgets_of_steps) for budgets_of_steps in steps], saved)
            decodings += _decodings(question, memories, steps, recorded, signals)
        # In the order of the decodings: for each question, an answer under each budget.
        generations = iter(generate_together(decodings))
    tables = []
    for question in questions:
        answers = []
        for budget in budgets:
            # The rows of a path name the budget that it begins with.
            named = budget.budget if isinstance(budget, PathSettings) else budget
            answers.append(_table(reader, question.document, named, next(generations), recorded.sites, signals))
        tables.append(pa.concat_tables(answers))
    return tables


def _decodings(
    question: Asked,
    memories: Mapping[int, BlockMemory],
    budgets_of_steps: Sequence[Sequence[int]],
    recorded: TrajectorySettings,
    signals: Sequence[str],
) -> list[Decoding]:
    """Describe the question's answer under the budgets of each list of steps, yet to be decoded.

    ``memories`` has the document, by the largest budget of the steps.
    """
    decodings = []
    for steps in budgets_of_steps:
        largest = max(steps)
        # Tokens are compared under a budget that is at least the answer's own.
        expanded = recorded.expanded if recorded.expanded >= largest else 0
        decoding = Decoding(
            memories[largest],
            question.question,
            steps,
            expanded=expanded,
            measured=signals,
            **question.options,
        )
        decodings.append(decoding)
    return decodings


def _memories(
    reader: Reader, text: str, budgets: Sequence[int], saved: SavedDocuments | None
) -> dict[int, BlockMemory]:
    """Read a document into block memory; return the memory for answers under each budget, by budget.

    All budgets have the same memory, unless the reader reads a document under the budget of its answers
    (``reader.memory.prefill_budget=-1``).
    """

    def read(budget: int) -> BlockMemory:
        return saved.read(reader, text, budget).memory if saved else prefill(reader, text, budget=budget)

    if reader.settings.memory.prefill_budget == schema.OWN:
        return {budget: read(budget) for budget in budgets}
    return dict.fromkeys(budgets, read(budgets[0]))


def _steps(budget: int | PathSettings, longest: int) -> list[int]:
    """The budget of each step of an answer of ``longest`` tokens; a single item holds for all steps."""
    if isinstance(budget, PathSettings):
        return path(parse(budget.policy), budget.budget, budget.every, longest)
    return [budget]


def _table(
    reader: Reader, document: str, budget: int, generation: Generation, sites: Sequence[str], signals: Sequence[str]
) -> pa.Table:
    """An answer's trajectory, one row per token (:func:`utaca.records.trajectory_schema`).

    ``sites`` name the recorded embeddings, ``signals`` the recorded signals.
    """
    trace = generation.trace
    # Only the last token's row says how the answer ended.
    finish = [""] * (len(trace) - 1) + [generation.finish]

    def embedding(site: str) -> pa.Array:
        """The column of a site's embeddings: for each token a list of ``reader.width`` numbers in float16."""
        vectors = torch.stack([token.embeddings[site] for token in trace]).float().cpu().to(torch.float16)
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.flatten().numpy()), reader.width)

    # The comparison pass of each token under the expanded budget, None if there was none.
    expanded = [token.probe for token in trace]
    # The ten best logits of each token, one token's after the other's.
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
        pa.array([probe and probe.token for probe in expanded], pa.int32()),
        pa.array([probe and probe.logprob for probe in expanded], pa.float32()),
        pa.array([token.selected.tolist() for token in trace], pa.list_(pa.list_(pa.int32()))),
        pa.array(finish),
    ]
    return pa.Table.from_arrays(columns, schema=trajectory_schema(reader.width, sites, signals))
