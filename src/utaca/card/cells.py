"""What each cell of the card reads: its documents, and the budgets that they are read under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from utaca.biographies.padding import Padder, counter
from utaca.card import prose
from utaca.card.material import SHORT, Document, Material
from utaca.readers.load import Reader
from utaca.settings import schema

ROOM = 256
"""Positions that a question and its answer need behind a document."""


@dataclass(frozen=True)
class Cell:
    """Documents, decoding budgets (blocks; None: full attention) and prefill budgets (None: the reader's own)."""

    documents: Sequence[Document]
    budgets: Sequence[int | None]
    prefill_budgets: Sequence[int | None] = (None,)


def cell_of(
    name: str, card: schema.Card, reader: Reader, articles: Sequence[Mapping[str, str]], corpus: str, seed: int
) -> Cell:
    """The cell of a name among :attr:`schema.Card.cells`; ``articles`` are rows of schema "corpus".

    Raises :class:`UserError` as :class:`Material` and :mod:`utaca.card.prose` do.
    """
    count = counter(reader.tokenizer)
    if name == prose.XQUAD:
        return Cell(prose.squad(card.xquad), [None])
    if name.startswith(prose.WRITTEN):
        rows = prose.biographies(card.biographies)
        if name == prose.WRITTEN:
            return Cell(prose.written(rows, None, seed=seed, asked=card.written_asked), [None])
        length = int(name.rpartition("-")[2])
        padder = cache(lambda: Padder(articles, count, corpus))
        # Question and answer stand behind the document.
        whole = [None] if length + ROOM <= reader.positions else []
        memory = reader.settings.memory
        hidden = length - memory.n_init - memory.n_local > card.budgets[-1] * memory.block_size
        budgets = card.budgets if hidden or not whole else []
        documents = prose.written(
            rows, length, padder, seed=seed, asked=card.written_asked, questions=card.written_questions
        )
        return Cell(documents, [*whole, *budgets])
    documents = Material(articles, corpus, count, reader.before, seed).documents(name, card.questions)
    if name in SHORT:
        return Cell(documents, [None])
    if name.startswith("prefill"):
        most = max(1, card.prefill_length // reader.settings.memory.block_size)
        return Cell(documents, card.budgets, [min(most, budget) for budget in card.prefill_budgets])
    return Cell(documents, card.budgets)
