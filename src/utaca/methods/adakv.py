"""Ada-KV: SnapKV, the heads of a layer sharing one budget."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import best
from utaca.methods.snapkv import SnapKV, before_window


@dataclass(frozen=True)
class AdaKV(SnapKV):
    """As :class:`SnapKV`, but heads whose attention is spread wide keep more keys than those that focus on few.

    Feng et al., arXiv 2407.11550; FFY0/AdaKV, MIT. A head's count is how many of the layer's best votes its keys got;
    ``floor`` is the share of the budget that is divided evenly. ``safeguard`` mixed: a head keeps the mean of its count
    and the even share, weighted by ``floor`` (official); least: a head keeps at least ``floor`` of the even share,
    window included (kvpress). ``budget`` is the mean number of keys over heads, up to rounding.
    """

    name: ClassVar[str] = "adakv"

    # The paper's budget; floor as its source advises for grouped queries, the rest as in its LongBench runs.
    budget: int = 2048
    floor: float = 0.2
    safeguard: str = "mixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.floor <= 1, f"floor={self.floor} must be between 0 and 1")
        self.require(self.safeguard in ("mixed", "least"), f"safeguard={self.safeguard} must be mixed or least")

    def keep(self, query: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """As for :class:`SnapKV`; heads keep different numbers of tokens."""
        votes = self.votes(query, keys, scaling)
        n_heads, n_candidates = votes.shape
        # An even share of the budget, without the window's tokens, which all heads keep.
        even = self.budget - query.shape[2]
        if self.safeguard == "least":
            # The tokens that a head keeps in any case.
            safe = best(votes, max(0, int(self.budget * self.floor) - query.shape[2]))
            votes = votes.scatter(1, safe, torch.inf)
        # How many of the layer's best votes are each head's.
        best_of_layer = best(votes.reshape(1, -1), even * n_heads)[0]
        # ``best`` ranks the votes of all heads in one row; dividing by a head's number of votes gives the head.
        counts = torch.bincount(best_of_layer // n_candidates, minlength=n_heads).double()
        if self.safeguard == "mixed":
            counts = (counts * (1 - self.floor) + even * self.floor).round()
        ranked = votes.sort(descending=True, stable=True).indices[:, : int(counts.max())]
        is_beyond = torch.arange(ranked.shape[1], device=votes.device) >= counts[:, None]
        # Sorted, the kept tokens ascend, and those that a head does not keep stand after them.
        kept = ranked.masked_fill(is_beyond, n_candidates).sort().values
        return before_window(kept.where(kept < n_candidates, -1), query, keys)
