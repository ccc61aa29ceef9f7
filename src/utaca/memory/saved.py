"""Documents on disk: block memories in files, for later jobs and commands with questions about the same documents."""

import hashlib
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from utaca.machine import free_disk, gib
from utaca.memory.block_memory import BlockMemory
from utaca.memory.prefill import begun, memory_settings, prefill
from utaca.readers.load import Reader
from utaca.records.tables import atomic_path
from utaca.settings.budgets import Budget

ROOM = 2**31
"""Most bytes in a folder of a run: enough for the short documents of a shard, too few for a long document."""
# A file of a document, whole or half-written; the folder may hold other files of the user's, models among them. What is
# half-written belongs to another process, or to one that was killed.
_FILE = re.compile(r"[0-9a-f]{64}\.safetensors|\.[0-9a-f]{64}\.safetensors\.\w+")

_log = logging.getLogger(__name__)


class Read(NamedTuple):
    """A document's block memory, the seconds that reading it took, and whether it came from a file."""

    memory: BlockMemory
    seconds: float
    found: bool


class SavedDocuments:
    """Block memories of documents in ``folder``, one per file, found by reader, settings and tokens.

    Files are written whole or not at all, so that several processes may use one folder. It takes at most ``room``
    bytes. A document that has no room is not saved or, with ``evict``, replaces the least recently used ones. A
    document whose file is damaged is read again. ``private``: other users of the machine may not read the files.
    ``tell`` is called with a sentence if a document is not saved, or its file is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        room: int = ROOM,
        *,
        evict: bool = False,
        private: bool = False,
        tell: Callable[[str], None] = _log.info,
    ) -> None:
        self._folder = Path(folder)
        self._room = room
        self._evict = evict
        self._private = private
        self._tell = tell

    def read(
        self, reader: Reader, document: str | Tensor, budget: Budget | None = None, *, description: str = ""
    ) -> Read:
        """The memory that :func:`utaca.prefill` makes of a document, bit for bit; arguments and errors are the same."""
        tokens = reader.document(document)
        if found := self.find(reader, tokens, budget):
            return found
        started = time.perf_counter()
        memory = prefill(reader, tokens, budget=budget, description=description)
        seconds = time.perf_counter() - started
        self.keep(memory, seconds, budget)
        return Read(memory, seconds, False)

    def find(self, reader: Reader, tokens: Tensor, budget: Budget | None = None) -> Read | None:
        """The memory of a document's ``tokens`` [N], from its file; None if there is none, or none that can be read.

        Raises :class:`UserError` if the document exceeds free memory.
        """
        path = path_of(self._folder, reader, tokens, budget)
        if not os.path.isfile(path):
            return None
        try:
            memory, seconds = restored(path, reader, tokens, budget)
        except DamagedError:
            if os.access(path, os.R_OK):
                self._tell(f"The saved document {path} is damaged; it is read again.")
                # In a folder that cannot be written to, the file stays.
                with suppress(OSError):
                    path.unlink()
            elif os.path.isfile(path):  # else another process has removed it meanwhile
                self._tell(f"The saved document {path} belongs to another user; it is read again.")
            return None
        # The time of the file says when the document was last used (_make_room).
        with suppress(OSError):
            os.utime(path)
        return Read(memory, seconds, True)

    def holds(self, reader: Reader, tokens: Tensor, budget: Budget | None = None) -> bool:
        """Whether there is a file of the document of these ``tokens`` [N]."""
        return os.path.isfile(path_of(self._folder, reader, tokens, budget))

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, memory: BlockMemory, seconds: float, budget: Budget | None = None) -> None:
        """Save a memory, and the ``seconds`` that reading its document took, unless the folder has no room for it.

        ``budget`` is the one that the document was read for. A folder that cannot be written to raises no error: the
        document is not saved.
        """
        path = path_of(self._folder, memory.reader, memory.tokens, budget)
        needed = size(memory)
        try:
            if self._evict and needed <= self._room:
                self._make_room(needed)
            held = sum(length for _, length, _ in self._files())
            if needed > min(self._room - held, free_disk(self._folder)):
                self._tell(f"The document takes {gib(needed)}, for which {self._folder} has no room; it is not saved.")
                return
            save(memory, seconds, path, 0o600 if self._private else 0o644)
        except (OSError, SafetensorError) as error:
            self._tell(f"The document is not saved: {self._folder} cannot be written to ({error}).")

    def _make_room(self, needed: int) -> None:
        """Remove the least recently used files until ``needed`` more bytes have room.

        Files in the folder that hold no document, such as the user's own, stay (:meth:`_files`).
        """
        files = sorted(self._files())
        held = sum(length for _, length, _ in files)
        for _, length, path in files:
            if held + needed <= self._room:
                return
            path.unlink(missing_ok=True)  # another process may have removed it
            held -= length

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time of the last use, in ns, size in bytes and path of each file of a document."""
        files = []
        for path in self._folder.glob("*"):
            if _FILE.fullmatch(path.name):
                with suppress(FileNotFoundError):  # another process may have removed it
                    about = path.stat()
                    files.append((about.st_mtime_ns, about.st_size, path))
        return files


class DamagedError(Exception):
    """The file of a document is not as it was written."""


def path_of(folder: Path, reader: Reader, tokens: Tensor, budget: Budget | None = None) -> Path:
    """Path in ``folder`` of a document's block memory.

    The name is a digest of the document's ``tokens`` [N] and of all that its memory depends on: the reader's weights,
    rotation, precision and memory settings. ``budget``, that of the answers, counts only if documents are read under it
    (``prefill_budget=-1``).
    """
    memory = asdict(memory_settings(reader, budget, len(tokens)))
    about = reader.identity, reader.model.config.rope_parameters, f"torch.{reader.precision}", memory
    digest = hashlib.sha256(json.dumps(about).encode() + tokens.cpu().numpy().tobytes()).hexdigest()
    return folder / f"{digest}.safetensors"


def size(memory: BlockMemory) -> int:
    """Bytes that a document takes in a file."""
    return sum(part.nbytes for part in _parts(memory).values())


def save(memory: BlockMemory, seconds: float, path: Path, mode: int = 0o644) -> None:
    """Write a document that took ``seconds`` to read, with a checksum; the file appears whole or not at all.

    ``mode`` are the file's permissions, from its first byte on at most these.
    """
    parts = {name: part.cpu().contiguous() for name, part in _parts(memory).items()}
    with atomic_path(path, mode) as scratch:
        save_file(parts, scratch, {"seconds": repr(seconds), "crc32": str(_checksum(parts))})


@torch.inference_mode()
def restored(path: Path, reader: Reader, tokens: Tensor, budget: Budget | None = None) -> tuple[BlockMemory, float]:
    """The memory of a document's ``tokens`` [N] in a file, and the seconds that reading it took.

    Raises :class:`DamagedError` if the file is damaged or cannot be read, and :class:`UserError` if the document
    exceeds free memory.
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
        # A RuntimeError too, but the file is whole.
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
    """CRC-32 of the bytes of all tensors, in their order."""
    total = 0
    for part in parts.values():
        total = zlib.crc32(part.flatten().view(torch.uint8).numpy(), total)
    return total
