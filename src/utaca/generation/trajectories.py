"""Trajectories: answers under fixed compact budgets, with the signals that the detector learns from.

Paper, section 4.1: the context window is constrained during decoding, logits and embeddings are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import torch

from utaca.decoding.loop import Decoding, generate_together
from utaca.generation.answers import Asked
from utaca.generation.points import on_host
from utaca.memory import prefill
from utaca.memory.kept import Kept
from utaca.readers.load import Reader
from utaca.records import progress, trajectory_schema
from utaca.records.journal import Journal
from utaca.settings import schema
from utaca.settings.checks import digest
from utaca.settings.schema import Trajectories
from utaca.trace import Generation


def trajectories(
    reader: Reader,
    asked: Sequence[Asked],
    budgets: Sequence[int],
    recorded: Trajectories,
    journal: Journal,
    kept: Kept | None = None,
) -> pa.Table:
    """One answer a document and budget, a row a token (:func:`utaca.records.trajectory_schema`).

    Documents are ``kept`` for a later stage that asks about them, where there is one.
    """

    def decode(one: Asked) -> pa.Table:
        memory = kept.read(reader, one.text)[0] if kept else prefill(reader, one.text)
        options = {"max_new_tokens": one.longest, "expanded": recorded.expanded, "measured": True, "prefix": one.prefix}
        # Budgets share their passes: a pass of three rows takes little more than one of a single row.
        answers = generate_together([Decoding(memory, one.question, budget, **options) for budget in budgets])
        return pa.concat_tables(
            _table(reader, one.document, budget, answer, recorded.sites)
            for budget, answer in zip(budgets, answers, strict=True)
        )

    bar = progress(asked, total=len(asked), unit="document", description="trajectories")
    return pa.concat_tables(
        [journal.table(f"{one.document}/{digest(one)}", lambda one=one: decode(one)) for one in bar]
    )


def _table(reader: Reader, document: str, budget: int, generation: Generation, sites: Sequence[str]) -> pa.Table:
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
        pa.array([token.token for token in trace], pa.int32()),
        pa.array([token.text for token in trace]),
        pa.array([token.logprob for token in trace], pa.float32()),
        *(pa.array([token.signals[name] for token in trace], pa.float32()) for name in schema.SIGNALS),
        pa.FixedSizeListArray.from_arrays(pa.array(logits, pa.float32()), 10),
        *(embedding(site) for site in sites),
        pa.array([one and one.token for one in expanded], pa.int32()),
        pa.array([one and one.logprob for one in expanded], pa.float32()),
        pa.array(on_host([token.selected for token in trace]), pa.list_(pa.list_(pa.int32()))),
        pa.array(finish),
    ]
    return pa.Table.from_arrays(columns, schema=trajectory_schema(reader.width, sites))
