"""OmniKV: a few layers choose the tokens that the layers after them attend to."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.methods.bases.dense import Continuation, Dense, DenseMethod
from utaca.readers.load import Reader


class _Filtered(Continuation):
    """An answer under OmniKV.

    ``filters`` and ``sparse`` are the reader's filter layers and sparse layers. ``prompt`` is the number of tokens of
    document and question; ``best`` [k] are the positions of the prompt's tokens that the latest filter layer chose.
    """

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, repeated, room)
        self.prompt = self.start
        layers = self.reader.shape[0]
        self.filters = self.method.filtering(layers)
        self.sparse = self.method.sparse(layers)
        self.best = torch.arange(0)

    @property
    def count(self) -> int:
        """How many of the prompt's tokens the sparse layers attend to."""
        return min(self.prompt, self.budget or max(1, int(self.method.share * self.prompt)))

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attend to everything in a dense layer; in a sparse one, to the prompt's best and to the answer's tokens."""
        n = self.start + len(self.later[layer])
        if query.shape[2] > 1:  # The prompt passes.
            self.prompt = n
            return self.everything(layer, query, scaling)
        if layer in self.filters:
            # A token's score is its largest over query heads.
            scores = self.scores(layer, query)[:, : self.prompt].amax(0)
            self.best = scores.topk(self.count).indices
        if layer not in self.sparse:
            return self.everything(layer, query, scaling)
        tokens = torch.cat((self.best, torch.arange(self.prompt, n, device=query.device)))
        self.attended.append(len(tokens))
        return self.attend_to(layer, query, tokens[None], scaling)


@dataclass(frozen=True)
class OmniKV(DenseMethod):
    """Filter layers rank the prompt's tokens; the layers between them attend only to the best.

    Hao et al., ICLR 2025; antgroup/OmniKV (written from its description). The prompt is read by full attention. While
    decoding, a layer of ``filters`` ranks the prompt's tokens by the largest dot product, over query heads, of the
    present token's query with their keys; all heads of the layers up to the next filter attend to the best and to the
    answer's tokens. Layers before the first filter, the filters, and ``wait`` layers after each filter are dense.
    ``filters`` and ``wait`` are for readers of ``depth`` layers; for others both are scaled: filters are rounded up,
    so that at least the same share of layers precedes a filter, ``wait`` to the nearest. Positions are true ones. The
    budget is the prompt's tokens that a sparse layer attends to: ``budget``, or the ``share`` of the prompt if it is 0.
    """

    name: ClassVar[str] = "omnikv"
    adjustable: ClassVar[bool] = True
    state = _Filtered

    # 6.7 % of the prompt, as the paper's row says; the layers are those of the source for Llama-3-8B.
    budget: int = 0
    share: float = 0.067
    filters: tuple[int, ...] = (2, 8, 18)
    wait: int = 1
    depth: int = 32

    def __post_init__(self) -> None:
        self.require(self.budget >= 0, "budget must not be negative; 0 means the share of the prompt")
        self.require(0 < self.share <= 1, f"share={self.share} must be above 0 and at most 1")
        within = bool(self.filters) and all(0 <= layer < self.depth for layer in self.filters)
        self.require(within, f"filters={list(self.filters)} must be layers below depth={self.depth}, one at least")
        self.require(self.wait >= 0, "wait must not be negative")

    def check(self, reader: Reader) -> None:
        layers = reader.shape[0]
        sparse = len(self.sparse(layers))
        self.require(sparse > 0, f"no layer of a reader with {layers} is left sparse; name fewer filters")

    def filtering(self, layers: int) -> set[int]:
        """Indices of the filter layers of a reader with this number of layers."""
        return {-(-layer * layers // self.depth) for layer in self.filters}

    def sparse(self, layers: int) -> set[int]:
        """Indices of the sparse layers of a reader with this number of layers."""
        filters = self.filtering(layers)
        wait = round(self.wait * layers / self.depth)
        dense = set(range(min(filters)))
        for layer in filters:
            dense.update(range(layer, layer + wait + 1))
        return set(range(layers)) - dense

    def nominal(self, state: _Filtered) -> float:
        """Number of prompt tokens that a sparse layer attends to, without the answer's."""
        return state.count
