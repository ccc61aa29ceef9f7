"""Finished pieces of an unfinished stage, so that a killed run loses at most the piece in hand.

Snakemake removes the outputs of a job that did not finish; what a stage has journaled survives, and the next run
takes it up. Pieces are kept under the digest of all they depend on (:func:`fingerprint`), so a stale one is never
found.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from utaca.records.tables import atomic_path

_LARGEST = 1 << 26


def fingerprint(settings: str, files: Iterable[str | Path]) -> str:
    """Digest of ``settings`` (a digest itself) and of the files' contents.

    Files beyond 64 MiB count with size and modification time, since reading them would take as long as the work.
    """
    digest = hashlib.sha256(settings.encode())
    for path in map(Path, files):
        state = path.stat()
        large = state.st_size > _LARGEST
        content = f"{state.st_size} {state.st_mtime_ns}".encode() if large else path.read_bytes()
        digest.update(f"\n{path.name} {hashlib.sha256(content).hexdigest()}".encode())
    return digest.hexdigest()


class Journal:
    """Tables by item, in ``folder``; ``identity`` is the digest of everything that the items have in common.

    A folder that is deleted is only work to be done again.
    """

    def __init__(self, folder: str | Path, identity: str) -> None:
        self._folder, self._identity = Path(folder), identity

    def table(self, item: str, make: Callable[[], pa.Table]) -> pa.Table:
        """The item's table, made and journaled where it is not there yet."""
        digest = hashlib.sha256(f"{self._identity}\n{item}".encode()).hexdigest()
        path = self._folder / digest[:2] / f"{digest}.parquet"
        if path.is_file():
            return pq.read_table(path)
        table = make()
        with atomic_path(path) as scratch:
            pq.write_table(table, scratch, compression="zstd")
        return table
