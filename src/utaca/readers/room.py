"""Checks that the keys and values of a document fit into the free memory.

Without these checks the system would kill the process, with no message.
"""

from collections.abc import Mapping, Sequence

import torch

from utaca.errors import UserError
from utaca.machine import free_memory, return_freed_memory
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings
from utaca.sizes import document_bytes


class NoRoomError(UserError):
    """Error that the free memory of a machine does not suffice."""


def check_blocks(reader: Reader, m: MemorySettings, length: int, together: int) -> None:
    """Raise :class:`NoRoomError` if a document of ``length`` tokens and the passes that read it do not fit.

    The document is in block memory; ``together`` chunks share a pass. See :func:`utaca.sizes.document_bytes`.
    """
    device = reader.device.type
    needed = document_bytes(reader.sizes, m, length, reader.dtype.itemsize, device, together)
    ways = ["set reader.memory.storage=host"] if device == "cuda" and m.storage == "device" else []
    ways += ["set reader.dtype=bfloat16"] if reader.dtype == torch.float32 else []
    _check("the document's keys and values need", needed, reader.device, ways)


def check_size(reader: Reader, what: str, size: int, *ways: str) -> None:
    """Raise :class:`NoRoomError` if ``what`` takes more bytes, ``size``, than are free on the device of a reader."""
    _check(what, {reader.device.type: size}, reader.device, ways)


def _check(what: str, needed: Mapping[str, int], device: torch.device, ways: Sequence[str]) -> None:
    """Raise :class:`NoRoomError` if ``needed`` bytes, by device type, are not free; the message lists ``ways`` out."""
    for place, size in needed.items():
        # None if it is not known: then nothing is refused.
        free = _free_on_gpu(device) if place == "cuda" else _free_in_main_memory(size) if place == "cpu" else None
        if free is not None and size > free:
            remedy = ", or ".join([*ways, "shorten the document"])
            raise NoRoomError(
                f"{what} {size / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are free on {place}; {remedy}"
            )


def _free_on_gpu(device: torch.device) -> int:
    """Free bytes of a GPU, including the bytes that PyTorch keeps for future tensors."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def _free_in_main_memory(wanted: int) -> int | None:
    """Free bytes of main memory; None if unknown.

    If they are fewer than ``wanted``, this process first returns freed memory to the system, and pinned memory that
    PyTorch keeps for later use counts as free.
    """
    free = free_memory()
    if free is not None and free < wanted:
        return_freed_memory()
        pinned = torch.cuda.host_memory_stats()
        unused = pinned.get("allocated_bytes.current", 0) - pinned.get("active_bytes.current", 0)
        free = (free_memory() or 0) + unused
    return free
