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
from utaca.memory.static import StaticPass


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, of ``capacity`` that it may take.

    ``keys`` and ``values`` [layers, G, capacity, D] are those of the committed tokens; ``near`` is a copy of the window
    and of them, a segment a layer, keys rotated. It is made anew where the window moves, in tensors that stay. What
    lies behind the committed tokens is finite. ``measured`` branches measure their steps' retrieval.
    """

    def __init__(self, memory: BlockMemory, capacity: int, measured: bool = False) -> None:
        self.memory, self.capacity, self.length, self.measured = memory, capacity, 0, measured
        memory.reserve(capacity)
        longest = len(memory) - memory.layout.window(len(memory)) + capacity
        self.keys, self.values, self._near_keys, self._near_values = (
            torch.stack([store.blank(length) for store in stores])
            for length in (capacity, longest)
            for stores in (memory.keys, memory.values)
        )
        self.near = [Segment(*pair) for pair in zip(self._near_keys, self._near_values, strict=True)]
        self._window = -1
        self._static: dict[int, StaticPass] = {}

    def step(self, tokens: Tensor, budget: int) -> Step:
        """Run ``tokens`` [T] behind the branch, each layer retrieving ``budget`` blocks; nothing is committed."""
        step = Step(self, tokens, budget)
        run([step])
        return step

    @torch.inference_mode()
    def commit(self, step: Step) -> None:
        """Make a step part of the branch."""
        new, near = slice(self.length, self.length + step.size), slice(step.behind, step.behind + step.size)
        values = torch.stack(step.values)
        self.keys[:, :, new], self.values[:, :, new] = torch.stack(step.keys), values
        self._near_keys[:, :, near], self._near_values[:, :, near] = torch.stack(step.rotated), values
        self.length += step.size

    @torch.inference_mode()
    def move(self, window: int) -> None:
        """Have ``near`` begin with the document's token ``window``."""
        if window == self._window:
            return
        memory, behind = self.memory, len(self.memory) - window
        base, end = 0 if memory.clipped else window, behind + self.length
        for layer, near in enumerate(self.near):
            keys = (memory.keys[layer].near(window, len(memory)), self.keys[layer, :, : self.length])
            near.keys[:, :end] = memory.reader.rotary(torch.cat(keys, 1), range(base, base + end))
            near.values[:, :behind] = memory.values[layer].near(window, len(memory))
            near.values[:, behind:end] = self.values[layer, :, : self.length]
        self._window = window

    def static(self, budget: int) -> StaticPass:
        """The branch's pass of fixed shapes under ``budget``, made where it is first asked for."""
        if budget not in self._static:
            self._static[budget] = StaticPass(self, budget)
        return self._static[budget]


class Step:
    """One pass of ``tokens`` [T] behind a branch.

    Once run: ``hidden`` [T, D] are the last hidden states and ``embeddings`` the last token's, [D] a site; ``keys``,
    those ``rotated``, and ``values`` are the tokens' own, [G, T, D] a layer; ``selected`` are the ids of the blocks
    attended to, ascending, and ``scores`` what each of them scored, both [k], a tensor a layer; ``found`` [far] a layer
    is what all far blocks scored, of a measured branch where there are any. Of the branch's ``near``, ``behind`` keys
    are in the window of the first token, which is rotated to position ``place``. Raises :class:`ValueError` where the
    branch has no room for the tokens.

    From step to step the tail grows by a token, and whenever a block leaves the window, the window shrinks by it and
    one more is scored; :class:`utaca.memory.static.StaticPass` does the same in shapes that stay.
    """

    hidden: Tensor
    embeddings: dict[str, Tensor]

    def __init__(self, branch: Branch, tokens: Tensor, budget: int) -> None:
        self.branch, self.tokens, self.budget, self.size = branch, tokens, budget, len(tokens)
        if branch.length + self.size > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {self.size}")
        self.keys: list[Tensor] = []
        self.rotated: list[Tensor] = []
        self.values: list[Tensor] = []
        self.selected: list[Tensor] = []
        self.scores: list[Tensor] = []
        self.found: list[Tensor] = []
        layout = branch.memory.layout
        self.position = layout.length + branch.length
        self.far = layout.far(self.position)
        self.window = layout.window(self.position)
        self.behind = self.position - self.window
        self.place = place = self.behind if branch.memory.clipped else self.position
        kind, rotary = branch.keys.dtype, branch.memory.reader.rotary
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
        if not self.found:
            return self.hidden.new_zeros(())
        heads, width = self.branch.memory.reader.shape.heads, self.branch.keys.shape[-1]
        return diffuseness(torch.stack(self.found), heads, width).mean()

    @property
    def attended(self) -> int:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.branch.memory.layout
        initial = layout.n_init if self.far else 0
        return initial + self.k * layout.block_size + self.behind + self.size

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [H, T, D] of query [H, T, D], key and value [G, T, D]."""
        branch, memory = self.branch, self.branch.memory
        local_query, own_key = self._to_place(torch.cat((query, key))).split((len(query), len(key)))
        self.keys.append(key)
        self.rotated.append(own_key)
        self.values.append(value)
        near = branch.near[layer]
        # The branch is not written to, so its window and the step's own tokens are joined anew.
        queries, keys = [local_query], [torch.cat((near.keys[:, : self.behind], own_key), 1)]
        values = [near.values[:, : self.behind], value]
        if self.far:
            far_query = self._to_edge(query)
            found = memory.score(layer, far_query.mean(1), self.far)
            chosen, scores = best_blocks(found, self.budget)
            if branch.measured:
                self.found.append(found)
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


def run(steps: Sequence[Step]) -> None:
    """Run steps of one size, on branches of one reader, in one pass of the model; nothing is committed.

    A row's results equal those of the step run alone up to the rounding of larger matrix products. With
    ``reader.graphs`` steps of one token run one after another, each by its branch's :class:`StaticPass`.
    """
    reader = steps[0].branch.memory.reader
    if reader.settings.graphs and steps[0].size == 1:
        for step in steps:
            step.branch.static(step.budget).run(step)
    else:
        compute(steps)


@torch.inference_mode()
def compute(steps: Sequence[Step]) -> None:
    """:func:`run` as it is written, whatever ``reader.graphs`` says: the modules of the model are called."""
    for step in steps:
        step.branch.move(step.window)
    reader = steps[0].branch.memory.reader
    hidden = reader.forward(torch.stack([step.tokens for step in steps]), _Rows(steps))
    embeddings = reader.embeddings()
    for row, step in enumerate(steps):
        step.hidden, step.embeddings = hidden[row], {site: rows[row] for site, rows in embeddings.items()}
