"""Where a document's keys and values lie: on the reader's device, or in host memory (``reader.memory.storage``)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from utaca.errors import UserError
from utaca.settings.machine import free_memory, return_freed_memory

if TYPE_CHECKING:
    from utaca.memory.blocks import Layout


class Store:
    """Unrotated keys, or values, of a document's tokens in one layer.

    ``tokens`` [G, N, D] holds all of them, and ``initial`` [G, n_init, D] the first ones, on the device. With storage
    ``host`` the former lies in host memory, pinned for a GPU, and the device has a copy of the tokens from the latest
    window on; of the others it is given the blocks that are asked for. As the host must know which ones, each such
    request waits for the device.
    """

    def __init__(
        self, layout: Layout, shape: tuple[int, int], kind: torch.dtype, device: torch.device, storage: str
    ) -> None:
        self._host, self._device, self._n_init = storage == "host", device, layout.n_init
        self._pinned = self._host and device.type == "cuda"
        place = torch.device("cpu") if self._host else device
        # Room before the first token and behind the last one, so that blocks are rows of one matrix, head after head.
        heads, size = shape
        before = -layout.n_init % layout.block_size
        rows = -(-(before + layout.length) // layout.block_size)
        self._rows = torch.empty(
            heads * rows, layout.block_size, size, dtype=kind, device=place, pin_memory=self._pinned
        )
        self._first_rows = (
            torch.arange(heads, device=place)[:, None] * rows + (before + layout.n_init) // layout.block_size
        )
        self.tokens = self._rows.view(heads, -1, size)[:, before : before + layout.length]
        self.initial = self.blank(0) if self._host else self.tokens[:, : layout.n_init]
        self._near = self.blank(0) if self._host else self.tokens
        self._first = 0

    def blank(self, length: int) -> Tensor:
        """Zeros [G, length, D] of the same kind, on the device."""
        heads, _, size = self.tokens.shape
        return torch.zeros(heads, length, size, dtype=self.tokens.dtype, device=self._device)

    def write(self, start: int, new: Tensor) -> None:
        """Take in tokens ``new`` [G, T, D], which follow the ``start`` that came before."""
        self.tokens[:, start : start + new.shape[1]].copy_(new, non_blocking=True)
        if self._host:
            self.initial = torch.cat((self.initial, new[:, : self._n_init - self.initial.shape[1]]), 1)
            self._near = torch.cat((self._near, new), 1)

    def leave(self, window: int) -> None:
        """Let go of copies of the tokens before ``window``, the first token of the next pass's window."""
        if self._host:
            self._near = self._near[:, window - self._first :].clone()
            self._first = window

    def near(self, start: int, end: int) -> Tensor:
        """Tokens ``start`` to ``end`` [G, n, D], all of the latest window or written since, on the device."""
        return self._near[:, start - self._first : end - self._first]

    def far(self, blocks: Tensor) -> Tensor:
        """The initial tokens, then those of ``blocks`` [k] in their order, [G, n_init + k * block_size, D]."""
        # Much faster on a CPU than indexing, and by way of pinned memory where the blocks are in it.
        wanted = (self._first_rows + blocks.to(self._first_rows.device)).flatten()
        found = self._rows.new_empty(len(wanted), *self._rows.shape[1:], pin_memory=self._pinned)
        torch.index_select(self._rows, 0, wanted, out=found)
        found = found.to(self._device, non_blocking=True)
        return torch.cat((self.initial, found.view(len(self.initial), -1, found.shape[-1])), 1)


def check_room(
    layout: Layout, shape: tuple[int, int], layers: int, kind: torch.dtype, device: torch.device, storage: str
) -> None:
    """Raise :class:`UserError` where a document's memory does not fit into what is free.

    Counted are keys, values, representatives and their scores, and with storage ``host`` what the device copies; what
    a pass takes besides is small beside them. ``shape`` is [G, D] of a layer.
    """
    token, score = shape[0] * shape[1] * kind.itemsize, shape[0] * torch.float32.itemsize
    stored = layout.length * token
    representative = shape[0] * shape[1] * torch.promote_types(kind, torch.float32).itemsize
    needed = Counter({device.type: layers * (layout.blocks * representative + layout.length * score)})
    if storage == "host":
        near = layout.n_init + min(layout.length, layout.n_init + layout.n_local + layout.block_size)
        needed[device.type] += 2 * layers * near * token
        # PyTorch rounds pinned memory up to a power of two.
        needed["cpu"] += 2 * layers * (1 << (stored - 1).bit_length() if device.type == "cuda" else stored)
    else:
        needed[device.type] += 2 * layers * stored
    for place, size in needed.items():
        free = _free_on_gpu(device) if place == "cuda" else _free_in_main_memory(size)
        if free is not None and size > free:
            ways = ["set reader.memory.storage=host"] if place == "cuda" and storage == "device" else []
            ways += ["set reader.dtype=bfloat16"] if kind == torch.float32 else []
            raise UserError(
                f"the document's keys and values need {size / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free on "
                f"{place}; {', or '.join([*ways, 'shorten the document'])}"
            )


def _free_on_gpu(device: torch.device) -> int:
    """Bytes that are free on a GPU, those included that PyTorch keeps for tensors to come."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def _free_in_main_memory(wanted: int) -> int | None:
    """Bytes of main memory that are free, what this process has freed but kept included where more is wanted."""
    free = free_memory()
    if free is not None and free < wanted:
        return_freed_memory()
        pinned = torch.cuda.host_memory_stats()
        kept = pinned.get("allocated_bytes.current", 0) - pinned.get("active_bytes.current", 0)
        free = (free_memory() or 0) + kept
    return free
