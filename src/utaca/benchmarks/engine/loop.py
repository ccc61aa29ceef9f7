"""InfLLM's decoding with a Python object a block, as its authors' code keeps it; to compare with, for nothing else.

A small restatement of a decoding step of thunlp/InfLLM (``inf_llm/attention/context_manager.py``, and ``torch_impl.py``
in ``dot_production_attention``, its default), without the GPU's streams and events:

* each block is an object with its keys and values, offloaded; a cache holds a number of them, the least recently used
  give way; selected blocks are copied one by one into a buffer, where those of the step before stay, and from there
  into the cache; the table of the buffer is deep-copied twice;
* representative keys are kept for every query head, and the selection is brought to the host, layer by layer;
* each key of the window gathers the attention that it is given, and the most attended represent a block that leaves;
* the window is held twice, once to attend to and once to become blocks, and both are concatenated anew; its keys are
  rotated anew in float32;
* keys and values are repeated for every query head, each segment is masked by distance before and after the softmax,
  which is taken in the model's type.

Its window reaches back to a block's edge, and representatives are chosen for each key-value head, as in the engine, so
that both compute the same.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.memory import BlockMemory

_CACHED = 2
"""Blocks in the cache for each block of the budget; the authors' configs have 32 for 16."""


class _Unit:
    """A block's keys and values, [G, block_size, D] each: a copy of their own, and maybe one in the cache."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.data = keys.clone(), values.clone()
        self.slot: int | None = None

    def load(self, cache: Tensor, free: set[int], target: tuple[Tensor, Tensor]) -> None:
        """Copy the block into its place ``target`` of the buffer, and into the cache [slots, 2, ...] if need be."""
        if self.slot is not None:
            for place, side in zip(target, cache[self.slot], strict=True):
                place.copy_(side)
            return
        self.slot = free.pop()
        for place, own, side in zip(target, self.data, cache[self.slot], strict=True):
            place.copy_(own)
            side.copy_(place)

    def offload(self, free: set[int]) -> None:
        free.add(self.slot)
        self.slot = None


class _Layer:
    """What one layer keeps: the blocks, the window and the buffer that is attended to."""

    def __init__(self, memory: BlockMemory, layer: int, capacity: int, budget: int) -> None:
        layout, store, length = memory.layout, memory.stores[layer], len(memory)
        self.size, self.n_init, self.budget = layout.block_size, layout.n_init, budget
        start = layout.window_start(length)
        self.units = [_Unit(*store.tokens[:, :, at : at + self.size]) for at in range(layout.n_init, start, self.size)]
        self.window = [side.clone() for side in store.window(start, length)]
        self.remainder = [side.clone() for side in self.window]
        self.mass, self.n_representatives = memory.given[layer], memory.settings.n_representatives
        heads, _, width = self.window[0].shape
        self.groups = memory.reader.shape.heads // heads
        by_head = memory.representatives[layer].T.to(self.window[0].dtype).unflatten(1, (heads, width))
        known = by_head.repeat_interleave(self.groups, 1).flatten(1)
        more = layout.n_far(length + capacity) - len(known)
        self.representatives = torch.cat((known, known.new_empty(more, known.shape[1])))
        self.capacity = _CACHED * budget
        self.cache = self.window[0].new_empty(self.capacity, 2, heads, self.size, width)
        self.free = set(range(self.capacity))
        self.used: dict[int, int] = {}
        self.steps = 0
        self.table = [-1] * budget
        self.buffer = self.window[0].new_empty(2, heads, budget * self.size + self.n_init, width)
        self.initial = store.initial
        self.filled = -1

    def append(self, key: Tensor, value: Tensor, n_far: int) -> None:
        """Put new tokens [G, T, D] into the window and what leaves it, up to ``n_far`` blocks in all, into units."""
        self.window = [torch.cat(pair, 1) for pair in zip(self.window, (key, value), strict=True)]
        self.remainder = [torch.cat(pair, 1) for pair in zip(self.remainder, (key, value), strict=True)]
        self.mass = pad(self.mass, (0, key.shape[1]))
        while len(self.units) < n_far:
            self._represent(self.remainder[0][:, : self.size], self.mass[:, : self.size])
            self.units.append(_Unit(*(side[:, : self.size] for side in self.remainder)))
            self.remainder = [side[:, self.size :] for side in self.remainder]
            self.window = [side[:, self.size :] for side in self.window]
            self.mass = self.mass[:, self.size :]

    def _represent(self, keys: Tensor, mass: Tensor) -> None:
        """The mean of the keys [G, block_size, D] that have the most mass [G, block_size] represents the next block."""
        chosen = mass.topk(self.n_representatives).indices[..., None].expand(-1, -1, keys.shape[2])
        mean = keys.gather(1, chosen).mean(1).repeat_interleave(self.groups, 0)
        self.representatives[len(self.units)] = mean.flatten()

    def gather(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """Keys and values [G, n, D] of the chosen blocks, in no order, and the initial tokens."""
        self.steps += 1
        missing = sum(block not in self.used for block in chosen)
        self._remove(len(self.used) - self.capacity + missing, chosen)
        for block in chosen:
            self.used[block] = self.steps
        chosen.sort()
        table = deepcopy(self.table)
        for block in chosen:
            if block in table:
                continue
            place = next(i for i in range(self.budget) if table[i] == -1 or table[i] not in chosen)
            table[place] = block
            at = slice(place * self.size, (place + 1) * self.size)
            self.units[block].load(self.cache, self.free, (self.buffer[0][:, at], self.buffer[1][:, at]))
        end = len(chosen) * self.size
        if self.filled != end:
            for side, initial in zip(self.buffer, self.initial, strict=True):
                side[:, end : end + self.n_init].copy_(initial)
        self.table, self.filled = deepcopy(table), end
        keys, values = self.buffer[:, :, : end + self.n_init]
        return keys, values

    def _remove(self, surplus: int, chosen: list[int]) -> None:
        """Let the least recently used blocks but the chosen give way in the cache."""
        if surplus <= 0:
            return
        for block, _ in sorted(self.used.items(), key=lambda item: item[1]):
            if block not in chosen:
                self.units[block].offload(self.free)
                self.used.pop(block)
                surplus -= 1
            if surplus <= 0:
                return


class _Attention:
    """Attention of queries [H, T, D] to segments that come one by one, under one softmax."""

    def __init__(self, query: Tensor, scaling: float) -> None:
        self.out, self.scaling = torch.zeros_like(query), scaling
        self.logits: list[Tensor] = []
        self.segments: list[tuple[Tensor, Tensor]] = []

    def append(self, query: Tensor, keys: Tensor, values: Tensor, offset: int | None) -> None:
        """A segment with queries of its own; of keys and values [G, n, D] those of distance 0 or more are seen.

        The first query is ``offset`` tokens behind the first key; None: it sees all.
        """
        (h, t, _), n = query.shape, keys.shape[1]
        keys, values = (x[:, None].expand(-1, h // len(x), -1, -1).reshape(h, n, -1) for x in (keys, values))
        distance = torch.arange(t, device=query.device)[:, None] - torch.arange(n, device=query.device)
        mask = distance + (n if offset is None else offset) >= 0
        logits = torch.masked_fill(query @ keys.mT, ~mask, -torch.inf)
        self.logits.append(logits.mul_(self.scaling))
        self.segments.append((mask, values))

    def result(self) -> tuple[Tensor, Tensor]:
        """The attention's output, and how much each key of the first segment is given by each query head [H, n]."""
        given, start = torch.cat(self.logits, -1).softmax(-1), 0
        for mask, values in self.segments:
            end = start + values.shape[1]
            self.out.add_(torch.masked_fill(given[..., start:end], ~mask, 0) @ values)
            start = end
        return self.out, given[..., : self.logits[0].shape[-1]].sum(1)


