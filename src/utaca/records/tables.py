"""Reading and writing of stage files: checked against their schema, written atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from utaca.errors import UserError
from utaca.records.schemas import SCHEMAS


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A scratch path beside ``path`` that replaces it when the block ends well, and vanishes otherwise."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    os.chmod(scratch, 0o644)
    try:
        yield Path(scratch)
        os.replace(scratch, path)
    finally:
        Path(scratch).unlink(missing_ok=True)


def write(
    path: str | Path,
    kind: str,
    data: pa.Table | Iterable[Mapping[str, Any]],
    *,
    schema: pa.Schema | None = None,
    config: str = "",
) -> None:
    """Write rows as Parquet under the schema ``kind``, atomically.

    ``schema`` is needed where it depends on the reader (``kind="trajectories"``); ``config`` is the digest of the
    settings that made the file. Raises ``pyarrow.ArrowInvalid`` where a row does not fit the schema.
    """
    schema = schema or SCHEMAS[kind]
    table = data.cast(schema) if isinstance(data, pa.Table) else pa.Table.from_pylist(list(data), schema=schema)
    table = table.replace_schema_metadata({"utaca.kind": kind, "utaca.config": config})
    with atomic_path(path) as scratch:
        pq.write_table(table, scratch, compression="zstd")


def read(path: str | Path | Sequence[str | Path], kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one stage file, or several parts in order, checking kind and columns.

    Raises :class:`UserError` naming the file that is missing or is not what it should be.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    return pa.concat_tables([_read(Path(p), kind, columns) for p in paths])


def _read(path: Path, kind: str, columns: Sequence[str] | None) -> pa.Table:
    if not path.is_file():
        raise UserError(f"{path} does not exist; make it with its target: snakemake --cores all {path}")
    own = pq.read_schema(path)
    found = (own.metadata or {}).get(b"utaca.kind", b"").decode()
    if found != kind:
        raise UserError(f"{path} holds {found or 'foreign data'}, not {kind}; remove it and make it again")
    if missing := [column for column in columns or [] if column not in own.names]:
        raise UserError(f"{path} has no column {missing[0]}; it was made otherwise: remove it and make it again")
    table = pq.read_table(path, columns=list(columns) if columns else None)
    expected = SCHEMAS.get(kind)
    if expected is not None and columns is None and not table.schema.equals(expected):
        raise UserError(f"{path} was written with another version of the {kind} schema; remove it and make it again")
    return table.replace_schema_metadata(None)


def rows(
    path: str | Path | Sequence[str | Path], kind: str, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """:func:`read` as a list of plain dicts."""
    return read(path, kind, columns).to_pylist()
