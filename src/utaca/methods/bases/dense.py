"""Methods that read a document by full causal attention, and so share one reading of it."""

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from utaca.memory.attention import attention, products
from utaca.methods.bases.method import Method, MethodReading, MethodState, Pairs
from utaca.readers.load import Reader
from utaca.readers.room import check_size
from utaca.sizes import whole_bytes


@dataclass
class Dense(MethodReading):
    """A document under full attention: one :class:`Pairs` per layer, with keys rotated to their true positions."""

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
        whole = Whole(reader, len(tokens), room)
        reader.forward(tokens[None], whole)
        return Dense(reader, tokens, dropped, self, whole.layers)


class Whole:
    """Full causal attention of a whole document of ``length`` tokens in one pass, without its [N, N] logits.

    Raises :class:`utaca.readers.room.NoRoomError` if the document does not fit into memory.
    """

    def __init__(self, reader: Reader, length: int, room: int) -> None:
        check_size(reader, "full attention needs", whole_bytes(reader.sizes, length, reader.dtype.itemsize))
        self.reader = reader
        self.layers = []
        reader.rotary.reserve(length + room)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rotate = self.reader.rotary.at(range(key.shape[2]), key.dtype)
        self.layers.append(Pairs(rotate(key), value))
        return attention([self.layers[-1].under(rotate(query), causal=True)], scaling)[0]


class Continuation(MethodState):
    """An answer after a dense reading: the document's pairs do not change, and pairs of later tokens are in ``later``.

    A subclass defines in :meth:`look` what the queries of a pass attend to. A pass of several tokens is the prompt's.
    """

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, len(reading) - repeated)
        self.start = self.length
        self.reader.rotary.reserve(self.start + room)
        self.layers = reading.layers
        self.later = [pairs[:0] for pairs in reading.layers]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rotate = self.placed(range(self.length, self.length + query.shape[2]), key.dtype)
        self.later[layer] = self.later[layer].then(Pairs(rotate(key), value))
        return self.look(layer, rotate(query), scaling)

    def placed(self, positions: range, kind: torch.dtype) -> Callable[[Tensor], Tensor]:
        """How the queries and keys of a pass are rotated before they are kept: to their true positions."""
        return self.reader.rotary.at(positions, kind)

    def document(self, layer: int) -> Pairs:
        """Pairs of the document, [1, G, start, D]."""
        return self.layers[layer][: self.start]

    def since(self, layer: int, first: int) -> Pairs:
        """Pairs of all tokens from ``first`` on, those of the present pass included."""
        return self.document(layer)[first:].then(self.later[layer][max(0, first - self.start) :])

    @abstractmethod
    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attention output [1, H, T, D] of rotated queries [1, H, T, D], whose tokens are the last T of ``later``."""

    def everything(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Full causal attention, as :meth:`look`."""
        document = self.document(layer)
        later = self.later[layer]
        new = query.shape[2]
        self.attended.append(self.start + len(later))
        own = [later[: len(later) - new].under(query), later[len(later) - new :].under(query, causal=True)]
        return attention([document.under(query), *own], scaling)[0]

    def scores(self, layer: int, query: Tensor) -> Tensor:
        """Dot products [H, n] of one token's rotated query [1, H, 1, D] with the keys of all tokens, its own too."""
        of_document = products(query, self.document(layer).keys)[0, :, 0]
        of_later = products(query, self.later[layer].keys)[0, :, 0]
        return torch.cat((of_document, of_later), -1)

    def attend_to(self, layer: int, query: Tensor, tokens: Tensor, scaling: float) -> Tensor:
        """Attention of one token's rotated query [1, H, 1, D] to only the given tokens, [1, H, 1, D].

        ``tokens`` [R, k] are distinct ids, or -1 for no token: one row for all heads, or per key-value or query head.
        """
        document = self.document(layer)
        later = self.later[layer]
        shared = query.shape[1] // len(tokens)
        there = (tokens >= 0) & (tokens < self.start)
        here = there.new_zeros(len(tokens), 1 + len(later))
        here = here.scatter(1, (tokens - self.start + 1).clamp(min=0), True)[:, 1:]
        there, here = (seen.repeat_interleave(shared, 0)[:, None] for seen in (there, here))
        chosen = document.at(tokens.clamp(0, self.start - 1))
        return attention([chosen.under(query, there), later.under(query, here)], scaling)[0]
