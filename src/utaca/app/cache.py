"""Cache on disk of documents that were read, so that further questions about a document need not read it again.

The key of an entry is made of the reader's weights, rotary embedding and type, the settings of block memory and the
document's tokens (:mod:`utaca.generation.kept`). Entries are written whole or not at all. If the cache would exceed its
size with a new entry, the least recently used entries are removed first.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from utaca.errors import UserError
from utaca.generation import kept
from utaca.memory.document import BlockMemory
from utaca.memory.prefill import prefill
from utaca.readers.load import Reader
from utaca.settings.machine import free_disk, gib

# Entries, whole or half-written; the folder may hold other files of the user's, models among them.
_ENTRY = re.compile(r"\.?[0-9a-f]{64}\.safetensors")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def default_folder() -> Path:
    """The folder of the cache in the user's cache folder (XDG base directories)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "utaca" / "documents"


def bytes_of(size: str) -> int:
    """The number of bytes in a size such as ``8GiB``, ``500M`` or ``0``; raises :class:`UserError` for another text."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([KMGT]?)(?:i?B)?", size.strip(), re.IGNORECASE)
    if match is None:
        raise UserError(f"size {size!r} is not understood; write a number of bytes, as 8GiB or 500MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


class Cache:
    """A folder of documents that were read, ``size`` bytes at most; ``tell`` shows the user a sentence."""

    def __init__(self, folder: Path, size: int, tell: Callable[[str], None]) -> None:
        self._folder, self._size, self._tell = folder, size, tell
        try:
            # Other users of the machine must not read a user's documents.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the cache {folder} cannot be made ({error.strerror}); name another folder with --cache, or give "
                "--no-cache"
            ) from error

    def read(self, reader: Reader, text: str, budget: int) -> tuple[BlockMemory, bool]:
        """The block memory of a document, as :func:`utaca.prefill` returns it, and whether it came from the cache.

        ``budget`` is the budget of the answers (:func:`utaca.memory.prefill.memory_settings`).
        """
        tokens = reader.document(text)
        path = kept.path_of(self._folder, reader, tokens, budget)
        if path.is_file():
            try:
                memory, _ = kept.restored(path, reader, tokens, budget)
            except kept.DamagedError:
                self._tell(f"The cached document {path} is damaged; it is read anew.")
                path.unlink(missing_ok=True)
            else:
                with suppress(OSError):
                    os.utime(path)
                return memory, True
        started = time.perf_counter()
        memory = prefill(reader, tokens, budget=budget, description="reading")
        self._keep(memory, time.perf_counter() - started, path)
        return memory, False

    def _keep(self, memory: BlockMemory, seconds: float, path: Path) -> None:
        size = kept.size(memory)
        if size > min(self._size, free_disk(self._folder)):
            self._tell(f"The document takes {gib(size)}, for which the cache has no room; it is not kept.")
            return
        try:
            self._leave(size)
            kept.save(memory, seconds, path)
            path.chmod(0o600)  # in a folder that others may read too
        except (OSError, SafetensorError) as error:
            self._tell(f"The document is not kept: the cache {self._folder} cannot be written to ({error}).")

    def _leave(self, size: int) -> None:
        """Remove the least recently used entries until ``size`` more bytes have room."""
        entries = []
        for path in (each for each in self._folder.iterdir() if _ENTRY.match(each.name)):
            with suppress(FileNotFoundError):  # another process may have removed it
                about = path.stat()
                entries.append((about.st_mtime_ns, about.st_size, path))
        held = sum(length for _, length, _ in entries)
        for _, length, path in sorted(entries):
            if held + size <= self._size:
                return
            path.unlink(missing_ok=True)
            held -= length
