"""Keep the finished pieces of an unfinished stage, so that a killed run loses at most the piece in progress.

Snakemake removes the outputs of a job that did not finish; the journal of the stage survives, and the next run
continues from it. The key of a piece is a digest of everything that the piece depends on (:func:`fingerprint`), so a
stale piece is never used.
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from utaca.records.tables import atomic_path

_LARGEST = 1 << 26
"""Bytes of the largest file whose content a fingerprint reads."""


def fingerprint(settings: str, files: Iterable[str | Path]) -> str:
    """Hexadecimal SHA-256 digest of ``settings`` (a digest itself) and of the files' names and contents.

    Of files beyond 64 MiB, size and modification time stand for the content: reading it would take as long as the work.
    """
    digest = hashlib.sha256(settings.encode())
    for path in map(Path, files):
        state = path.stat()
        is_large = state.st_size > _LARGEST
        content = f"{state.st_size} {state.st_mtime_ns}".encode() if is_large else path.read_bytes()
        digest.update(f"\n{path.name} {hashlib.sha256(content).hexdigest()}".encode())
    return digest.hexdigest()


class Journal:
    """Keeps a table for each item of a stage in ``folder``.

    ``identity`` is the digest of everything that all items depend on; what one item depends on is part of its name. The
    folder may be deleted; the work that it held is then done again.
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        self._folder = Path(folder)
        self._identity = identity

    def table(self, item: str, make: Callable[[], pa.Table], failed: str = "") -> pa.Table:
        """Return the table of ``item``; if it is missing, call ``make`` and keep its result.

        With ``failed``, a table whose first row has this word as its ``finish`` is returned but not kept, so that the
        next run makes it again.
        """
        digest = hashlib.sha256(f"{self._identity}\n{item}".encode()).hexdigest()
        path = self._folder / digest[:2] / f"{digest}.parquet"
        # A machine that crashes may leave an empty file or half a file, which is made again.
        with suppress(pa.ArrowException, OSError):
            return pq.read_table(path)
        table = make()
        if not failed or table["finish"][0].as_py() != failed:
            with atomic_path(path) as scratch:
                pq.write_table(table, scratch, compression="zstd")
        return table
