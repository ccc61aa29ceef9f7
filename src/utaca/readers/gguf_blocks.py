"""Blocks of quantised weights in GGUF files, as torch reads them.

A weight is ``scale * (code - zero) - minimum``. Its code is an unsigned whole number of four to eight bits; scale and
minimum belong to a group of 16 or 32 neighbours in a row; the zero is the same for all weights of a type. The package
gguf dequantises these types in NumPy; the values here are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_Read = tuple[Tensor, Tensor, Tensor | None]
"""Codes, scales and minima of blocks."""
_SUPER = 256
"""Weights in a block of the types whose names end in K."""


class Groups(NamedTuple):
    """Weights of a matrix: codes [R, C] in uint8, scales and minima [R, C / group] in float32, and their zero."""

    codes: Tensor
    scales: Tensor
    minima: Tensor | None
    zero: int

    def values(self) -> Tensor:
        """The weights [R, C] in float32, the same bits as the package gguf computes."""
        rows, groups = self.scales.shape
        values = self.codes.view(rows, groups, -1).float().sub_(self.zero).mul_(self.scales[..., None])
        if self.minima is not None:
            values.sub_(self.minima[..., None])
        return values.view(rows, -1)


class Kind(NamedTuple):
    """A type of quantised weights: how many ``weights`` and ``bytes`` a block has, and how many weights a ``group``.

    Codes have ``bits`` bits; the code ``zero`` stands for 0. ``read`` splits blocks [n, bytes] into codes [n, weights],
    scales and minima [n, groups].
    """

    weights: int
    bytes: int
    group: int
    bits: int
    zero: int
    read: Callable[[Tensor], _Read]


def groups(rows: Tensor, kind: str) -> Groups:
    """Codes, scales and minima of rows [R, bytes] of a matrix, in uint8 as a file holds them."""
    about = KINDS[kind]
    codes, scales, minima = about.read(rows.reshape(-1, about.bytes))
    count = len(rows)
    minima = None if minima is None else minima.reshape(count, -1)
    return Groups(codes.reshape(count, -1), scales.reshape(count, -1), minima, about.zero)


def _halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 number [n, 1] at byte ``start`` of each block, in float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, width: int) -> Tensor:
    """Codes [n, 2 * bytes] of four bits, two in each of the bytes [n, bytes].

    Of every ``width`` bytes, the codes in their low halves come first, then those in their high halves.
    """
    parts = packed.reshape(len(packed), -1, 1, width)
    return torch.cat((parts & 15, parts >> 4), 2).flatten(1)


def _spread(packed: Tensor, bits: int) -> Tensor:
    """The fields of ``bits`` bits [n, 8 / bits * bytes] in bytes [n, bytes].

    The lowest field of each byte comes first, byte after byte, then the next field of each byte.
    """
    mask = 2**bits - 1
    return torch.cat([packed >> shift & mask for shift in range(0, 8, bits)], -1)


def _bits_of(packed: Tensor) -> Tensor:
    """The bits [n, 8 * bytes] of bytes [n, bytes]: those of a byte, the lowest first, then those of the next byte."""
    return torch.stack([packed >> shift & 1 for shift in range(8)], -1).flatten(1)


# The layouts of blocks are those of llama.cpp (ggml-common.h). In the types of 32 weights, the scale comes first; those
# whose names end in 1 then have the number that is added, which is minus the minimum; those of five bits then have the
# fifth bits of all codes; the rest are the codes' lower bits.


def _q4_0(blocks: Tensor) -> _Read:
    return _nibbles(blocks[:, 2:], 16), _halves(blocks, 0), None


def _q4_1(blocks: Tensor) -> _Read:
    return _nibbles(blocks[:, 4:], 16), _halves(blocks, 0), -_halves(blocks, 2)


def _q5_0(blocks: Tensor) -> _Read:
    return _nibbles(blocks[:, 6:], 16) | _bits_of(blocks[:, 2:6]) << 4, _halves(blocks, 0), None


def _q5_1(blocks: Tensor) -> _Read:
    codes = _nibbles(blocks[:, 8:], 16) | _bits_of(blocks[:, 4:8]) << 4
    return codes, _halves(blocks, 0), -_halves(blocks, 2)


def _q8_0(blocks: Tensor) -> _Read:
    # Signed bytes become codes from 0 on.
    return blocks[:, 2:] ^ 128, _halves(blocks, 0), None


def _scales_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima [n, 8] of the groups of Q4_K and Q5_K.

    A block has a scale of its scales, a scale of its minima, and then eight of either, of six bits each, in three times
    four bytes: of the first four groups the scales and then the minima, of the last four groups the lower four bits of
    both in a byte; the upper two bits of these are the highest bits of the eight bytes before.
    """
    low, middle, high = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scales = torch.cat((low & 63, high & 15 | low >> 2 & 48), -1)
    minima = torch.cat((middle & 63, high >> 4 | middle >> 2 & 48), -1)
    return _halves(blocks, 0) * scales.float(), _halves(blocks, 2) * minima.float()


def _q4_k(blocks: Tensor) -> _Read:
    return _nibbles(blocks[:, 16:], 32), *_scales_k(blocks)


def _q5_k(blocks: Tensor) -> _Read:
    return _nibbles(blocks[:, 48:], 32) | _spread(blocks[:, 16:48], 1) << 4, *_scales_k(blocks)


def _q6_k(blocks: Tensor) -> _Read:
    # Bytes 0 to 127: the lower four bits of the codes. 128 to 191: their upper two bits. 192 to 207: scales of 16
    # groups, in int8. 208 and 209: what these scales are multiplied by, in float16.
    low = _nibbles(blocks[:, :128], 64)
    high = _spread(blocks[:, 128:192].reshape(-1, 32), 2).reshape(len(blocks), -1)
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    return low | high << 4, scales, None


KINDS: Mapping[str, Kind] = {
    "Q4_0": Kind(32, 18, 32, 4, 8, _q4_0),
    "Q4_1": Kind(32, 20, 32, 4, 0, _q4_1),
    "Q5_0": Kind(32, 22, 32, 5, 16, _q5_0),
    "Q5_1": Kind(32, 24, 32, 5, 0, _q5_1),
    "Q8_0": Kind(32, 34, 32, 8, 128, _q8_0),
    "Q4_K": Kind(_SUPER, 144, 32, 4, 0, _q4_k),
    "Q5_K": Kind(_SUPER, 176, 32, 5, 0, _q5_k),
    "Q6_K": Kind(_SUPER, 210, 16, 6, 32, _q6_k),
}
"""Types that are read here, by the name that the package gguf gives them."""
