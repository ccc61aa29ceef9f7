"""Passes of the model after branches: the steps that a pass runs, and what it computed for each of them.

Steps of several answers share a pass. Within it, rows that see the same keys attend together (:class:`RowGroup`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.memory.attention import Segment, attention, best, grouped, mixture
from utaca.memory.document import Document
from utaca.readers.attention import Output, Step, on_device
from utaca.readers.load import Reader
from utaca.settings.schema import TOKENS


class Continuation(Protocol):
    """What a pass needs of a branch; :class:`utaca.memory.branch.Branch` says what each of these is."""

    memory: Document
    reader: Reader
    captures: Mapping[str, Callable]
    window: Tensor
    representatives: Tensor
    tail: Tensor
    state_id: object
    capacity: int
    length: int
    start: int
    first_position: int
    n_scored: int
    n_whole: int
    n_at_capacity: int
    scale: float
    packed: bool
    block_top_p: float

    @property
    def position(self) -> int:
        """Position of the next token."""

    def blocks(self, layer: int, ids: Tensor, n_far: int) -> Tensor:
        """Unrotated keys and values of blocks."""


@dataclass(frozen=True)
class Pass:
    """What a pass of the model computed for its rows, and what a branch that commits a row takes over.

    ``keys`` [layers, rows, G, T, D] are unrotated; ``rotated`` are the same keys, rotated to their places in the
    window, and ``values`` (same shape) the values. ``query`` [layers, rows, H, T, D] are the rotated queries, ``lse``
    [layers, rows, H, T] the log-sum-exps of their logits, scaled by ``scaling``. The branch's new ``state_id`` is its
    row's entry of ``state_ids``.
    """

    keys: Tensor
    values: Tensor
    rotated: Tensor
    query: Tensor
    lse: Tensor
    scaling: float
    state_ids: Sequence[object]


class BlockStep(Step):
    """A pass of ``tokens`` [T] after a branch under a ``budget`` of blocks per layer; nothing is committed.

    ``after`` is a step of one token, not yet committed, that the tokens of this step follow. It runs in the same pass,
    or has run in an earlier one. Such steps form a chain, and a step of a chain sees the tokens of the steps before it.
    To commit a step, commit those before it first.

    Raises :class:`ValueError` if the branch has no room for the tokens.
    """

    passed: Pass | None = None
    retrieved: float

    def __init__(self, branch: Continuation, tokens: Tensor, budget: int, after: BlockStep | None = None) -> None:
        super().__init__(branch, tokens, budget)
        self.chain: tuple[BlockStep, ...] = (*after.chain, after) if after else ()
        new = len(self.chain) + self.size
        if branch.length + new > branch.capacity:
            room = branch.capacity - branch.length
            raise ValueError(f"the branch has room for {room} more tokens, not for {new}")
        layout = branch.memory.layout
        self.position = branch.position + len(self.chain)
        self.n_far = layout.n_far(self.position)
        self.k = min(budget, self.n_far)
        self.retrieved = self.k
        # The step sees entries ``start`` to ``n_committed`` of the branch's window and the tokens of its chain, which
        # are entries ``n_committed`` to ``n_before`` once they are committed.
        self.start = layout.window_start(self.position) - branch.start
        self.n_committed = branch.position - branch.start
        self.n_before = self.n_committed + len(self.chain)

    @property
    def ran_before(self) -> list[BlockStep]:
        """The steps of its chain that ran in earlier passes; asked for before this step runs."""
        return [step for step in self.chain if step.passed is not None]

    def equals(self, other: BlockStep) -> bool:
        """Whether both steps pass the same tokens after the same tokens, and retrieve equally many blocks.

        They then compute the same, even on different branches.
        """
        if self.state.state_id != other.state.state_id or self.k != other.k or len(self.chain) != len(other.chain):
            return False
        if self.chain and not self.chain[-1].equals(other.chain[-1]):
            return False
        return torch.equal(self.tokens, other.tokens)

    @property
    def attended(self) -> float:
        """Keys that the last token attended to: initial tokens, retrieved blocks, window, itself."""
        layout = self.state.memory.layout
        # As long as no block is far, the window holds the initial tokens.
        initial = layout.n_init if self.n_far else 0
        return initial + self.retrieved * layout.block_size + self.n_before - self.start + self.size


@torch.inference_mode()
def run_together(steps: Sequence[BlockStep]) -> None:
    """Run steps of one size, on branches of one reader, in one pass of the model; this sets their results.

    Nothing is committed. A step's results equal those of the step run by itself, up to the rounding of larger matrix
    products. Steps of equal history, tokens and budget share a row.
    """
    twins = dict(zip(steps, _twins(steps), strict=True))
    groups = _groups(list(twins.values()))
    rows = [step for group in groups for step in group]
    reader = steps[0].state.reader
    attending = _Attending([RowGroup(group, twins) for group in groups])
    hidden = reader.forward(torch.stack([step.tokens for step in rows]), attending)
    output = Output(hidden, reader.embeddings(), reader.logits)
    captures = {name: capture for step in steps for name, capture in step.state.captures.items()}
    found = attending.found(max(step.k for step in steps), captures)
    passed = Pass(
        keys=torch.stack(attending.keys),
        values=torch.stack(attending.values),
        rotated=found.rotated,
        query=found.query,
        lse=found.lse,
        scaling=attending.scaling,
        state_ids=[object() for _ in rows],
    )
    for step, twin in twins.items():
        row = rows.index(twin)
        step.output = output
        step.passed = passed
        step.row = row
        # If rows differ in k, ``chosen`` is in the order of scores (:meth:`RowGroup.attend`), and the first k are this
        # step's. They are reported in the order of their positions.
        step.selected, order = found.chosen[:, row, : step.k].sort(-1)
        step.scores = found.scores[:, row].gather(1, order)
        if step.state.block_top_p < 1 and step.size == 1 and step.k:
            step.retrieved = (step.selected >= 0).sum(1).double().mean().item()
        step.captured = {name: found.captured[name][:, row] for name in step.state.captures if step.n_far}


def _twins(steps: Sequence[BlockStep]) -> list[BlockStep]:
    """For each step, the first of the steps that equals it, which may be itself."""
    twins: list[BlockStep] = []
    for step in steps:
        twins.append(next((twin for twin in twins if twin.equals(step)), step))
    return twins


def _groups(steps: Sequence[BlockStep]) -> list[list[BlockStep]]:
    """The distinct steps, in groups that can attend together; within a group they are sorted by their k."""
    groups: dict[Hashable, list[BlockStep]] = {}
    # Sorting by k puts rows that retrieve equally many blocks side by side, so that they can attend together.
    for step in sorted(dict.fromkeys(steps), key=lambda step: step.k):
        branch = step.state
        # Single tokens after one document attend together, whatever their branches hold, as long as the document holds
        # all their far blocks whole. Other steps do if the same tokens are committed before them.
        n_in_document = max(0, branch.n_whole)  # n_whole is below 0 if the document ends within the initial tokens
        key: Hashable = branch.state_id
        if step.size == 1 and step.n_far <= n_in_document:
            key = (id(branch.memory), step.n_far, branch.block_top_p)
        groups.setdefault(key, []).append(step)
    return list(groups.values())


class _Attending:
    """The attention of a pass (:class:`utaca.readers.attention.Attending`), by groups of rows.

    ``keys`` and ``values`` are those of each layer so far, [rows, G, T, D] each, unrotated.
    """

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        self.groups = groups
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.scaling = 1.0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output [R, H, T, D] of query [R, H, T, D], key and value [R, G, T, D], all unrotated."""
        self.scaling = scaling
        self.keys.append(key)
        self.values.append(value)
        if len(self.groups) == 1:
            return self.groups[0].attend(layer, query, key, value, scaling)
        sizes = [len(group.branches) for group in self.groups]
        parts = zip(self.groups, *(x.split(sizes) for x in (query, key, value)), strict=True)
        return torch.cat([group.attend(layer, *rows, scaling) for group, *rows in parts])

    def found(self, most: int, captures: Mapping[str, Callable]) -> Found:
        """What the rows found, group after group; see :meth:`RowGroup.found`."""
        return Found.joined([group.found(most, captures) for group in self.groups])


