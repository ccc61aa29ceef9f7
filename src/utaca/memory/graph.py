"""A decoding pass in shapes and at addresses that stay, which a GPU captures once an answer as a CUDA graph.

What changes from step to step, the local window, the number of far blocks and the budgets of the rows, are masks here,
made on the device from numbers that are filled in before a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from utaca.errors import UserError
from utaca.memory.attention import best, ranked
from utaca.memory.branch import Branch, Outcome, Step, Tries
from utaca.readers.attention import Rotation


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

    def fork(self) -> GraphBranch:
        # A graph reads its own branch alone.
        other = super().fork()
        other.__dict__.pop("_graphs", None)
        return other

    def graph(self, rows: int) -> Graph:
        """The branch's pass of so many rows, made where it is first asked for."""
        graphs = self.__dict__.setdefault("_graphs", {})
        if rows not in graphs:
            graphs[rows] = Graph(self, rows)
        return graphs[rows]


class Graph(Tries):
    """Passes of one token behind a branch, tried under ``rows`` budgets of at most ``branch.most`` at once.

    A pass does what :class:`Tries` does, over all that the branch may ever see: its whole window, and every block that
    is ever far, of which the best ``branch.most`` are brought. On a GPU the pass is captured when it first runs and
    replayed from then on; elsewhere it runs as it is written.
    """

    def __init__(self, branch: Branch, rows: int) -> None:
        self.branch, self.span, self.blocks, self.most = branch, slice(None), branch.last, min(branch.most, branch.last)
        device, n, reader = branch.window.device, branch.window.shape[3], branch.memory.reader
        # The tables are kept here: a graph reads where they lay when it was captured.
        self._places = reader.rotary.at(range(branch.base + n), branch.window.dtype)
        edge = branch.memory.settings.n_local - 1
        self.to_edge = reader.rotary.at(range(edge, edge + 1), branch.window.dtype)
        self._index, self._rank = torch.arange(n, device=device), torch.arange(self.most, device=device)
        self._block = torch.arange(branch.last, device=device)
        self.tokens, self.budgets = torch.zeros(2, rows, 1, dtype=torch.long, device=device)
        self.n_far, self.start, self.behind = torch.zeros(3, 1, dtype=torch.long, device=device)
        self.captured = device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outcome: Outcome | None = None

    @torch.inference_mode()
    def run(self, steps: Sequence[Step]) -> None:
        """Run the steps, one a row, all of this branch and from the same position."""
        for row, step in enumerate(steps):
            if step.k > self.most:
                raise ValueError(f"the branch was made for budgets of at most {self.branch.most}, not of {step.budget}")
            self.tokens[row].copy_(step.tokens)
            self.budgets[row].fill_(step.budget)
        for own, number in ((self.n_far, step.n_far), (self.start, step.start), (self.behind, step.behind)):
            own.fill_(number)
        outcome = self._replay() if self.captured else self.compute()
        # The next pass gives its results at the same addresses.
        tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, outcome).deal(steps)

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
        self.in_window = (self._index >= self.start) & (self._index < self.behind)
        self.has_far = self.n_far > 0
        self.window_place = self.branch.base + self.start
        self.to_place, self.layers = self._places.take(self.branch.base + self.behind), []
        reader = self.branch.memory.reader
        hidden = reader.forward(self.tokens, self)
        return self.outcome(hidden, reader.embeddings())

    def places(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return self._places.take(positions)

    def scores(self, layer: int, query: Tensor) -> Tensor:
        far = self._block < self.n_far
        return self.branch.scores(layer, query, self.blocks, far).masked_fill(~far, -torch.inf)

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        # Where fewer blocks are far than are brought, others are brought for want of them.
        chosen = ranked(scores, best(scores, self.most))
        return chosen, (self._rank < self.budgets) & (chosen < self.n_far)
