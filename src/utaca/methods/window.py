"""Window only: the first tokens and the latest ones, nothing between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.methods.attention import Pairs, Part, attention
from utaca.methods.streaming import Cache, StreamingMethod
from utaca.readers.load import Reader


@dataclass(frozen=True)
class WindowOnly(StreamingMethod):
    """Each token attends to the first ``n_init`` tokens and to the latest ones, itself included: ``budget`` in all.

    StreamingLLM (Xiao et al., arXiv 2309.17453; mit-han-lab/streaming-llm, MIT). Nothing is selected. Keys and queries
    are at their places in the cache, so any length is within the reader's reach; chunks change memory alone.
    """

    name: ClassVar[str] = "window"
    positions: ClassVar[str] = "rolling"

    budget: int = 1024
    n_init: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand(self.n_init >= 0, "n_init must not be negative")
        self.demand(self.budget > self.n_init, f"budget={self.budget} must exceed n_init={self.n_init}")

    def check(self, reader: Reader) -> None:
        longest = reader.positions
        self.demand(self.budget <= longest, f"budget={self.budget} exceeds the {longest} positions of the reader")

    def cache(self, reader: Reader) -> Cache:
        return _Window(self, reader)


class _Window(Cache):
    def __init__(self, method: WindowOnly, reader: Reader) -> None:
        super().__init__(reader, 0)
        self.method, self.window = method, method.budget - method.n_init
        layers = reader.model.config.num_hidden_layers
        self.first: list[Pairs | None] = [None] * layers
        self.latest: list[Pairs | None] = [None] * layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        new, start, end = query.shape[2], self.length, self.length + query.shape[2]
        pairs = Pairs(key[0], value[0])
        near = self.latest[layer].then(pairs) if start else pairs
        first = self.first[layer].then(pairs) if start else pairs
        first = first[: self.method.n_init] if len(first) > self.method.n_init else first
        self.first[layer], self.latest[layer] = first, near[max(0, len(near) - self.window + 1) :]
        rotary = self.reader.rotary
        rotary.reserve(max(len(near), self.method.budget))
        at = torch.arange(start, end, device=query.device)[:, None]
        # The window's tokens count from its start; distances within it are true ones.
        local = rotary(query[0], range(len(near) - new, len(near)))
        rotated = Pairs(rotary(near.keys, range(len(near))), near.values)
        distance = at - torch.arange(end - len(near), end, device=query.device)
        within = (distance >= 0) & (distance < self.window)
        # The first tokens stand before the window once they have left it.
        far = rotary(query[0], at[:, 0].clamp(max=self.method.budget - 1))
        kept = Pairs(rotary(first.keys, range(len(first))), first.values)
        left = at - torch.arange(len(first), device=query.device) >= self.window
        self.attended.append(min(end, self.method.budget))
        return attention([Part(far, kept, left), Part(local, rotated, within)], scaling)[None]
