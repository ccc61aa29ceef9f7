"""A sealed document, the branches that decode from it, and the passes of the model that their steps share.

A branch holds the tokens that follow the document. A step attends first and is committed afterwards; a rollback (paper,
algorithm 1) simply does not commit the step, which then leaves no trace. Like the document's tokens, those of a branch
form blocks: a block gets a representative key when it leaves the window, and can be retrieved from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.layout import Layout
from utaca.memory.attention import (
    Segment,
    attention,
    best,
    block_scores,
    grouped,
    mixture,
    received,
    represented,
    token_scores,
)
from utaca.memory.graph import ReplayedPass, StepGraph, can_record
from utaca.memory.store import Store
from utaca.readers.attention import Output, Step, on_device
from utaca.readers.load import Reader
from utaca.readers.room import check_size
from utaca.settings.schema import OWN, PACKED, TOKENS, MemorySettings


@dataclass
class BlockMemory:
    """A document that was read and sealed: nothing writes to the memory any more.

    ``settings`` are the settings that the document was read with. For each layer the memory keeps keys and values
    (``stores``) and the far blocks' representative keys (``representatives`` [G * D, blocks], in float32 at least; this
    order makes the scores of a long document fastest; no blocks if every token represents its block).
    ``attention_mass`` [G, n] is the attention that the window's n tokens received so far
    (:func:`utaca.memory.attention.received`); it will choose the window's representative keys.
    ``clipped``: far keys are all at one distance, as in InfLLM; otherwise every key is at its true position, and
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
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Callable]
    ) -> tuple[Branch, list[tuple[Tensor, int]], Tensor]:
        """See :class:`utaca.decoding.options.Reading`.

        The first step of decoding passes the prompt's last token, under K_max (paper, algorithm 1).
        """
        m = self.settings
        question_budget = budget if m.question_budget == OWN else m.question_budget or m.prefill_budget
        if not self.clipped:
            # Blocks at true positions stand for full attention, so the question must see all blocks too.
            question_budget = self.layout.blocks(len(self) + len(prompt))
        branch = Branch(self, len(prompt) + new, captures, budget)
        pieces = prompt[:-1].split(m.question_chunk or m.prefill_chunk) if len(prompt) > 1 else ()
        return branch, [(piece, question_budget) for piece in pieces], prompt[-1:]

    def fill(self, layer: int, tokens: Tensor, representatives: Tensor, attention_mass: Tensor) -> None:
        """Fill an empty layer with its first n ``tokens`` [2, G, n, D] and with the results of reading these tokens."""
        store = self.stores[layer]
        store.write(0, *tokens.to(self.reader.device))
        store.leave(self.layout.window_start(tokens.shape[2]))
        self.representatives[layer][:, : representatives.shape[1]] = representatives
        self.attention_mass[layer] = attention_mass.to(self.reader.device)

    def scores(self, layer: int, query: Tensor, n_far: int, *later: Tensor) -> Tensor:
        """Retrieval scores [R, blocks] for queries [R, H, T, D] at the clipped distance, one score per T queries.

        The blocks are the document's first ``n_far``, then the ``later`` blocks, which are given by representatives (as
        for :func:`block_scores`) or by keys (as for :func:`token_scores`).
        """
        if self.settings.representatives != TOKENS:
            mean = query if query.shape[2] == 1 else query.mean(2, keepdim=True)
            known = self.representatives[layer]
            return block_scores(mean, known if n_far == known.shape[1] else known[:, :n_far], *later)
        keys = self.stores[layer].tokens[0][:, self.layout.n_init : self.layout.first_token(n_far)]
        return token_scores(query, self.block_size, keys, *later)

    def place(self, pairs: Tensor, blocks: Tensor) -> Tensor:
        """Keys and values [2, G, k * block_size, D] of far ``blocks`` [k], placed for attention.

        ``pairs``, of the same shape, are unrotated, and stay so with clipping: they are then at the clipped distance
        from a query at position ``n_local - 1``. Without clipping, keys are rotated to their true positions.
        """
        if self.clipped:
            return pairs
        tokens = self.layout.first_token(blocks[:, None]) + torch.arange(self.block_size, device=blocks.device)
        return torch.stack((self.reader.rotary(pairs[0], tokens.flatten().clamp(min=0)), pairs[1]))


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, of at most ``capacity``.

    ``window`` [layers, 2, G, n, D] holds the rotated keys and the values of the document's last window and of the
    committed tokens; its first token is token ``start`` of the text, and it is zero after the committed tokens. No key
    is rotated twice: only distances count, so token ``start`` gets position ``first_position`` for good, and the local
    window slides over the rotated keys. Far keys are ``packed`` right before the window, or placed by
    :meth:`BlockMemory.place`. ``captures`` are the signals' functions that record each layer's retrieval
    (:class:`utaca.detection.signal.Signal`), by name. Branches of equal ``state_id`` hold the same committed tokens.

    At the document's end ``n_scored`` of its blocks are far. The document holds ``n_whole`` whole blocks (below 0 if it
    ends within the initial tokens); for the last token that fits, ``n_at_capacity`` blocks are far. For the blocks that
    leave the window after the document, the branch holds ``representatives`` [layers, G * D, blocks] and their tokens'
    ``attention_mass`` [layers, G, tokens], which begins at index ``mass_start`` of the window. ``tail`` [layers, 2, G,
    blocks, block_size, D] has the unrotated keys and values of the blocks that the document does not hold whole.

    ``graph`` runs steps of one token under at most ``most`` blocks, if the reader's settings want graphs.
    """

    def __init__(
        self,
        memory: BlockMemory,
        capacity: int,
        captures: Mapping[str, Callable] | None = None,
        most: int = 0,
    ) -> None:
        self.memory, self.reader, self.captures = memory, memory.reader, captures or {}
        self.capacity, self.length = capacity, 0
        layout, n = memory.layout, len(memory)
        layers, heads, groups, width = self.reader.shape
        self.start, self.scale = layout.window_start(n), heads * width**0.5
        self.packed = memory.clipped and memory.settings.far_positions == PACKED
        self.first_position = self.start if self.packed or not memory.clipped else 0
        local, rotary = n - self.start, self.reader.rotary
        kept = self.reader.sizes.cache_bytes(local + capacity, self.reader.dtype.itemsize)
        check_size(self.reader, "the answer's keys and values need", kept, "lower max_new_tokens")
        rotary.reserve(max(memory.settings.n_local, self.first_position + local + capacity))
        self.n_scored, self.n_at_capacity = layout.n_far(n), layout.n_far(n + capacity - 1)
        self.n_whole = layout.blocks(n) if n >= layout.n_init else -layout.initial_blocks
        self.mass_start = layout.first_token(self.n_scored) - self.start
        n_leaving = 0 if memory.settings.representatives == TOKENS else self.n_at_capacity - self.n_scored
        n_tail = max(0, self.n_at_capacity - self.n_whole) if self.n_at_capacity else 0
        like = torch.empty(0, dtype=self.reader.dtype, device=memory.tokens.device)
        self.window = like.new_zeros(layers, 2, groups, local + capacity, width)
        self.representatives = memory.representatives[0].new_zeros(layers, groups * width, n_leaving)
        self.attention_mass = self.representatives.new_zeros(layers, groups, n_leaving * layout.block_size)
        self.tail = like.new_zeros(layers, 2, groups, n_tail, layout.block_size, width)
        n_massed = max(0, min(self.attention_mass.shape[2], local - self.mass_start))
        self.state_id: object = id(memory)
        self.most, self.graph = most, None
        # Queries and log-sum-exps of committed steps whose attention mass is not added yet.
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
    def position(self) -> int:
        """Position of the next token."""
        return len(self.memory) + self.length

    def plan(self, tokens: Tensor, budget: int) -> BlockStep:
        """A step that passes ``tokens`` [T] behind the branch under a ``budget`` of blocks, not yet run."""
        return BlockStep(self, tokens, budget)

    @staticmethod
    def run(steps: Sequence[BlockStep]) -> None:
        """Run steps of one size, on branches of one reader, in one pass of the model."""
        if len(steps) == 1 and (graph := steps[0].state.graph_of(steps[0])):
            graph.run(steps[0])
        else:
            Pass(steps)

    def graph_of(self, step: BlockStep) -> StepGraph | None:
        """The graph that runs a step of this branch; None if the step must run as an ordinary pass."""
        if not can_record(self) or self.reader.watched or step.size > 1 or not 0 < step.k <= self.most:
            return None
        if self.graph is None:
            self.graph = StepGraph(self, self.most)
        return self.graph

    @torch.inference_mode()
    def commit(self, step: BlockStep) -> None:
        """Append the tokens of a ``step`` that has run."""
        passed, row, at = step.passed, step.row, slice(step.behind, step.behind + step.size)
        self.window[:, 0, :, at], self.window[:, 1, :, at] = passed.rotated[:, row], passed.values[:, row]
        self.length += step.size
        self.state_id = passed.state_ids[row]
        owns_blocks = self.tail.shape[3] > 0
        if owns_blocks:
            self._keep(step.position, torch.stack((passed.keys[:, row], passed.values[:, row]), 1))
        if self.representatives.shape[2]:
            self._queries.append((passed.query[:, row], passed.lse[:, row]))
            if owns_blocks or step.size > 1 or self.memory.layout.n_far(self.position) > step.n_far:
                self._represent(step)

    def blocks(self, layer: int, ids: Tensor, n_far: int) -> Tensor:
        """Unrotated keys and values [2, G, k * block_size, D] of blocks ``ids`` [k], all among the first ``n_far``."""
        store, n_whole = self.memory.stores[layer], self.n_whole
        if n_far <= n_whole:
            return store.blocks(ids)
        pairs = self.tail[layer][:, :, (ids - n_whole).clamp(min=0)].flatten(2, 3)
        if n_whole > -self.memory.layout.initial_blocks:
            in_document = (ids < n_whole)[:, None].expand(-1, self.memory.block_size).flatten()[:, None]
            pairs = torch.where(in_document, store.blocks(ids.clamp(max=n_whole - 1)), pairs)
        return pairs

    def _keep(self, first: int, pairs: Tensor, layers: slice = slice(None)) -> None:
        """Copy the tail's part of unrotated ``pairs`` [layers, 2, G, T, D], which begin at token ``first``."""
        first -= self.memory.layout.first_token(self.n_whole)
        tail = self.tail[layers].flatten(3, 4)[..., max(0, first) : max(0, first + pairs.shape[3]), :]
        tail.copy_(pairs[..., max(0, -first) :, :][..., : tail.shape[3], :])

    def _represent(self, step: BlockStep) -> None:
        """Compute representatives of the blocks that a committed ``step`` has made far.

        Before that, add the attention that the pending queries, including the step's, give to the tokens of
        ``attention_mass``. If the branch has a tail, only the step's queries are pending; otherwise these tokens are
        all the document's, and every query sees them.
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
        memory, layout, size = self.memory, self.memory.layout, self.memory.block_size
        for block in range(step.n_far, min(self.n_at_capacity, layout.n_far(self.position))):
            place, first = block - self.n_scored, layout.first_token(block)
            if block < self.n_whole:
                keys = torch.stack([store.window(first, first + size)[0] for store in memory.stores])
            else:
                keys = self.tail[:, 0, :, block - self.n_whole]
            mass = self.attention_mass[:, :, None, place * size : (place + 1) * size]
            self.representatives[:, :, place] = represented(memory.settings, keys[:, :, None], mass).flatten(1)


class BlockStep(Step):
    """A pass of ``tokens`` [T] after a branch under a ``budget`` of blocks per layer; nothing is committed.

    Raises :class:`ValueError` if the branch has no room for the tokens.
    """

    passed: Pass | ReplayedPass

    def __init__(self, branch: Branch, tokens: Tensor, budget: int) -> None:
        super().__init__(branch, tokens, budget)
        if branch.length + self.size > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {self.size}")
        layout, self.position = branch.memory.layout, branch.position
        self.n_far = layout.n_far(self.position)
        self.k = min(budget, self.n_far)
        # The step sees entries ``start`` to ``behind`` of the branch's window.
        self.start, self.behind = layout.window_start(self.position) - branch.start, self.position - branch.start

    def equals(self, other: BlockStep) -> bool:
        """Whether both steps pass the same tokens after the same committed tokens, and retrieve equally many blocks."""
        alike = self.state.state_id == other.state.state_id and self.k == other.k
        return alike and torch.equal(self.tokens, other.tokens)

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.state.memory.layout
        initial = layout.n_init if self.n_far else 0
        return initial + self.k * layout.block_size + self.behind - self.start + self.size


class Pass:
    """One pass of the model for steps of one size, on branches of one reader; nothing is committed.

    A step's results equal those of the step run alone up to the rounding of larger matrix products. Steps of equal
    history, tokens and budget share a row. For each layer and row, the pass holds the unrotated ``keys``
    [layers, rows, G, T, D], the keys ``rotated`` to the window and the ``values`` (same shape); the rotated queries
    (``query`` [layers, rows, H, T, D]) and the log-sum-exp ``lse`` [layers, rows, H, T] of their logits, scaled by
    ``scaling``; the best blocks (``chosen`` [layers, rows, K], of which a step sees the first k) and their ``scores``;
    and what each signal ``captured`` [layers, rows]. A branch that commits a row takes its row's ``state_ids`` entry.
    """

    @torch.inference_mode()
    def __init__(self, steps: Sequence[BlockStep]) -> None:
        twins: list[BlockStep] = []
        for step in steps:
            twins.append(next((twin for twin in twins if twin.equals(step)), step))
        groups: dict[Hashable, list[BlockStep]] = {}
        # Sorting by k puts rows that retrieve equally many blocks side by side, so that they can attend together.
        for step in sorted(dict.fromkeys(twins), key=lambda step: step.k):
            branch, of_document = step.state, step.size == 1 and step.n_far <= max(0, step.state.n_whole)
            key = (id(branch.memory), step.n_far) if of_document else branch.state_id
            groups.setdefault(key, []).append(step)
        rows = [step for group in groups.values() for step in group]
        reader = steps[0].state.reader
        self._groups = [_Group(group) for group in groups.values()]
        self._new: list[tuple[Tensor, Tensor]] = []
        hidden = reader.forward(torch.stack([step.tokens for step in rows]), self)
        output = Output(hidden, reader.embeddings(), reader.logits)
        self.state_ids = [object() for _ in rows]
        self.keys, self.values = (torch.stack(column) for column in zip(*self._new, strict=True))
        captures = {name: capture for step in steps for name, capture in step.state.captures.items()}
        most = max(step.k for step in steps)
        found = _Found.joined([group.found(most, captures) for group in self._groups])
        self.rotated, self.query, self.lse = found.rotated, found.query, found.lse
        self.chosen, self.scores, self.captured = found.chosen, found.scores, found.captured
        for step, twin in zip(steps, twins, strict=True):
            step.output, step.passed, step.row = output, self, rows.index(twin)
            step.selected, order = self.chosen[:, step.row, : step.k].sort(-1)
            step.scores = self.scores[:, step.row].gather(1, order)
            step.captured = {name: self.captured[name][:, step.row] for name in step.state.captures if step.n_far}
        del self._groups, self._new

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [R, H, T, D] of query [R, H, T, D], key and value [R, G, T, D], all unrotated."""
        self.scaling = scaling
        self._new.append((key, value))
        if len(self._groups) == 1:
            return self._groups[0].attend(layer, query, key, value, scaling)
        sizes = [len(group.branches) for group in self._groups]
        parts = zip(self._groups, *(x.split(sizes) for x in (query, key, value)), strict=True)
        return torch.cat([group.attend(layer, *rows, scaling) for group, *rows in parts])


