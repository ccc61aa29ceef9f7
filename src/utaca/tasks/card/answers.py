"""A reader's answers to the questions of the card, journaled document by document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from utaca.decoding.loop import Decoding, generate_together
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import natural, question
from utaca.records import SCHEMAS, progress
from utaca.records.journal import Journal
from utaca.tasks.card.material import Document, Question

ROOM = 2048
"""Tokens of question and answer that full attention has room for."""

TOGETHER = 16
"""Most answers about a document that are decoded in shared passes."""


def answers(
    reader: Reader,
    cell: str,
    documents: Sequence[Document],
    budgets: Sequence[int | None],
    journal: Journal,
    prefill_budgets: Sequence[int | None] = (None,),
) -> pa.Table:
    """Rows of schema "readings" of all questions of the documents, in their order, under every budget in turn.

    Budgets are in blocks; None is full attention, as prefill budget the reader's own. A document is prefilled once for
    its budgets of either kind under each prefill budget, and not at all where its answers are in the journal.
    """
    tables = []
    blocks = [budget for budget in budgets if budget is not None]
    for document in progress(documents, total=len(documents), unit="document", description=f"card {cell}"):
        for chunk in prefill_budgets:
            for shared in ([None] if None in budgets else [], blocks):
                if shared:
                    item = f"{document.id}/{shared}" + ("" if chunk is None else f"-prefill{chunk}")
                    tables.append(journal.table(item, partial(_rows, reader, cell, document, chunk, shared)))
    return pa.concat_tables(tables)


def _rows(
    reader: Reader, cell: str, document: Document, prefill_budget: int | None, budgets: Sequence[int | None]
) -> pa.Table:
    """A document's rows under some budgets, which share a memory and passes."""
    memory = _read(reader, document, prefill_budget, whole=None in budgets)
    asked = [(budget, *each) for budget in budgets for each in enumerate(document.questions)]
    decodings = [
        Decoding(
            memory,
            _words(question, reader.settings.prompt),
            budget=budget or 1,
            max_new_tokens=reader.settings.max_new_tokens * len(question.facts),
        )
        for budget, _, question in asked
    ]
    generated = [
        answer
        for first in range(0, len(decodings), TOGETHER)
        for answer in generate_together(decodings[first : first + TOGETHER])
    ]
    rows = [
        {
            "cell": cell,
            "document": document.id,
            "question": number,
            "prefill_budget": prefill_budget,
            "budget": budget,
            "person": question.person,
            "attribute": fact.attribute,
            "value": fact.value,
            "also": fact.also,
            "answer": answer.text,
            "n_context": len(memory),
        }
        for (budget, number, question), answer in zip(asked, generated, strict=True)
        for fact in question.facts
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMAS["readings"])


def _read(reader: Reader, document: Document, prefill_budget: int | None, whole: bool) -> BlockMemory:
    """The document's memory; that of full attention is a window that holds everything."""
    tokens, settings = reader.encode_document(document.text()), reader.settings
    changed = {"n_local": len(tokens) + ROOM} if whole else {}
    if prefill_budget is not None:
        changed["prefill_budget"] = prefill_budget
    reader.settings = replace(settings, memory=replace(settings.memory, **changed))
    try:
        return prefill(reader, tokens, clipped=not whole)
    finally:
        reader.settings = settings


def _words(asked: Question, style: str) -> str:
    if asked.text:
        return natural(asked.text, style)
    return question([fact.attribute for fact in asked.facts], asked.person, style)
