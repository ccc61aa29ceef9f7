"""The rows of one call of the model: steps of several branches that share its weights.

Rows attend in groups (:class:`_Group`): single tokens of any branches of one document share its window, the scores of
its blocks and the way of these out of the document; their tails and budgets differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.memory.attention import Segment, attention, best, fused, merged, ranked
from utaca.readers.attention import Output
from utaca.settings.schema import TOKENS

if TYPE_CHECKING:
    from utaca.memory.branch import Step


class Pass:
    """A pass of steps of one size, on branches of one reader; nothing is committed.

    Steps of equal history, tokens and budget share a row. Of each layer and row the pass has the keys (``keys``
    [layers, rows, G, T, D], as ``rotated``, rotated to the window, and ``values``), the rotated queries (``query``
    [layers, rows, H, T, D]) and the log-sum-exp of their logits (``lse`` [layers, rows, H, T]), which were scaled by
    ``scaling``; the best blocks (``chosen`` [layers, rows, K], of which a step sees the first k) and their ``scores``;
    and what the signals ``captured`` [layers, rows]. ``state_ids`` are those of branches that commit a row.
    """

    keys: Tensor
    rotated: Tensor
    values: Tensor
    query: Tensor
    lse: Tensor
    chosen: Tensor
    scores: Tensor
    captured: dict[str, Tensor]
    scaling: float

    @torch.inference_mode()
    def __init__(self, steps: Sequence[Step]) -> None:
        rows: list[Step] = []
        twins: list[Step] = []
        for step in steps:
            twins.append(next((row for row in rows if row.equals(step)), step))
            if twins[-1] is step:
                rows.append(step)
        groups: dict[Hashable, list[Step]] = {}
        # Rows that retrieve equally many blocks lie side by side, to attend to them together.
        for step in sorted(rows, key=lambda step: step.k):
            groups.setdefault(_Group.key(step), []).append(step)
        rows = [step for group in groups.values() for step in group]
        self._captures = {name: capture for step in steps for name, capture in step.state.captures.items()}
        self._most = max(step.k for step in steps)
        self._groups = [_Group(group) for group in groups.values()]
        self._layers: list[tuple[Tensor, ...]] = []
        reader = steps[0].state.reader
        hidden = reader.forward(torch.stack([step.tokens for step in rows]), self)
        output = Output(reader, hidden, reader.embeddings())
        columns = [torch.stack(column) for column in zip(*self._layers, strict=True)]
        self.keys, self.values, self.rotated, self.query, self.lse, self.chosen, self.scores, *captured = columns
        self.captured = dict(zip(self._captures, captured, strict=True))
        self.state_ids = [object() for _ in rows]
        for step, twin in zip(steps, twins, strict=True):
            step.output, step.passed, step.row = output, self, rows.index(twin)
        del self._groups, self._layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [R, H, T, D] of query [R, H, T, D], key and value [R, G, T, D], all unrotated."""
        sizes, columns = [len(group.branches) for group in self._groups], []
        for group, *rows in zip(self._groups, *(x.split(sizes) for x in (query, key, value)), strict=True):
            *attended, chosen, scores = group.attend(layer, *rows, scaling)
            captured = [
                capture(scores, group.n_far, group.scale) if group.n_far else scores.new_zeros(len(scores))
                for capture in self._captures.values()
            ]
            scores = scores.gather(1, chosen)
            if room := self._most - chosen.shape[1]:
                # A group of fewer blocks is filled up with block 0, which none of its steps sees.
                chosen, scores = pad(chosen, (0, room)), pad(scores, (0, room))
            columns.append((*attended, chosen, scores, *captured))
        out, *rest = (column[0] if len(column) == 1 else torch.cat(column) for column in zip(*columns, strict=True))
        self._layers.append((key, value, *rest))
        self.scaling = scaling
        return out


