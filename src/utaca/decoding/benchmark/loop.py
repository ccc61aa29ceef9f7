"""InfLLM's decoding with a Python object a block, as its authors' code keeps it; to compare with, for nothing else.

A small restatement of how thunlp/InfLLM (``inf_llm/attention/context_manager.py``) handles blocks: each block's keys
and values are units of their own; a cache holds a number of them, the least recently used give way; selected units are
copied one by one into a buffer, where those of the step before stay; representative keys are kept for every query head;
the selection is brought to the host, layer by layer. Its attention is ours, so the block handling alone differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from utaca.memory import BlockMemory
from utaca.memory.blocks import causal_mask, joint_attention

_CACHED = 2
"""Blocks in the cache for each block of the budget; the authors' configs have 32 for 16."""


class _Unit:
    """Keys or values of a block [block_size, G, D]: a copy of their own, and one in the cache while it has a slot."""

    def __init__(self, data: Tensor) -> None:
        self.data = data.clone()
        self.slot: int | None = None


class _Layer:
    """What one layer keeps: the blocks, the window and the buffer that is attended to."""

    def __init__(self, memory: BlockMemory, layer: int, budget: int) -> None:
        layout, stores = memory.layout, (memory.keys[layer], memory.values[layer])
        self.size, self.n_init = layout.block_size, layout.n_init
        start = layout.window(layout.length)
        self.units: list[tuple[_Unit, _Unit]] = []
        for at in range(layout.n_init, start, self.size):
            self.units.append(tuple(_Unit(store.tokens[at : at + self.size]) for store in stores))
        self.keys, self.values = [store.near(start, layout.length) for store in stores]
        shape = self.keys.shape[1:]
        groups = memory.reader.model.config.num_attention_heads // shape[0]
        by_head = memory.representatives[layer].T.to(self.keys.dtype).unflatten(1, shape)
        self.representatives = by_head.repeat_interleave(groups, 1).flatten(1)
        self.capacity = _CACHED * budget
        self.cache = self.keys.new_empty(2 * self.capacity, self.size, *shape)
        self.free = list(range(2 * self.capacity))
        self.used: dict[int, int] = {}
        self.steps = 0
        self.held = [-1] * budget
        self.buffer = self.keys.new_empty(2, self.n_init + budget * self.size, *shape)
        for side, store in zip(self.buffer, stores, strict=True):
            side[: self.n_init] = store.initial

    def append(self, key: Tensor, value: Tensor, far: int) -> None:
        """Put new tokens [T, G, D] into the window and what leaves it, up to ``far`` blocks in all, into units."""
        self.keys, self.values = torch.cat((self.keys, key)), torch.cat((self.values, value))
        while len(self.units) < far:
            self.units.append((_Unit(self.keys[: self.size]), _Unit(self.values[: self.size])))
            self.keys, self.values = self.keys[self.size :], self.values[self.size :]

    def gather(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """Keys and values [n, G, D] of the initial tokens and the chosen blocks, in no order."""
        self.steps += 1
        missing = [block for block in chosen if block not in self.used]
        surplus = len(self.used) + len(missing) - self.capacity
        for block in sorted(self.used, key=self.used.__getitem__):
            if surplus <= 0:
                break
            if block not in chosen:
                for unit in self.units[block]:
                    self.free.append(unit.slot)
                    unit.slot = None
                del self.used[block]
                surplus -= 1
        for block in missing:
            for unit in self.units[block]:
                unit.slot = self.free.pop()
                self.cache[unit.slot].copy_(unit.data)
        self.used.update(dict.fromkeys(chosen, self.steps))
        for block in chosen:
            if block in self.held:
                continue
            place = next(i for i, other in enumerate(self.held) if other not in chosen)
            self.held[place] = block
            start = self.n_init + place * self.size
            for side, unit in zip(self.buffer, self.units[block], strict=True):
                side[start : start + self.size].copy_(self.cache[unit.slot])
        end = self.n_init + len(chosen) * self.size
        return self.buffer[0, :end], self.buffer[1, :end]


class BlockLoop:
    """Decoding of ``capacity`` tokens behind a document that has far blocks.

    No step may ask for fewer of them than the one before. It starts from a sealed memory and gives the hidden states of
    :class:`utaca.memory.Branch`, up to rounding.
    """

    def __init__(self, memory: BlockMemory, capacity: int, budget: int) -> None:
        memory.reserve(capacity)
        self.memory, self.length, self.budget = memory, 0, budget
        self.layers = [_Layer(memory, layer, budget) for layer in range(len(memory.keys))]

    @torch.inference_mode()
    def step(self, tokens: Tensor, budget: int) -> Tensor:
        """Hidden states [T, D] of ``tokens`` [T], which then belong to the text, under ``budget`` blocks a layer."""
        self.budget = budget
        hidden = self.memory.reader.forward(tokens[None], self)[0]
        self.length += len(tokens)
        return hidden

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        state, memory, size = self.layers[layer], self.memory, query.shape[2]
        rotary = memory.reader.rotary
        far = memory.layout.far(len(memory) + self.length)
        state.append(key[0].transpose(0, 1), value[0].transpose(0, 1), far)
        positions = torch.arange(len(state.keys), device=query.device)
        near_keys = rotary(state.keys.transpose(0, 1), positions).transpose(0, 1)
        near_query = rotary(query[0], positions[-size:])
        far_query = rotary(query[0], torch.full((1,), memory.layout.n_local - 1, device=query.device))
        scores = state.representatives[:far] @ far_query.mean(1).flatten()
        keys, values = state.gather(sorted(scores.topk(min(self.budget, far)).indices.tolist()))
        mask = causal_mask(size, len(keys) + len(near_keys), query.device) if size > 1 else None
        out, _ = joint_attention([far_query, near_query], [keys, near_keys], [values, state.values], mask, scaling)
        return out[None]
