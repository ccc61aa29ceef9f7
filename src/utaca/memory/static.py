"""A decoding pass in shapes and at addresses that stay, so that a GPU can replay it as a CUDA graph.

What grows from step to step, the tail and the number of far blocks, is a mask here, made on the device from numbers
that are filled in before each pass; a window that moves is moved before it, in place
(:meth:`utaca.memory.branch.Branch.move`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from utaca.errors import UserError
from utaca.memory.blocks import Segment, best_blocks, joint_attention

if TYPE_CHECKING:
    from utaca.memory.branch import Branch, Step


class Outcome(NamedTuple):
    """What a pass gives, at addresses that stay; its layers in one tensor, which takes one copy to keep.

    ``hidden`` [1, D]; ``embeddings`` [sites, D]; ``keys``, those ``rotated``, and ``values`` [layers, G, 1, D] of
    the token; ``selected`` and ``scores`` [layers, k]; ``found`` [layers, blocks], the scores of all blocks that are
    ever far, of a measured branch where there are any.
    """

    hidden: Tensor
    embeddings: Tensor
    keys: Tensor
    rotated: Tensor
    values: Tensor
    selected: Tensor
    scores: Tensor
    found: Tensor | None


class StaticPass:
    """Passes of one token behind a branch, each layer retrieving ``budget`` blocks; nothing is committed.

    A pass does what :class:`utaca.memory.branch.Step` does, over all that the branch may ever see: keys up to its
    capacity, and each block that leaves the window on the way. On a GPU it is captured when it first runs and replayed
    from then on; elsewhere it runs as it is written. Blocks in host memory cannot be captured, as the host would have
    to know which ones are wanted.
    """

    def __init__(self, branch: Branch, budget: int) -> None:
        # Not the branch, which holds its passes: it is to go, with the memory, as soon as it is out of use.
        self.memory, self.near, self.budget, self.measured = branch.memory, branch.near, budget, branch.measured
        layout, rotary, kind = self.memory.layout, self.memory.reader.rotary, branch.keys.dtype
        device, length = branch.keys.device, branch.near[0].keys.shape[1]
        self.blocks = layout.far(len(self.memory) + branch.capacity - 1)
        """Blocks that are ever far."""
        self.k = min(budget, self.blocks)
        # The tables are kept here: a graph reads where they lay when it was captured.
        places = length if self.memory.clipped else len(self.memory) + branch.capacity
        self._places = rotary.at(range(places), kind)
        self._edge = rotary.at(range(layout.n_local - 1, layout.n_local), kind) if self.blocks else None
        self._index = torch.arange(length, device=device)
        self._block = torch.arange(self.blocks, device=device)
        self.token, self.far, self.behind, self.place = torch.zeros(4, 1, dtype=torch.long, device=device)
        """All that a pass is given, [1] each: the token, and what :class:`utaca.memory.branch.Step` calls so."""
        self.captured = device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outcome: Outcome | None = None

    @torch.inference_mode()
    def run(self, step: Step) -> None:
        """Run a step of this branch and budget, as :func:`utaca.memory.branch.run` does."""
        step.branch.move(step.window)
        self.token.copy_(step.tokens)
        self.far.fill_(step.far)
        self.behind.fill_(step.behind)
        self.place.fill_(step.place)
        outcome = self._replay() if self.captured else self.compute()
        kept = Outcome(*(None if x is None else x.clone() for x in outcome))
        step.hidden = kept.hidden
        step.embeddings = dict(zip(self.memory.reader.embeddings(), kept.embeddings, strict=True))
        step.keys, step.rotated, step.values = list(kept.keys), list(kept.rotated), list(kept.values)
        step.selected, step.scores = list(kept.selected[:, : step.k]), list(kept.scores[:, : step.k])
        if kept.found is not None and step.far:
            step.found = list(kept.found[:, : step.far])

    def _replay(self) -> Outcome:
        if self._graph is None:
            try:
                self._graph, self._outcome = self._capture()
            except RuntimeError as error:
                raise UserError(
                    f"a decoding pass could not be captured as a CUDA graph ({str(error).partition(chr(10))[0]}); set "
                    "reader.graphs=false"
                ) from error
        self._graph.replay()
        return self._outcome

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Outcome]:
        # What libraries set up at a first call they may not set up while a graph is captured.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            self.compute()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outcome = self.compute()
        return graph, outcome

    def compute(self) -> Outcome:
        """The pass as it is written: nothing waits for the device, and no shape depends on what a tensor holds."""
        self._near_seen = torch.cat((self._index < self.behind, self.behind.new_ones(1, dtype=torch.bool)))
        self._initial_seen = (self.far > 0).expand(self.memory.layout.n_init)
        self._to_place = self._places.take(self.place)
        self._rows = []
        hidden = self.memory.reader.forward(self.token[None], self)
        keys, rotated, values, selected, scores, found = zip(*self._rows, strict=True)
        return Outcome(
            hidden[0],
            torch.cat(list(self.memory.reader.embeddings().values())),
            torch.stack(keys),
            torch.stack(rotated),
            torch.stack(values),
            torch.stack(selected),
            torch.stack(scores),
            torch.stack(found) if self.measured and self.blocks else None,
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [1, H, 1, D] of query [1, H, 1, D], key and value [1, G, 1, D]."""
        query, key, value, near = query[0], key[0], value[0], self.near[layer]
        local_query, own_key = self._to_place(torch.cat((query, key))).split((len(query), len(key)))
        queries, keys, values = [local_query], [torch.cat((near.keys, own_key), 1)], [near.values, value]
        seen, found = [self._near_seen], None
        if self.blocks:
            far_query = self._edge(query)
            found = self.memory.score(layer, far_query.mean(1), self.blocks)
            found = found.masked_fill(self._block >= self.far, -math.inf)
            chosen, scores = best_blocks(found, self.budget)
            distant = Segment.far(self.memory, layer, chosen)
            queries = [far_query if self.memory.clipped else local_query, *queries]
            keys, values = [distant.keys, *keys], [distant.values, *values]
            # Where fewer blocks are far than the budget, others are chosen for want of them.
            far = (chosen < self.far)[:, None].expand(-1, self.memory.layout.block_size)
            seen = [self._initial_seen, far.flatten(), *seen]
        else:
            chosen, scores = torch.arange(0, device=query.device), query.new_zeros(0)
        self._rows.append((key, own_key, value, chosen, scores, found))
        hidden = ~torch.cat(seen)
        mask = torch.zeros_like(hidden, dtype=torch.float32).masked_fill(hidden, -math.inf)
        return joint_attention(queries, keys, values, mask, scaling)[0][None]
