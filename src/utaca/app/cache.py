"""The folder in which ``utaca ask`` saves the documents that it has read."""

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
        raise UserError(f"size {size!r} is not understood; write a size such as 8GiB or 500MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def opened(folder: Path, size: int) -> SavedDocuments:
    """Open the folder of saved documents, at most ``size`` bytes of them; it is made if it is missing.

    Raises :class:`UserError`, naming the option, if the folder cannot be made.
    """
    try:
        # Other users of the machine must not read a user's documents.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the cache {folder} cannot be made ({error.strerror}); name another folder with --cache, or give "
            "--no-cache"
        ) from error
    return SavedDocuments(folder, size, evict=True, private=True, tell=tell)
