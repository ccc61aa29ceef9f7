"""The folder in which ``utaca ask``, ``score`` and ``serve`` keep the documents that they have read."""

import os
import re
from pathlib import Path

from utaca.app.streams import tell
from utaca.errors import UserError
from utaca.memory.saved import SavedDocuments

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def default_folder() -> Path:
    """The folder of the cache in the user's cache folder (XDG base directories)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The standard ignores a relative path.
    caches = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return caches / "utaca" / "documents"


def bytes_of(size: str) -> int:
    """The number of bytes in a size such as ``8GiB``, ``500M`` or ``0``; raises :class:`UserError` for another text."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([KMGT]?)(?:i?B)?", size.strip(), re.IGNORECASE)
    if match is None:
        raise UserError(f"{size!r} is not a size; write a number of bytes, such as 8GiB or 500MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def opened(cache: str | None, size: str, without: str = "give --no-cache") -> SavedDocuments:
    """Open the folder ``cache`` of saved documents, by default the user's own, for documents of at most a ``size``.

    The folder is made if it is missing. Raises :class:`UserError` if the size is not understood, or if the folder
    cannot be made or read; ``without`` says how to do without one. A folder that cannot be written to still gives the
    documents that it has.
    """
    room = bytes_of(size)
    advice = f"name another folder with --cache, or {without}"
    if cache is not None and not cache.strip():
        # As a path it would be the working directory.
        raise UserError(f"--cache is empty; name a folder, or {without}")
    folder = default_folder() if cache is None else Path(cache)
    try:
        # Other users of the machine must not read a user's documents.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the cache {folder} cannot be made ({error.strerror}); {advice}") from error
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"the cache {folder} belongs to another user, who lets nobody read it; {advice}")
    return SavedDocuments(folder, room, evict=True, private=True, tell=tell)
