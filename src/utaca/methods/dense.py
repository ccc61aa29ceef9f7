"""Methods that read a document by full causal attention, and so share one reading of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from utaca.methods.attention import Pairs, Part, attention, causal, products
from utaca.methods.method import Method, Reading, State
from utaca.readers.load import Reader
from utaca.settings.machine import free_memory

ROWS = 64
"""Queries of a prompt that attend to a whole document at once: their logits are held in memory."""


@dataclass
class Dense(Reading):
    """A document under full attention: keys, rotated to their true positions, and values, a :class:`Pairs` a layer."""

    layers: list[Pairs]


@dataclass(frozen=True)
class DenseMethod(Method):
    """A method whose document is read by full attention."""

    prefill = "quadratic"
    positions = "absolute"

    @property
    def reading(self) -> Hashable:
        return "dense"

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Dense:
        tokens, dropped = self.tokens(reader, document, room)
        check_room(reader, len(tokens))
        reader.rotary.reserve(len(tokens) + room)
        layers: list[Pairs] = []
        reader.forward(tokens[None], Whole(reader, layers))
        return Dense(reader, tokens, dropped, layers)


def check_room(reader: Reader, length: int) -> None:
    """Raise :class:`MemoryError` where a document will not fit into main memory.

    The system would rather end the process than say so; a GPU says so by itself. Counted are keys and values, and the
    widest tensors of a pass: three of the MLP, and the residual stream, its sum and its norm.
    """
    config, weight = reader.model.config, next(reader.model.parameters())
    pairs = 2 * reader.shape.layers * reader.shape.kv_heads * reader.shape.head_size
    needed = length * (pairs + 3 * config.intermediate_size + 3 * config.hidden_size) * weight.itemsize
    free = free_memory() if weight.device.type == "cpu" else None
    if free is not None and needed > free:
        raise MemoryError(f"{needed} bytes are needed, {free} are free")


class Whole:
    """Full causal attention of a whole document in one pass, without its [N, N] logits."""

    def __init__(self, reader: Reader, layers: list[Pairs]) -> None:
        self._reader, self._layers = reader, layers

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rotate = self._reader.rotary.at(range(key.shape[2]), key.dtype)
        key = rotate(key)
        self._layers.append(Pairs(key[0], value[0]))
        return scaled_dot_product_attention(rotate(query), key, value, is_causal=True, scale=scaling, enable_gqa=True)


class Continuation(State):
    """An answer behind a dense reading: the document's pairs stay as they are, those of later tokens lie behind them.

    A subclass says by :meth:`look` what the queries of a pass attend to. A pass of several tokens is the prompt's.
    """

    def __init__(self, reading: Dense, again: int, room: int) -> None:
        super().__init__(reading.reader, len(reading) - again)
        self.start = self.length
        self.reader.rotary.reserve(self.start + room)
        self._document = reading.layers
        self._own = [
            Pairs(*(x.new_empty(len(x), room, x.shape[-1]) for x in (pairs.keys, pairs.values)))
            for pairs in reading.layers
        ]
        self._filled = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        end = self.length + query.shape[2]
        rotate = self.placed(range(self.length, end), key.dtype)
        own, self._filled = self._own[layer], end - self.start
        own.keys[:, self.length - self.start : self._filled] = rotate(key[0])
        own.values[:, self.length - self.start : self._filled] = value[0]
        return self.look(layer, rotate(query[0]), scaling)[None]

    def placed(self, positions: range, kind: torch.dtype) -> Callable[[Tensor], Tensor]:
        """How the queries and keys of a pass are rotated before they are kept: to their true positions."""
        return self.reader.rotary.at(positions, kind)

    def document(self, layer: int) -> Pairs:
        """Pairs of the document, [G, start, D]."""
        return self._document[layer][: self.start]

    def own(self, layer: int) -> Pairs:
        """Pairs of all later tokens, those of the present pass included."""
        return self._own[layer][: self._filled]

    @abstractmethod
    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attention output [H, T, D] of the rotated queries [H, T, D] of the tokens that are last in :meth:`own`."""

    def everything(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Full causal attention, as :meth:`look`."""
        document, own, new = self.document(layer), self.own(layer), query.shape[1]
        self.attended.append(self.start + len(own))
        seen = causal(new, len(own), query.device).split(ROWS)
        rows = zip(query.split(ROWS, 1), seen, strict=True)
        return torch.cat([attention([Part(q, document), Part(q, own, s)], scaling) for q, s in rows], 1)

    def since(self, layer: int, first: int) -> Pairs:
        """Pairs of all tokens from ``first`` on."""
        return self.document(layer)[first:].then(self.own(layer)[max(0, first - self.start) :])

    def scores(self, layer: int, query: Tensor) -> Tensor:
        """Dot products [H, n] of one token's rotated query [H, 1, D] and the keys of all tokens, its own included."""
        found = [products(query, pairs.keys)[:, 0] for pairs in (self.document(layer), self.own(layer))]
        return torch.cat(found, -1)

    def attend_to(self, layer: int, query: Tensor, tokens: Tensor, scaling: float) -> Tensor:
        """Attention of one token's rotated query [H, 1, D] to the given tokens alone, [H, 1, D].

        ``tokens`` [R, k] are distinct, -1 standing for none: a row for all heads, or one a key-value or a query head.
        """
        document, own, share = self.document(layer), self.own(layer), len(query) // len(tokens)
        there = (tokens >= 0) & (tokens < self.start)
        here = there.new_zeros(len(tokens), 1 + len(own))
        here = here.scatter(1, (tokens - self.start + 1).clamp(min=0), True)[:, 1:]
        there, here = (seen.repeat_interleave(share, 0)[:, None] for seen in (there, here))
        parts = [Part(query, document.at(tokens.clamp(0, self.start - 1)), there), Part(query, own, here)]
        return attention(parts, scaling)
