"""Files of documents' block memories, for later jobs and commands with questions about the same documents."""

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from utaca.memory.document import BlockMemory
from utaca.memory.prefill import begun, memory_settings, prefill
from utaca.readers.load import Reader
from utaca.records.tables import atomic_path

ROOM = 2**31
"""Most bytes of block memory in a folder: enough for the short documents of a shard, too few for a long document."""


class Kept:
    """Block memories of documents in ``folder``, one per file, found by reader, settings and tokens.

    A document is not kept if the folder would exceed ``room`` bytes, or if the disk is full; a document whose file is
    damaged is read again.
    """

    def __init__(self, folder: str | Path, room: int = ROOM) -> None:
        self._folder = Path(folder)
        self._room = room

    def read(self, reader: Reader, document: str | Tensor, budget: int | None = None) -> tuple[BlockMemory, float]:
        """The memory that :func:`prefill` makes of a document, bit for bit, and the seconds that reading took."""
        tokens = reader.document(document)
        path = path_of(self._folder, reader, tokens, budget)
        if path.is_file():
            with suppress(DamagedError):
                return restored(path, reader, tokens, budget)
            path.unlink(missing_ok=True)
        started = time.perf_counter()
        memory = prefill(reader, tokens, budget=budget)
        seconds = time.perf_counter() - started
        held = sum(file.stat().st_size for file in self._folder.glob("*"))
        if held + size(memory) <= self._room:
            with suppress(OSError, SafetensorError):
                save(memory, seconds, path)
        return memory, seconds

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class DamagedError(Exception):
    """The file of a document is not as it was written."""


def path_of(folder: Path, reader: Reader, tokens: Tensor, budget: int | None = None) -> Path:
    """Path in ``folder`` for a document's ``tokens`` [N] read with the reader's weights, rotation, dtype and memory.

    ``budget`` is the budget of the answers (:func:`utaca.memory.prefill.memory_settings`).
    """
    memory = asdict(memory_settings(reader, budget))
    about = reader.identity, reader.model.config.rope_parameters, str(reader.dtype), memory
    digest = hashlib.sha256(json.dumps(about).encode() + tokens.cpu().numpy().tobytes()).hexdigest()
    return folder / f"{digest}.safetensors"


def size(memory: BlockMemory) -> int:
    """Bytes that a document takes in a file."""
    return sum(part.nbytes for part in _parts(memory).values())


def save(memory: BlockMemory, seconds: float, path: Path) -> None:
    """Write a document that took ``seconds`` to read, with a checksum; the file appears whole or not at all."""
    parts = {name: part.cpu().contiguous() for name, part in _parts(memory).items()}
    with atomic_path(path) as scratch:
        save_file(parts, scratch, {"seconds": repr(seconds), "crc32": str(_checksum(parts))})


@torch.inference_mode()
def restored(path: Path, reader: Reader, tokens: Tensor, budget: int | None = None) -> tuple[BlockMemory, float]:
    """The memory of a document's ``tokens`` [N] in a file, and the seconds that reading it took.

    Raises :class:`DamagedError` if the file is damaged, and :class:`UserError` if the document exceeds free memory.
    """
    memory = begun(reader, tokens, budget=budget)
    names = list(_parts(memory))
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            parts = {name: file.get_tensor(name) for name in names}
        if int(about["crc32"]) != _checksum(parts):
            raise DamagedError(path)
        for layer in range(len(memory.stores)):
            memory.fill(layer, *(parts[f"{name}.{layer}"] for name in ("tokens", "representatives", "attention_mass")))
        return memory, float(about["seconds"])
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise DamagedError(path) from error


def _parts(memory: BlockMemory) -> dict[str, Tensor]:
    """All tensors that reading a document made, by name."""
    # Keys and values in host memory come last: copying a GPU's tensors before waits for those still on their way there.
    lists = {"attention_mass": memory.attention_mass, "representatives": memory.representatives}
    lists["tokens"] = [store.tokens for store in memory.stores]
    return {f"{name}.{layer}": x for name, xs in lists.items() for layer, x in enumerate(xs)}


def _checksum(parts: Mapping[str, Tensor]) -> int:
    total = 0
    for part in parts.values():
        total = zlib.crc32(part.flatten().view(torch.uint8).numpy(), total)
    return total
