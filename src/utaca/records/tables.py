"""Read and write stage files: checked against their schema, written atomically, never mixed with another run's.

The metadata of a file has its schema's name and two digests: of the settings that the file was made under, and of the
metadata of its source files, their two digests included (:func:`provenance`). Trajectories also name the reader that
decoded them.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from utaca.errors import UserError
from utaca.records.schemas import SCHEMAS


@dataclass(frozen=True)
class Origin:
    """The reader that made a file, or that a detector was trained for; two with the same ``identity`` are equal.

    ``identity`` is :attr:`utaca.readers.load.Reader.identity`, ``name`` is the reader's name in the config.
    """

    name: str = field(compare=False)
    identity: str

    def __str__(self) -> str:
        return f"{self.name} ({self.identity})"


@contextmanager
def atomic_path(path: str | Path, mode: int = 0o644) -> Iterator[Path]:
    """Yield the path of a scratch file in the folder of ``path``, for the block to write.

    The file replaces ``path``, with the permissions ``mode``, if the block succeeds; else it is removed. Until then
    only this user may read it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(scratch)
        # After the block, because a library may have replaced the scratch file by another one.
        os.chmod(scratch, mode)
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
    made_from: Sequence[str | Path] = (),
    reader: Origin | None = None,
) -> None:
    """Write rows as Parquet under the schema ``kind``, atomically.

    ``schema`` is needed if the columns depend on the reader (``kind="trajectories"``); ``config`` is the digest of the
    settings that made the file, ``made_from`` the files whose contents made it, ``reader`` the one that
    :func:`reader_of` returns. Raises ``pyarrow.ArrowInvalid`` if a row does not fit the schema.
    """
    schema = schema or SCHEMAS[kind]
    table = data.cast(schema) if isinstance(data, pa.Table) else pa.Table.from_pylist(list(data), schema=schema)
    about = {"utaca.kind": kind, "utaca.config": config, "utaca.source": provenance(made_from)}
    if reader is not None:
        about |= {"utaca.reader": reader.name, "utaca.reader_identity": reader.identity}
    table = table.replace_schema_metadata(about)
    with atomic_path(path) as scratch:
        pq.write_table(table, scratch, compression="zstd")


@contextmanager
def reading(path: str | Path, what: str = "Parquet file") -> Iterator[None]:
    """Turn what a library raises in the block, which reads the file ``path``, into a :class:`UserError`.

    It says that the file is missing, cannot be read, or is damaged, cut off or not a ``what``.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; make it with its target: snakemake --cores all {path}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder, not a {what}; remove it and run again") from error
    except PermissionError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); correct its permissions") from error
    except MemoryError:
        raise
    # A truncated or damaged file is an error of any of these classes to the libraries.
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is not a complete {what}; remove it and run again") from error


def check_whole(path: str | Path) -> None:
    """Raise :class:`UserError` if a Parquet file is cut off; reads only the footer at its end."""
    with reading(path):
        pq.read_schema(path)


def read(path: str | Path | Sequence[str | Path], kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the rows of one stage file, or of several in order, as a table.

    ``kind`` is the name of the files' schema; ``columns`` are read, all if None. Raises :class:`UserError` if a file is
    missing, damaged or of another kind or schema, or if two files were made with different readers or settings.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    tables = [_read(Path(each), kind, columns) for each in paths]
    _shared_reader(paths)
    configs = [_about(each).get("utaca.config", "") for each in paths]
    for other, config in zip(paths, configs, strict=True):
        if config != configs[0]:
            raise UserError(
                f"{paths[0]} and {other} were made with different settings, so they must not be combined; remove the "
                "older one and make it again"
            )
    return pa.concat_tables(tables)


def reader_of(paths: Sequence[str | Path]) -> Origin:
    """The reader that made all of these stage files.

    Raises :class:`UserError` if the files name no reader, or different readers.
    """
    found = _shared_reader(paths)
    if found is None:
        raise UserError(f"{paths[0]} does not say which reader made it; remove it and make it again")
    return found


def provenance(paths: Sequence[str | Path]) -> str:
    """A digest that changes if one of these files, or what it was made from, changes; "" for no files.

    It has 16 hexadecimal digits. Stage files enter with their metadata (kind, settings, sources, reader), other files,
    such as a detector, with their contents. Raises :class:`UserError` if a file is missing or damaged.
    """
    if not paths:
        return ""
    digest = hashlib.sha256()
    for path in map(Path, paths):
        with reading(path):
            identity = repr(sorted(_about(path).items())) if path.suffix == ".parquet" else path.read_bytes().hex()
        digest.update(hashlib.sha256(identity.encode()).digest())
    return digest.hexdigest()[:16]


def check_source(path: str | Path, made_from: Sequence[str | Path]) -> None:
    """Raise :class:`UserError` if a stage file was not made from the files ``made_from`` as they are now.

    Its metadata has the digest of those that it was made from (:func:`provenance`).
    """
    if _about(path).get("utaca.source", "") != provenance(made_from):
        raise UserError(f"{path} was made from other data than {made_from[0]} has now; remove {path} and make it again")


def _about(path: str | Path) -> dict[str, str]:
    """The metadata of a stage file that :func:`write` has put there."""
    with reading(path):
        metadata = pq.read_schema(path).metadata or {}
        return {key.decode(): value.decode() for key, value in metadata.items() if key.startswith(b"utaca.")}


def _shared_reader(paths: Sequence[str | Path]) -> Origin | None:
    """The reader that all stage files name, None if they name none; :class:`UserError` if they name different ones."""
    readers = []
    for path in paths:
        about = _about(path)
        named = {"utaca.reader", "utaca.reader_identity"} <= about.keys()
        readers.append(Origin(about["utaca.reader"], about["utaca.reader_identity"]) if named else None)
    first = readers[0]
    for path, reader in zip(paths, readers, strict=True):
        if reader != first:
            raise UserError(
                f"{paths[0]} was made with reader {first or 'unknown'}, but {path} with reader {reader or 'unknown'}, "
                "so they must not be combined; remove the older one and make it again"
            )
    return first


def _read(path: Path, kind: str, columns: Sequence[str] | None) -> pa.Table:
    """Read one stage file, without its metadata, as :func:`read` does."""
    with reading(path):
        schema = pq.read_schema(path)
        found_kind = (schema.metadata or {}).get(b"utaca.kind", b"").decode()
    if found_kind != kind:
        raise UserError(f"{path} has {found_kind or 'foreign data'} instead of {kind}; remove it and make it again")
    if missing := [column for column in columns or [] if column not in schema.names]:
        raise UserError(f"{path} has no column {missing[0]}, so another version made it; remove it and make it again")
    # A schema that depends on the reader (trajectories) is not listed, and cannot be compared. If only some columns are
    # read, the others may differ.
    expected = SCHEMAS.get(kind)
    has_duplicates = len(set(schema.names)) < len(schema.names)
    differs = expected is not None and columns is None and not schema.equals(expected)
    if has_duplicates or differs:
        raise UserError(f"{path} was written with another version of the {kind} schema; remove it and make it again")
    with reading(path):
        table = pq.read_table(path, columns=list(columns) if columns else None)
    return table.replace_schema_metadata(None)


def rows(
    path: str | Path | Sequence[str | Path], kind: str, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Read rows as plain dicts, with the checks and errors of :func:`read`."""
    return read(path, kind, columns).to_pylist()
