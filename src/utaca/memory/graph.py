"""A decoding step as a CUDA graph: recorded once for an answer, then replayed for each of its tokens.

A GPU starts a graph's kernels without the host; in an ordinary step the host starts each of them. A graph repeats
the same operations on the same memory, so all shapes are fixed here: a step attends to the whole room of the branch's
window and to the most blocks that the answer may retrieve; masks hide the rest. What changes from token to
token are three numbers on the device: the token, its ``place`` in the window, and the number ``k`` of blocks that it
sees.

The masks go through materialised logits, so rounding differs from that of an ordinary step.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from utaca.memory.attention import Segment, attention, best, block_scores
from utaca.memory.passes import BlockStep, Continuation, Pass
from utaca.readers.attention import Output, Rotation
from utaca.settings.schema import CLIPPED, TOKENS


def can_record(branch: Continuation) -> bool:
    """Whether steps after a branch can be recorded: on a GPU that holds the document, with the paper's far keys."""
    m = branch.memory.settings
    paper = m.representatives != TOKENS and m.far_positions == CLIPPED and branch.memory.clipped
    return branch.reader.settings.graphs and branch.window.is_cuda and m.storage == "device" and paper


class StepGraph:
    """The step that passes one token after a branch under at most ``k_max`` blocks.

    ``token``, ``place`` and ``k`` [1] are the numbers that change from token to token. Fixed tensors are these:
    ``entries`` are the indices of the window's tokens, ``blocks`` the numbers of all blocks that are or become far,
    ``initial`` [1, n] those of the initial blocks, and ``to_edge`` is the rotation to the window's edge.
    """

    @torch.inference_mode()
    def __init__(self, branch: Continuation, k_max: int) -> None:
        # The branch holds its graph: another strong reference would be a ring, which keeps the document in memory.
        self.branch = weakref.proxy(branch)
        self.reader = branch.reader
        self.layout = branch.memory.layout
        layout = self.layout
        device = branch.window.device
        self.n_blocks = branch.n_scored + branch.representatives.shape[2]
        self.k_max = min(k_max, self.n_blocks)
        self.token = torch.zeros(1, dtype=torch.long, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.k = torch.zeros(1, dtype=torch.long, device=device)
        self.entries = torch.arange(branch.window.shape[3], device=device)
        self.blocks = torch.arange(self.n_blocks, device=device)
        self.initial = torch.arange(-layout.initial_blocks, 0, device=device)[None]
        # The number of blocks that a step must retrieve at least to see a far token; 0 for the initial ones.
        ranks = torch.arange(1, self.k_max + 1, device=device).repeat_interleave(layout.block_size)
        self.ranks = torch.cat((ranks.new_zeros(layout.n_init), ranks))
        # The graph continues reading these tables, even if the reader makes longer ones.
        rotary = self.reader.rotary
        self.tables = rotary.tables(branch.window.dtype)
        n_local = branch.memory.settings.n_local
        self.to_edge = rotary.at(range(n_local - 1, n_local), branch.window.dtype)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.inference_mode()
    def run(self, step: BlockStep) -> None:
        """Run a step of the branch, of one token and 1 to ``k_max`` blocks; sets the step's results."""
        # Each thread has its own current device, and torch would record on that one.
        with torch.cuda.device(self.token.device):
            self.token.copy_(step.tokens)
            self.place.fill_(step.n_before)
            self.k.fill_(step.k)
            if self.graph is None:
                self.graph = self._recorded()
            self.graph.replay()
        # The next replay writes over its results; what a trace or the branch keeps is copied.
        embeddings = {site: rows.clone() for site, rows in self.embeddings.items()}
        step.output = Output(self.hidden, embeddings, lambda _: self.logits)
        step.row = 0
        step.passed = Pass(
            keys=self.keys,
            values=self.values,
            rotated=self.rotated,
            query=self.query.clone(),
            lse=self.lse.clone(),
            scaling=self.scaling,
            state_ids=[object()],
        )
        # The first k blocks are the best ones (see attend); they are reported in the order of their positions.
        step.selected, order = self.chosen[:, 0, : step.k].sort(-1)
        step.scores = self.scores[:, 0].gather(1, order)
        step.captured = {name: found.clone() for name, found in self.captured.items()}

    def _recorded(self) -> torch.cuda.CUDAGraph:
        """Record the step; :meth:`_compute` runs once before, because the first run of a kernel allocates memory."""
        self._compute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._compute()
        return graph

    def _compute(self) -> None:
        """The step, from the numbers on the device; its results are tensors that a replay fills again."""
        branch = self.branch
        layout = self.layout
        position = self.place + branch.start
        # As Layout.n_far and window_start, without their cases for no far block: a step of a graph retrieves at least
        # one. ``first`` is the window's first entry that the token sees.
        self.n_far = (position + 1 - branch.memory.settings.n_local - layout.n_init) // layout.block_size
        first = layout.n_init + self.n_far * layout.block_size - branch.start
        self.seen_near = (self.entries >= first) & (self.entries <= self.place)
        self.seen_far = self.ranks <= self.k
        self.not_far = self.blocks >= self.n_far
        places = self.place + branch.first_position
        cos, sin = (table.index_select(0, places)[None, None] for table in self.tables)
        self.rotate = Rotation(cos, sin).joined_with(self.to_edge)
        self.layers: list[tuple[Tensor, ...]] = []
        self.hidden = self.reader.forward(self.token[None], self)
        self.embeddings = self.reader.embeddings()
        self.logits = self.reader.logits(self.hidden[:, -1])
        columns = [torch.stack(column) for column in zip(*self.layers, strict=True)]
        self.keys, self.values, self.rotated, self.query, self.lse, self.chosen, of_all = columns
        self.scores = of_all.gather(2, self.chosen)
        self.captured = {}
        for name, capture in branch.captures.items():
            self.captured[name] = capture(of_all[:, 0], self.n_far, branch.scale)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [1, H, 1, D] of query [1, H, 1, D], key and value [1, G, 1, D], all unrotated.

        Keeps what the layer found in ``layers``, for :meth:`_compute`.
        """
        branch = self.branch
        self.scaling = scaling
        heads = query.shape[1]
        # Query and key rotated to the token's place, and to the window's edge, at which far keys are seen.
        near, edge = self.rotate(torch.cat((query, key), 1)).unbind(0)
        local, rotated = near.split((heads, key.shape[1]), 1)
        edge = edge[:, :heads]
        window = branch.window[layer]
        # Written before the step is committed: if it is rolled back, the next step writes over the same entry.
        window.index_copy_(2, self.place, torch.cat((rotated, value)))
        scores = block_scores(edge, branch.memory.representatives[layer], branch.representatives[layer][None])
        scores = scores.masked_fill(self.not_far, -torch.inf)
        chosen = best(scores, self.k_max)
        # The best come first: under a smaller budget a step sees the first ones.
        chosen = chosen.gather(1, scores.gather(1, chosen).argsort(dim=1, descending=True, stable=True))
        ids = torch.cat((self.initial, chosen), 1)[0]
        far = branch.memory.place(branch.blocks(layer, ids, branch.n_at_capacity), ids)
        # The first initial block begins with padding before the text.
        far = far[:, :, self.layout.skipped :]
        segments = [
            Segment(local, *window[:, None], self.seen_near),
            Segment(edge, *far[:, None], self.seen_far),
        ]
        out, lse = attention(segments, scaling)
        self.layers.append((key, value, rotated, local, lse, chosen, scores))
        return out
