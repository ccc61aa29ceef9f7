"""The interface of every context-management method.

A method reads a document once (:meth:`Method.read`) and answers any number of questions from that reading. An answer is
decoded from a state (:meth:`Method.state`), which holds what the model attends to while it reads the question's tokens
and then decodes the answer's tokens, one by one (:mod:`utaca.decoding.loop`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from inspect import isfunction
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from utaca.detection.detector import Detector
from utaca.errors import UserError, check_overrides, check_takes
from utaca.memory.attention import Segment
from utaca.readers.attention import Output, Step
from utaca.readers.load import Reader
from utaca.readers.turns import in_turn


@dataclass(frozen=True)
class Pairs:
    """Keys and values of some tokens, [1, G, n, D] each; replaced, never written to."""

    keys: Tensor
    values: Tensor

    def __len__(self) -> int:
        return self.keys.shape[2]

    def __getitem__(self, tokens: slice) -> Pairs:
        return Pairs(self.keys[:, :, tokens], self.values[:, :, tokens])

    def then(self, other: Pairs) -> Pairs:
        """These pairs, followed by the pairs of ``other``."""
        return Pairs(torch.cat((self.keys, other.keys), 2), torch.cat((self.values, other.values), 2))

    def at(self, chosen: Tensor) -> Pairs:
        """The pairs of the tokens ``chosen`` [R, m].

        The result is [1, G, m, D] if R is 1 (the same tokens for all heads) or G (a row for each key-value head), and
        [1, H, m, D] if there is a row for each query head.
        """
        heads = self.keys.shape[1]
        rows = chosen if len(chosen) > 1 else chosen.expand(self.keys.shape[1], -1)
        head = torch.arange(len(rows), device=rows.device)[:, None] * heads // len(rows)
        return Pairs(self.keys[:, head, rows], self.values[:, head, rows])

    def under(self, query: Tensor, seen: Tensor | None = None, *, causal: bool = False) -> Segment:
        """A segment of attention: these tokens under rotated queries [1, H, T, D]."""
        return Segment(query, self.keys, self.values, seen, causal)


@dataclass
class MethodReading:
    """A document that ``method`` has read: its ``tokens`` [N] that are left after ``dropped`` tokens were cut."""

    reader: Reader
    tokens: Tensor
    dropped: int
    method: Method

    block_size: ClassVar[int] = 1
    chains: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def adjustable(self) -> bool:
        return self.method.adjustable

    @property
    def budget(self) -> int:
        """The budget of decodings that name none."""
        return self.method.budget

    def begin(
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Any]
    ) -> tuple[MethodState, list[tuple[Tensor, int]], Tensor]:
        """See :class:`utaca.decoding.options.Reading`."""
        method = self.method
        repeated = min(max(0, method.observation - len(prompt)), len(self))
        state = method.state(self, repeated, repeated + len(prompt) + new)
        passing = torch.cat((self.tokens[len(self) - repeated :], prompt))
        if method.last_alone and len(passing) > 1:
            return state, [(passing[:-1], method.budget)], passing[-1:]
        return state, [], passing


class MethodState(ABC):
    """What one answer attends to; ``length`` counts the tokens so far, including the document's.

    Each step runs on a copy, which replaces the state if the step is committed. So lists of one item per layer hold
    values that are replaced, never written to. ``budget`` is the budget of the present step, and ``attended`` the
    number of keys that its last token attended to, a mean over heads per layer: each layer that attends appends one.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_overrides(cls)

    def __init__(self, reading: MethodReading, length: int) -> None:
        self.reader = reading.reader
        self.method = reading.method
        self.length = length
        self.budget = reading.budget
        self.attended: list[float] = []

    def fork(self) -> MethodState:
        """A state that goes on from here and leaves this one as it is."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list | dict):
                setattr(other, name, value.copy())
        return other

    def advance(self, tokens: Tensor) -> Tensor:
        """Pass ``tokens`` [T], several of the prompt or one of the answer; return the last hidden states [T, D]."""
        self.attended = []
        hidden = self.reader.forward(tokens[None], self)[0]
        self.length += len(tokens)
        return hidden

    def plan(self, tokens: Tensor, budget: int) -> MethodStep:
        return MethodStep(self, tokens, budget)

    @staticmethod
    @torch.inference_mode()
    def run(steps: Sequence[MethodStep]) -> None:
        """Run steps of one size, each on a copy of its state, in one pass of the model.

        States of a class that overrides :meth:`advance` run one after another instead.
        """
        for step in steps:
            step.after = step.state.fork()
            step.after.budget = step.budget
            step.after.attended = []
        reader = steps[0].after.reader
        if type(steps[0].state).advance is MethodState.advance:
            tokens = torch.stack([step.tokens for step in steps])
            hidden = reader.forward(tokens, _Rows([step.after for step in steps]))
            output = Output(hidden, reader.embeddings(), reader.logits)
            for row, step in enumerate(steps):
                step.after.length += step.size
                step.output = output
                step.row = row
        else:
            for step in steps:
                hidden = step.after.advance(step.tokens)[None]
                step.output = Output(hidden, reader.embeddings(), reader.logits)
                step.row = 0

    def commit(self, step: MethodStep) -> None:
        vars(self).update(vars(step.after))

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`utaca.readers.attention.Attending`; one row, B = 1. ``length`` does not yet count the pass."""


