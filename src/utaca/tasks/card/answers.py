"""A reader's answers to the questions of the card, journaled document by document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pyarrow as pa

from utaca.decoding.loop import Decoding, generate_together
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import natural, question
from utaca.records import SCHEMAS
from utaca.records.journal import Journal
from utaca.records.progress import counter
from utaca.tasks.card.material import Document, Question

ROOM = 2048
"""Tokens of question and answer that full attention has room for."""

TOGETHER = 32
"""Most answers that are decoded in shared passes, be they about one document or several."""


def answers(
    reader: Reader,
    cell: str,
    documents: Sequence[Document],
    budgets: Sequence[int | None],
    journal: Journal,
    prefill_budgets: Sequence[int | None] = (None,),
) -> pa.Table:
    """Rows of schema "readings" of all questions of the documents, in their order, under every budget in turn.

    Budgets are in blocks; None is full attention, as prefill budget the reader's own. Documents of few answers go side
    by side. One whose answers are in the journal is read again only beside others whose are not.
    """
    tables = []
    bar = counter(total=len(documents), done=0, unit="document", description=f"card {cell}")
    for group in _groups(documents, len(budgets)):
        for chunk in prefill_budgets:
            decoded = cache(partial(_decoded, reader, cell, group, chunk, budgets))
            for document in group:
                item = f"{document.id}/{list(budgets)}" + ("" if chunk is None else f"-prefill{chunk}")
                tables.append(journal.table(item, lambda name=document.id, decoded=decoded: decoded()[name]))
        bar.update(len(group))
    bar.close()
    return pa.concat_tables(tables)


def _groups(documents: Iterable[Document], budgets: int) -> Iterator[list[Document]]:
    """Documents with no more than :data:`TOGETHER` answers, one at least."""
    group: list[Document] = []
    number = 0
    for document in documents:
        more = len(document.questions) * budgets
        if group and number + more > TOGETHER:
            yield group
            group, number = [], 0
        group.append(document)
        number += more
    if group:
        yield group


def _decoded(
    reader: Reader,
    cell: str,
    group: Sequence[Document],
    prefill_budget: int | None,
    budgets: Sequence[int | None],
) -> dict[str, pa.Table]:
    """The rows of each document of a group, by its id."""
    asked = [(one, budget, *each) for one in group for budget in budgets for each in enumerate(one.questions)]
    read = cache(partial(_read, reader, prefill_budget))
    decodings = [
        Decoding(
            read(document, budget is None),
            _words(question, reader.settings.prompt),
            budget=budget or 1,
            max_new_tokens=reader.settings.max_new_tokens * len(question.facts),
        )
        for document, budget, _, question in asked
    ]
    generated = [
        answer
        for first in range(0, len(decodings), TOGETHER)
        for answer in generate_together(decodings[first : first + TOGETHER])
    ]
    rows: dict[str, list[dict[str, Any]]] = {document.id: [] for document in group}
    for (document, budget, number, wanted), decoding, answer in zip(asked, decodings, generated, strict=True):
        common = {
            "cell": cell,
            "document": document.id,
            "question": number,
            "prefill_budget": prefill_budget,
            "budget": budget,
            "person": wanted.person,
            "answer": answer.text,
            "n_context": len(decoding.reading),
        }
        rows[document.id] += [
            common | {"attribute": fact.attribute, "value": fact.value, "also": fact.also} for fact in wanted.facts
        ]
    return {name: pa.Table.from_pylist(found, schema=SCHEMAS["readings"]) for name, found in rows.items()}


def _read(reader: Reader, prefill_budget: int | None, document: Document, whole: bool) -> BlockMemory:
    """The document's memory; that of full attention is a window that holds everything."""
    tokens, settings = reader.encode_document(document.text()), reader.settings
    # Where nothing is ever retrieved, what represents a block need not be found.
    changed: dict[str, Any] = {"n_local": len(tokens) + ROOM, "representatives": "mean"} if whole else {}
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
