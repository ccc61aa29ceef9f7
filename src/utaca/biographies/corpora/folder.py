"""Padding prose from the user's own files."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from utaca.biographies.corpora.text import MINIMUM_CHARACTERS, article
from utaca.errors import UserError
from utaca.prose_files import UNREADABLE, prose_files
from utaca.records import texts
from utaca.records.texts import opened, whole_characters

_NEEDED = ("title", "text")
_OPTIONAL = ("url", "licence", "revision")
_REMEDY = "correct it, or remove it"

_log = logging.getLogger(__name__)


def articles(path: str | Path, key: str = "corpus.path") -> list[dict[str, Any]]:
    """Read a folder of .txt and .md files, or one .jsonl or .parquet file, into rows of schema ``corpus``.

    A file's records need ``title`` and ``text`` and may have ``url``, ``licence`` and ``revision``; other fields are
    ignored. Files of a folder (with sub-folders and symbolic links) are read in the order of their paths; a file's name
    is its title. Other files, and texts without a usable paragraph, are left out with a warning. ``key`` is the config
    key that error sentences name. Raises :class:`UserError` if the path does not exist, a file is unreadable, a record
    is malformed or no text is usable.
    """
    if not str(path):
        raise UserError(f"{key} is empty; name a folder of text files, or a JSONL or Parquet file")
    path = Path(path)
    if path.is_dir():
        records = _folder(path, key)
    elif not path.exists():
        raise UserError(f"{key} {path} does not exist; correct the path")
    elif path.suffix.lower() == ".jsonl":
        records = (_record(row, where) for where, row in texts.records(path, _REMEDY))
    elif path.suffix.lower() == ".parquet":
        records = _parquet(path)
    else:
        raise UserError(f"{key} {path} is neither a folder nor a .jsonl or .parquet file; convert it to one of them")
    candidates = [article("folder", **record) for record in records]
    rows = [row for row in candidates if row["text"]]
    if not rows:
        raise UserError(
            f"{key} {path} has no paragraph of at least {MINIMUM_CHARACTERS} characters; separate the paragraphs by "
            "blank lines"
        )
    n_short = len(candidates) - len(rows)
    if n_short:
        omission = "%s: %d of %d texts have no paragraph of %d characters and are left out"
        _log.warning(omission, path, n_short, len(candidates), MINIMUM_CHARACTERS)
    return rows


def _folder(path: Path, key: str) -> Iterator[dict[str, str]]:
    """The title and text of each text file of a folder; a warning names the files that are left out.

    Raises :class:`UserError`, which names the config ``key``, if a file is unreadable or there is none.
    """
    left_out: dict[str, list[str]] = {}
    files = prose_files(str(path), left_out)
    omissions = "; ".join(f"{len(paths)} {reason}, such as {paths[0]}" for reason, paths in left_out.items())
    if UNREADABLE in left_out:
        raise UserError(f"{key} {path}: {left_out[UNREADABLE][0]} cannot be read; correct its permissions")
    if not files:
        others = f" ({omissions})" if omissions else ""
        raise UserError(f"{key} {path} has no .txt or .md file{others}; add text files, or correct the path")
    if omissions:
        _log.warning("%s: left out: %s", path, whole_characters(omissions))
    for file in files:
        title = whole_characters(Path(file).stem.replace("_", " "))
        with opened(file, _REMEDY) as text:
            yield {"title": title, "text": text.read()}


def _parquet(path: Path) -> Iterator[dict[str, str]]:
    """The known fields of each row of a Parquet file; raises :class:`UserError` if it is not such a file."""
    try:
        names = pq.read_schema(path).names
        missing = [name for name in _NEEDED if name not in names]
        if missing:
            raise UserError(f"{path} has no column {' and no column '.join(missing)}; add it")
        columns = [name for name in (*_NEEDED, *_OPTIONAL) if name in names]
        rows = pq.read_table(path, columns=columns).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}); write it again") from None
    for number, row in enumerate(rows, 1):
        yield _record(row, f"{path}, row {number},")


def _record(record: dict[str, Any], place: str) -> dict[str, str]:
    """The known fields of a record; raises :class:`UserError` that names its ``place`` if title or text is missing."""
    for name in _NEEDED:
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise UserError(f"{place} has no text under the key {name!r}; {_REMEDY}")
    known = {}
    for name in (*_NEEDED, *_OPTIONAL):
        if record.get(name) is not None:
            known[name] = str(record[name])
    return known
