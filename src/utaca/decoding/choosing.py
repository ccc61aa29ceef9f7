"""How an answer's tokens are chosen by their logits, if not greedily."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from utaca.readers.attention import on_device
from utaca.trace import Token


class Choosing(ABC):
    """A way to choose tokens; derive from it and write :meth:`draws`."""

    @abstractmethod
    def draws(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Yield one function per step, without end; each maps logits [V] to the id [] of the chosen token.

        A step calls its function for each of its passes. The accepted pass comes first, or last if the token was rolled
        back.
        """


class Noted(Choosing):
    """A choice that notes something about each pass that a trace does not keep, such as its full logits.

    It serves one answer. A derived class writes :meth:`choose`.
    """

    def __init__(self) -> None:
        # What was noted, by step and pass.
        self._notes: list[list[Any]] = []

    def draws(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """See :class:`Choosing`."""
        while True:
            step = len(self._notes)
            self._notes.append([])
            self.begin()
            yield partial(self._noted, step)

    def begin(self) -> None:
        """Prepare a step; called once before its passes are read."""

    @abstractmethod
    def choose(self, step: int, logits: Tensor) -> tuple[Tensor, Any]:
        """The id [] of the token of a ``step``, from 0, by its ``logits`` [V], and what to note about the pass."""

    def _noted(self, step: int, logits: Tensor) -> Tensor:
        """Choose a token, and keep the note."""
        token, note = self.choose(step, logits)
        self._notes[step].append(note)
        return token

    def note(self, step: int, token: Token) -> Any:
        """The note about the accepted pass of a step, whose ``token`` is in the trace."""
        return self._notes[step][-1 if token.rolled_back else 0]


class Given(Noted):
    """A given answer: every step chooses its token. The note is the entropy [] of the pass, in nats."""

    def __init__(self, tokens: list[int]) -> None:
        """``tokens`` are the ids of the answer; decoding must end with the last of them."""
        super().__init__()
        self.tokens = tokens

    def choose(self, step: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Noted`."""
        logprobs = logits.double().log_softmax(-1)
        # A token of probability 0 adds nothing.
        entropy = torch.special.entr(logprobs.exp()).sum()
        return on_device([self.tokens[step]], logits.device)[0], entropy
