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
    """Keys and values of n tokens in one layer, [1, G, n, D] each; never written to, so copies may share them."""

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
        """The pairs of the tokens ``chosen`` [R, m], whose rows belong to heads.

        The result is [1, G, m, D] if R is 1 (the same tokens for all heads) or G (a row for each key-value head), and
        [1, H, m, D] if there is a row for each query head.
        """
        kv_heads = self.keys.shape[1]
        by_head = chosen if len(chosen) > 1 else chosen.expand(kv_heads, -1)
        # The key-value head of each row: H / G adjacent query heads share one.
        kv_head = torch.arange(len(by_head), device=by_head.device)[:, None] * kv_heads // len(by_head)
        return Pairs(self.keys[:, kv_head, by_head], self.values[:, kv_head, by_head])

    def under(self, query: Tensor, seen: Tensor | None = None, *, causal: bool = False) -> Segment:
        """A segment of attention: the rotated queries [1, H, T, D] see these pairs, or as ``seen`` and ``causal`` say.

        These are as for :class:`utaca.memory.attention.Segment`.
        """
        return Segment(query, self.keys, self.values, seen, causal)


@dataclass
class MethodReading:
    """A document that ``method`` has read: its ``tokens`` [N] that are left after ``dropped`` tokens were cut.

    The other attributes are those of :class:`utaca.decoding.options.Reading`: budgets count tokens (``block_size`` 1,
    ``blocks``), and no two steps share a pass (``chains``).
    """

    reader: Reader
    tokens: Tensor
    dropped: int
    method: Method

    block_size: ClassVar[int] = 1
    chains: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def blocks(self) -> int:
        """Number of the document's tokens: a budget may be a share of them."""
        return len(self)

    @property
    def adjustable(self) -> bool:
        """Whether the budget may change from step to step."""
        return self.method.adjustable

    @property
    def budget(self) -> int:
        """The budget of decodings that name none."""
        return self.method.budget

    def begin(
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Any]
    ) -> tuple[MethodState, list[tuple[Tensor, int]], Tensor]:
        """Begin an answer to a ``prompt`` [n] of at most ``new`` tokens; see :class:`utaca.decoding.options.Reading`.

        Returns the answer's state, the passes before decoding (tokens and budget), and the first step's tokens.
        """
        method = self.method
        # A prompt that is shorter than what the method observes passes together with the document's last tokens.
        repeated = min(max(0, method.observation - len(prompt)), len(self))
        state = method.state(self, repeated, repeated + len(prompt) + new)
        passing = torch.cat((self.tokens[len(self) - repeated :], prompt))
        # The prompt's last token is then the first step's, and passes under the budget of that step.
        if method.last_alone and len(passing) > 1:
            return state, [(passing[:-1], method.budget)], passing[-1:]
        return state, [], passing


class MethodState(ABC):
    """What one answer attends to; ``length`` counts the tokens so far, including the document's.

    Each step runs on a copy (:meth:`fork`), which replaces the state if the step is committed. A copy shares the values
    in its lists with the original, so a subclass replaces such values and never writes to them. ``budget`` is the
    budget of the present step. ``attended`` has, for each layer that attends, the number of keys that the step's last
    token attended to, a mean over heads; :meth:`attend` appends it.
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
        """A copy that can continue from here and leaves this state as it is."""
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
        """A step, not yet run, that passes ``tokens`` [T] under a ``budget``."""
        return MethodStep(self, tokens, budget)

    @staticmethod
    @torch.inference_mode()
    def run(steps: Sequence[MethodStep]) -> None:
        """Run steps with equal numbers of tokens, each on a copy of its state, in one pass of the model.

        Each step gets the copy (``after``), the pass's ``output``, and the number of its ``row`` there. States of a
        class that overrides :meth:`advance` run in one pass each instead.
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
        """Become the state that a step, which has run, leads to."""
        vars(self).update(vars(step.after))

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`utaca.readers.attention.Attending`; one row, B = 1. ``length`` does not yet count the pass."""


class MethodStep(Step):
    """A pass of ``tokens`` [T] after a state under a ``budget``, which leads to the state ``after``."""

    after: MethodState

    @property
    def k(self) -> int:
        """Nominal tokens of the pass (:meth:`Method.nominal`)."""
        return round(self.after.method.nominal(self.after))

    @property
    def retrieved(self) -> float:
        """Nominal tokens too: a method says only how many its budget stands for."""
        return self.k

    @property
    def attended(self) -> float:
        """Keys that the last token attended to, a mean over heads and layers."""
        return sum(self.after.attended) / len(self.after.attended)


class _Rows:
    """Attention of a pass in which each of several states has a row."""

    def __init__(self, states: Sequence[MethodState]) -> None:
        self._states = states

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`utaca.readers.attention.Attending`; each state attends with its own row."""
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
        """Check that a method's class takes the arguments of the interface; have its readings take turns."""
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
        """The method that reads and attends: itself, except an adaptive one (:mod:`utaca.methods.utaca`)."""
        return self

    @property
    def observation(self) -> int:
        """Number of last tokens before the answer whose queries must be in one pass, because the method observes them.

        If the prompt has fewer, the document's last tokens are added.
        """
        return 0

    @property
    def reading(self) -> Hashable:
        """What identifies the way in which the method reads a document.

        Methods for which it is equal may answer from each other's readings (:meth:`bind`).
        """
        return self

    def bind(self, reading: MethodReading) -> MethodReading:
        """Return a ``reading``, perhaps made by another method, for answers of this method."""
        return replace(reading, method=self)

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        """Fields of :class:`utaca.decoding.options.Decoding` for the method's answers."""
        return {}

    def longest(self, reader: Reader, room: int) -> int | None:
        """Most tokens of a document that the method can read if ``room`` further tokens follow it; None: any number.

        The reader was not trained beyond ``reader.positions``, so methods with true positions cut documents.
        """
        return reader.positions - room if self.positions == "absolute" else None

    def tokens(self, reader: Reader, document: str | Tensor, room: int) -> tuple[Tensor, int]:
        """Token ids of a document, and how many tokens were cut from its middle to meet :meth:`longest`.

        Both ends stay, as in LongBench, because instructions stand there. Raises :class:`UserError` if ``room``, the
        tokens of question and answer, leaves the document no positions.
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
        """Tokens that the budget of the latest pass of ``state`` stands for, at most as many as there were."""
        return min(state.budget, state.length)
