"""Storage of a document's keys and values: on the reader's device, or in host memory (``reader.memory.storage``)."""

import torch
from torch import Tensor

from utaca.layout import Layout


class Store:
    """Unrotated keys and values of a document's tokens in one layer.

    ``tokens`` [2, G, N, D] holds all of them, keys first. With ``host``, it is in host memory (pinned if the device is
    a GPU); the device then holds a copy of the present local window, and requested blocks are copied to it. The host
    must know the ids of these blocks, so each request waits for the device.
    """

    def __init__(self, layout: Layout, length: int, heads: int, width: int, like: Tensor, *, host: bool) -> None:
        self._host = host
        self._device = like.device
        self._pinned = host and like.is_cuda
        place = torch.device("cpu") if host else like.device
        # Padding before the first token and after the last one makes each block a row of one matrix: for each head, of
        # keys and then of values, its initial blocks and then its others.
        before = layout.skipped
        size = layout.block_size
        rows = -(-(before + length) // size)
        self._rows = torch.empty(2 * heads * rows, size, width, dtype=like.dtype, device=place, pin_memory=self._pinned)
        # The row of block 0 of each head [2 * G, 1].
        self._first = (torch.arange(2 * heads, device=place) * rows + layout.initial_blocks)[:, None]
        self.tokens = self._rows.view(2, heads, -1, width)[:, :, before : before + length]
        # The device's copy of the window, and the position of its first token; without ``host``, all tokens.
        self._start = 0
        self._window = self.tokens if not host else like.new_empty(2, heads, 0, width)

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Append ``keys`` and ``values`` [G, T, D] of T tokens, after the ``start`` tokens that were written before."""
        new = torch.stack((keys, values))
        end = start + keys.shape[1]
        if not self._host:
            self.tokens[:, :, start:end] = new
            return
        # Head by head, both sides are contiguous, so the host need not wait for a copy into pinned memory.
        for target, head in zip(self.tokens[:, :, start:end].flatten(0, 1), new.flatten(0, 1), strict=True):
            target.copy_(head, non_blocking=True)
        self._window = torch.cat((self._window, new), 2)

    def leave(self, window_start: int) -> None:
        """Free the device's copies of tokens before ``window_start``, to which the window has moved."""
        if self._host:
            self._window = self._window[:, :, window_start - self._start :].clone()
            self._start = window_start

    def window(self, start: int, end: int) -> Tensor:
        """Keys and values [2, G, n, D] on the device of tokens ``start`` to ``end``, none before the present window."""
        return self._window[:, :, start - self._start : end - self._start]

    def blocks(self, ids: Tensor) -> Tensor:
        """Keys and values [2, G, k * block_size, D] of the blocks ``ids`` [k], in their order, on the device.

        The initial tokens are the blocks below 0; the entries before the text, see :attr:`Layout.skipped`, have
        arbitrary values.
        """
        ids = ids.to(self._first.device)
        blocks = self._copied(ids) if self._pinned else self._rows.index_select(0, (self._first + ids).flatten())
        return blocks.view(*self.tokens.shape[:2], -1, self._rows.shape[2])

    def _copied(self, ids: Tensor) -> Tensor:
        """The rows [2 * G * k, block_size, D] of the blocks ``ids`` [k], copied from pinned memory to the device.

        A block that several rows of a pass retrieve is copied once.
        """
        distinct, places = ids.unique(return_inverse=True)
        repeated = len(distinct) < len(ids)
        wanted = (self._first + (distinct if repeated else ids)).flatten()
        # From pinned memory, a copy to the device is asynchronous.
        blocks = self._rows.new_empty(len(wanted), *self._rows.shape[1:], pin_memory=True)
        blocks = torch.index_select(self._rows, 0, wanted, out=blocks).to(self._device, non_blocking=True)
        if repeated:
            blocks = blocks.view(len(self._first), len(distinct), *self._rows.shape[1:])
            blocks = blocks.index_select(1, places.pin_memory().to(self._device, non_blocking=True))
        return blocks
