"""A sealed document, and the branches that decode from it.

A branch holds the tokens behind the document. A step attends first and is committed afterwards; a step that is never
committed leaves no trace, which is all that a rollback is (paper, algorithm 1). Like the document's, the tokens of a
branch form blocks, which are represented when they leave the window and can be retrieved from then on.

Several steps share a pass of the model. Those of one branch and position, tried under several budgets, see one window
and share their keys (:class:`Tries`). Single tokens of several branches of one document have windows and blocks of
their own, and share what goes before: rotations, scores, the choice of blocks and their way out of the document
(:class:`Points`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
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
    fused,
    merged,
    ranked,
    received,
    represented,
    token_scores,
)
from utaca.memory.store import Store
from utaca.readers.load import Reader
from utaca.settings.schema import OWN, PACKED, TOKENS, UNWEIGHTED, Memory

Capture = Callable[[Tensor, int, float], Tensor]
"""What a signal keeps of a layer's retrieval, see :class:`utaca.detection.signal.Signal`."""


@dataclass
class BlockMemory:
    """A document that was read, sealed: nothing writes to it any more.

    ``settings`` are those that it was read with. Of each layer it keeps keys and values (``stores``) and the
    representative keys of the far blocks (``representatives`` [G * D, blocks], in float32 at least; along the blocks,
    scores of a long document are found fastest; none where every token represents its block). ``given`` [G, n] is the
    attention mass (:func:`utaca.memory.attention.received`) of the window's tokens so far, by which the window's blocks
    will be represented once they have left it.
    ``clipped``: far keys are at one distance, as InfLLM has it; otherwise every key is at its true position, and
    attention to all blocks is full attention.
    """

    reader: Reader
    settings: Memory
    tokens: Tensor
    clipped: bool
    layout: Layout
    stores: list[Store] = field(default_factory=list)
    representatives: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)

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
        """A branch for a ``prompt`` [T] and ``new`` tokens after it, under ``budget`` blocks at most.

        Also the pieces of the prompt that it must read first, each with its budget, and the last token, which the first
        step of decoding passes: it is decoded under K_max (paper, algorithm 1). ``captures`` are those of
        :class:`Branch`.
        """
        m = self.settings
        asked = budget if m.question_budget == OWN else m.question_budget or m.prefill_budget
        if not self.clipped:
            # At true positions it stands for full attention, to which the question belongs.
            asked = self.layout.blocks(len(self) + len(prompt))
        branch = Branch(self, len(prompt) + new, captures)
        pieces = prompt[:-1].split(m.question_chunk or m.prefill_chunk) if len(prompt) > 1 else ()
        return branch, [(piece, asked) for piece in pieces], prompt[-1:]

    def scores(self, layer: int, query: Tensor, n_far: int, *own: Tensor) -> Tensor:
        """Retrieval scores [R, blocks] for queries [R, H, T, D] at the clipped distance, the T of a row together.

        Of the document's first ``n_far`` blocks, and of a branch's ``own`` behind them: their representatives as
        :func:`block_scores` takes them, or their keys as :func:`token_scores` does.
        """
        if self.settings.representatives != TOKENS:
            return block_scores(query.mean(2), self.representatives[layer][:, :n_far], *own)
        keys = self.stores[layer].tokens[0][:, self.layout.n_init : self.layout.first_token(n_far)]
        return token_scores(query, self.block_size, keys, *own)

    def placed(self, pairs: Tensor, tokens: Tensor) -> Tensor:
        """Keys and values [2, G, n, D] of far ``tokens`` [n] as queries meet them.

        Unrotated, keys are at the clipped distance of a query at position ``n_local - 1``; without clipping they are
        rotated to their true positions.
        """
        return pairs if self.clipped else torch.stack((self.reader.rotary(pairs[0], tokens), pairs[1]))

    def placed_blocks(self, pairs: Tensor, blocks: Tensor) -> Tensor:
        """As :meth:`placed`, of ``pairs`` [2, G, k, block_size, D] of ``blocks`` [k], [2, G, k * block_size, D]."""
        if self.clipped:
            return pairs.flatten(2, 3)
        tokens = self.layout.first_token(blocks[:, None]) + torch.arange(self.block_size, device=blocks.device)
        return self.placed(pairs.flatten(2, 3), tokens.flatten())


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, of ``capacity`` that it may take.

    ``window`` [layers, 2, G, n, D] holds rotated keys, and values, of the document's last window and of the committed
    tokens, from token ``start`` of the text on. No key is rotated twice: only distances count, so that they are placed
    from ``start`` on and stay there while the local window moves over them. Far keys are ``packed`` before the window,
    or as the document has them. What lies behind the committed tokens is
    finite. ``captures`` are what signals keep of the layers' retrieval, by name.
    ``past`` stands for all that was committed: of forks, those that have the same one hold the same.

    Blocks that leave the window here are the branch's own: their ``representatives`` [layers, G * D, blocks], what
    their tokens were ``given`` [layers, G, tokens], and the unrotated ``tail`` [layers, 2, G, blocks, block_size, D] of
    those that are not whole blocks of the document.
    """

    def __init__(self, memory: BlockMemory, capacity: int, captures: Mapping[str, Capture] | None = None) -> None:
        self.memory, self.capacity, self.length, self.captures = memory, capacity, 0, captures or {}
        layout, n = memory.layout, len(memory)
        layers, heads, groups, width = memory.reader.shape
        self.start, self.scale = layout.window_start(n), heads * width**0.5
        self.packed = memory.clipped and memory.settings.far_positions == PACKED
        self.base = self.start if self.packed or not memory.clipped else 0
        local, rotary = n - self.start, memory.reader.rotary
        rotary.reserve(max(memory.settings.n_local, self.base + local + capacity))
        # Blocks with representatives in the document; with one here or there in the end; whole in the document.
        self.sealed, self.last, self.whole = layout.n_far(n), layout.n_far(n + capacity - 1), layout.blocks(n)
        self.represented, self.offset = self.sealed, layout.first_token(self.sealed) - self.start
        own = 0 if memory.settings.representatives == TOKENS else self.last - self.sealed
        like = memory.stores[0].initial
        self.window = like.new_zeros(layers, 2, groups, local + capacity, width)
        self.representatives = memory.representatives[0].new_zeros(layers, groups * width, own)
        self.given = self.representatives.new_zeros(layers, groups, own * layout.block_size)
        self.tail = like.new_zeros(layers, 2, groups, max(0, self.last - self.whole), layout.block_size, width)
        self.initial = like.new_zeros(layers, 2, groups, layout.n_init, width)
        known = max(0, min(self.given.shape[2], local - self.offset))
        # Branches of one document have the same past until a step is committed.
        self.past: object = id(memory), tuple(self.captures.items())
        self._pending: list[Step] = []
        for layer, store in enumerate(memory.stores):
            keys, values = store.window(self.start, n)
            self.window[layer, 0, :, :local] = rotary(keys, range(self.base, self.base + local))
            self.window[layer, 1, :, :local] = values
            self.given[layer, :, :known] = memory.given[layer][:, self.offset : self.offset + known]
            self._keep(layer, 0, store.initial)
            self._keep(layer, layout.first_token(self.whole), store.window(layout.first_token(self.whole), n))

    @property
    def reader(self) -> Reader:
        return self.memory.reader

    @property
    def position(self) -> int:
        """Position of the next token."""
        return len(self.memory) + self.length

    def fork(self) -> Branch:
        """A branch that goes on from here by itself and leaves this one as it is."""
        other = copy(self)
        for name in ("window", "representatives", "given", "tail", "initial"):
            setattr(other, name, getattr(self, name).clone())
        other._pending = self._pending.copy()
        return other

    def plan(self, tokens: Tensor, budget: int) -> Step:
        """A step that passes ``tokens`` [T] behind the branch under a ``budget`` of blocks, not yet run."""
        return Step(self, tokens, budget)

    def step(self, tokens: Tensor, budget: int) -> Step:
        """As :meth:`plan`, run; nothing is committed."""
        step = self.plan(tokens, budget)
        self.run([step])
        return step

    @staticmethod
    @torch.inference_mode()
    def run(steps: Sequence[Step]) -> None:
        """Run steps of one size, on branches of one reader, in one pass of the model; nothing is committed.

        A row's results equal those of the step run alone up to the rounding of larger matrix products. Steps that are
        the same behind the same past, as of forks that have not parted yet, share a row.
        """
        own, others = _distinct(steps)
        reader, rows = steps[0].branch.memory.reader, Rows(own)
        hidden = reader.forward(torch.stack([step.tokens for step in rows.steps]), rows)
        rows.deal(hidden, reader.embeddings())
        for step, one in others:
            step.take(one)

    @torch.inference_mode()
    def commit(self, step: Step) -> None:
        """Make a step part of the branch."""
        at, layout = slice(step.behind, step.behind + step.size), self.memory.layout
        self.window[:, 0, :, at], self.window[:, 1, :, at] = step.rotated, step.values
        self.length += step.size
        self.past = step.ran
        own = self.last > self.whole
        if own or step.position < layout.n_init:
            for layer, pairs in enumerate(zip(step.keys, step.values, strict=True)):
                self._keep(layer, step.position, torch.stack(pairs))
        # Without its branch: one that reaches itself would keep its document until Python looks for such rings.
        waiting = copy(step)
        del waiting.branch
        self._pending.append(waiting)
        if own or step.size > 1 or layout.n_far(self.position) > step.n_far:
            self._give()
            self._represent()

    def scores(self, layer: int, query: Tensor, n_far: int) -> Tensor:
        """Retrieval scores [R, n_far] of the first blocks for queries [R, H, T, D] at the clipped distance."""
        if self.memory.settings.representatives == TOKENS:
            held, own = self.whole, self.tail[layer, 0, :, : max(0, n_far - self.whole)].flatten(1, 2)
        else:
            held, own = self.sealed, self.representatives[layer][:, : max(0, n_far - self.sealed)]
        return self.memory.scores(layer, query, min(n_far, held), own)

    def fetch(self, layer: int, ids: Tensor) -> Tensor:
        """Keys and values [2, G, k * block_size, D] of the blocks ``ids`` [k], as queries meet them."""
        store, own = self.memory.stores[layer], self.tail[layer]
        if not own.shape[2]:
            pairs = store.blocks(ids)
        else:
            pairs = own[:, :, (ids - self.whole).clamp(min=0)]
            if self.whole:
                sealed = store.blocks(ids.clamp(max=self.whole - 1))
                pairs = torch.where((ids < self.whole)[:, None, None], sealed, pairs)
        return self.memory.placed_blocks(pairs, ids)

    def _keep(self, layer: int, first: int, pairs: Tensor) -> None:
        """Keep unrotated ``pairs`` [2, G, T, D], from token ``first`` of the text on, where they will be needed."""
        layout, end = self.memory.layout, first + pairs.shape[2]
        if first < layout.n_init:
            tokens = torch.arange(first, min(end, layout.n_init), device=pairs.device)
            self.initial[layer][:, :, first:end] = self.memory.placed(pairs[:, :, : len(tokens)], tokens)
        start = layout.first_token(self.whole)
        tail = self.tail[layer].flatten(2, 3)[:, :, max(0, first - start) : max(0, end - start)]
        tail.copy_(pairs[:, :, max(0, start - first) :][:, :, : tail.shape[2]])

    def _give(self) -> None:
        """Add what the latest steps give to the tokens that will be in blocks of the branch.

        Those are tokens of the window; where blocks are not the document's alone, they are those of the one step too.
        """
        step, offset, end = self._pending[0], self.offset, self.offset + self.given.shape[2]
        query, lse = (torch.cat([getattr(each, name) for each in self._pending], 2) for name in ("query", "lse"))
        self._pending = []
        if self.memory.settings.representatives in UNWEIGHTED:
            return
        # A single token sees itself; several see each other in part.
        before, after = step.behind + (step.size == 1), step.behind + step.size
        for first, last, keys, causal in (
            (max(step.start, offset), min(before, end), slice(max(step.start, offset), min(before, end)), False),
            (max(before, offset), min(after, end), slice(before, after), True),
        ):
            if first < last:
                given = received(query, self.window[:, 0, :, keys], lse, step.scaling, causal=causal)
                self.given[:, :, first - offset : last - offset] += given[:, :, first - keys.start : last - keys.start]

    def _represent(self) -> None:
        """Represent the blocks that the committed tokens have made far."""
        if self.memory.settings.representatives == TOKENS:
            return
        memory, layout, size = self.memory, self.memory.layout, self.memory.block_size
        for block in range(self.represented, min(self.last, layout.n_far(self.position))):
            place, first = block - self.sealed, layout.first_token(block)
            if block < self.whole:
                keys = torch.stack([store.window(first, first + size)[0] for store in memory.stores])
            else:
                keys = self.tail[:, 0, :, block - self.whole]
            given = self.given[:, :, None, place * size : (place + 1) * size]
            self.representatives[:, :, place] = represented(memory.settings, keys[:, :, None], given).flatten(1)
            self.represented = block + 1


class Step:
    """One pass of ``tokens`` [T] behind a branch under a ``budget`` of blocks a layer; nothing is committed.

    Once run: ``hidden`` [T, D] are the last hidden states and ``embeddings`` the last token's, [D] a site. ``selected``
    [layers, k] are the blocks attended to, ascending, ``scores`` [layers, k] what each of them scored, and ``captured``
    [layers] what each signal kept. ``keys``, those ``rotated``, and ``values`` [layers, G, T, D] are the tokens' own.
    ``query`` [layers, H, T, D] is rotated like them, and ``lse`` [layers, H, T] the log-sum-exp of its logits, which
    were scaled by ``scaling``. ``ran`` is the same in steps that one row ran for. Raises :class:`ValueError` where the
    branch has no room.
    """

    hidden: Tensor
    embeddings: dict[str, Tensor]
    selected: Tensor
    scores: Tensor
    captured: dict[str, Tensor]
    keys: Tensor
    rotated: Tensor
    values: Tensor
    query: Tensor
    lse: Tensor
    scaling: float

    def __init__(self, branch: Branch, tokens: Tensor, budget: int) -> None:
        self.branch, self.tokens, self.budget, self.size = branch, tokens, budget, len(tokens)
        if branch.length + self.size > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {self.size}")
        layout, self.position = branch.memory.layout, branch.position
        self.n_far = layout.n_far(self.position)
        self.k = min(budget, self.n_far)
        # Of the branch's window, the step sees the tokens from ``start`` to ``behind``.
        self.start, self.behind = layout.window_start(self.position) - branch.start, self.position - branch.start
        self.ran = object()

    @property
    def state(self) -> Branch:
        return self.branch

    def take(self, other: Step) -> None:
        """Take over what ``other``, the same step of a fork, was given by its run."""
        self.ran = other.ran
        for name in Step.__annotations__:
            setattr(self, name, getattr(other, name))

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.branch.memory.layout
        initial = layout.n_init if self.n_far else 0
        return initial + self.k * layout.block_size + self.behind - self.start + self.size


class Tries:
    """Steps of one branch that share a pass, a batch row each: from the same position, each under its own budget.

    Rows see the same window. A layer brings as many blocks as the widest budget wants, and hides from a row those that
    are beyond its own.
    """

    def __init__(self, steps: list[Step]) -> None:
        step, branch, self.steps, self.branch = steps[0], steps[0].branch, steps, steps[0].branch
        self.n_far, self.most = step.n_far, max(one.k for one in steps)
        self.span, self.behind, place = slice(step.start, step.behind), step.behind, branch.base + step.behind
        self.window_place = branch.base + step.start
        rotary, dtype, edge = branch.memory.reader.rotary, branch.window.dtype, branch.memory.settings.n_local - 1
        self.to_place = rotary.at(range(place, place + step.size), dtype)
        self.to_edge = rotary.at(range(edge, edge + 1), dtype)
        self.layers: list[tuple[Tensor | None, ...]] = []

    def _packed(self, chosen: Tensor, seen: Tensor | None) -> Tensor:
        """Positions [R, n] of the initial tokens and of the blocks ``chosen`` [R, K], of which a row has ``seen`` some.

        A block lies as many blocks before the window as the row sees from it on, itself included.
        """
        size, initial = self.branch.memory.block_size, self.branch.initial.shape[3]
        seen = torch.ones_like(chosen, dtype=torch.bool) if seen is None else seen
        behind = (seen[:, None] & (chosen[:, None] >= chosen[:, :, None])).sum(-1)
        blocks = (self.window_place - size * behind)[..., None] + torch.arange(size, device=chosen.device)
        first = self.window_place - size * seen.sum(-1, keepdim=True) - initial
        places = torch.cat((first + torch.arange(initial, device=chosen.device), blocks.flatten(1)), 1)
        # Those of blocks that a row does not see may be anywhere.
        return places.clamp(min=0)

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """The best blocks [R, K] by ``scores`` [R, blocks], and which of them each row sees; None: all.

        They are ranked where a row does not see all.
        """
        chosen = best(scores, self.most)
        if all(step.k == self.most for step in self.steps):
            return chosen, None
        budgets = torch.tensor([[step.k] for step in self.steps], device=scores.device)
        return ranked(scores, chosen), torch.arange(self.most, device=scores.device) < budgets

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [R, H, T, D] of query [R, H, T, D], key and value [R, G, T, D]."""
        branch, memory, rows = self.branch, self.branch.memory, len(query)
        local, rotated = self.to_place(torch.cat((query, key), 1)).split((query.shape[1], key.shape[1]), 1)
        window = branch.window[layer, :, None, :, self.span].expand(-1, rows, -1, -1, -1)
        segments = [Segment(local, *window), Segment(local, rotated, value, causal=True)]
        captured: list[Tensor] = []
        if not self.n_far:
            chosen, scores = memory.tokens.new_zeros(rows, 0), branch.given.new_zeros(rows, 0)
        else:
            edge = self.to_edge(query)
            scores = branch.scores(layer, edge, self.n_far)
            chosen, seen = self.choose(scores)
            captured = [capture(scores, self.n_far, branch.scale) for capture in branch.captures.values()]
            distant = edge if memory.clipped and not branch.packed else local
            pairs = branch.fetch(layer, chosen.flatten()).unflatten(2, (rows, -1)).transpose(1, 2)
            pairs = torch.cat((branch.initial[layer, :, None].expand(-1, rows, -1, -1, -1), pairs), 3)
            if branch.packed:
                to_pack = memory.reader.rotary.at(self._packed(chosen, seen)[:, None], pairs.dtype)
                pairs = torch.stack((to_pack(pairs[0]), pairs[1]))
            if seen is not None:
                seen = pad(seen.repeat_interleave(memory.block_size, 1), (branch.initial.shape[3], 0), value=True)
                seen = seen[:, None, None]
            segments.append(Segment(distant, *pairs, seen))
            scores = scores.gather(1, chosen)
        out, lse = attention(segments, scaling)
        self.layers.append((key, rotated, value, local, lse, chosen, scores, *captured))
        self.scaling = scaling
        return out


