"""What a stage depends on, as one digest: the identity of its journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_LARGEST = 1 << 26


def fingerprint(settings: str, files: Iterable[str | Path]) -> str:
    """Digest of ``settings`` (a digest itself) and of the files' contents.

    Weights beyond 64 MiB count with size and modification time, since reading them would take as long as the work.
    """
    digest = hashlib.sha256(settings.encode())
    for path in map(Path, files):
        state = path.stat()
        large = state.st_size > _LARGEST
        content = f"{state.st_size} {state.st_mtime_ns}".encode() if large else path.read_bytes()
        digest.update(f"\n{path.name} {hashlib.sha256(content).hexdigest()}".encode())
    return digest.hexdigest()