@dataclass
class _Found:
    """What the rows of a group found in all layers; fields as those of :class:`Pass`."""

    rotated: Tensor
    query: Tensor
    lse: Tensor
    chosen: Tensor
    scores: Tensor
    captured: dict[str, Tensor]

    @staticmethod
    def joined(groups: Sequence[_Found]) -> _Found:
        """The rows of several groups, one group after the other."""
        if len(groups) == 1:
            return groups[0]

        def rows(name: str) -> Tensor:
            return torch.cat([getattr(group, name) for group in groups], 1)

        captured = {name: torch.cat([group.captured[name] for group in groups], 1) for name in groups[0].captured}
        return _Found(*map(rows, ("rotated", "query", "lse", "chosen", "scores")), captured)


class _Group:
    """Rows that attend together: single tokens of branches of one document, or steps of one history."""

    def __init__(self, steps: list[BlockStep]) -> None:
        first, self.branches = steps[0], [step.state for step in steps]
        branch = self.branches[0]
        self.memory, self.n_far, self.scale, self.size = branch.memory, first.n_far, branch.scale, first.size
        layout, rotary, dtype = self.memory.layout, branch.reader.rotary, branch.window.dtype
        # The window's part that all rows share: for single tokens, whose branches may differ, only the document's part.
        shared = max(first.start, len(self.memory) - branch.start) if first.size == 1 else first.behind
        self.window = slice(first.start, shared)
        self.tails = [step.behind - shared for step in steps]
        device = branch.window.device
        places = [step.state.first_position + step.behind for step in steps]
        self.to_place = rotary.behind(places, self.size, dtype)
        if self.n_far:
            n_local = self.memory.settings.n_local
            self.to_place = self.to_place.joined_with(rotary.at(range(n_local - 1, n_local), dtype))
        # The initial tokens count as blocks too, numbered up to -1.
        initial = torch.arange(-layout.initial_blocks if self.n_far else 0, 0, device=device)
        self.initial = initial.expand(len(steps), -1)
        self.counts = [len(initial) + step.k for step in steps]
        self.most = max(step.k for step in steps)
        # By layer: rotated keys, rotated queries, log-sum-exps, chosen blocks, scores of all blocks.
        self._layers: list[tuple[Tensor, ...]] = []
        self.shared = _by_layer(branch.window[:, :, None, :, self.window])
        longest = max(self.tails)
        self.seen = None
        if min(self.tails) < longest:
            lengths = on_device(self.tails, device)[:, None, None, None] + 1
            self.seen = torch.arange(longest + 1, device=device) < lengths
        self.earlier = _by_layer(self._tails(longest)) if longest else []
        self.clipped = self.memory.clipped and not branch.packed
        if branch.packed:
            end = branch.first_position + first.start
            before = [torch.arange(end - layout.block_size * count, end, device=device) for count in self.counts]
            self.to_pack = rotary.at(torch.cat(before).clamp(min=0), dtype)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """As :meth:`Pass.attend`; keeps what the layer found until :meth:`found`."""
        rows, heads, length, _ = query.shape
        turned = self.to_place(torch.cat((query, key), 1))
        # With far blocks, the second half is rotated to the edge of the window.
        near, edge = turned.unbind(0) if self.n_far else (turned, None)
        local, rotated = near.split((heads, key.shape[1]), 1)
        parts = []
        keys, values = self.shared[layer]
        if keys.shape[2] and rows == 1:
            parts.append(grouped(local, keys, values, scaling))
        elif keys.shape[2]:
            # All rows see the same keys here, so their tokens can be treated as tokens of one row.
            together = local.transpose(0, 1).flatten(1, 2)[None]
            of_tokens = grouped(together, keys, values, scaling)
            parts.append(tuple(x[0].unflatten(2, (rows, length)).movedim(2, 0) for x in of_tokens))
        parts.append(self._tail(layer, local, rotated, value, scaling))
        retrieved = ()
        if self.n_far:
            edge = edge[:, :heads]
            scores = self._scores(layer, edge)
            chosen = best(scores, self.most)
            if min(self.counts) < max(self.counts):
                # The best come first, because a row of a smaller budget sees only the first ones.
                chosen = chosen.gather(1, scores.gather(1, chosen).argsort(dim=1, descending=True, stable=True))
            parts.append(self._far(layer, edge if self.clipped else local, chosen, scaling))
            retrieved = chosen, scores
        out, lses = mixture(parts)
        self._layers.append((rotated, local, lses, *retrieved))
        return out.flatten(1, 2)

    def _tails(self, longest: int) -> Tensor:
        """Keys and values [layers, 2, R, G, longest, D] of each branch's tokens after the shared window."""
        start, tails = self.window.stop, []
        for branch, count in zip(self.branches, self.tails, strict=True):
            tail = branch.window[:, :, :, start : start + count]
            tails.append(pad(tail, (0, 0, 0, longest - count)) if count < longest else tail)
        return torch.stack(tails, 2) if len(tails) > 1 else tails[0][:, :, None]

    def found(self, most: int, captures: Mapping[str, Callable]) -> _Found:
        """What all layers found; ``chosen`` has ``most`` blocks a row, and ``captures`` record the retrieval."""
        rotated, query, lses, *retrieved = (torch.stack(column) for column in zip(*self._layers, strict=True))
        lse = (lses[:, 0] if lses.shape[1] == 1 else lses.logsumexp(1)).flatten(2, 3)
        layers, rows = lse.shape[:2]
        if not retrieved:
            chosen = torch.zeros(layers, rows, most, dtype=torch.long, device=lse.device)
            scores = self.memory.representatives[0].new_zeros(layers, rows, most)
            return _Found(rotated, query, lse, chosen, scores, {name: lse.new_zeros(layers, rows) for name in captures})
        chosen, of_all = retrieved
        captured = {}
        for name, capture in captures.items():
            captured[name] = capture(of_all.flatten(0, 1), self.n_far, self.scale).view(layers, rows)
        scores = of_all.gather(2, chosen)
        if room := most - chosen.shape[2]:
            # A group that retrieves fewer blocks is padded with block 0; no step of the group sees the padding.
            chosen, scores = pad(chosen, (0, room)), pad(scores, (0, room))
        return _Found(rotated, query, lse, chosen, scores, captured)

    def _scores(self, layer: int, edge: Tensor) -> Tensor:
        """Retrieval scores [R, n_far] for queries at the edge of the window.

        Blocks that left the window after the document are scored by what their branches hold.
        """
        branch = self.branches[0]
        if self.memory.settings.representatives == TOKENS:
            count = min(self.n_far, max(0, branch.n_whole))
            keys = branch.tail[layer, 0, :, count - branch.n_whole : self.n_far - branch.n_whole]
            return self.memory.scores(layer, edge, count, keys.flatten(1, 2))
        count = min(self.n_far, branch.n_scored)
        left = self.n_far - count
        if not left:
            return self.memory.scores(layer, edge, count)
        later = [each.representatives[layer, :, :left] for each in self.branches]
        return self.memory.scores(layer, edge, count, later[0][None] if len(later) == 1 else torch.stack(later))

    def _tail(self, layer: int, local: Tensor, rotated: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention to the tokens of this pass and, if T is 1, to each branch's tokens after the shared window."""
        if self.size > 1 or not self.earlier:
            return grouped(local, rotated, value, scaling, causal=self.size > 1)
        keys, values = self.earlier[layer]
        keys = torch.cat((rotated, keys), 2)
        values = torch.cat((value, values), 2)
        if self.seen is None:
            return grouped(local, keys, values, scaling)
        out, lse = attention([Segment(local, keys, values, self.seen)], scaling)
        groups = keys.shape[1]
        return out.unflatten(1, (groups, -1)), lse.unflatten(1, (groups, -1))

    def _far(self, layer: int, query: Tensor, chosen: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention to the initial tokens and each row's best blocks; rows of equally many blocks attend together."""
        branch = self.branches[0]
        ids = torch.cat((self.initial, chosen), 1)
        alike = min(self.counts) == max(self.counts)
        if alike:
            ids = ids.flatten()
        else:
            rows = zip(ids, self.counts, strict=True)
            ids = torch.cat([row[:count].sort().values for row, count in rows])
        pairs = self.memory.place(branch.blocks(layer, ids, self.n_far), ids)
        if branch.packed:
            pairs = torch.stack((self.to_pack(pairs[0]), pairs[1]))
        if alike:
            return self._to_blocks(query, pairs, scaling)
        results, row, at = [], 0, 0
        for count, same in groupby(self.counts):
            n_rows = len(list(same))
            end = at + n_rows * count * self.memory.block_size
            results.append(self._to_blocks(query[row : row + n_rows], pairs[:, :, at:end], scaling))
            row, at = row + n_rows, end
        return tuple(torch.cat(column) for column in zip(*results, strict=True))

    def _to_blocks(self, query: Tensor, pairs: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention of rows [R, H, T, D] to equally many blocks each, whose ``pairs`` are [2, G, R * n, D]."""
        far = pairs.unflatten(2, (len(query), -1)).transpose(1, 2)
        if skipped := self.memory.layout.skipped:
            # The first initial block begins with padding before the text.
            far = far[..., skipped:, :]
        keys, values = far.unbind(0)
        return grouped(query, keys, values, scaling)


def _by_layer(pairs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [R, G, n, D] of each layer, from both of all layers, [layers, 2, R, G, n, D]."""
    keys, values = pairs.unbind(1)
    return list(zip(keys.unbind(0), values.unbind(0), strict=True))
