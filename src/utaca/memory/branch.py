"""A sealed document, and the branches that decode from it.

A branch holds the tokens behind the document. A step attends first and is committed afterwards; a step that is never
committed leaves no trace, which is all that a rollback is (paper, algorithm 1). Like the document's, the tokens of a
branch form blocks, which are represented when they leave the window and can be retrieved from then on. Steps that run
together share a pass of the model (:mod:`utaca.memory.passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from utaca.layout import Layout
from utaca.memory.attention import block_scores, received, represented, token_scores
from utaca.memory.passes import Pass
from utaca.memory.store import Store
from utaca.readers.attention import Row
from utaca.readers.load import Reader
from utaca.settings.schema import OWN, PACKED, TOKENS, MemorySettings

Capture = Callable[[Tensor, int, float], Tensor]
"""What a signal keeps of a layer's retrieval, see :class:`utaca.detection.signal.Signal`."""


@dataclass
class BlockMemory:
    """A document that was read, sealed: nothing writes to it any more.

    ``settings`` are those that it was read with. Of each layer it keeps keys and values (``stores``) and the
    representative keys of the far blocks (``representatives`` [G * D, blocks], in float32 at least; along the blocks,
    scores of a long document are computed fastest; none if every token represents its block). ``attention_mass`` [G, n]
    is what the window's tokens received so far (:func:`utaca.memory.attention.received`), by which the window's blocks
    will be represented once they have left it.
    ``clipped``: far keys are at one distance, as InfLLM has it; otherwise every key is at its true position, and
    attention to all blocks is full attention.
    """

    reader: Reader
    settings: MemorySettings
    tokens: Tensor
    clipped: bool
    layout: Layout
    stores: list[Store] = field(default_factory=list)
    representatives: list[Tensor] = field(default_factory=list)
    attention_mass: list[Tensor] = field(default_factory=list)

    dropped: ClassVar[int] = 0
    adjustable: ClassVar[bool] = True
    budget: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    def begin(
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Capture]
    ) -> tuple[Branch, list[tuple[Tensor, int]], Tensor]:
        """See :class:`utaca.decoding.loop.Reading`.

        The first step of decoding passes the prompt's last token, under K_max (paper, algorithm 1).
        """
        m = self.settings
        question_budget = budget if m.question_budget == OWN else m.question_budget or m.prefill_budget
        if not self.clipped:
            # Blocks at true positions stand for full attention, to which the question belongs.
            question_budget = self.layout.blocks(len(self) + len(prompt))
        branch = Branch(self, len(prompt) + new, captures)
        pieces = prompt[:-1].split(m.question_chunk or m.prefill_chunk) if len(prompt) > 1 else ()
        return branch, [(piece, question_budget) for piece in pieces], prompt[-1:]

    def scores(self, layer: int, query: Tensor, n_far: int, *later: Tensor) -> Tensor:
        """Retrieval scores [R, blocks] for queries [R, H, T, D] at the clipped distance, the T of a row together.

        Of the document's first ``n_far`` blocks, and of ``later`` ones behind them: their representatives as
        :func:`block_scores` takes them, or their keys as :func:`token_scores` does.
        """
        if self.settings.representatives != TOKENS:
            return block_scores(query.mean(2), self.representatives[layer][:, :n_far], *later)
        keys = self.stores[layer].tokens[0][:, self.layout.n_init : self.layout.first_token(n_far)]
        return token_scores(query, self.block_size, keys, *later)

    def place(self, pairs: Tensor, blocks: Tensor) -> Tensor:
        """Keys and values [2, G, k * block_size, D] of far ``blocks`` [k] as queries meet them.

        Of unrotated ``pairs`` [2, G, k, block_size, D]: these are at the clipped distance of a query at position
        ``n_local - 1``. Without clipping keys are rotated to their true positions.
        """
        pairs = pairs.flatten(2, 3)
        if self.clipped:
            return pairs
        tokens = self.layout.first_token(blocks[:, None]) + torch.arange(self.block_size, device=blocks.device)
        return torch.stack((self.reader.rotary(pairs[0], tokens.flatten().clamp(min=0)), pairs[1]))


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, of ``capacity`` that it may take.

    ``window`` [layers, 2, G, n, D] holds rotated keys, and values, of the document's last window and of the committed
    tokens, from token ``start`` of the text on. No key is rotated twice: only distances count, so that ``start`` is
    placed at ``first_position`` and the local window moves over keys that stay. Far keys are ``packed`` before the
    window, or as the document has them. Places behind the committed tokens are zero. ``captures`` are what signals keep
    of the layers' retrieval, by name. ``state_id`` identifies the committed history: branches with an equal one hold
    the same.

    The document has ``n_scored`` blocks with representatives, and holds ``n_whole`` blocks whole (below 0 if it ends
    within the initial tokens); ``n_at_capacity`` will be far in the end. Blocks that leave the window here are the
    branch's: their ``representatives`` [layers, G * D, blocks], of which there are ``n_represented`` with the
    document's, and the ``attention_mass`` [layers, G, tokens] of their tokens, whose first one is at ``mass_start`` of
    the window. ``tail`` [layers, 2, G, blocks, block_size, D] has the unrotated keys and values of the blocks that the
    document does not hold whole.
    """

    def __init__(self, memory: BlockMemory, capacity: int, captures: Mapping[str, Capture] | None = None) -> None:
        self.memory, self.capacity, self.length, self.captures = memory, capacity, 0, captures or {}
        layout, n = memory.layout, len(memory)
        layers, heads, groups, width = memory.reader.shape
        self.start, self.scale = layout.window_start(n), heads * width**0.5
        self.packed = memory.clipped and memory.settings.far_positions == PACKED
        self.first_position = self.start if self.packed or not memory.clipped else 0
        local, rotary = n - self.start, memory.reader.rotary
        rotary.reserve(max(memory.settings.n_local, self.first_position + local + capacity))
        self.n_scored, self.n_at_capacity = layout.n_far(n), layout.n_far(n + capacity - 1)
        self.n_whole = layout.blocks(n) if n >= layout.n_init else -layout.initial_blocks
        self.n_represented, self.mass_start = self.n_scored, layout.first_token(self.n_scored) - self.start
        n_leaving = 0 if memory.settings.representatives == TOKENS else self.n_at_capacity - self.n_scored
        n_tail = max(0, self.n_at_capacity - self.n_whole) if self.n_at_capacity else 0
        like = torch.empty(0, dtype=memory.reader.dtype, device=memory.tokens.device)
        self.window = like.new_zeros(layers, 2, groups, local + capacity, width)
        self.representatives = memory.representatives[0].new_zeros(layers, groups * width, n_leaving)
        self.attention_mass = self.representatives.new_zeros(layers, groups, n_leaving * layout.block_size)
        self.tail = like.new_zeros(layers, 2, groups, n_tail, layout.block_size, width)
        n_massed = max(0, min(self.attention_mass.shape[2], local - self.mass_start))
        self.state_id: object = id(memory)
        # Committed queries and their log-sum-exps, whose attention mass is not added yet.
        self._queries: list[tuple[Tensor, Tensor]] = []
        tail_start = max(0, layout.first_token(self.n_whole))
        for layer, store in enumerate(memory.stores):
            keys, values = store.window(self.start, n)
            self.window[layer, 0, :, :local] = rotary(keys, range(self.first_position, self.first_position + local))
            self.window[layer, 1, :, :local] = values
            mass = memory.attention_mass[layer][:, self.mass_start : self.mass_start + n_massed]
            self.attention_mass[layer, :, :n_massed] = mass
            self._keep(tail_start, store.window(tail_start, n)[None], slice(layer, layer + 1))

    @property
    def reader(self) -> Reader:
        return self.memory.reader

    @property
    def position(self) -> int:
        """Position of the next token."""
        return len(self.memory) + self.length

    def plan(self, tokens: Tensor, budget: int) -> Step:
        """A step that passes ``tokens`` [T] behind the branch under a ``budget`` of blocks, not yet run."""
        return Step(self, tokens, budget)

    def step(self, tokens: Tensor, budget: int) -> Step:
        """As :meth:`plan`, run; nothing is committed."""
        step = self.plan(tokens, budget)
        self.run([step])
        return step

    @staticmethod
    def run(steps: Sequence[Step]) -> None:
        """Run steps of one size, on branches of one reader, in one pass of the model; nothing is committed.

        A row's results equal those of the step run alone up to the rounding of larger matrix products.
        """
        Pass(steps)

    @torch.inference_mode()
    def commit(self, step: Step) -> None:
        """Make a step part of the branch."""
        passed, row, at = step.passed, step.row, slice(step.behind, step.behind + step.size)
        self.window[:, 0, :, at], self.window[:, 1, :, at] = passed.rotated[:, row], passed.values[:, row]
        self.length += step.size
        self.state_id = passed.state_ids[row]
        owns_blocks = self.tail.shape[3] > 0
        if owns_blocks:
            self._keep(step.position, torch.stack((passed.keys[:, row], passed.values[:, row]), 1))
        if self.memory.settings.representatives != TOKENS:
            self._queries.append((passed.query[:, row], passed.lse[:, row]))
            if owns_blocks or step.size > 1 or self.memory.layout.n_far(self.position) > step.n_far:
                self._add_attention_mass(step)
                self._represent()

    def blocks(self, layer: int, ids: Tensor, n_far: int) -> Tensor:
        """Unrotated keys and values [2, G, k, block_size, D] of the blocks ``ids`` [k], of the first ``n_far``."""
        store, n_whole = self.memory.stores[layer], self.n_whole
        if n_far <= n_whole:
            return store.blocks(ids)
        pairs = self.tail[layer][:, :, (ids - n_whole).clamp(min=0)]
        if n_whole > -self.memory.layout.initial_blocks:
            pairs = torch.where((ids < n_whole)[:, None, None], store.blocks(ids.clamp(max=n_whole - 1)), pairs)
        return pairs

    def _keep(self, first: int, pairs: Tensor, layers: slice = slice(None)) -> None:
        """Keep unrotated ``pairs`` [layers, 2, G, T, D] of token ``first`` of the text on, as far as the tail goes."""
        first -= self.memory.layout.first_token(self.n_whole)
        tail = self.tail[layers].flatten(3, 4)[..., max(0, first) : max(0, first + pairs.shape[3]), :]
        tail.copy_(pairs[..., max(0, -first) :, :][..., : tail.shape[3], :])

    def _add_attention_mass(self, step: Step) -> None:
        """Add what the queries up to those of a ``step`` give to the tokens that will be in blocks of the branch.

        If the branch has blocks of its tokens, the queries are those of the step alone; otherwise only tokens of the
        document receive, which all of the queries see.
        """
        query, lse = (torch.cat(column, 2) for column in zip(*self._queries, strict=True))
        self._queries = []
        # A single token sees itself; several see each other in part.
        seen = step.behind + (step.size == 1)
        for first, last, causal in ((step.start, seen, False), (seen, step.behind + step.size, True)):
            low, high = max(first, self.mass_start), min(last, self.mass_start + self.attention_mass.shape[2])
            if low < high:
                keys = slice(first, last) if causal else slice(low, high)
                mass = received(query, self.window[:, 0, :, keys], lse, step.passed.scaling, causal=causal)
                mass = mass[:, :, low - keys.start : high - keys.start]
                self.attention_mass[:, :, low - self.mass_start : high - self.mass_start] += mass

    def _represent(self) -> None:
        """Represent the blocks that the committed tokens have made far."""
        memory, layout, size = self.memory, self.memory.layout, self.memory.block_size
        for block in range(self.n_represented, min(self.n_at_capacity, layout.n_far(self.position))):
            place, first = block - self.n_scored, layout.first_token(block)
            if block < self.n_whole:
                keys = torch.stack([store.window(first, first + size)[0] for store in memory.stores])
            else:
                keys = self.tail[:, 0, :, block - self.n_whole]
            mass = self.attention_mass[:, :, None, place * size : (place + 1) * size]
            self.representatives[:, :, place] = represented(memory.settings, keys[:, :, None], mass).flatten(1)
            self.n_represented = block + 1


class Step(Row):
    """A pass of ``tokens`` [T] behind a branch under a ``budget`` of blocks a layer; nothing is committed.

    Raises :class:`ValueError` if the branch has no room.
    """

    passed: Pass

    def __init__(self, branch: Branch, tokens: Tensor, budget: int) -> None:
        super().__init__(branch, tokens, budget)
        if branch.length + self.size > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {self.size}")
        layout, self.position = branch.memory.layout, branch.position
        self.n_far = layout.n_far(self.position)
        self.k = min(budget, self.n_far)
        # Of the branch's window, the step sees the tokens from ``start`` to ``behind``.
        self.start, self.behind = layout.window_start(self.position) - branch.start, self.position - branch.start

    def equals(self, other: Step) -> bool:
        """Whether the two are the same step behind the same history, as of branches that have not parted yet."""
        alike = self.state.state_id == other.state.state_id and self.k == other.k
        return alike and torch.equal(self.tokens, other.tokens)

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.state.memory.layout
        initial = layout.n_init if self.n_far else 0
        return initial + self.k * layout.block_size + self.behind - self.start + self.size

    @cached_property
    def _retrieved(self) -> tuple[Tensor, Tensor]:
        selected, order = self.passed.chosen[:, self.row, : self.k].sort(-1)
        return selected, self.passed.scores[:, self.row].gather(1, order)

    @property
    def selected(self) -> Tensor:
        """The blocks attended to [layers, k], ascending."""
        return self._retrieved[0]

    @property
    def scores(self) -> Tensor:
        """Retrieval scores of the selected blocks [layers, k]."""
        return self._retrieved[1]

    @property
    def captured(self) -> dict[str, Tensor]:
        """What each signal kept, [layers]; nothing if no block is far."""
        captures = self.state.captures if self.n_far else ()
        return {name: self.passed.captured[name][:, self.row] for name in captures}
