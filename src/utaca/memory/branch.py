"""A sealed document, and the branches that decode from it.

A branch holds the tokens behind the document. A step attends first and is committed afterwards; a step that is never
committed leaves no trace, which is all that a rollback is (paper, algorithm 1). Like the document's, the tokens of a
branch form blocks, which are represented when they leave the window and can be retrieved from then on. Steps of any
branches, of one document or several, may share a pass of the model (:meth:`Branch.run`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import (
    Segment,
    best,
    block_scores,
    fused,
    merged,
    relevance,
    represented,
)
from utaca.memory.layout import Layout
from utaca.memory.store import Store
from utaca.readers.attention import Rotation
from utaca.readers.load import Reader
from utaca.settings.schema import Memory

Capture = Callable[[Tensor, "int | Tensor", int], Tensor]
"""What a signal keeps of a layer that retrieves: its scores [R, blocks], how many of the blocks are far (others are
-inf), the number of query heads times the square root of their width; returns [R]."""


@dataclass
class BlockMemory:
    """A document that was read, sealed: nothing writes to it any more.

    ``settings`` are those that it was read with. Of each layer it keeps keys and values (``stores``) and the
    representative keys of the far blocks (``representatives`` [G * D, blocks], in float32 at least; along the blocks,
    scores of a long document are found fastest). ``given`` [G, n] is the relevance of the window's tokens so far, by
    which the window's blocks will be represented once they have left it (:func:`utaca.memory.attention.relevance`).
    ``clipped``: far keys are at one distance, as InfLLM has it; otherwise every key is at its true position, and
    attention to all blocks is full attention. ``branches`` is the class of its branches.
    """

    reader: Reader
    settings: Memory
    tokens: Tensor
    clipped: bool
    layout: Layout
    branches: type[Branch]
    stores: list[Store] = field(default_factory=list)
    representatives: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)

    dropped: ClassVar[int] = 0
    adjustable: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    def begin(
        self, prompt: Tensor, new: int, most: int, captures: Mapping[str, Capture]
    ) -> tuple[Branch, list[tuple[Tensor, int]], Tensor]:
        """A branch for a ``prompt`` [T] and ``new`` tokens after it; other arguments as of :class:`Branch`.

        Also the pieces of the prompt that it must read first, each with its budget, and the last token, which the first
        step of decoding passes: it is decoded under K_max (paper, algorithm 1).
        """
        branch = self.branches(self, len(prompt) + new, most, captures)
        pieces = prompt[:-1].split(self.settings.prefill_chunk) if len(prompt) > 1 else ()
        return branch, [(piece, self.settings.prefill_budget) for piece in pieces], prompt[-1:]

    def far_pairs(self, initial: Tensor, blocks: Tensor, ids: Tensor) -> Tensor:
        """Keys and values [2, G, n, D] of the initial tokens [2, G, n_init, D] and of the blocks ``ids`` [k].

        ``blocks`` [2, G, k, block_size, D] are theirs. Unrotated, keys are at the clipped distance of a query at
        position ``n_local - 1``; without clipping they are rotated to their true positions.
        """
        pairs = torch.cat((initial, blocks.flatten(2, 3)), 2)
        if self.clipped:
            return pairs
        tokens = self.layout.first_token(ids[:, None]) + torch.arange(self.block_size, device=ids.device)
        first = torch.arange(initial.shape[2], device=ids.device)
        return torch.stack((self.reader.rotary(pairs[0], torch.cat((first, tokens.flatten()))), pairs[1]))


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, of ``capacity`` that it may take.

    ``window`` [layers, 2, G, n, D] holds rotated keys, and values, of the document's last window and of the committed
    tokens, from token ``start`` of the text on. No key is rotated twice: only distances count, so that they are placed
    from ``start`` on and stay there while the local window moves over them. What lies behind the committed tokens is
    finite. Steps may retrieve ``most`` blocks. ``captures`` are what signals keep of the layers' retrieval, by name.

    Blocks that leave the window here are the branch's own: their ``representatives`` [layers, G * D, blocks], what
    their tokens were ``given`` [layers, G, tokens], and the unrotated ``tail`` [layers, 2, G, blocks, block_size, D] of
    those that are not the document's whole blocks.
    """

    def __init__(
        self, memory: BlockMemory, capacity: int, most: int = 0, captures: Mapping[str, Capture] | None = None
    ) -> None:
        self.memory, self.capacity, self.length, self.most, self.captures = memory, capacity, 0, most, captures or {}
        layout, n = memory.layout, len(memory)
        layers, heads, groups, width = memory.reader.shape
        self.start, self.scale = layout.window_start(n), heads * width**0.5
        self.base = 0 if memory.clipped else self.start
        memory.reader.rotary.reserve(max(memory.settings.n_local, self.base + n - self.start + capacity))
        like = memory.stores[0].initial
        self.window = like.new_zeros(layers, 2, groups, n - self.start + capacity, width)
        for pairs, store in zip(self.window, memory.stores, strict=True):
            keys, values = store.window(self.start, n)
            pairs[0, :, : n - self.start] = memory.reader.rotary(keys, range(self.base, self.base + keys.shape[1]))
            pairs[1, :, : n - self.start] = values
        # Blocks with representatives in the document, with one of either kind in the end, and whole in the document.
        self.sealed, self.last, self.whole = layout.n_far(n), layout.n_far(n + capacity - 1), layout.blocks(n)
        self.n_represented, self.offset = self.sealed, layout.first_token(self.sealed) - self.start
        own, precise = self.last - self.sealed, memory.representatives[0].dtype
        self.representatives = like.new_zeros(layers, groups * width, own, dtype=precise)
        self.given = like.new_zeros(layers, groups, own * layout.block_size, dtype=precise)
        known = max(0, min(self.given.shape[2], n - self.start - self.offset))
        self.tail = like.new_zeros(layers, 2, groups, max(0, self.last - self.whole), layout.block_size, width)
        first = layout.first_token(self.whole)
        self.initial = [store.initial for store in memory.stores]
        for layer, store in enumerate(memory.stores):
            self.given[layer, :, :known] = memory.given[layer][:, self.offset : self.offset + known]
            if first < n:
                self._keep(layer, first, store.window(first, n))
            if n < layout.n_init:
                self.initial[layer] = like.new_zeros(2, groups, layout.n_init, width)
                self.initial[layer][:, :, :n] = store.initial

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
    @torch.inference_mode()
    def run(steps: Sequence[Step]) -> None:
        """Run steps of one size, on branches of one reader, in one pass of the model; nothing is committed.

        The modules of the model are called. A row's results equal those of the step run alone up to the rounding of
        larger matrix products.
        """
        reader = steps[0].branch.memory.reader
        rows = _Rows(steps)
        hidden = reader.forward(torch.stack([step.tokens for step in steps]), rows)
        rows.finish(hidden, reader.embeddings())

    def recompute(self, step: Step) -> None:
        """Run a step once more by the modules of the model, whatever runs it otherwise."""
        Branch.run([self.plan(step.tokens, step.budget)])

    @torch.inference_mode()
    def commit(self, step: Step) -> None:
        """Make a step part of the branch."""
        at = slice(step.behind, step.behind + step.size)
        self.window[:, 0, :, at], self.window[:, 1, :, at] = torch.stack(step.rotated), torch.stack(step.values)
        for layer, pairs in enumerate(zip(step.keys, step.values, strict=True)):
            if self.tail.shape[3] or self.position < self.memory.layout.n_init:
                self._keep(layer, step.position, torch.stack(pairs))
        if step.given:
            first = step.given_from - self.offset
            self.given[:, :, first : first + step.given[0].shape[1]] += torch.stack(step.given)
        self.length += step.size
        self._represent()

    def scores(self, layer: int, query: Tensor, n_far: int) -> Tensor:
        """Retrieval scores [R, n_far] of the far blocks for queries [R, H, D] at the clipped distance."""
        scores = block_scores(query, self.memory.representatives[layer][:, :n_far])
        if n_far <= self.sealed:
            return scores
        return torch.cat((scores, block_scores(query, self.representatives[layer][:, : n_far - self.sealed])), 1)

    def far(self, layer: int, ids: Tensor) -> Tensor:
        """Keys and values [2, G, k, block_size, D] of the blocks ``ids`` [k], unrotated."""
        store, own = self.memory.stores[layer], self.tail[layer]
        if not own.shape[2]:
            return store.blocks(ids)
        tail = own[:, :, (ids - self.whole).clamp(min=0)]
        if not self.whole:
            return tail
        return torch.where((ids < self.whole)[:, None, None], store.blocks(ids.clamp(max=self.whole - 1)), tail)

    def _keep(self, layer: int, first: int, pairs: Tensor) -> None:
        """Keep unrotated ``pairs`` [2, G, T, D], from token ``first`` of the text on, where blocks will need them."""
        layout = self.memory.layout
        if first < layout.n_init and self.initial[layer].shape[2] > first >= len(self.memory):
            part = self.initial[layer][:, :, first : first + pairs.shape[2]]
            part.copy_(pairs[:, :, : part.shape[2]])
        tail, start = self.tail[layer].flatten(2, 3), layout.first_token(self.whole)
        skipped = max(0, start - first)
        part = tail[:, :, first + skipped - start : first + pairs.shape[2] - start]
        part.copy_(pairs[:, :, skipped : skipped + part.shape[2]])

    def _represent(self) -> None:
        """Represent the blocks that the committed tokens have made far."""
        memory, layout, size = self.memory, self.memory.layout, self.memory.block_size
        for block in range(self.n_represented, min(self.last, layout.n_far(self.position))):
            at = (block - self.sealed) * size
            first = layout.first_token(block)
            if block < self.whole:
                keys = torch.stack([store.window(first, first + size)[0] for store in memory.stores])
            else:
                keys = self.tail[:, 0, :, block - self.whole]
            chosen = represented(memory.settings, keys[:, :, None], self.given[:, :, None, at : at + size])
            self.representatives[:, :, block - self.sealed] = chosen.flatten(1)
            self.n_represented = block + 1


