"""Decoding state that forks from a sealed document memory.

A branch owns a short tail of keys and values behind the document. A step attends first and is committed afterwards;
a step that is never committed leaves no trace, which is all that a rollback is (paper, algorithm 1). Steps of any
branches, of one document or several, may share a pass of the model (:func:`run`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from utaca.memory.blocks import (
    BlockMemory,
    Segment,
    best_blocks,
    causal_mask,
    diffuseness,
    joint_attention,
)


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, keys and values [G, capacity, D] a layer.

    ``capacity`` is the most tokens that it may take; ``measured`` branches measure their steps' retrieval. Beside keys
    and values it keeps a copy of the window, keys rotated, which is made anew where the window moves.
    """

    def __init__(self, memory: BlockMemory, capacity: int, measured: bool = False) -> None:
        self.memory, self.capacity, self.length, self.measured = memory, capacity, 0, measured
        memory.reserve(capacity)
        self.keys = [k.blank(capacity) for k in memory.keys]
        self.values = [v.blank(capacity) for v in memory.values]
        self._near: list[Segment] = []
        self._window = -1

    def step(self, tokens: Tensor, budget: int) -> Step:
        """Run ``tokens`` [T] behind the branch, each layer retrieving ``budget`` blocks; nothing is committed."""
        step = Step(self, tokens, budget)
        run([step])
        return step

    @torch.inference_mode()
    def commit(self, step: Step) -> None:
        """Make a step part of the branch."""
        end, behind = self.length + step.size, len(self.memory) - step.window
        for layer, near in enumerate(self._near):
            self.keys[layer][:, self.length : end] = step.keys[layer]
            self.values[layer][:, self.length : end] = step.values[layer]
            near.keys[:, behind + self.length : behind + end] = step.rotated[layer]
            near.values[:, behind + self.length : behind + end] = step.values[layer]
        self.length = end

    def near(self, layer: int, window: int) -> Segment:
        """The document from ``window`` on and the committed tokens, keys rotated; made anew where the window moves."""
        if window != self._window:
            self._window, self._near = window, [self._gather(number, window) for number in range(len(self.keys))]
        near, end = self._near[layer], len(self.memory) - window + self.length
        return Segment(near.keys[:, :end], near.values[:, :end])

    def _gather(self, layer: int, window: int) -> Segment:
        memory = self.memory
        keys = torch.cat((memory.keys[layer].near(window, len(memory)), self.keys[layer]), 1)
        values = torch.cat((memory.values[layer].near(window, len(memory)), self.values[layer]), 1)
        base = 0 if memory.clipped else window
        return Segment(memory.reader.rotary(keys, range(base, base + keys.shape[1])), values)


class Step:
    """One pass of ``tokens`` [T] behind a branch.

    Once run: ``hidden`` [T, D] are the last hidden states and ``embeddings`` the last token's, [D] a site;
    ``selected`` are the ids of the blocks attended to, ascending, and ``scores`` what each of them
    scored, both [k], a tensor a layer. Raises :class:`ValueError` where the branch has no room for the tokens.

    Of a step of one token under one budget, these shapes stay the same from step to step once that many blocks are far:
    its queries, the chosen blocks, the initial tokens and those of the blocks. The tail grows by a token a step, and
    whenever a block leaves the window, the window shrinks by it and one more is scored.
    """

    hidden: Tensor
    embeddings: dict[str, Tensor]

    def __init__(self, branch: Branch, tokens: Tensor, budget: int) -> None:
        self.branch, self.tokens, self.budget, self.size = branch, tokens, budget, len(tokens)
        if branch.length + self.size > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {self.size}")
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.rotated: list[Tensor] = []
        self.selected: list[Tensor] = []
        self.scores: list[Tensor] = []
        self._diffuseness: list[Tensor] = []
        layout = branch.memory.layout
        self.position = layout.length + branch.length
        self.far = layout.far(self.position)
        self.window = layout.window(self.position)
        place = self.position - (self.window if branch.memory.clipped else 0)
        kind, rotary = branch.keys[0].dtype, branch.memory.reader.rotary
        self._to_place = rotary.at(range(place, place + self.size), kind)
        if self.far:
            self._to_edge = rotary.at(range(layout.n_local - 1, layout.n_local), kind)

    @property
    def k(self) -> int:
        """Blocks retrieved by each layer: the budget, or all far blocks where there are fewer."""
        return min(self.budget, self.far)

    @property
    def retrieval(self) -> Tensor | None:
        """The retrieval signal, a scalar: the mean over layers of :func:`utaca.memory.blocks.diffuseness`, of all far
        blocks, not the chosen alone; 0 where none is far, None where the branch is not measured."""
        if not self.branch.measured:
            return None
        return torch.stack(self._diffuseness).mean() if self._diffuseness else self.hidden.new_zeros(())

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.branch.memory.layout
        initial = layout.n_init if self.far else 0
        return initial + self.k * layout.block_size + self.position + self.size - self.window

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [H, T, D] of query [H, T, D], key and value [G, T, D]."""
        branch, memory = self.branch, self.branch.memory
        local_query, own_key = self._to_place(torch.cat((query, key))).split((len(query), len(key)))
        self.keys.append(key)
        self.rotated.append(own_key)
        self.values.append(value)
        near = branch.near(layer, self.window)
        # The branch is not written to, so its window and the step's own tokens are joined anew.
        queries, keys, values = [local_query], [torch.cat((near.keys, own_key), 1)], [near.values, value]
        if self.far:
            far_query = self._to_edge(query)
            asked = far_query.mean(1)
            found = memory.score(layer, asked, self.far)
            chosen, scores = best_blocks(found, self.budget)
            if branch.measured:
                self._diffuseness.append(diffuseness(found, *asked.shape))
            distant = Segment.far(memory, layer, chosen)
            queries = [far_query if memory.clipped else local_query, *queries]
            keys, values = [distant.keys, *keys], [distant.values, *values]
        else:
            chosen, scores = torch.arange(0, device=query.device), query.new_zeros(0)
        self.selected.append(chosen)
        self.scores.append(scores)
        mask = causal_mask(self.size, sum(k.shape[1] for k in keys), query.device) if self.size > 1 else None
        return joint_attention(queries, keys, values, mask, scaling)[0]


class _Rows:
    """Steps that share a pass, a batch row each."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows = [step.attend(layer, query[row], key[row], value[row], scaling) for row, step in enumerate(self.steps)]
        return torch.stack(rows)


@torch.inference_mode()
def run(steps: Sequence[Step]) -> None:
    """Run steps of one size, on branches of one reader, in one pass of the model; nothing is committed.

    A row's results equal those of the step run alone up to the rounding of larger matrix products.
    """
    reader = steps[0].branch.memory.reader
    hidden = reader.forward(torch.stack([step.tokens for step in steps]), _Rows(steps))
    embeddings = reader.embeddings()
    for row, step in enumerate(steps):
        step.hidden, step.embeddings = hidden[row], {site: rows[row] for site, rows in embeddings.items()}
