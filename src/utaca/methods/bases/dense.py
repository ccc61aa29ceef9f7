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
        """The same for all of these methods: full attention depends on none of their settings."""
        return "dense"

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Dense:
        """Read the document in one pass under full attention."""
        tokens, dropped = self.tokens(reader, document, room)
        whole = Whole(reader, len(tokens), room)
        reader.forward(tokens[None], whole)
        return Dense(reader, tokens, dropped, self, whole.layers)


class Whole:
    """Full causal attention of a document of ``length`` tokens in one pass; ``layers`` collects each layer's pairs.

    The [N, N] logits are never in memory. ``room`` further tokens may follow the document. Raises
    :class:`utaca.readers.room.NoRoomError` if the document does not fit into memory.
    """

    def __init__(self, reader: Reader, length: int, room: int) -> None:
        check_size(reader, "full attention needs", whole_bytes(reader.sizes, length, reader.dtype.itemsize))
        self.reader = reader
        self.layers = []
        reader.rotary.reserve(length + room)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`utaca.readers.attention.Attending`."""
        rotate = self.reader.rotary.at(range(key.shape[2]), key.dtype)
        self.layers.append(Pairs(rotate(key), value))
        return attention([self.layers[-1].under(rotate(query), causal=True)], scaling)[0]


class Continuation(MethodState):
    """An answer after a dense reading, in which a subclass defines what the queries of a pass attend to (:meth:`look`).

    ``layers`` have the document's pairs, of which the first ``start`` tokens belong to this answer (any others pass
    again, with the prompt); ``later`` has, per layer, the pairs of all tokens after these. A pass of several tokens is
    the prompt's.
    """

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, len(reading) - repeated)
        self.start = self.length
        self.reader.rotary.reserve(self.start + room)
        self.layers = reading.layers
        self.later = [pairs[:0] for pairs in reading.layers]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Add the pass's pairs to ``later``, and :meth:`look`."""
        rotate = self.placed(range(self.length, self.length + query.shape[2]), key.dtype)
        self.later[layer] = self.later[layer].then(Pairs(rotate(key), value))
        return self.look(layer, rotate(query), scaling)

    def placed(self, positions: range, kind: torch.dtype) -> Callable[[Tensor], Tensor]:
        """A function that rotates the queries and keys of a pass to their true ``positions``, before they are kept."""
        return self.reader.rotary.at(positions, kind)

    def document(self, layer: int) -> Pairs:
        """Pairs of the document, [1, G, start, D]."""
        return self.layers[layer][: self.start]

    def since(self, layer: int, first: int) -> Pairs:
        """Pairs of all tokens from ``first`` on, those of the present pass included."""
        return self.document(layer)[first:].then(self.later[layer][max(0, first - self.start) :])

    @abstractmethod
    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attention output [1, H, T, D] of a pass's rotated queries [1, H, T, D].

        The pass's own tokens are the last T of ``later`` already.
        """

    def everything(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Full causal attention to document and ``later``; arguments and result as for :meth:`look`."""
        later = self.later[layer]
        n_before = len(later) - query.shape[2]
        self.attended.append(self.start + len(later))
        before = later[:n_before].under(query)
        own = later[n_before:].under(query, causal=True)
        return attention([self.document(layer).under(query), before, own], scaling)[0]

    def scores(self, layer: int, query: Tensor) -> Tensor:
        """Dot products [H, n] of one token's rotated query [1, H, 1, D] with the keys of all tokens, its own too."""
        of_document = products(query, self.document(layer).keys)[0, :, 0]
        of_later = products(query, self.later[layer].keys)[0, :, 0]
        return torch.cat((of_document, of_later), -1)

    def attend_to(self, layer: int, query: Tensor, tokens: Tensor, scaling: float) -> Tensor:
        """Attention output [1, H, 1, D] of one token's rotated query [1, H, 1, D] over only the given tokens.

        ``tokens`` [R, k] are distinct positions, or -1 for no token. There is one row for all heads, or a row for each
        key-value head or each query head.
        """
        document = self.document(layer)
        later = self.later[layer]
        in_document = (tokens >= 0) & (tokens < self.start)
        # Which of the later tokens are among ``tokens``; column 0 takes all others, and is dropped.
        in_later = in_document.new_zeros(len(tokens), 1 + len(later))
        in_later = in_later.scatter(1, (tokens - self.start + 1).clamp(min=0), True)[:, 1:]
        # Masks for each query head; several share a row of ``tokens``.
        heads_per_row = query.shape[1] // len(tokens)
        # [H, 1, k] and [H, 1, len(later)]: the chosen keys of the document are gathered, those of ``later`` are masked.
        sees_document = in_document.repeat_interleave(heads_per_row, 0)[:, None]
        sees_later = in_later.repeat_interleave(heads_per_row, 0)[:, None]
        chosen = document.at(tokens.clamp(0, self.start - 1))
        return attention([chosen.under(query, sees_document), later.under(query, sees_later)], scaling)[0]
