"""A document in block memory: its keys and values by layer, and what stands for its far blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from utaca.layout import Layout
from utaca.memory.attention import block_scores, token_scores
from utaca.memory.store import Store
from utaca.readers.load import Reader
from utaca.settings.schema import TOKENS, MemorySettings


@dataclass(repr=False)
class Document:
    """A document that was read and sealed: nothing writes to the memory any more.

    ``settings`` are the settings that the document was read with. For each layer the memory keeps keys and values
    (``stores``) and the far blocks' representative keys (``representatives`` [G * D, blocks], in float32 at least; this
    order makes the scores of a long document fastest; no blocks if every token represents its block).
    ``attention_mass`` [G, n] is the attention that the window's n tokens received so far
    (:func:`utaca.memory.attention.received`); it will choose the window's representative keys.
    ``clipped``: far keys are all at one distance, as in InfLLM; otherwise every key is at its true position, and
    attention to all blocks is full attention.
    """

    reader: Reader
    settings: MemorySettings
    tokens: Tensor
    clipped: bool
    layout: Layout
    stores: list[Store] = field(default_factory=list)
    representatives: list[Tensor] = field(default_factory=list)
    attention_mass: list[Tensor] = field(default_factory=list)

    def __repr__(self) -> str:
        """The document in a few words; its keys and values would fill the screen."""
        return f"{type(self).__name__}({len(self)} tokens, {self.reader!r})"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def block_size(self) -> int:
        return self.layout.block_size

    @property
    def blocks(self) -> int:
        """Number of the document's whole blocks, far or not: a budget may be a share of them."""
        return self.layout.blocks(len(self))

    def fill(self, layer: int, tokens: Tensor, representatives: Tensor, attention_mass: Tensor) -> None:
        """Fill an empty layer with its first n ``tokens`` [2, G, n, D] and with the results of reading these tokens."""
        store = self.stores[layer]
        store.write(0, *tokens.to(self.reader.device))
        store.leave(self.layout.window_start(tokens.shape[2]))
        self.representatives[layer][:, : representatives.shape[1]] = representatives
        self.attention_mass[layer] = attention_mass.to(self.reader.device)

    def scores(self, layer: int, query: Tensor, n_far: int, *later: Tensor) -> Tensor:
        """Retrieval scores [R, blocks] for queries [R, H, T, D] at the clipped distance, one score per T queries.

        The blocks are the document's first ``n_far``, then the ``later`` blocks, which are given by representatives (as
        for :func:`block_scores`) or by keys (as for :func:`token_scores`).
        """
        if self.settings.representatives != TOKENS:
            mean = query if query.shape[2] == 1 else query.mean(2, keepdim=True)
            known = self.representatives[layer]
            return block_scores(mean, known if n_far == known.shape[1] else known[:, :n_far], *later)
        keys = self.stores[layer].tokens[0][:, self.layout.n_init : self.layout.first_token(n_far)]
        return token_scores(query, self.block_size, keys, *later)

    def place(self, pairs: Tensor, blocks: Tensor) -> Tensor:
        """Keys and values [2, G, k * block_size, D] of far ``blocks`` [k], placed for attention.

        ``pairs``, of the same shape, are unrotated, and stay so with clipping: they are then at the clipped distance
        from a query at position ``n_local - 1``. Without clipping, keys are rotated to their true positions.
        """
        if self.clipped:
            return pairs
        tokens = self.layout.first_token(blocks[:, None]) + torch.arange(self.block_size, device=blocks.device)
        # Positions below 0 are the padding in the first initial block, which callers cut off.
        return torch.stack((self.reader.rotary(pairs[0], tokens.flatten().clamp(min=0)), pairs[1]))