@dataclass
class Found:
    """What rows found in all layers.

    ``rotated``, ``query`` and ``lse`` are as in :class:`Pass`. ``chosen`` [layers, rows, K] are the best blocks, of
    which a step sees the first k, and ``scores`` their scores; -1 for a block that ``block_top_p`` leaves out.
    ``captured`` [layers, rows] is what each signal
    captured, by signal.
    """

    rotated: Tensor
    query: Tensor
    lse: Tensor
    chosen: Tensor
    scores: Tensor
    captured: dict[str, Tensor]

    @staticmethod
    def joined(groups: Sequence[Found]) -> Found:
        """The rows of several groups, one group after the other."""
        if len(groups) == 1:
            return groups[0]

        def rows(name: str) -> Tensor:
            return torch.cat([getattr(group, name) for group in groups], 1)

        captured = {name: torch.cat([group.captured[name] for group in groups], 1) for name in groups[0].captured}
        return Found(*map(rows, ("rotated", "query", "lse", "chosen", "scores")), captured)


@dataclass(frozen=True)
class _LayerFound:
    """What a layer found: ``rotated`` keys [R, G, T, D], rotated ``query`` [R, H, T, D], log-sum-exps ``lses`` of
    several parts of the keys [n, R, G, H / G, T], the best blocks ``chosen`` [R, k], the ``scores`` [R, n_far] of all.

    The last two are None if no block is far.
    """

    rotated: Tensor
    query: Tensor
    lses: Tensor
    chosen: Tensor | None
    scores: Tensor | None


