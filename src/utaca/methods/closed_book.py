"""No document: the reader sees only the question."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from utaca.methods.full import FullAttention
from utaca.readers.load import Reader


@dataclass(frozen=True)
class ClosedBook(FullAttention):
    """The question without the document: the lowest baseline, what the reader knows or guesses."""

    name: ClassVar[str] = "closed_book"

    @property
    def reading(self) -> Hashable:
        """Not that of the base class: no other method reads a document by leaving it out."""
        return self.name

    def tokens(self, reader: Reader, document: str | Tensor, room: int) -> tuple[Tensor, int]:
        """Token ids of the chat template's opening, and the number of the document's tokens, which are all dropped."""
        opening = reader.encode_document("")
        # They are counted without the opening, which a document's tokens include.
        tokens, dropped = super().tokens(reader, document, room)
        self.require(
            len(opening) > 0,
            f"the chat template of reader {reader.settings.name} has no text before the user's message",
        )
        return opening, len(tokens) + dropped - len(opening)
