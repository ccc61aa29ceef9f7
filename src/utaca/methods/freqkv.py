"""FreqKV: a full cache is halved by keeping its low frequencies."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import attention
from utaca.methods.bases.method import MethodReading, MethodState, Pairs
from utaca.methods.bases.streaming import StreamingMethod
from utaca.readers.load import Reader


class _Frequencies(MethodState):
    """An answer under FreqKV; ``kept`` is the cache, one unrotated :class:`Pairs` per layer.

    ``_lowest`` [budget - sink, size - sink] is the matrix that compresses the entries after the sink: a low-pass filter
    along the sequence.
    """

    def __init__(self, reading: MethodReading, length: int = 0) -> None:
        super().__init__(reading, length)
        method = self.method
        self.kept: list[Pairs | None] = [None] * self.reader.shape[0]
        self._lowest = lowest(method.size - method.sink, method.budget - method.sink).float().to(self.reader.device)
        self.reader.rotary.reserve(method.size)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Pass tokens until the cache is full, compress it, pass the next ones, and so on.

        See :class:`utaca.readers.attention.Attending`.
        """
        passing = Pairs(key, value)
        rotary = self.reader.rotary
        size = self.method.size
        kept = self.kept[layer] if self.length else passing[:0]
        outputs = []
        start = 0
        while start < len(passing):
            if len(kept) == size:
                kept = self._compressed(kept)
            end = min(start + size - len(kept), len(passing))
            kept = kept.then(passing[start:end])
            n_new = end - start
            n = len(kept)
            rotated = Pairs(rotary(kept.keys, range(n)), kept.values)
            rotated_query = rotary(query[:, :, start:end], range(n - n_new, n))
            own = rotated[n - n_new :].under(rotated_query, causal=True)
            outputs.append(attention([rotated[: n - n_new].under(rotated_query), own], scaling)[0])
            start = end
        self.kept[layer] = kept
        self.attended.append(len(kept))
        return torch.cat(outputs, 2)

    def _compressed(self, kept: Pairs) -> Pairs:
        """Compress a full cache: keep the sink, and replace the other entries by fewer, which have low frequencies."""
        sink = kept[: self.method.sink]
        others = kept[self.method.sink :]
        keys = (self._lowest @ others.keys.float()).to(others.keys.dtype)
        values = (self._lowest @ others.values.float()).to(others.values.dtype)
        return sink.then(Pairs(keys, values))


@dataclass(frozen=True)
class FreqKV(StreamingMethod):
    """Whenever the cache is full, its keys and values, as signals over the sequence, lose their high frequencies.

    Kai et al., ICLR 2026; LUMIA-Group/FreqKV (written from its description). The first ``sink`` entries stay; of the
    others' cosine transform, the lowest ``ratio`` of coefficients is kept and transformed back to that many entries.
    New tokens then fill the cache again, so old tokens are compressed repeatedly. All heads and layers do the same;
    positions are indices in the cache; ``chunk`` changes the memory used, not the answers. ``budget`` is the cache's
    size after a compression, as in the paper; the cache then grows to :attr:`size`. A step's nominal tokens are the
    cache's present size. The source trains its reader for this method; here no reader is trained.
    """

    name: ClassVar[str] = "freqkv"
    positions: ClassVar[str] = "rolling"
    cache = _Frequencies

    # The paper's 2,050 are what is left of the source's cache of 4,096 after a compression; it fills up again.
    budget: int = 2050
    sink: int = 4
    ratio: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.sink >= 0, "sink must not be negative")
        self.require(self.budget > self.sink, f"budget={self.budget} must exceed sink={self.sink}")
        self.require(0 < self.ratio < 1, f"ratio={self.ratio} must be above 0 and below 1")
        self.require(
            self.size > self.budget,
            f"ratio={self.ratio} removes no entry from a cache of budget={self.budget}; lower the ratio",
        )

    def check(self, reader: Reader) -> None:
        longest = reader.positions
        self.require(
            self.size <= longest,
            f"budget={self.budget} means a cache of {self.size}, which exceeds the {longest} positions of the reader",
        )

    @property
    def size(self) -> int:
        """Entries of the full cache."""
        return self.sink + round((self.budget - self.sink) / self.ratio)

    def nominal(self, state: MethodState) -> float:
        """Entries that the cache has now, the same in all layers."""
        return len(state.kept[0])


def lowest(n: int, m: int) -> Tensor:
    """The linear map [m, n], in float64, from a signal of length ``n`` to one of length ``m`` with its low frequencies.

    It is the orthonormal cosine transform (DCT-II), cut to its first ``m`` coefficients, and the inverse transform at
    length ``m``, times sqrt(m / n), so that a constant signal stays as it is.
    """
    return math.sqrt(m / n) * _cosines(m, m).T @ _cosines(n, m)


def _cosines(n: int, m: int) -> Tensor:
    """The first ``m`` rows of the orthonormal DCT-II of length ``n``, [m, n]: row i is the i-th frequency."""
    odd = 2 * torch.arange(n, dtype=torch.float64) + 1
    rows = torch.cos(math.pi / (2 * n) * torch.arange(m, dtype=torch.float64)[:, None] * odd) * math.sqrt(2 / n)
    rows[0] /= math.sqrt(2)
    return rows
