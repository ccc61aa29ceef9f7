"""A reader's answers to the questions of the card, journaled document by document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from utaca.card.material import Document, Question
from utaca.decoding.loop import Decoding, generate_together
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import natural, question
from utaca.records import SCHEMAS, progress
from utaca.records.journal import Journal

ROOM = 2048
"""Tokens of question and answer that full attention has room for."""

TOGETHER = 16
"""Most answers about a document that are decoded in shared passes."""


def read(
    reader: Reader,
    cell: str,
    documents: Sequence[Document],
    budgets: Sequence[int | None],
    journal: Journal,
    prefill_budgets: Sequence[int | None] = (None,),
) -> pa.Table:
    """Answers of schema "readings" to all questions of the documents, in their order, under every budget in turn.

    Budgets are in blocks; None is full attention, as prefill budget the reader's own. A document is prefilled once for
    its budgets of either kind under each prefill budget, and not at all where its answers are in the journal.
    """
    tables = []
    for document in progress(documents, total=len(documents), unit="document", description=f"card {cell}"):
        for chunk_budget in prefill_budgets:

            @cache
            def memory(clipped: bool, document: Document = document, budget: int | None = chunk_budget) -> BlockMemory:
                tokens = reader.encode_document(document.text())
                # Full attention is a window that holds everything.
                changed = {} if clipped else {"n_local": len(tokens) + ROOM}
                with _memory(reader, **changed, **({} if budget is None else {"prefill_budget": budget})):
                    return prefill(reader, tokens, clipped=clipped)

            whole, blocks = [b for b in budgets if b is None], [b for b in budgets if b is not None]
            for own in filter(None, (whole, blocks)):
                item = f"{document.id}/{own}" + ("" if chunk_budget is None else f"-prefill{chunk_budget}")
                tables.append(
                    journal.table(
                        item,
                        lambda d=document, p=chunk_budget, b=own, m=memory: _answers(
                            m(b[0] is not None), cell, d, p, b
                        ),
                    )
                )
    return pa.concat_tables(tables)


@contextmanager
def _memory(reader: Reader, **changed: int) -> Iterator[None]:
    """The reader with other settings of its memory, for the block."""
    settings = reader.settings
    reader.settings = replace(settings, memory=replace(settings.memory, **changed))
    try:
        yield
    finally:
        reader.settings = settings


def _answers(
    memory: BlockMemory, cell: str, document: Document, prefill_budget: int | None, budgets: Sequence[int | None]
) -> pa.Table:
    """A document's rows under some budgets, which share passes."""
    reader = memory.reader
    numbered = [(budget, *each) for budget in budgets for each in enumerate(document.questions)]
    decodings = [
        Decoding(
            memory,
            _words(asked, reader),
            budget=1 if budget is None else budget,
            max_new_tokens=reader.settings.max_new_tokens * len(asked.facts),
        )
        for budget, _, asked in numbered
    ]
    answers = [
        answer
        for first in range(0, len(decodings), TOGETHER)
        for answer in generate_together(decodings[first : first + TOGETHER])
    ]
    rows: list[dict[str, Any]] = []
    for (budget, number, asked), answer in zip(numbered, answers, strict=True):
        common = {"cell": cell, "document": document.id, "question": number, "budget": budget}
        common |= {"prefill_budget": prefill_budget, "person": asked.person, "answer": answer.text}
        common |= {"n_context": len(memory)}
        rows += [
            {**common, "attribute": attribute, "value": value, "also": list(asked.also.get(attribute, ()))}
            for attribute, value in asked.facts
        ]
    return pa.Table.from_pylist(rows, schema=SCHEMAS["readings"])


def _words(asked: Question, reader: Reader) -> str:
    style = reader.settings.prompt
    if asked.text:
        return natural(asked.text, style)
    return question([attribute for attribute, _ in asked.facts], asked.person, style)
