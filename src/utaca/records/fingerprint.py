"""What a stage depends on, as one digest: the identity of its journal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_LARGEST = 1 << 26


def fingerprint(settings: str, files: Iterable[str | Path]) -> str:
    """Digest of ``settings`` (a digest itself) and of the files' contents; of tables, the rows alone.

    Files beyond 64 MiB count with size and modification time, since reading them would take as long as the work.
    """
    digest = hashlib.sha256(settings.encode())
    for path in map(Path, files):
        digest.update(f"\n{path.name} {hashlib.sha256(_content(path)).hexdigest()}".encode())
    return digest.hexdigest()


def _content(path: Path) -> bytes | pa.Buffer:
    state = path.stat()
    if state.st_size > _LARGEST:
        return f"{state.st_size} {state.st_mtime_ns}".encode()
    if path.suffix != ".parquet":
        return path.read_bytes()
    table, sink = pq.read_table(path).replace_schema_metadata(None).combine_chunks(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()