class MethodStep(Step):
    """A pass of ``tokens`` [T] behind a state under a ``budget``, which leads to the state ``after``."""

    after: MethodState

    @property
    def k(self) -> int:
        return round(self.after.method.nominal(self.after))

    @property
    def attended(self) -> float:
        return sum(self.after.attended) / len(self.after.attended)


class _Rows:
    """A row of a pass for each of several states."""

    def __init__(self, states: Sequence[MethodState]) -> None:
        self._states = states

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        outputs = []
        for state, q, k, v in zip(self._states, query.split(1), key.split(1), value.split(1), strict=True):
            outputs.append(state.attend(layer, q, k, v, scaling))
        return torch.cat(outputs)


@dataclass(frozen=True)
class Method(ABC):
    """A context-management method with its parameters.

    ``budget`` is the method's nominal number of tokens, the paper's mTokens; if 0 is allowed, other parameters give the
    number. Class constants give the ``name``, how the time of ``prefill`` grows with the document, the ``positions`` of
    keys and queries (``absolute``: true ones; ``rolling``: indices in the cache; ``clipped``: far keys at one
    distance), whether the budget may change from step to step (``adjustable``), and whether the prompt's last token
    is passed singly, as the first decoding step (``last_alone``), or with the prompt, whose pass then gives the first
    token.
    """

    name: ClassVar[str]
    prefill: ClassVar[Literal["linear", "quadratic"]]
    positions: ClassVar[Literal["absolute", "rolling", "clipped"]]
    adjustable: ClassVar[bool] = False
    last_alone: ClassVar[bool] = True
    state: ClassVar[Callable[[MethodReading, int, int], MethodState]]
    """``state(reading, repeated, room)`` makes the state after the document, or before its last ``repeated`` tokens,
    which pass again with the question because the method observes them; at most ``room`` tokens will pass. Only for
    methods whose :meth:`read` returns a :class:`MethodReading`."""

    budget: int

    def __init_subclass__(cls) -> None:
        check_overrides(cls)
        state = vars(cls).get("state")
        if state is not None:
            # A function of the class, or the class of the state itself.
            own = ["self"] if isfunction(state) else []
            check_takes(state, f"{cls.__name__}.state", *own, "reading", "repeated", "room")
        if "read" in vars(cls):
            cls.read = in_turn(cls.read)

    def __post_init__(self) -> None:
        self.require(self.budget >= 1, "budget must be at least 1")

    def require(self, holds: bool, sentence: str) -> None:
        """Raise :class:`UserError` with the sentence unless it ``holds``."""
        if not holds:
            raise UserError(f"method {self.name}: {sentence}")

    def check(self, reader: Reader) -> None:  # noqa: B027
        """Raise :class:`UserError` if the method cannot work with this reader."""

    def missing(self) -> str:
        """Sentence on what the method needs and this machine lacks; "" if the method can run."""
        return ""

    def files(self) -> list[Path]:
        """Files, other than the reader's, that the method's answers depend on."""
        return []

    @property
    def base(self) -> Method:
        """The method that reads and attends: itself, but for an adaptive one (:mod:`utaca.methods.utaca`)."""
        return self

    @property
    def observation(self) -> int:
        """Number of the prompt's last tokens (and the document's, if too few) whose queries must be in one pass."""
        return 0

    @property
    def reading(self) -> Hashable:
        """Key of the reading: methods with equal keys may answer from each other's readings (:meth:`bind`)."""
        return self

    def bind(self, reading: MethodReading) -> MethodReading:
        """A ``reading`` that another method may have made, for answers of this method."""
        return replace(reading, method=self)

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        """Fields of :class:`utaca.decoding.options.Decoding` for the method's answers."""
        return {}

    def longest(self, reader: Reader, room: int) -> int | None:
        """Most tokens of a document that the method can read if ``room`` more follow; None: any number.

        The reader was not trained beyond ``reader.positions``, so methods with true positions cut documents.
        """
        return reader.positions - room if self.positions == "absolute" else None

    def tokens(self, reader: Reader, document: str | Tensor, room: int) -> tuple[Tensor, int]:
        """Token ids of a document, cut in the middle to :meth:`longest`, and how many of them were dropped.

        Both ends stay, as in LongBench, because instructions stand there. Raises :class:`UserError` if nothing is left.
        """
        tokens = reader.document(document)
        longest = self.longest(reader, room)
        if longest is None or len(tokens) <= longest:
            return tokens, 0
        self.require(
            longest > 1,
            f"question and answer take {room} tokens, and reader {reader.settings.name} has "
            f"{reader.positions} positions; ask a shorter question or lower max_new_tokens",
        )
        head = longest // 2
        return torch.cat((tokens[:head], tokens[head - longest :])), len(tokens) - longest

    @abstractmethod
    def read(self, reader: Reader, document: str | Tensor, room: int) -> MethodReading:
        """Read a document, its text or token ids [N]; question and answer will have ``room`` tokens."""

    def nominal(self, state: MethodState) -> float:
        """Tokens of the budget that the latest pass of ``state`` used, at most as many as there were."""
        return min(state.budget, state.length)
