"""A decoding pass in shapes and at addresses that stay, which a GPU captures once an answer as a CUDA graph.

What changes from step to step, the local window, the number of far blocks and the budgets of the rows, are masks here,
made on the device from numbers that are filled in before a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from utaca.errors import UserError
from utaca.memory.attention import Segment, attention, best, relevance
from utaca.memory.branch import Branch, Step


class GraphBranch(Branch):
    """A branch whose steps of one token run by :class:`Graph`, all that it is asked for at a time in one."""

    @staticmethod
    def run(steps: Sequence[Step]) -> None:
        if steps[0].size > 1:
            Branch.run(steps)
            return
        for _, group in groupby(steps, key=lambda step: id(step.branch)):
            rows = list(group)
            rows[0].branch.graph(len(rows)).run(rows)

    def graph(self, rows: int) -> Graph:
        """The branch's pass of so many rows, made where it is first asked for."""
        graphs = self.__dict__.setdefault("_graphs", {})
        if rows not in graphs:
            graphs[rows] = Graph(self, rows)
        return graphs[rows]


class Outcome(NamedTuple):
    """What a pass gives, its layers in one tensor each, which takes one copy to keep.

    ``hidden`` [R, 1, D]; ``embeddings`` [sites, R, D]; ``keys``, those ``rotated``, and ``values`` [layers, R, G, 1,
    D]; ``chosen`` [layers, R, K] best first, and ``scores`` [layers, R, blocks]; ``given`` [layers, R, G, n];
    ``captured`` [signals, layers, R].
    """

    hidden: Tensor
    embeddings: Tensor
    keys: Tensor
    rotated: Tensor
    values: Tensor
    chosen: Tensor
    scores: Tensor
    given: Tensor | None
    captured: Tensor | None