class Points:
    """Steps of one token each, of as many branches of one document with equally many far blocks, each under a budget.

    No far block is other than whole in the document, and the document's far keys are at one distance.
    Their windows begin at one token, so that what the document has of them is one window for all.
    """

    def __init__(self, steps: list[Step]) -> None:
        # Those that bring equally many blocks side by side, to attend to them together.
        steps = self.steps = sorted(steps, key=lambda step: step.k)
        first = steps[0]
        branch = first.branch
        self.memory, self.captures, self.scale = branch.memory, branch.captures, branch.scale
        self.n_far, self.most = first.n_far, max(step.k for step in steps)
        # Of the far blocks, those that are represented in the branches; their tokens lie in the document.
        self.own = 0 if self.memory.settings.representatives == TOKENS else self.n_far - branch.sealed
        local = max(first.start, len(self.memory) - branch.start)
        self.shared = slice(first.start, local)
        self.tails = [slice(local, step.behind) for step in steps]
        rotary, dtype, edge = self.memory.reader.rotary, branch.window.dtype, self.memory.settings.n_local - 1
        device = branch.window.device
        places = torch.tensor([step.branch.base + step.behind for step in steps], device=device)
        self.to_place, self.to_edge = rotary.at(places, dtype), rotary.at(range(edge, edge + 1), dtype)
        # The initial tokens are whole blocks too, and lie before the first.
        initial = self.memory.settings.n_init // self.memory.block_size if self.n_far else 0
        self.initial = torch.arange(-initial, 0, device=device).expand(len(steps), -1)
        self.brought = [initial + step.k for step in steps]
        self.packed = branch.packed
        if self.packed:
            edge, size = branch.base + first.start, branch.memory.block_size
            before = [torch.arange(edge - size * count, edge, device=device) for count in self.brought]
            self.to_pack = rotary.at(torch.cat(before), dtype)
        self.layers: list[tuple[Tensor, ...]] = []

    @staticmethod
    def alike(step: Step) -> object:
        """Steps with equal values may be points of one pass; None where a step can be none."""
        branch, m = step.branch, step.branch.memory.settings
        if step.size > 1 or not branch.memory.clipped or step.n_far > branch.whole or m.n_init % m.block_size:
            return None
        return id(branch.memory), step.n_far, tuple(branch.captures.items())

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [R, H, 1, D] of query [R, H, 1, D], key and value [R, G, 1, D]."""
        heads, groups = query.shape[1], key.shape[1]
        # To be rotated each to its own place, the rows are the tokens of one sequence.
        both = self.to_place(torch.cat((query, key), 1)[:, :, 0].transpose(0, 1))
        local, rotated = both.transpose(0, 1)[:, :, None].split((heads, groups), 1)
        grouped = local.view(len(query), groups, -1, query.shape[3])
        parts = [(value.expand_as(grouped).reshape(query.shape), _products(grouped, rotated, scaling))]
        window = self.steps[0].branch.window[layer, :, None, :, self.shared]
        if window.shape[3]:
            # The rows are tokens of one query.
            out, lse = fused(Segment(local.transpose(0, 2), *window), scaling)
            parts.append((out.transpose(0, 2), lse.transpose(0, 2)))
        tails = [step.branch.window[layer, :, :, own] for step, own in zip(self.steps, self.tails, strict=True)]
        if any(sizes := [tail.shape[2] for tail in tails]):
            parts.append(_each(local, torch.cat(tails, 2), sizes, scaling))
        chosen = value.new_zeros(len(query), 0, dtype=torch.long)
        scores = self.steps[0].branch.given.new_zeros(len(query), 0)
        captured: list[Tensor] = []
        if self.n_far:
            edge = self.to_edge(query)
            scores = self.memory.scores(layer, edge, self.n_far - self.own, *self._left(layer))
            captured = [capture(scores, self.n_far, self.scale) for capture in self.captures.values()]
            chosen = best(scores, self.most)
            if min(self.brought) < max(self.brought):
                chosen = ranked(scores, chosen)
            scores = scores.gather(1, chosen)
            ids = torch.cat((self.initial, chosen), 1)
            ids = torch.cat([own[:count].sort().values for own, count in zip(ids, self.brought, strict=True)])
            blocks = self.memory.stores[layer].blocks(ids).flatten(2, 3)
            if self.packed:
                edge, blocks = local, torch.stack((self.to_pack(blocks[0]), blocks[1]))
            parts.append(_each(edge, blocks, [count * self.memory.block_size for count in self.brought], scaling))
        out, lse = merged(*(torch.stack(column) for column in zip(*parts, strict=True)))
        self.layers.append((key, rotated, value, local, lse, chosen, scores, *captured))
        self.scaling = scaling
        return out

    def _left(self, layer: int) -> list[Tensor]:
        """Representatives [R, G * D, blocks] of the blocks that left the window of each row by itself, if any did."""
        if not self.own:
            return []
        return [torch.stack([step.branch.representatives[layer][:, : self.own] for step in self.steps])]


class Rows:
    """All rows of a pass: ``steps`` of one size, in the order of their rows."""

    def __init__(self, steps: Sequence[Step]) -> None:
        points: dict[object, list[Step]] = {}
        self._groups: list[Tries | Points] = []
        for _, group in groupby(steps, key=lambda step: id(step.branch)):
            first, *others = group
            if others or (key := Points.alike(first)) is None:
                self._groups.append(Tries([first, *others]))
            else:
                points.setdefault(key, []).append(first)
        self._groups += [Points(group) for group in points.values()]
        self._sizes = [len(group.steps) for group in self._groups]
        self.steps = [step for group in self._groups for step in group.steps]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows = zip(self._groups, *(x.split(self._sizes) for x in (query, key, value)), strict=True)
        return torch.cat([group.attend(layer, *own, scaling) for group, *own in rows])

    def deal(self, hidden: Tensor, embeddings: Mapping[str, Tensor]) -> None:
        """Hand each step what its row of the last hidden states [R, T, D] and of the embeddings [R, D] a site gives."""
        split = {site: own.split(self._sizes) for site, own in embeddings.items()}
        for place, (group, own) in enumerate(zip(self._groups, hidden.split(self._sizes), strict=True)):
            _deal(group, own, {site: parts[place] for site, parts in split.items()})


def _distinct(steps: Sequence[Step]) -> tuple[list[Step], list[tuple[Step, Step]]]:
    """The steps that need a row each, in their order, and the others, each with the one of these that it equals."""
    own: list[Step] = []
    others: list[tuple[Step, Step]] = []
    known: dict[tuple[object, int], list[Step]] = {}
    for step in steps:
        alike = known.setdefault((step.branch.past, step.k), [])
        one = next((one for one in alike if torch.equal(one.tokens, step.tokens)), None)
        if one is None:
            own.append(step)
            alike.append(step)
        else:
            others.append((step, one))
    return own, others


def _deal(group: Tries | Points, hidden: Tensor, embeddings: Mapping[str, Tensor]) -> None:
    """Hand each step of a group its row of what the pass gave, once all layers have attended.

    That is the last hidden states [R, T, D] and the embeddings [R, D] a site; and of each layer the keys, those
    rotated, and the values [R, G, T, D], the queries [R, H, T, D], the log-sum-exps [R, H, T], the blocks [R, K], of
    which a row saw its first k, their scores, and what each signal captured [R].
    """
    columns = [torch.stack(column) for column in zip(*group.layers, strict=True)]
    keys, rotated, values, query, lse, chosen, scores, *captured = columns
    for row, step in enumerate(group.steps):
        step.hidden, step.embeddings = hidden[row], {site: x[row] for site, x in embeddings.items()}
        step.keys, step.rotated, step.values = keys[:, row], rotated[:, row], values[:, row]
        step.query, step.lse, step.scaling = query[:, row], lse[:, row], group.scaling
        step.selected, order = chosen[:, row, : step.k].sort(-1)
        step.scores = scores[:, row].gather(1, order)
        kept = zip(step.branch.captures, captured, strict=True) if step.n_far else ()
        step.captured = {name: x[:, row] for name, x in kept}


def _each(query: Tensor, pairs: Tensor, sizes: Sequence[int], scaling: float) -> tuple[Tensor, Tensor]:
    """Attention of each row [H, 1, D] to so many keys and values of its own, in turn of ``pairs`` [2, G, sum, D].

    Rows side by side that have equally many go together.
    """
    found: list[tuple[Tensor, Tensor]] = []
    row = at = 0
    for size, same in groupby(sizes):
        count = len(list(same))
        rows, own = query[row : row + count], pairs[:, :, at : at + count * size]
        row, at = row + count, at + count * size
        if size:
            found.append(fused(Segment(rows, *own.unflatten(2, (count, size)).transpose(1, 2)), scaling))
        else:
            none = rows.new_full(rows.shape[:3], -torch.inf, dtype=torch.promote_types(rows.dtype, torch.float32))
            found.append((torch.zeros_like(rows), none))
    out, lse = (torch.cat(column) for column in zip(*found, strict=True))
    return out, lse


def _products(grouped: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Scaled products [R, H, 1] of queries [R, G, H / G, D] with the one key [R, G, 1, D] of their group."""
    precise = torch.promote_types(grouped.dtype, torch.float32)
    return (grouped.to(precise) * keys.to(precise)).sum(-1).flatten(1)[:, :, None] * scaling
