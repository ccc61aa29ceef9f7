"""Documents that were read, kept in files, for a later job that asks about them too."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from utaca.memory.branch import BlockMemory
from utaca.memory.prefill import begun, prefill
from utaca.readers.load import Reader
from utaca.records.tables import atomic_path

ROOM = 2**31
"""Bytes of block memory that a folder takes: enough for the short documents of a shard, too little for a long one."""


class Kept:
    """Block memories of documents in ``folder``, one a file, by reader, settings and tokens.

    A document that finds no room among ``room`` bytes, or on the disk, is not kept; one whose file is damaged is read
    anew.
    """

    def __init__(self, folder: str | Path, room: int = ROOM) -> None:
        self._folder, self._room = Path(folder), room

    def read(self, reader: Reader, document: str | Tensor) -> tuple[BlockMemory, float]:
        """The memory that :func:`prefill` gives of a document, bit for bit, and the seconds that reading it took."""
        tokens = reader.document(document)
        path = self._folder / f"{_name(reader, tokens)}.safetensors"
        if path.is_file():
            try:
                return _restored(path, reader, tokens)
            except (SafetensorError, OSError, KeyError, RuntimeError):
                path.unlink(missing_ok=True)
        started = time.perf_counter()
        memory = prefill(reader, tokens)
        seconds = time.perf_counter() - started
        parts = _parts(memory)
        held = sum(file.stat().st_size for file in self._folder.glob("*"))
        if held + sum(part.nbytes for part in parts.values()) <= self._room:
            with suppress(OSError, SafetensorError), atomic_path(path) as scratch:
                save_file(parts, scratch, {"seconds": repr(seconds)})
        return memory, seconds

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _name(reader: Reader, tokens: Tensor) -> str:
    about = reader.identity, str(reader.dtype), asdict(reader.settings.memory)
    return hashlib.sha256(json.dumps(about).encode() + tokens.cpu().numpy().tobytes()).hexdigest()


def _parts(memory: BlockMemory) -> dict[str, Tensor]:
    """All that reading a document has made: keys and values, representatives, and what the window was given."""
    lists = {
        "tokens": [s.tokens for s in memory.stores],
        "representatives": memory.representatives,
        "given": memory.given,
    }
    return {f"{name}.{layer}": x.contiguous() for name, xs in lists.items() for layer, x in enumerate(xs)}


@torch.inference_mode()
def _restored(path: Path, reader: Reader, tokens: Tensor) -> tuple[BlockMemory, float]:
    memory = begun(reader, tokens)
    with safe_open(path, "pt", device=str(reader.device)) as file:
        for layer, store in enumerate(memory.stores):
            store.write(0, *file.get_tensor(f"tokens.{layer}"))
            store.leave(memory.layout.window_start(len(tokens)))
            memory.representatives[layer].copy_(file.get_tensor(f"representatives.{layer}"))
            memory.given[layer] = file.get_tensor(f"given.{layer}")
        return memory, float(file.metadata()["seconds"])
