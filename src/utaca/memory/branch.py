"""Decoding state that forks from a sealed document memory.

A branch owns a short tail of keys and values behind the document. A step attends first and is committed afterwards;
a step that is never committed leaves no trace, which is all that a rollback is (paper, algorithm 1). Steps of any
branches, of one document or several, may share a pass of the model (:func:`run`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from utaca.memory.blocks import BlockMemory, Segment, causal_mask, joint_attention


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, keys and values [capacity, G, D] a layer.

    ``capacity`` is the most tokens that it may take; all of its tensors are made here.
    """

    def __init__(self, memory: BlockMemory, capacity: int) -> None:
        self.memory, self.capacity, self.length = memory, capacity, 0
        memory.reserve(capacity)
        self.keys = [k.blank(capacity) for k in memory.keys]
        self.values = [v.blank(capacity) for v in memory.values]

    def step(self, tokens: Tensor, budget: int) -> Step:
        """Run ``tokens`` [T] behind the branch, each layer retrieving ``budget`` blocks; nothing is committed."""
        step = Step(self, tokens, budget)
        run([step])
        return step

    def commit(self, step: Step) -> None:
        """Make a step part of the branch."""
        end = self.length + step.size
        for layer, (key, value) in enumerate(zip(step.keys, step.values, strict=True)):
            self.keys[layer][self.length : end] = key
            self.values[layer][self.length : end] = value
        self.length = end


class Step:
    """One pass of ``tokens`` [T] behind a branch.

    Once run: ``hidden`` [T, D] are the last hidden states and ``embedding`` [D] the last token's embedding at the
    reader's site; ``selected`` are the ids of the blocks attended to, ascending, and ``scores`` what each of them
    scored, both [k], a tensor a layer. Raises :class:`ValueError` where the branch has no room for the tokens.

    Of a step of one token under one budget, these shapes stay the same from step to step once that many blocks are far:
    its queries, the chosen blocks, the initial tokens and those of the blocks. The tail grows by a token a step, and
    whenever a block leaves the window, the window shrinks by it and one more is scored.
    """

    hidden: Tensor
    embedding: Tensor

    def __init__(self, branch: Branch, tokens: Tensor, budget: int) -> None:
        self.branch, self.tokens, self.budget, self.size = branch, tokens, budget, len(tokens)
        if branch.length + self.size > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {self.size}")
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.selected: list[Tensor] = []
        self.scores: list[Tensor] = []
        layout = branch.memory.layout
        self.position = layout.length + branch.length
        self.far = layout.far(self.position)
        self.window = layout.window(self.position)

    @property
    def k(self) -> int:
        """Blocks retrieved by each layer: the budget, or all far blocks where there are fewer."""
        return min(self.budget, self.far)

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.branch.memory.layout
        initial = layout.n_init if self.far else 0
        return initial + self.k * layout.block_size + self.position + self.size - self.window

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [H, T, D] of query [H, T, D], key and value [G, T, D]."""
        branch, memory = self.branch, self.branch.memory
        rotary, n = memory.reader.rotary, branch.length
        own_key, own_value = key.transpose(0, 1), value.transpose(0, 1)
        self.keys.append(own_key)
        self.values.append(own_value)
        base = self.window if memory.clipped else 0
        positions = torch.arange(self.position, self.position + self.size, device=query.device) - base
        local_query = rotary(query, positions)
        tail = torch.arange(memory.layout.length, self.position + self.size, device=query.device) - base
        tail_keys = rotary(torch.cat((branch.keys[layer][:n], own_key)).transpose(0, 1), tail).transpose(0, 1)
        near = Segment.near(memory, layer, self.window, len(memory))
        queries, keys = [local_query, local_query], [near.keys, tail_keys]
        values = [near.values, branch.values[layer][:n], own_value]
        chosen, scores = torch.arange(0, device=query.device), query.new_zeros(0)
        if self.far:
            rotate = torch.full((1,), memory.layout.n_local - 1, device=query.device)
            far_query = rotary(query, rotate)
            chosen, scores = memory.select(layer, far_query.mean(1), self.far, self.budget)
            distant = Segment.far(memory, layer, chosen)
            queries = [far_query if memory.clipped else local_query, *queries]
            keys, values = [distant.keys, *keys], [distant.values, *values]
        self.selected.append(chosen)
        self.scores.append(scores)
        mask = causal_mask(self.size, sum(map(len, keys)), query.device) if self.size > 1 else None
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
    for step, own, embedding in zip(steps, hidden, reader.embedding(), strict=True):
        step.hidden, step.embedding = own, embedding
