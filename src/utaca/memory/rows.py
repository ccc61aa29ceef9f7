"""The rows of one pass of the model over several steps: what each attends to, and what the pass gives each.

Steps of one branch and position, tried under several budgets, see one window and share their keys (:class:`Tries`).
Single tokens of several branches of one document have windows and blocks of their own, and share what goes before:
rotations, scores, the choice of blocks and their way out of the document (:class:`Points`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.memory.attention import Segment, attention, best, block_scores, fused, merged, ranked

if TYPE_CHECKING:
    from utaca.memory.branch import Step


class Outcome(NamedTuple):
    """What R steps give, their layers in one tensor each.

    ``hidden`` [R, T, D]; ``embeddings`` [R, D] a site; ``keys``, those ``rotated``, and ``values`` [layers, R, G, T,
    D]; ``query`` [layers, R, H, T, D] and ``lse`` [layers, R, H, T]; ``chosen`` [layers, R, K] blocks, of
    which a row saw its first k, and their ``scores``; ``captured`` [layers, R] a signal.
    """

    hidden: Tensor
    embeddings: dict[str, Tensor]
    keys: Tensor
    rotated: Tensor
    values: Tensor
    query: Tensor
    lse: Tensor
    chosen: Tensor
    scores: Tensor
    captured: dict[str, Tensor]
    scaling: float

    def deal(self, steps: Sequence[Step]) -> None:
        """Hand each step its row."""
        for row, step in enumerate(steps):
            step.hidden, step.embeddings = self.hidden[row], {site: x[row] for site, x in self.embeddings.items()}
            step.keys, step.rotated, step.values = self.keys[:, row], self.rotated[:, row], self.values[:, row]
            step.query, step.lse, step.scaling = self.query[:, row], self.lse[:, row], self.scaling
            step.selected, order = self.chosen[:, row, : step.k].sort(-1)
            step.scores = self.scores[:, row].gather(1, order)
            step.captured = {name: x[:, row] for name, x in self.captured.items()} if step.n_far else {}


class Tries:
    """Steps of one branch that share a pass, a batch row each: from the same position, each under its own budget.

    Rows see the same window. A layer brings as many blocks as the widest budget wants, and hides from a row those that
    are beyond its own.
    """

    in_window: Tensor | None = None
    """Which tokens of the branch's window are seen, of those in ``span``; None: all."""
    has_far: Tensor | bool = True
    """Whether any block is far, without which the initial tokens are tokens of the window."""

    def __init__(self, steps: list[Step]) -> None:
        step, branch, self.steps, self.branch = steps[0], steps[0].branch, steps, steps[0].branch
        self.blocks, self.n_far, self.most = step.n_far, step.n_far, max(one.k for one in steps)
        self.span, self.behind, place = slice(step.start, step.behind), step.behind, branch.base + step.behind
        rotary, dtype, edge = branch.memory.reader.rotary, branch.window.dtype, branch.memory.settings.n_local - 1
        self.to_place = rotary.at(range(place, place + step.size), dtype)
        self.to_edge = rotary.at(range(edge, edge + 1), dtype)
        self.layers: list[tuple[Tensor | None, ...]] = []

    def scores(self, layer: int, query: Tensor) -> Tensor:
        """Retrieval scores [R, blocks] for queries [R, H, D]."""
        return self.branch.scores(layer, query, self.blocks)

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
        segments = [Segment(local, *window, self.in_window), Segment(local, rotated, value, causal=True)]
        captured: list[Tensor] = []
        if not self.blocks:
            chosen, scores = memory.tokens.new_zeros(rows, 0), branch.given.new_zeros(rows, 0)
        else:
            edge = self.to_edge(query)
            scores = self.scores(layer, edge.mean(2))
            chosen, seen = self.choose(scores)
            captured = [capture(scores, self.n_far, branch.scale) for capture in branch.captures.values()]
            distant = edge if memory.clipped else local
            pairs = branch.fetch(layer, chosen.flatten()).unflatten(2, (rows, -1)).transpose(1, 2)
            pairs = torch.cat((branch.initial[layer, :, None].expand(-1, rows, -1, -1, -1), pairs), 3)
            if seen is not None:
                seen = pad(seen.repeat_interleave(memory.block_size, 1), (branch.initial.shape[3], 0), value=True)
                seen = (seen & self.has_far)[:, None, None]
            segments.append(Segment(distant, *pairs, seen))
            scores = scores.gather(1, chosen)
        out, lse = attention(segments, scaling)
        self.layers.append((key, rotated, value, local, lse, chosen, scores, *captured))
        self.scaling = scaling
        return out

    def outcome(self, hidden: Tensor, embeddings: dict[str, Tensor]) -> Outcome:
        """What the pass gave, once all layers have attended."""
        return _outcome(hidden, embeddings, self.layers, self.branch.captures, self.scaling)


