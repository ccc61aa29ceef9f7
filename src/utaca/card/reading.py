"""A reader's answers to the questions of the card, journaled document by document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from utaca.card.material import Document
from utaca.decoding.loop import generate
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.records import SCHEMAS, progress
from utaca.records.journal import Journal


def read(
    reader: Reader, cell: str, documents: Sequence[Document], budgets: Sequence[int | None], journal: Journal
) -> pa.Table:
    """Answers of schema "readings" to all questions of the documents, in their order, under every budget in turn.

    Budgets are in blocks; None is full attention. A document is prefilled once for its budgets of either kind, and not
    at all where its answers are in the journal.
    """
    tables = []
    for document in progress(documents, total=len(documents), unit="document", description=f"card {cell}"):

        @cache
        def memory(clipped: bool, document: Document = document) -> BlockMemory:
            return prefill(reader, document.text(), clipped=clipped)

        for budget in budgets:
            item = f"{document.id}/{'full' if budget is None else f'K{budget}'}"
            tables.append(
                journal.table(item, lambda d=document, b=budget, m=memory: _answers(m(b is not None), cell, d, b))
            )
    return pa.concat_tables(tables)


def _answers(memory: BlockMemory, cell: str, document: Document, budget: int | None) -> pa.Table:
    """A document's rows under one budget."""
    reader = memory.reader
    rows: list[dict[str, Any]] = []
    for number, asked in enumerate(document.questions):
        answer = generate(
            memory,
            question([attribute for attribute, _ in asked.facts], asked.person, reader.settings.prompt),
            budget=max(1, memory.layout.blocks(len(memory))) if budget is None else budget,
            max_new_tokens=reader.settings.max_new_tokens * len(asked.facts),
        )
        common = {"cell": cell, "document": document.id, "question": number, "budget": budget}
        common |= {"person": asked.person, "answer": answer.text, "n_context": len(memory)}
        rows += [{**common, "attribute": attribute, "value": value} for attribute, value in asked.facts]
    return pa.Table.from_pylist(rows, schema=SCHEMAS["readings"])
