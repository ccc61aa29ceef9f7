"""Window only: the first tokens and the latest ones, nothing between."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import mixed, probabilities
from utaca.methods.bases.method import MethodReading, MethodState, Pairs
from utaca.methods.bases.streaming import StreamingMethod
from utaca.readers.load import Reader


class _Window(MethodState):
    """An answer in which only the first and the latest tokens are attended to.

    Per layer, ``first`` are the unrotated pairs of the first ``n_init`` tokens, and ``latest`` those of the window that
    the next token sees. They overlap while the text is short.
    """

    def __init__(self, reading: MethodReading, length: int = 0) -> None:
        super().__init__(reading, length)
        self.window = self.method.budget - self.method.n_init  # Tokens, the present one included.
        self.first: list[Pairs | None] = [None] * self.reader.shape[0]
        self.latest: list[Pairs | None] = [None] * self.reader.shape[0]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend to the first tokens and the window; see :class:`utaca.readers.attention.Attending`."""
        n_new = query.shape[2]
        start = self.length
        end = start + n_new
        pairs = Pairs(key, value)
        near = self.latest[layer].then(pairs) if start else pairs
        first = self.first[layer].then(pairs) if start else pairs
        first = first[: self.method.n_init]
        self.first[layer] = first
        # One fewer than the window, which the next token belongs to as well.
        self.latest[layer] = near[max(0, len(near) - self.window + 1) :]
        rotary = self.reader.rotary
        rotary.reserve(max(len(near), self.method.budget))
        position = torch.arange(start, end, device=query.device)[:, None]
        # In the window, positions count from its start, which leaves distances as they are.
        near_query = rotary(query, range(len(near) - n_new, len(near)))
        near_pairs = Pairs(rotary(near.keys, range(len(near))), near.values)
        distance = position - torch.arange(end - len(near), end, device=query.device)
        sees_near = (distance >= 0) & (distance < self.window)
        # The first tokens are seen here only once they have left the window; they then stand directly before it, and a
        # query is at budget - 1 at most.
        first_query = rotary(query, position[:, 0].clamp(max=self.method.budget - 1))
        first_pairs = Pairs(rotary(first.keys, range(len(first))), first.values)
        sees_first = position - torch.arange(len(first), device=query.device) >= self.window
        self.attended.append(min(end, self.method.budget))
        both = first_pairs.under(first_query, sees_first), near_pairs.under(near_query, sees_near)
        segments = [segment for segment in both if segment.keys.shape[2]]
        return mixed(probabilities(segments, scaling), segments)


@dataclass(frozen=True)
class WindowOnly(StreamingMethod):
    """Each token attends to the first ``n_init`` tokens and to the latest ones, itself included: ``budget`` in all.

    StreamingLLM (Xiao et al., arXiv 2309.17453; mit-han-lab/streaming-llm, MIT). Nothing is selected. Positions are
    indices in the cache, so the reader can read a text of any length; ``chunk`` changes memory, not answers.
    """

    name: ClassVar[str] = "window"
    positions: ClassVar[str] = "rolling"
    cache = _Window

    # The first tokens and the latest ones; 1,024 in all, as most rows of the paper's table keep.
    budget: int = 1024
    n_init: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.n_init >= 0, "n_init must not be negative")
        self.require(self.budget > self.n_init, f"budget={self.budget} must exceed n_init={self.n_init}")

    def check(self, reader: Reader) -> None:
        longest = reader.positions
        self.require(self.budget <= longest, f"budget={self.budget} exceeds the {longest} positions of the reader")