class RowGroup:
    """Rows that attend together: single tokens of branches of one document, or steps of one history.

    All rows have ``size`` tokens, and the same ``n_far`` blocks are far for them. The branches' ``scale`` is the same
    too. ``clipped``: far keys are seen at the window's edge, and not at positions of their own.
    ``top_p`` is the branches' ``block_top_p``, 1 for steps of several tokens.
    """

    def __init__(self, steps: list[BlockStep], twins: Mapping[BlockStep, BlockStep]) -> None:
        first = steps[0]
        branch = first.state
        self.branches = [step.state for step in steps]
        self.memory = branch.memory
        self.n_far = first.n_far
        self.scale = branch.scale
        self.size = first.size
        self.clipped = self.memory.clipped and not branch.packed
        self.top_p = branch.block_top_p if first.size == 1 else 1.0
        self._layers: list[_LayerFound] = []
        self._plan_window(steps)
        self._plan_chains(steps, twins)
        self._plan_rotation(steps)
        self._plan_blocks(first, [step.k for step in steps])

    def _plan_window(self, steps: Sequence[BlockStep]) -> None:
        """Split the window's entries into those that all rows see, and those of each row (``n_own``)."""
        first = steps[0]
        branch = first.state
        # Steps of one history share everything before them.
        end = first.n_before
        self.chained = any(step.chain for step in steps)
        if self.size == 1:
            # Branches of one document share its tokens, as far as the window reaches back. The rows of one branch's
            # chain share the branch's own tokens, too.
            end = max(first.start, len(self.memory) - branch.start)
            if self.chained and all(step.state is branch for step in steps):
                end = first.n_committed
        self.window = slice(first.start, end)
        self.shared = _by_layer(branch.window[:, :, None, :, self.window])
        n_committed = [step.n_committed - end for step in steps]
        self.n_own = [count + len(step.ran_before) for count, step in zip(n_committed, steps, strict=True)]
        self.own_pairs = _by_layer(self._own_pairs(steps, n_committed)) if max(self.n_own) else []

    def _plan_chains(self, steps: Sequence[BlockStep], twins: Mapping[BlockStep, BlockStep]) -> None:
        """Set ``earlier`` and ``seen``, which :meth:`_attend_own` needs if a step is part of a chain.

        ``earlier`` [R * n] names, for each of the R rows, the rows of the steps before it in its chain. The n of the
        longest chain counts; shorter ones are padded with row 0. ``earlier`` is None without chains.
        ``seen`` [R, 1, 1, keys] is the mask that hides this padding, and that of the branches' own tokens. The keys are
        in the order of :meth:`_attend_own`. ``seen`` is None if nothing is padded.
        """
        # A step of a chain may have been replaced by its twin, whose row it then shares. A chain lies in one group,
        # because no further block is far for its later steps (Branch.longest_chain). Steps that ran in earlier passes
        # have no row here (_own_pairs).
        chains = [[steps.index(twins[before]) for before in step.chain if before in twins] for step in steps]
        longest_chain = max(map(len, chains))
        longest_own = max(self.n_own)
        device = steps[0].state.window.device
        self.earlier = None
        if longest_chain:
            padded = []
            for chain in chains:
                padding = [0] * (longest_chain - len(chain))
                padded += chain + padding
            self.earlier = on_device(padded, device)
        self.seen = None
        if min(self.n_own) < longest_own or min(map(len, chains)) < longest_chain:
            n_chain = on_device([len(chain) for chain in chains], device)[:, None, None, None]
            n_own = on_device(self.n_own, device)[:, None, None, None]
            sees_chain = torch.arange(longest_chain, device=device) < n_chain
            sees_own = torch.arange(longest_own, device=device) < n_own
            sees_itself = sees_own.new_ones(len(steps), 1, 1, 1)
            self.seen = torch.cat((sees_itself, sees_chain, sees_own), -1)

    def _plan_rotation(self, steps: Sequence[BlockStep]) -> None:
        """Set ``to_place``, which rotates queries and keys to the tokens' places in the window.

        With far blocks it also rotates them to the edge of the window, at which far keys are seen: it then returns two
        tensors, joined along a new first dimension.
        """
        branch = steps[0].state
        rotary = branch.reader.rotary
        dtype = branch.window.dtype
        places = [step.state.first_position + step.n_before for step in steps]
        self.to_place = rotary.behind(places, self.size, dtype)
        if self.n_far:
            n_local = self.memory.settings.n_local
            self.to_place = self.to_place.joined_with(rotary.at(range(n_local - 1, n_local), dtype))

    def _plan_blocks(self, first: BlockStep, budgets: Sequence[int]) -> None:
        """Set the rows' numbers of blocks; the initial tokens count as blocks too, numbered up to -1.

        ``initial`` [R, n] are the initial blocks, the same for each row, none while no block is far. ``counts`` are the
        blocks that each row attends to, ``most`` are the most that one retrieves. ``to_pack`` rotates the keys of a
        packed branch, those of all rows side by side.
        """
        branch = first.state
        layout = self.memory.layout
        device = branch.window.device
        initial = torch.arange(-layout.initial_blocks if self.n_far else 0, 0, device=device)
        self.initial = initial.expand(len(budgets), -1)
        self.most = max(budgets)
        self.budgets = budgets
        self.counts = [len(initial) + k for k in budgets]
        if branch.packed:
            # Keys are packed right before the window, whatever their blocks' positions.
            end = branch.first_position + first.start
            before = [torch.arange(end - layout.block_size * count, end, device=device) for count in self.counts]
            self.to_pack = branch.reader.rotary.at(torch.cat(before).clamp(min=0), branch.window.dtype)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """As :meth:`utaca.readers.attention.Attending.attend`; keeps what the layer found until :meth:`found`."""
        rows, heads, length, _ = query.shape
        # [R, H + G, T, D], rotated to the tokens' places; with far blocks there is a second copy, at the window's edge.
        both = self.to_place(torch.cat((query, key), 1))
        edge_query = None
        if self.n_far:
            both, at_edge = both.unbind(0)
            edge_query = at_edge[:, :heads]
        local_query, new_key = both.split((heads, key.shape[1]), 1)
        parts = []
        keys, values = self.shared[layer]
        if keys.shape[2] and rows == 1:
            parts.append(grouped(local_query, keys, values, scaling))
        elif keys.shape[2]:
            # All rows see the same keys here, so their tokens can be treated as tokens of one row.
            together = local_query.transpose(0, 1).flatten(1, 2)[None]
            of_tokens = grouped(together, keys, values, scaling)
            # Output [R, G, H / G, T, D] and log-sum-exp [R, G, H / G, T] again, as of single rows.
            parts.append(tuple(x[0].unflatten(2, (rows, length)).movedim(2, 0) for x in of_tokens))
        parts.append(self._attend_own(layer, local_query, new_key, value, scaling))
        chosen = scores = None
        if self.n_far:
            scores = self._scores(layer, edge_query)
            chosen = best(scores, self.most)
            if min(self.counts) < max(self.counts) or self.top_p < 1:
                # The best come first, because a row of a smaller budget sees only the first ones.
                chosen = chosen.gather(1, scores.gather(1, chosen).argsort(dim=1, descending=True, stable=True))
            # With clipping all far keys are at one distance, that of the edge; else they are at their true positions.
            far_query = edge_query if self.clipped else local_query
            if self.top_p < 1:
                chosen = self._within_top_p(scores, chosen)
                parts.append(self._far_within_top_p(layer, far_query, chosen, scaling))
            else:
                parts.append(self._far(layer, far_query, chosen, scaling))
        out, lses = mixture(parts)
        self._layers.append(_LayerFound(new_key, local_query, lses, chosen, scores))
        return out.flatten(1, 2)

    def _own_pairs(self, steps: Sequence[BlockStep], n_committed: Sequence[int]) -> Tensor:
        """Keys and values [layers, 2, R, G, n, D] of the tokens after the shared window that only one row sees.

        They are the branch's ``n_committed`` tokens, then those of the chain's steps that ran in earlier passes. Where
        a row has fewer than the ``n`` of the longest, zeros follow, which :attr:`seen` hides.
        """
        start = self.window.stop
        longest = max(self.n_own)
        tails = []
        for step, count in zip(steps, n_committed, strict=True):
            parts = [step.state.window[:, :, :, start : start + count]]
            for before in step.ran_before:
                passed = before.passed
                parts.append(torch.stack((passed.rotated[:, before.row], passed.values[:, before.row]), 1))
            tail = torch.cat(parts, 3) if len(parts) > 1 else parts[0]
            missing = longest - tail.shape[3]
            tails.append(pad(tail, (0, 0, 0, missing)) if missing else tail)
        return torch.stack(tails, 2) if len(tails) > 1 else tails[0][:, :, None]

    def found(self, most: int, captures: Mapping[str, Callable]) -> Found:
        """What all layers found; ``captures`` are the signals' functions that record the retrieval, by name.

        ``most`` is the most blocks that a row of any group retrieves; ``chosen`` and ``scores`` are padded to as many.
        """
        rotated = torch.stack([layer.rotated for layer in self._layers])
        query = torch.stack([layer.query for layer in self._layers])
        lses = torch.stack([layer.lses for layer in self._layers])
        # [layers, R, H, T]: the log-sum-exps of all parts of the keys together.
        lse = (lses[:, 0] if lses.shape[1] == 1 else lses.logsumexp(1)).flatten(2, 3)
        layers, rows = lse.shape[:2]
        if not self.n_far:
            chosen = torch.zeros(layers, rows, most, dtype=torch.long, device=lse.device)
            scores = self.memory.representatives[0].new_zeros(layers, rows, most)
            return Found(rotated, query, lse, chosen, scores, {name: lse.new_zeros(layers, rows) for name in captures})
        chosen = torch.stack([layer.chosen for layer in self._layers])
        of_all = torch.stack([layer.scores for layer in self._layers])
        captured = {}
        for name, capture in captures.items():
            captured[name] = capture(of_all.flatten(0, 1), self.n_far, self.scale).view(layers, rows)
        scores = of_all.gather(2, chosen.clamp(min=0))
        room = most - chosen.shape[2]
        if room:
            # A group that retrieves fewer blocks is padded with block 0; no step of the group sees the padding.
            chosen = pad(chosen, (0, room))
            scores = pad(scores, (0, room))
        return Found(rotated, query, lse, chosen, scores, captured)

    def _scores(self, layer: int, edge: Tensor) -> Tensor:
        """Retrieval scores [R, n_far] for queries at the edge of the window.

        Blocks that left the window after the document are scored by what their branches hold.
        """
        branch = self.branches[0]
        if self.memory.settings.representatives == TOKENS:
            count = min(self.n_far, max(0, branch.n_whole))
            # Rows that need the tail have one history (_groups), so any branch's tail will do.
            keys = branch.tail[layer, 0, :, count - branch.n_whole : self.n_far - branch.n_whole]
            return self.memory.scores(layer, edge, count, keys.flatten(1, 2))
        count = min(self.n_far, branch.n_scored)
        left = self.n_far - count
        if not left:
            return self.memory.scores(layer, edge, count)
        later = [each.representatives[layer, :, :left] for each in self.branches]
        return self.memory.scores(layer, edge, count, later[0][None] if len(later) == 1 else torch.stack(later))

    def _attend_own(
        self, layer: int, local: Tensor, new_key: Tensor, value: Tensor, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """Attention to the tokens of this pass that a row sees and, if T is 1, to those that only this row sees.

        Rows of more tokens have one history: the shared window has all their committed tokens (:meth:`_plan_window`).
        The keys of a row are its token's, then those of its chain in this pass, then those of :meth:`_own_pairs`.
        """
        if self.size > 1 or not (self.own_pairs or self.chained):
            return grouped(local, new_key, value, scaling, causal=self.size > 1)
        keys = [new_key]
        values = [value]
        if self.earlier is not None:
            keys.append(self._of_chains(new_key))
            values.append(self._of_chains(value))
        if self.own_pairs:
            own_keys, own_values = self.own_pairs[layer]
            keys.append(own_keys)
            values.append(own_values)
        keys, values = (torch.cat(parts, 2) for parts in (keys, values))
        if self.seen is None:
            return grouped(local, keys, values, scaling)
        out, lse = attention([Segment(local, keys, values, self.seen)], scaling)
        groups = keys.shape[1]
        return out.unflatten(1, (groups, -1)), lse.unflatten(1, (groups, -1))

    def _of_chains(self, rows: Tensor) -> Tensor:
        """The entries of each row's chain, [R, G, n, D], taken from the entries of all ``rows``, [R, G, 1, D]."""
        return rows[self.earlier, :, 0].unflatten(0, (len(rows), -1)).transpose(1, 2)

    def _far(self, layer: int, query: Tensor, chosen: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attend from each row's query to the initial tokens and the row's best blocks, ``chosen`` [R, most].

        Rows of equally many blocks attend in one call.
        """
        # Any branch can give the blocks: the document holds them all, or the rows have one history (_groups).
        branch = self.branches[0]
        ids = self._far_ids(chosen)
        pairs = self.memory.place(branch.blocks(layer, ids, self.n_far), ids)
        if branch.packed:
            # Until here the keys of a packed branch are unrotated.
            keys, values = pairs
            pairs = torch.stack((self.to_pack(keys), values))
        # Rows are sorted by their number of blocks (_groups), so that equal numbers follow each other.
        runs = [(count, len(list(same))) for count, same in groupby(self.counts)]
        if len(runs) == 1:
            return self._to_blocks(query, pairs, scaling)
        queries = query.split([n_rows for _, n_rows in runs])
        far = pairs.split([n_rows * count * self.memory.block_size for count, n_rows in runs], 2)
        results = [self._to_blocks(own, blocks, scaling) for own, blocks in zip(queries, far, strict=True)]
        outs, lses = zip(*results, strict=True)
        return torch.cat(outs), torch.cat(lses)

    def _within_top_p(self, scores: Tensor, chosen: Tensor) -> Tensor:
        """The ``chosen`` blocks [R, most], the best first, with -1 in place of those that ``top_p`` leaves out.

        A row keeps the fewest blocks whose probability reaches ``top_p``, as far as its budget allows. The probability
        of a block is the softmax of the retrieval ``scores`` [R, n_far] as mean scaled logits of the heads (Twilight,
        arXiv 2502.02770, prunes tokens in this way).
        """
        p = (scores / self.scale).softmax(1).gather(1, chosen)
        # A block is kept if the better ones do not reach top_p without it.
        is_kept = p.cumsum(1) - p < self.top_p
        ranks = torch.arange(self.most, device=chosen.device)
        is_kept &= ranks < on_device(self.budgets, chosen.device)[:, None]
        return torch.where(is_kept, chosen, -1)

    def _far_within_top_p(self, layer: int, query: Tensor, chosen: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """As :meth:`_far`, for ``chosen`` blocks; a block -1 is not seen.

        All rows read as many blocks and mask the others, so that the host need not know how many each keeps.
        """
        branch = self.branches[0]
        ids = torch.cat((self.initial, chosen.clamp(min=0)), 1).flatten()
        pairs = self.memory.place(branch.blocks(layer, ids, self.n_far), ids)
        far = pairs.unflatten(2, (len(query), -1)).transpose(1, 2)
        is_seen = torch.cat((torch.ones_like(self.initial, dtype=torch.bool), chosen >= 0), 1)
        seen = is_seen.repeat_interleave(self.memory.block_size, 1)[:, None, None]
        skipped = self.memory.layout.skipped
        keys, values = far[..., skipped:, :].unbind(0)
        out, lse = attention([Segment(query, keys, values, seen[..., skipped:])], scaling)
        groups = keys.shape[1]
        return out.unflatten(1, (groups, -1)), lse.unflatten(1, (groups, -1))

    def _far_ids(self, chosen: Tensor) -> Tensor:
        """Ids of all far blocks that the rows attend to, row after row: the initial blocks, then the row's best."""
        ids = torch.cat((self.initial, chosen), 1)
        if min(self.counts) == max(self.counts):
            return ids.flatten()
        # Here ``chosen`` is in the order of scores (:meth:`attend`), so that each row takes its first ones.
        rows = zip(ids, self.counts, strict=True)
        return torch.cat([row[:count].sort().values for row, count in rows])

    def _to_blocks(self, query: Tensor, pairs: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention of rows [R, H, T, D] to equally many blocks each, whose ``pairs`` are [2, G, R * n, D]."""
        far = pairs.unflatten(2, (len(query), -1)).transpose(1, 2)
        if skipped := self.memory.layout.skipped:
            # The first initial block begins with padding before the text.
            far = far[..., skipped:, :]
        keys, values = far.unbind(0)
        return grouped(query, keys, values, scaling)


def _by_layer(pairs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Split the keys and values of all layers, [layers, 2, R, G, n, D], into a pair [R, G, n, D] for each layer."""
    keys, values = pairs.unbind(1)
    return list(zip(keys.unbind(0), values.unbind(0), strict=True))
