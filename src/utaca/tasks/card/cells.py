"""What each cell of the card reads: its documents, and the budgets that they are read under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from utaca.biographies.padding import Padder, counter
from utaca.readers.load import Reader
from utaca.settings import schema
from utaca.tasks.card import written
from utaca.tasks.card.drawn import Drawn
from utaca.tasks.card.material import Document

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

    Raises :class:`UserError` for a corpus without usable paragraphs, and as :mod:`utaca.tasks.card.written` does.
    """
    kind, _, tokens = name.partition("-")
    size, memory = counter(reader.tokenizer), reader.settings.memory
    if name == written.XQUAD:
        return Cell(written.squad(card.xquad), [None])
    if kind == written.WRITTEN:
        rows = written.biographies(card.biographies)
        if not tokens:
            return Cell(written.alone(rows, card.written_asked), [None])
        length = int(tokens)
        documents = written.long(rows, length, card.written_asked, Padder(articles, size, corpus), seed)
        whole = [None] if length + ROOM <= reader.positions else []
        hidden = length - memory.n_init - memory.n_local > card.budgets[-1] * memory.block_size
        return Cell(documents, [*whole, *(card.budgets if hidden or not whole else [])])
    documents = Drawn(articles, corpus, size, reader.before, seed).documents(name, card.questions)
    if not tokens:
        return Cell(documents, [None])
    if kind == "prefill":
        most = max(1, card.prefill_length // memory.block_size)
        return Cell(documents, card.budgets, [min(most, budget) for budget in card.prefill_budgets])
    return Cell(documents, card.budgets)