class Points:
    """Steps of one token each, of as many branches of one document with equally many far blocks, each under a budget.

    The branches have no blocks that are not whole in the document, and the document's far keys are at one distance.
    """

    def __init__(self, steps: list[Step]) -> None:
        first, self.steps = steps[0], steps
        branch = first.branch
        self.memory, self.captures, self.scale = branch.memory, branch.captures, branch.scale
        self.n_far, self.most = first.n_far, max(step.k for step in steps)
        self.own = self.n_far - branch.sealed
        rotary, dtype, edge = self.memory.reader.rotary, branch.window.dtype, self.memory.settings.n_local - 1
        device = branch.window.device
        places = torch.tensor([step.branch.base + step.behind for step in steps], device=device)
        self.to_place, self.to_edge = rotary.at(places, dtype), rotary.at(range(edge, edge + 1), dtype)
        # The initial tokens are whole blocks too, and lie before the first.
        initial = self.memory.settings.n_init // self.memory.block_size if self.n_far else 0
        self.initial = torch.arange(-initial, 0, device=device).expand(len(steps), -1)
        self.brought = [initial + step.k for step in steps]
        self.layers: list[tuple[Tensor, ...]] = []

    @staticmethod
    def alike(step: Step) -> object:
        """Steps with equal values may be points of one pass; None where a step can be none."""
        branch, m = step.branch, step.branch.memory.settings
        if step.size > 1 or not branch.memory.clipped or branch.tail.shape[3] or m.n_init % m.block_size:
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
        windows = [step.branch.window[layer, :, None, :, step.start : step.behind] for step in self.steps]
        if windows[0].shape[3]:
            parts.append(_fused(local, windows, scaling))
        chosen = value.new_zeros(len(query), 0, dtype=torch.long)
        scores = self.steps[0].branch.given.new_zeros(len(query), 0)
        captured: list[Tensor] = []
        if self.n_far:
            edge = self.to_edge(query)
            scores = block_scores(edge[:, :, 0], *self._representatives(layer))
            captured = [capture(scores, self.n_far, self.scale) for capture in self.captures.values()]
            chosen = best(scores, self.most)
            if min(self.brought) < max(self.brought):
                chosen = ranked(scores, chosen)
            scores = scores.gather(1, chosen)
            ids = torch.cat((self.initial, chosen), 1)
            ids = torch.cat([own[:count] for own, count in zip(ids, self.brought, strict=True)])
            blocks = self.memory.stores[layer].blocks(ids).flatten(2, 3)[:, None]
            sizes = [count * self.memory.block_size for count in self.brought]
            parts.append(_fused(edge, blocks.split(sizes, 3), scaling))
        out, lse = merged(*(torch.stack(column) for column in zip(*parts, strict=True)))
        self.layers.append((key, rotated, value, local, lse, chosen, scores, *captured))
        self.scaling = scaling
        return out

    def _representatives(self, layer: int) -> list[Tensor]:
        """Of the far blocks: those that all rows share, and those that left the window of each by itself."""
        sealed = self.n_far - self.own
        found = [self.memory.representatives[layer][:, :sealed]]
        if self.own:
            found.append(torch.stack([step.branch.representatives[layer][:, : self.own] for step in self.steps]))
        return found

    def outcome(self, hidden: Tensor, embeddings: dict[str, Tensor]) -> Outcome:
        """What the pass gave, once all layers have attended."""
        return _outcome(hidden, embeddings, self.layers, self.captures, self.scaling)


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
            group.outcome(own, {site: parts[place] for site, parts in split.items()}).deal(group.steps)


def _outcome(
    hidden: Tensor, embeddings: dict[str, Tensor], layers: Iterable[tuple], captures: Iterable[str], scaling: float
) -> Outcome:
    columns = [torch.stack(column) for column in zip(*layers, strict=True)]
    return Outcome(hidden, embeddings, *columns[:7], dict(zip(captures, columns[7:], strict=False)), scaling)


def _fused(query: Tensor, pairs: Sequence[Tensor], scaling: float) -> tuple[Tensor, Tensor]:
    """Attention of each row [H, 1, D] to keys and values [2, 1, G, n, D] of its own."""
    found = [fused(Segment(own[None], *pair), scaling) for own, pair in zip(query, pairs, strict=True)]
    out, lse = (torch.cat(column) for column in zip(*found, strict=True))
    return out, lse


def _products(grouped: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Scaled products [R, H, 1] of queries [R, G, H / G, D] with the one key [R, G, 1, D] of their group."""
    precise = torch.promote_types(grouped.dtype, torch.float32)
    return (grouped.to(precise) * keys.to(precise)).sum(-1).flatten(1)[:, :, None] * scaling
