"""Full attention: nothing is managed; the row that all others are to be compared with."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from utaca.methods.dense import Continuation, Dense, DenseMethod
from utaca.methods.method import State
from utaca.readers.load import Reader


@dataclass(frozen=True)
class FullAttention(DenseMethod):
    """Every token attends to every token before it, at true positions.

    It has no budget: nominal are all keys. ``budget`` is kept for the interface and must be 0.
    """

    name: ClassVar[str] = "full"

    budget: int = 0

    def __post_init__(self) -> None:
        self.require(self.budget == 0, "it attends to everything and takes no budget; leave budget out")

    def state(self, reading: Dense, repeated: int, room: int) -> State:
        return Everything(reading, repeated, room)

    def nominal(self, state: State) -> float:
        return state.length


@dataclass(frozen=True)
class ClosedBook(FullAttention):
    """The question without the document: the floor, what the reader knows or guesses."""

    name: ClassVar[str] = "closed_book"

    @property
    def reading(self) -> Hashable:
        return self.name

    def tokens(self, reader: Reader, document: str | Tensor, room: int) -> tuple[Tensor, int]:
        """The chat template's opening alone; all else is dropped."""
        opening, tokens = reader.encode_document(""), super().tokens(reader, document, room)[0]
        self.require(len(opening) > 0, f"the chat template of reader {reader.settings.name} opens with nothing")
        return opening, len(tokens) - len(opening)


class Everything(Continuation):
    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        return self.everything(layer, query, scaling)
