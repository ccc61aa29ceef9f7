"""The interface of every context-management method.

A method reads a document once (:meth:`Method.read`) and answers any number of questions from that reading, each by a
state of its own (:meth:`Method.state`). A state is what the model attends to while tokens pass: first the question's,
then those of the answer, one by one (:mod:`utaca.methods.answers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from utaca.errors import UserError
from utaca.readers.load import Reader


@dataclass
class Reading:
    """A document that was read: ``tokens`` [N] as they were, after ``dropped`` of them were cut."""

    reader: Reader
    tokens: Tensor
    dropped: int

    def __len__(self) -> int:
        return len(self.tokens)


class State(ABC):
    """What one answer attends to, at ``length`` tokens so far, those of the document included.

    ``attended`` are the keys that the last token of the latest pass attended to, the mean over heads, a number a layer.
    A method's subclass appends to it whenever a layer attends.
    """

    def __init__(self, reader: Reader, length: int) -> None:
        self.reader, self.length = reader, length
        self.attended: list[float] = []

    @torch.inference_mode()
    def run(self, tokens: Tensor) -> Tensor:
        """Let ``tokens`` [T] pass, the prompt's rest together or one of the answer; the last hidden states [T, D]."""
        self.attended.clear()
        hidden = self.reader.forward(tokens[None], self)[0]
        self.length += len(tokens)
        return hidden

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`utaca.readers.attention.Attending`; one row, B = 1. ``length`` is still that before the pass."""


@dataclass(frozen=True)
class Method(ABC):
    """A context-management method under its parameters.

    ``budget`` is its nominal number of tokens, the paper's mTokens. Class constants say how it is called, how its
    prefill grows with the document, where it puts keys and queries (``absolute``: at their true positions; ``rolling``:
    at their places in its cache; ``clipped``: far ones at one distance), and whether the last token of the prompt
    passes alone, as the first step of decoding, or with the prompt, whose pass then gives the first token.
    """

    name: ClassVar[str]
    prefill: ClassVar[Literal["linear", "quadratic"]]
    positions: ClassVar[Literal["absolute", "rolling", "clipped"]]
    alone: ClassVar[bool] = True

    budget: int

    def __post_init__(self) -> None:
        self.demand(self.budget >= 1, "budget must be at least 1")

    def demand(self, holds: bool, sentence: str) -> None:
        """Raise :class:`UserError` with the sentence unless it ``holds``."""
        if not holds:
            raise UserError(f"method {self.name}: {sentence}")

    def check(self, reader: Reader) -> None:  # noqa: B027
        """Raise :class:`UserError` where the method cannot work with this reader."""

    def missing(self) -> str:
        """What the method needs and this machine lacks, in a sentence; "" where it can run."""
        return ""

    def files(self) -> list[Path]:
        """Files beside the reader's that its answers depend on."""
        return []

    @property
    def observes(self) -> int:
        """Tokens at the prompt's end whose queries it must see together, be they the document's."""
        return 0

    @property
    def reading(self) -> Hashable:
        """Methods whose ``reading`` is equal may answer from each other's readings."""
        return self

    def longest(self, reader: Reader, room: int) -> int | None:
        """The most tokens of a document that it reads with ``room`` more to come; None: any number.

        True positions beyond those of the reader's training are of no use to it, so documents are cut to them.
        """
        return reader.positions - room if self.positions == "absolute" else None

    def tokens(self, reader: Reader, document: str | Tensor, room: int) -> tuple[Tensor, int]:
        """Token ids of a document, cut in the middle to :meth:`longest`, and how many of them were dropped.

        Both ends stay, as LongBench cuts: instructions stand there. Raises :class:`UserError` where nothing is left.
        """
        tokens = reader.encode_document(document) if isinstance(document, str) else document.to(reader.device)
        longest = self.longest(reader, room)
        if longest is None or len(tokens) <= longest:
            self.demand(len(tokens) > 0, "the document is empty; give at least one token of text")
            return tokens, 0
        self.demand(
            longest > 1,
            f"question and answer take {room} tokens, and reader {reader.settings.name} has "
            f"{reader.positions} positions; ask a shorter question or lower max_new_tokens",
        )
        head = longest // 2
        return torch.cat((tokens[:head], tokens[head - longest :])), len(tokens) - longest

    @abstractmethod
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Reading:
        """Read a document, its text or token ids [N]; question and answer will have ``room`` tokens."""

    @abstractmethod
    def state(self, reading: Reading, again: int, room: int) -> State:
        """A state behind the document, or before the last ``again`` tokens of it, which will pass once more together
        with the question because the method :attr:`observes` them; ``room`` tokens may pass in all."""

    def nominal(self, state: State) -> float:
        """Tokens of the budget that the latest pass of ``state`` used: no more than there were."""
        return min(self.budget, state.length)