class BlockLoop:
    """Decoding of ``capacity`` tokens behind a document that has far blocks, by InfLLM's attention mass.

    No step may ask for fewer of them than the one before. It starts from a sealed memory and gives the hidden states of
    :class:`utaca.memory.Branch`, up to rounding.
    """

    def __init__(self, memory: BlockMemory, capacity: int, budget: int) -> None:
        layout = memory.layout
        memory.reader.rotary.reserve(layout.n_local + layout.block_size + capacity)
        self.memory, self.length, self.budget = memory, 0, budget
        self.layers = [_Layer(memory, layer, capacity, budget) for layer in range(len(memory.stores))]

    @torch.inference_mode()
    def step(self, tokens: Tensor, budget: int) -> Tensor:
        """Hidden states [T, D] of ``tokens`` [T], which then belong to the text, under ``budget`` blocks a layer."""
        self.budget = budget
        hidden = self.memory.reader.forward(tokens[None], self)[0]
        self.length += len(tokens)
        return hidden

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        state, memory, size = self.layers[layer], self.memory, query.shape[2]
        n_far = memory.layout.n_far(len(memory) + self.length)
        state.append(key[0], value[0], n_far)
        keys, values = state.window
        end = keys.shape[1]
        near_query, near_keys = self._rotate(query[0], range(end - size, end)), self._rotate(keys, range(end))
        attention = _Attention(near_query, scaling)
        attention.append(near_query, near_keys, values, end - size)
        far_query = self._rotate(query[0], range(memory.layout.n_local - 1, memory.layout.n_local))
        scores = (state.representatives[:n_far] @ far_query.mean(1).flatten()[:, None])[:, 0]
        chosen = scores.topk(min(self.budget, n_far)).indices.cpu().tolist()
        attention.append(far_query, *state.gather(chosen), None)
        out, given = attention.result()
        state.mass = state.mass + given.unflatten(0, (-1, state.groups)).sum(1)
        return out[None]

    def _rotate(self, x: Tensor, positions: range) -> Tensor:
        return self.memory.reader.rotary(x.float(), positions).to(x.dtype)