class Graph:
    """Passes of one token behind a branch, tried under ``rows`` budgets of at most ``branch.most`` at once.

    A pass does what :meth:`Branch.run` does, over all that the branch may ever see: its whole window, and every block
    that is ever far, of which the best ``branch.most`` are brought; each row masks those beyond its budget. On a GPU
    the pass is captured when it first runs and replayed from then on; elsewhere it runs as it is written.
    """

    def __init__(self, branch: Branch, rows: int) -> None:
        self.branch, self.rows = branch, rows
        memory, device, n = branch.memory, branch.window.device, branch.window.shape[3]
        reader, self.k = memory.reader, min(branch.most, branch.last)
        # The tables are kept here: a graph reads where they lay when it was captured.
        self._places = reader.rotary.at(range(branch.base, branch.base + n), reader.dtype)
        edge = memory.settings.n_local - 1
        self._edge = reader.rotary.at(range(edge, edge + 1), reader.dtype)
        self._index, self._rank = torch.arange(n, device=device), torch.arange(self.k, device=device)
        self._block = torch.arange(branch.last, device=device)
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.budgets = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.n_far, self.start, self.behind = torch.zeros(3, 1, dtype=torch.long, device=device)
        self.captured = device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outcome: Outcome | None = None

    @torch.inference_mode()
    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps, one a row, all of this branch and of the same position."""
        for row, step in enumerate(steps):
            if step.k > self.k:
                raise ValueError(f"the branch was made for budgets of at most {self.branch.most}, not of {step.budget}")
            self.tokens[row].copy_(step.tokens)
            self.budgets[row].fill_(step.budget)
        for own, number in ((self.n_far, step.n_far), (self.start, step.start), (self.behind, step.behind)):
            own.fill_(number)
        outcome = self._replay() if self.captured else self.compute()
        kept = Outcome(*(None if x is None else x.clone() for x in outcome))
        sites = list(self.branch.memory.reader.embeddings())
        for row, step in enumerate(steps):
            step.hidden, step.embeddings = kept.hidden[row], dict(zip(sites, kept.embeddings[:, row], strict=True))
            step.keys, step.rotated, step.values = (list(x[:, row]) for x in (kept.keys, kept.rotated, kept.values))
            step.selected = kept.chosen[:, row, : step.k].sort(-1).values
            step.scores = kept.scores[:, row].gather(1, step.selected)
            if kept.captured is not None and step.n_far:
                step.captured = dict(zip(self.branch.captures, kept.captured[:, :, row], strict=True))
            else:
                step.captured = {}
            if kept.given is not None:
                # What lay before the window or behind the committed tokens has no part in it.
                count, first = self.branch.given.shape[2], step.given_from - self.branch.offset
                seen = step.behind - self.branch.offset
                parts = [kept.given[:, row, :, first : max(first, min(seen, count))]]
                if 0 <= seen < count:
                    parts.append(kept.given[:, row, :, count:])
                given = torch.cat(parts, -1)
                step.given = list(given) if given.shape[-1] else []

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
        self._in_window = (self._index >= self.start) & (self._index < self.behind)
        self._has_far = (self.n_far > 0).expand(self.branch.memory.layout.n_init)
        self._to_place = self._places.take(self.behind)
        self._layers: list[tuple[Tensor, ...]] = []
        reader = self.branch.memory.reader
        hidden = reader.forward(self.tokens, self)
        keys, rotated, values, chosen, scores, given, captured = zip(*self._layers, strict=True)
        return Outcome(
            hidden,
            torch.stack(list(reader.embeddings().values())),
            torch.stack(keys),
            torch.stack(rotated),
            torch.stack(values),
            torch.stack(chosen),
            torch.stack(scores),
            torch.stack(given) if given[0] is not None else None,
            torch.stack(captured, 1) if captured[0] is not None else None,
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        branch, memory, rows = self.branch, self.branch.memory, self.rows
        local, rotated = self._to_place(torch.cat((query, key), 1)).split((query.shape[1], key.shape[1]), 1)
        window = branch.window[layer, :, None].expand(-1, rows, -1, -1, -1)
        segments = [Segment(local, *window, seen=self._in_window), Segment(local, rotated, value)]
        chosen, scores, captured = self._rank.expand(rows, -1), query.new_zeros(rows, branch.last), None
        if branch.last:
            edge = self._edge(query)
            scores = branch.scores(layer, edge.mean(2), branch.last).masked_fill(self._block >= self.n_far, -torch.inf)
            chosen = best(scores, self.k)
            # Where fewer blocks are far than are brought, others are brought for want of them.
            wanted = (self._rank < self.budgets) & (chosen < self.n_far)
            seen = torch.cat((self._has_far.expand(rows, -1), wanted.repeat_interleave(memory.block_size, 1)), 1)
            blocks = branch.far(layer, chosen.flatten()).unflatten(2, (rows, self.k)).unbind(2)
            pairs = [memory.far_pairs(branch.initial[layer], own, ids) for own, ids in zip(blocks, chosen, strict=True)]
            far = edge if memory.clipped else local
            segments.append(Segment(far, *torch.stack(pairs, 1), seen=seen[:, None, None]))
            if branch.captures:
                captured = torch.stack([keep(scores, self.n_far, branch.scale) for keep in branch.captures.values()])
        out, lse = attention(segments, scaling)
        given = self._given(local, window[0], rotated, lse, scaling)
        self._layers.append((key, rotated, value, chosen, scores, given, captured))
        return out

    def _given(self, query: Tensor, window: Tensor, own: Tensor, lse: Tensor, scaling: float) -> Tensor | None:
        """As a step's, of all tokens that will be in blocks of the branch, then of the pass's own."""
        branch, m = self.branch, self.branch.memory.settings
        first, count = branch.offset, branch.given.shape[2]
        if m.representatives == "mean" or not count:
            return None
        old = relevance(m, query, window[:, :, first : first + count], first - self.behind, lse, scaling)
        return torch.cat((old, relevance(m, query, own, 0, lse, scaling, causal=True)), -1)