class Step:
    """One pass of ``tokens`` [T] behind a branch under a ``budget`` of blocks a layer; nothing is committed.

    Once run: ``hidden`` [T, D] are the last hidden states and ``embeddings`` the last token's, [D] a site. ``selected``
    [layers, k] are the blocks attended to, ascending, ``scores`` [layers, k] what each of them scored, and ``captured``
    [layers] what each signal kept. ``keys``, those ``rotated``, and ``values`` are the tokens' own, [G, T, D] a layer;
    ``given`` [G, n] a layer is what the window's tokens from ``given_from`` on were given, where that is to be
    remembered. Raises :class:`ValueError` where the branch has no room for the tokens.
    """

    hidden: Tensor
    embeddings: dict[str, Tensor]
    selected: Tensor
    scores: Tensor
    captured: dict[str, Tensor]

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
        self.given_from = max(self.start, branch.offset)
        self.keys: list[Tensor] = []
        self.rotated: list[Tensor] = []
        self.values: list[Tensor] = []
        self.given: list[Tensor] = []

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.branch.memory.layout
        initial = layout.n_init if self.n_far else 0
        return initial + self.k * layout.block_size + self.behind - self.start + self.size


class _Rows:
    """Steps that share a pass, a batch row each; those of one branch attend to its window together."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.groups = [list(group) for _, group in groupby(steps, key=lambda step: id(step.branch))]
        self.chosen: dict[Step, list[tuple[Tensor, Tensor]]] = {step: [] for step in steps}
        self.captured: dict[Step, dict[str, list[Tensor]]] = {step: {} for step in steps}
        reader, self.rotations = steps[0].branch.memory.reader, []
        for step, *_ in self.groups:
            place, n_local = step.branch.base + step.behind, step.branch.memory.settings.n_local
            to_place = reader.rotary.at(range(place, place + step.size), reader.dtype)
            self.rotations.append((to_place, reader.rotary.at(range(n_local - 1, n_local), reader.dtype)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        sizes = [len(group) for group in self.groups]
        rows = zip(self.groups, self.rotations, *(x.split(sizes) for x in (query, key, value)), strict=True)
        return torch.cat([self._attend(layer, *row, scaling) for row in rows])

    def _attend(
        self,
        layer: int,
        group: list[Step],
        rotations: tuple[Rotation, Rotation],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
    ) -> Tensor:
        """Attention output [R, H, T, D] of a branch's steps."""
        step, branch, memory = group[0], group[0].branch, group[0].branch.memory
        to_place, to_edge = rotations
        local, rotated = to_place(torch.cat((query, key), 1)).split((query.shape[1], key.shape[1]), 1)
        window = branch.window[layer, :, None, :, : step.behind].expand(-1, len(group), -1, -1, -1)
        segments = [
            Segment(local, *window[..., step.start :, :]),
            Segment(local, rotated, value, causal=True),
        ]
        parts = [fused(segment, scaling) for segment in segments if segment.keys.shape[2]]
        if step.n_far:
            edge = to_edge(query)
            far = edge if memory.clipped else local
            scores = branch.scores(layer, edge.mean(2), step.n_far)
            ids = best(scores, max(one.k for one in group))
            wanted = [row[: one.k] for row, one in zip(ids, group, strict=True)]
            blocks = branch.far(layer, torch.cat(wanted)).split([one.k for one in group], 2)
            rows = []
            for row, (one, chosen, pairs) in enumerate(zip(group, wanted, blocks, strict=True)):
                keys, values = memory.far_pairs(branch.initial[layer], pairs, chosen)[:, None]
                if keys.shape[2]:
                    rows.append(fused(Segment(far[row : row + 1], keys, values), scaling))
                self.chosen[one].append((chosen, scores[row]))
            if rows:
                parts.append(tuple(torch.cat(x) for x in zip(*rows, strict=True)))
            for name, capture in branch.captures.items():
                for one, kept in zip(group, capture(scores, step.n_far, branch.scale), strict=True):
                    self.captured[one].setdefault(name, []).append(kept)
        out, lse = merged(parts)
        given = self._given(step, local, window[0], rotated, lse, scaling)
        for row, one in enumerate(group):
            one.keys.append(key[row])
            one.rotated.append(rotated[row])
            one.values.append(value[row])
            if given is not None:
                one.given.append(given[row])
        return out

    @staticmethod
    def _given(step: Step, query: Tensor, window: Tensor, own: Tensor, lse: Tensor, scaling: float) -> Tensor | None:
        """The relevance [R, G, n] of the window's tokens, and the step's own, that will be in blocks of the branch."""
        branch, m = step.branch, step.branch.memory.settings
        first, end = step.given_from, branch.offset + branch.given.shape[2]
        if m.representatives == "mean" or first >= min(end, step.behind + step.size):
            return None
        parts, behind = [], step.behind
        if first < behind:
            parts.append(relevance(m, query, window[:, :, first:end], first - behind, lse, scaling))
        if end > behind:
            itself = relevance(m, query, own, 0, lse, scaling, causal=True)
            parts.append(itself[:, :, max(0, first - behind) : end - behind])
        return torch.cat(parts, 2)

    def finish(self, hidden: Tensor, embeddings: Mapping[str, Tensor]) -> None:
        """Hand each step its row."""
        steps = [step for group in self.groups for step in group]
        for row, step in enumerate(steps):
            step.hidden, step.embeddings = hidden[row], {site: rows[row] for site, rows in embeddings.items()}
            step.captured = {name: torch.stack(kept) for name, kept in self.captured[step].items()}
            layers = len(step.keys)
            if not self.chosen[step]:
                step.selected = step.tokens.new_zeros(layers, 0)
                step.scores = step.branch.representatives.new_zeros(layers, 0)
                continue
            step.selected = torch.stack([ids for ids, _ in self.chosen[step]]).sort(-1).values
            scores = torch.stack([scores for _, scores in self.chosen[step]])
            step.scores = scores.gather(1, step.selected)
