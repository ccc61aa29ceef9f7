"""Attention over what a method has kept: segments of keys of its choosing under one softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Keys and values of some tokens, both [G, n, D]; never written to."""

    keys: Tensor
    values: Tensor

    def __len__(self) -> int:
        return self.keys.shape[1]

    def __getitem__(self, tokens: slice) -> Pairs:
        return Pairs(self.keys[:, tokens], self.values[:, tokens])

    def then(self, other: Pairs) -> Pairs:
        """These tokens and then the others."""
        return Pairs(torch.cat((self.keys, other.keys), 1), torch.cat((self.values, other.values), 1))

    def at(self, chosen: Tensor) -> Pairs:
        """The tokens ``chosen`` [R, m]: one row for all heads, or a row for each key-value head, which gives
        [G, m, D], or for each query head, which gives [H, m, D]."""
        if len(chosen) == 1:
            return Pairs(self.keys[:, chosen[0]], self.values[:, chosen[0]])
        head = torch.arange(len(chosen), device=chosen.device)[:, None] * len(self.keys) // len(chosen)
        return Pairs(self.keys[head, chosen], self.values[head, chosen])


class Part(NamedTuple):
    """Queries [H, T, D] as they are rotated towards some keys, and which of them each sees: a bool tensor that
    broadcasts to [H, T, n]; None: all."""

    query: Tensor
    pairs: Pairs
    seen: Tensor | None = None


def products(query: Tensor, keys: Tensor) -> Tensor:
    """Dot products [H, T, n] of queries [H, T, D] and their heads' keys, [G, n, D] or [H, n, D]."""
    return (_grouped(query, len(keys)) @ keys.mT).view(*query.shape[:2], keys.shape[1])


def probabilities(parts: list[Part], scaling: float) -> Tensor:
    """What each query gives each key of all parts, [H, T, sum of n], by one softmax in float32 at least.

    A part may have keys a key-value head or a query head.
    """
    rows = []
    for query, pairs, seen in parts:
        logits = products(query, pairs.keys)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * scaling
        rows.append(logits if seen is None else logits.masked_fill(~seen, -torch.inf))
    return torch.cat(rows, -1).softmax(-1)


def mixed(given: Tensor, parts: list[Part]) -> Tensor:
    """The values of all parts mixed by the probabilities ``given``: [H, T, D]."""
    shares = given.to(parts[0].query.dtype).split([len(part.pairs) for part in parts], -1)
    return torch.stack(
        [
            (_grouped(share, len(pairs.values)) @ pairs.values).view(query.shape)
            for share, (query, pairs, _) in zip(shares, parts, strict=True)
        ]
    ).sum(0)


def attention(parts: list[Part], scaling: float) -> Tensor:
    """Attention over all parts under one softmax, [H, T, D]."""
    return mixed(probabilities(parts, scaling), parts)


def _grouped(rows: Tensor, heads: int) -> Tensor:
    """Rows [H, T, x] for products with keys or values of so many heads: [heads, H / heads * T, x]."""
    return rows.reshape(heads, len(rows) // heads * rows.shape[1], rows.shape[2])


def causal(new: int, total: int, device: torch.device) -> Tensor:
    """Which of ``total`` keys each of the last ``new`` tokens sees: itself and those before it, [new, total]."""
    return torch.ones(new, total, dtype=torch.bool, device=device).tril(total - new)


def best(scores: Tensor, count: int) -> Tensor:
    """Places of the ``count`` best of each row of ``scores`` [R, n], ascending; ties go to the first. It sorts, and so
    is not for every step of a long document."""
    return scores.sort(descending=True, stable=True).indices[:, :count].sort().values
