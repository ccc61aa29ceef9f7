"""Trajectories: answers under fixed compact budgets, with the signals that the detector learns from.

Paper, section 4.1: the context window is constrained during decoding, logits and embeddings are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from utaca.decoding.loop import Decoding, Generation, generate_together
from utaca.decoding.signals import SIGNALS
from utaca.memory import prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.records import progress, trajectory_schema
from utaca.records.journal import Journal
from utaca.settings import schema
from utaca.settings.schema import Trajectories


def ask(reader: Reader, document: Mapping[str, Any]) -> tuple[str, int]:
    """The question about all facts of a document (a row of schema "documents"), and the longest answer in tokens."""
    attributes = [fact["attribute"] for fact in document["facts"]]
    text = question(attributes, document["person"], reader.settings.prompt)
    return text, reader.settings.max_new_tokens * len(attributes)


def trajectories(
    reader: Reader,
    documents: Sequence[Mapping[str, Any]],
    budgets: Sequence[int],
    recorded: Trajectories,
    journal: Journal,
) -> pa.Table:
    """One answer a document and budget, a row a token (:func:`utaca.records.trajectory_schema`)."""

    def decode(document: Mapping[str, Any]) -> pa.Table:
        memory = prefill(reader, document["text"])
        text, longest = ask(reader, document)
        options = {"max_new_tokens": longest, "expanded": recorded.expanded, "measured": True}
        # Budgets share their passes: a pass of three rows takes little more than one of a single row.
        answers = generate_together([Decoding(memory, text, budget, **options) for budget in budgets])
        return pa.concat_tables(
            _table(reader, document["id"], budget, answer, recorded.sites)
            for budget, answer in zip(budgets, answers, strict=True)
        )

    bar = progress(documents, total=len(documents), unit="document", description="trajectories")
    return pa.concat_tables([journal.table(document["id"], lambda d=document: decode(d)) for document in bar])


def _table(reader: Reader, document: str, budget: int, generation: Generation, sites: Sequence[str]) -> pa.Table:
    trace = generation.trace
    finish = [""] * (len(trace) - 1) + [generation.finish]

    def embedding(site: str) -> pa.Array:
        rows = np.stack([t.embeddings[site].float().cpu().numpy() for t in trace]).astype(np.float16)
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), reader.width)

    expanded = [t.probe for t in trace]
    top10 = np.stack([t.top10.float().cpu().numpy() for t in trace])
    columns = [
        pa.array([document] * len(trace)),
        pa.array([budget] * len(trace), pa.int32()),
        pa.array(range(len(trace)), pa.int32()),
        pa.array([t.token for t in trace], pa.int32()),
        pa.array([t.text for t in trace]),
        pa.array([t.logprob for t in trace], pa.float32()),
        *(pa.array([SIGNALS[name](t) for t in trace], pa.float32()) for name in schema.SIGNALS),
        pa.FixedSizeListArray.from_arrays(pa.array(top10.ravel()), 10),
        *(embedding(site) for site in sites),
        pa.array([t and t.token for t in expanded], pa.int32()),
        pa.array([t and t.logprob for t in expanded], pa.float32()),
        pa.array([[ids.tolist() for ids in t.selected] for t in trace], pa.list_(pa.list_(pa.int32()))),
        pa.array(finish),
    ]
    return pa.Table.from_arrays(columns, schema=trajectory_schema(reader.width, sites))