class _Group:
    """Rows that attend together: single tokens of branches of one document, or steps of one history."""

    @staticmethod
    def key(step: Step) -> Hashable:
        """Steps of equal keys may be in one group."""
        branch = step.state
        if step.size == 1 and step.n_far <= max(0, branch.n_whole):
            return id(branch.memory), step.n_far
        return branch.state_id

    def __init__(self, steps: list[Step]) -> None:
        first, self.branches = steps[0], [step.state for step in steps]
        branch = self.branches[0]
        self.memory, self.n_far, self.scale, self.size = branch.memory, first.n_far, branch.scale, first.size
        layout, rotary, dtype = self.memory.layout, branch.reader.rotary, branch.window.dtype
        # The window is one for all rows: of branches that have parted, up to the document's end.
        shared = max(first.start, len(self.memory) - branch.start) if first.size == 1 else first.behind
        self.window = slice(first.start, shared)
        self.tails = [step.behind - shared for step in steps]
        device = branch.window.device
        places = torch.tensor([step.state.first_position + step.behind for step in steps], device=device)
        self.to_place = rotary.at(places[:, None, None] + torch.arange(self.size, device=device), dtype)
        edge = self.memory.settings.n_local - 1
        self.to_edge = rotary.at(range(edge, edge + 1), dtype)
        # The initial tokens are blocks too, and lie before the first.
        self.initial = torch.arange(-layout.initial_blocks if self.n_far else 0, 0, device=device)
        self.counts = [len(self.initial) + step.k for step in steps]
        self.most = max(step.k for step in steps)
        self.seen = None
        if min(self.tails) < max(self.tails):
            lengths = torch.tensor(self.tails, device=device)[:, None, None, None] + 1
            self.seen = torch.arange(max(self.tails) + 1, device=device) < lengths
        self.clipped = self.memory.clipped and not branch.packed
        if branch.packed:
            end = branch.first_position + first.start
            before = [torch.arange(end - layout.block_size * count, end, device=device) for count in self.counts]
            self.to_pack = rotary.at(torch.cat(before).clamp(min=0), dtype)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, ...]:
        """As :meth:`Pass.attend`; with it rotated keys and queries, log-sum-exp, and blocks chosen of all scores."""
        rows, heads, length, _ = query.shape
        local, rotated = self.to_place(torch.cat((query, key), 1)).split((heads, key.shape[1]), 1)
        parts = []
        window = self.branches[0].window[layer, :, None, :, self.window]
        if window.shape[3]:
            # Over keys that all rows share, their tokens are as good as those of one row.
            out, lse = fused(Segment(local.transpose(0, 1).flatten(1, 2)[None], *window), scaling)
            parts.append(tuple(x[0].unflatten(1, (rows, length)).transpose(0, 1) for x in (out, lse)))
        parts.append(self._tail(layer, local, rotated, value, scaling))
        chosen = torch.zeros(rows, 0, dtype=torch.long, device=query.device)
        scores = self.memory.representatives[layer].new_zeros(rows, 0)
        if self.n_far:
            edge = self.to_edge(query)
            scores = self._scores(layer, edge)
            chosen = best(scores, self.most)
            if min(self.counts) < max(self.counts):
                chosen = ranked(scores, chosen)
            parts.append(self._far(layer, edge if self.clipped else local, chosen, scaling))
        out, lse = merged(parts)
        return out, rotated, local, lse, chosen, scores

    def _tail(self, layer: int, local: Tensor, rotated: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention to the tokens of this pass and, for single ones, to those of each branch's tail."""
        if self.size > 1:
            return fused(Segment(local, rotated, value, causal=True), scaling)
        new, start = torch.stack((rotated, value)), self.window.stop
        pairs = new.new_zeros(*new.shape[:3], max(self.tails) + 1, new.shape[4])
        pairs[:, :, :, :1] = new
        for row, (branch, count) in enumerate(zip(self.branches, self.tails, strict=True)):
            pairs[:, row, :, 1 : count + 1] = branch.window[layer, :, :, start : start + count]
        return attention([Segment(local, *pairs, self.seen)], scaling)

    def _scores(self, layer: int, edge: Tensor) -> Tensor:
        """Retrieval scores [R, n_far] of the far blocks, for queries [R, H, T, D] at the clipped distance.

        Blocks that left the window behind the document are scored by their branches.
        """
        branch = self.branches[0]
        if self.memory.settings.representatives == TOKENS:
            count = min(self.n_far, max(0, branch.n_whole))
            later = [branch.tail[layer, 0, :, count - branch.n_whole : self.n_far - branch.n_whole].flatten(1, 2)]
        else:
            count = min(self.n_far, branch.n_scored)
            left = self.n_far - count
            later = [torch.stack([each.representatives[layer, :, :left] for each in self.branches])] if left else []
        return self.memory.scores(layer, edge, count, *later)

    def _far(self, layer: int, query: Tensor, chosen: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention to the initial tokens and each row's best blocks, by rows that have equally many side by side."""
        branch, ids = self.branches[0], torch.cat((self.initial.expand(len(chosen), -1), chosen), 1)
        if min(self.counts) < max(self.counts):
            rows = zip(ids, self.counts, strict=True)
            ids = torch.cat([row[:count].sort().values for row, count in rows])
        else:
            ids = ids.flatten()
        pairs = self.memory.place(branch.blocks(layer, ids, self.n_far), ids)
        if branch.packed:
            pairs = torch.stack((self.to_pack(pairs[0]), pairs[1]))
        results, row, at = [], 0, 0
        for count, alike in groupby(self.counts):
            n_rows = len(list(alike))
            end = at + n_rows * count * self.memory.block_size
            # The first initial block may begin with places that are no tokens.
            far = pairs[:, :, at:end].unflatten(2, (n_rows, -1)).transpose(1, 2)[..., self.memory.layout.skipped :, :]
            results.append(fused(Segment(query[row : row + n_rows], *far), scaling))
            row, at = row + n_rows, end
        return results[0] if len(results) == 1 else tuple(torch.cat(column) for column in zip(*results, strict=True))
