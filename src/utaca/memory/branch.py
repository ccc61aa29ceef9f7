"""Branches: continuations of a document that was read, from which answers are decoded.

A branch holds the tokens that follow the document. A step attends first and is committed afterwards; a rollback (paper,
algorithm 1) simply does not commit the step, which then leaves no trace. Like the document's tokens, those of a branch
form blocks: a block gets a representative key when it leaves the window, and can be retrieved from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from utaca.memory.attention import received, represented
from utaca.memory.document import Document
from utaca.memory.graph import StepGraph, can_record
from utaca.memory.passes import BlockStep, run_together
from utaca.readers.room import check_size
from utaca.settings.schema import PACKED, TOKENS


class Branch:
    """A continuation of a document: ``length`` tokens committed so far, of at most ``capacity``.

    ``window`` [layers, 2, G, n, D] holds the rotated keys and the values of the document's last window and of the
    committed tokens; its first token is token ``start`` of the text, and it is zero after the committed tokens. No key
    is rotated twice: only distances count, so token ``start`` gets position ``first_position`` for good, and the local
    window slides over the rotated keys. Far keys are ``packed`` right before the window, or placed by
    :meth:`Document.place`. ``captures`` are the signals' functions that record each layer's retrieval
    (:class:`utaca.detection.signal.Signal`), by name. Branches of equal ``state_id`` hold the same committed tokens.

    At the document's end ``n_scored`` of its blocks are far. The document holds ``n_whole`` whole blocks (below 0 if it
    ends within the initial tokens); for the last token that fits, ``n_at_capacity`` blocks are far. For the blocks that
    leave the window after the document, the branch holds ``representatives`` [layers, G * D, blocks] and their tokens'
    ``attention_mass`` [layers, G, tokens], which begins at index ``mass_start`` of the window. ``tail`` [layers, 2, G,
    blocks, block_size, D] has the unrotated keys and values of the blocks that the document does not hold whole.

    With a ``block_top_p`` below 1, a step of one token sees only the fewest best blocks whose probability reaches it.

    ``graph`` runs steps of one token under at most ``k_max`` blocks, if the reader's settings ask for graphs.
    """

    def __init__(
        self,
        memory: Document,
        capacity: int,
        captures: Mapping[str, Callable] | None = None,
        k_max: int = 0,
        block_top_p: float = 1.0,
    ) -> None:
        self.memory = memory
        self.block_top_p = block_top_p
        self.reader = memory.reader
        self.captures = captures or {}
        self.capacity = capacity
        self.length = 0
        layout = memory.layout
        n = len(memory)
        layers, heads, groups, width = self.reader.shape
        self.start = layout.window_start(n)
        # Retrieval scores divided by this are scaled logits, averaged over the heads.
        self.scale = heads * width**0.5
        self.packed = memory.clipped and memory.settings.far_positions == PACKED
        self.first_position = self.start if self.packed or not memory.clipped else 0
        local = n - self.start
        rotary = self.reader.rotary
        kept = self.reader.sizes.cache_bytes(local + capacity, self.reader.dtype.itemsize)
        check_size(self.reader, "the answer's keys and values need", kept, "lower max_new_tokens")
        rotary.reserve(max(memory.settings.n_local, self.first_position + local + capacity))
        self.n_scored = layout.n_far(n)
        self.n_at_capacity = layout.n_far(n + capacity - 1)
        self.n_whole = layout.blocks(n) if n >= layout.n_init else -layout.initial_blocks
        self.mass_start = layout.first_token(self.n_scored) - self.start
        # Blocks that leave the window after the document, and far blocks that the document does not hold whole.
        n_leaving = 0 if memory.settings.representatives == TOKENS else self.n_at_capacity - self.n_scored
        n_tail = max(0, self.n_at_capacity - self.n_whole) if self.n_at_capacity else 0
        # Gives the tensors below its type and device.
        like = torch.empty(0, dtype=self.reader.dtype, device=memory.tokens.device)
        self.window = like.new_zeros(layers, 2, groups, local + capacity, width)
        self.representatives = memory.representatives[0].new_zeros(layers, groups * width, n_leaving)
        self.attention_mass = self.representatives.new_zeros(layers, groups, n_leaving * layout.block_size)
        self.tail = like.new_zeros(layers, 2, groups, n_tail, layout.block_size, width)
        # Tokens of the document among those whose mass the branch needs: reading has already summed some of it.
        n_massed = max(0, min(self.attention_mass.shape[2], local - self.mass_start))
        self.state_id: object = id(memory)
        self.k_max = k_max
        self.graph: StepGraph | None = None
        # Queries and log-sum-exps of committed steps whose attention mass is not added yet.
        self._queries: list[tuple[Tensor, Tensor]] = []
        tail_start = max(0, layout.first_token(self.n_whole))
        for layer, store in enumerate(memory.stores):
            keys, values = store.window(self.start, n)
            self.window[layer, 0, :, :local] = rotary(keys, range(self.first_position, self.first_position + local))
            self.window[layer, 1, :, :local] = values
            mass = memory.attention_mass[layer][:, self.mass_start : self.mass_start + n_massed]
            self.attention_mass[layer, :, :n_massed] = mass
            self._keep(tail_start, store.window(tail_start, n)[None], slice(layer, layer + 1))

    @property
    def position(self) -> int:
        """Position of the next token."""
        return len(self.memory) + self.length

    def plan(self, tokens: Tensor, budget: int, after: BlockStep | None = None) -> BlockStep:
        """A step that passes ``tokens`` [T] after the branch under a ``budget`` of blocks, not yet run.

        After a step ``after``, it is the next one of that step's chain.
        """
        return BlockStep(self, tokens, budget, after)

    @property
    def longest_chain(self) -> int:
        """Most steps of a chain: until a further block is far for a token, or until the branch is full.

        All steps of a chain retrieve from the same blocks, so that they can attend together.
        """
        layout = self.memory.layout
        n_far = layout.n_far(self.position)
        length = 1
        while self.length + length < self.capacity and layout.n_far(self.position + length) == n_far:
            length += 1
        return length

    @staticmethod
    def run(steps: Sequence[BlockStep]) -> None:
        """Run steps of one size, on branches of one reader, in one pass of the model."""
        graph = steps[0].state.graph_of(steps[0]) if len(steps) == 1 else None
        if graph:
            graph.run(steps[0])
        else:
            run_together(steps)

    def graph_of(self, step: BlockStep) -> StepGraph | None:
        """The graph that runs a step of this branch; None if the step must run as an ordinary pass.

        A graph runs one token that retrieves 1 to ``k_max`` blocks and follows committed tokens, and calls no hooks on
        layers (``watched``).
        """
        if not can_record(self) or self.reader.watched or self.block_top_p < 1:
            return None
        if step.size > 1 or step.chain or not 0 < step.k <= self.k_max:
            return None
        if self.graph is None:
            self.graph = StepGraph(self, self.k_max)
        return self.graph

    @torch.inference_mode()
    def commit(self, step: BlockStep) -> None:
        """Append the tokens of a ``step`` that has run, and represent the blocks that become far by it."""
        passed = step.passed
        row = step.row
        entries = slice(step.n_before, step.n_before + step.size)
        self.window[:, 0, :, entries] = passed.rotated[:, row]
        self.window[:, 1, :, entries] = passed.values[:, row]
        self.length += step.size
        self.state_id = passed.state_ids[row]
        owns_blocks = self.tail.shape[3] > 0
        if owns_blocks:
            self._keep(step.position, torch.stack((passed.keys[:, row], passed.values[:, row]), 1))
        if self.representatives.shape[2]:
            self._queries.append((passed.query[:, row], passed.lse[:, row]))
            # Queries of single tokens wait until a block becomes far, and then share one product; with a tail they
            # cannot wait, because they do not see all of the tokens whose mass is kept (see _represent).
            if owns_blocks or step.size > 1 or self.memory.layout.n_far(self.position) > step.n_far:
                self._represent(step)

    def blocks(self, layer: int, ids: Tensor, n_far: int) -> Tensor:
        """Unrotated keys and values [2, G, k * block_size, D] of blocks ``ids`` [k], all among the first ``n_far``.

        They come from the document, or from the tail if the document does not hold a whole block.
        """
        store = self.memory.stores[layer]
        n_whole = self.n_whole
        if n_far <= n_whole:
            return store.blocks(ids)
        # Which of both holds a block is known on the device only, so both are read; clamped ids are not used.
        pairs = self.tail[layer][:, :, (ids - n_whole).clamp(min=0)].flatten(2, 3)
        if n_whole > -self.memory.layout.initial_blocks:
            in_document = (ids < n_whole)[:, None].expand(-1, self.memory.block_size).flatten()[:, None]
            pairs = torch.where(in_document, store.blocks(ids.clamp(max=n_whole - 1)), pairs)
        return pairs

    def _keep(self, first: int, pairs: Tensor, layers: slice = slice(None)) -> None:
        """Copy the tail's part of unrotated ``pairs`` [layers, 2, G, T, D], which begin at token ``first``.

        Tokens before or after the tail's blocks are left out.
        """
        # From here on, counted from the tail's first token; below 0 before it.
        first -= self.memory.layout.first_token(self.n_whole)
        tail = self.tail[layers].flatten(3, 4)[..., max(0, first) : max(0, first + pairs.shape[3]), :]
        tail.copy_(pairs[..., max(0, -first) :, :][..., : tail.shape[3], :])

    def _represent(self, step: BlockStep) -> None:
        """Compute representatives of the blocks that a committed ``step`` has made far.

        Before that, add the attention that the pending queries, including the step's, give to the tokens of
        ``attention_mass``. If the branch has a tail, only the step's queries are pending; otherwise these tokens are
        all the document's, and every query sees them.
        """
        query, lse = (torch.cat(column, 2) for column in zip(*self._queries, strict=True))
        self._queries = []
        # All pending queries see the keys before the step and, of a single token, its own.
        seen_by_all = step.n_before + (1 if step.size == 1 else 0)
        step_end = step.n_before + step.size
        mass_end = self.mass_start + self.attention_mass.shape[2]
        # The tokens of a longer step see one another in part, which is the second range; else it is empty.
        for first, last, causal in ((step.start, seen_by_all, False), (seen_by_all, step_end, True)):
            low = max(first, self.mass_start)
            high = min(last, mass_end)
            if low >= high:
                continue
            # Causal attention needs as many keys as queries; otherwise only keys are read whose mass is kept.
            keys = slice(first, last) if causal else slice(low, high)
            mass = received(query, self.window[:, 0, :, keys], lse, step.passed.scaling, causal=causal)
            mass = mass[:, :, low - keys.start : high - keys.start]
            self.attention_mass[:, :, low - self.mass_start : high - self.mass_start] += mass
        memory = self.memory
        layout = self.memory.layout
        size = self.memory.block_size
        for block in range(step.n_far, min(self.n_at_capacity, layout.n_far(self.position))):
            place = block - self.n_scored
            first = layout.first_token(block)
            if block < self.n_whole:
                keys = torch.stack([store.window(first, first + size)[0] for store in memory.stores])
            else:
                keys = self.tail[:, 0, :, block - self.n_whole]
            mass = self.attention_mass[:, :, None, place * size : (place + 1) * size]
            self.representatives[:, :, place] = represented(memory.settings, keys[:, :, None], mass).flatten(1)
