"""Padding prose from the user's own files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from utaca.biographies.corpora.text import MINIMUM_CHARACTERS, paragraphs
from utaca.errors import UserError

_TEXT_SUFFIXES = (".txt", ".md")
_NEEDED = ("title", "text")
_OPTIONAL = ("url", "licence", "revision")

_log = logging.getLogger(__name__)


def articles(path: str | Path, key: str = "corpus.path") -> list[dict[str, Any]]:
    """Rows of schema ``corpus`` from a folder of .txt and .md files, or from one .jsonl or .parquet file.

    A file's records need ``title`` and ``text`` and may have ``url``, ``licence`` and ``revision``; other fields are
    ignored. Files of a folder (its sub-folders too) are read in the order of their paths and titled by their names.
    Texts without a usable paragraph are left out with a warning. ``key`` is the config key that mistakes are told of.
    Raises :class:`UserError` for a path that does not
    exist, an unreadable file, a malformed record and a source without usable text.
    """
    if not str(path):
        raise UserError(f"{key} is empty; name a folder of text files, or a JSONL or Parquet file")
    path = Path(path)
    if path.is_dir():
        records = _folder(path, key)
    elif not path.exists():
        raise UserError(f"{key} {path} does not exist; correct it")
    elif path.suffix == ".jsonl":
        records = _jsonl(path)
    elif path.suffix == ".parquet":
        records = _parquet(path)
    else:
        raise UserError(f"{key} {path} is neither a folder nor a .jsonl or .parquet file; convert it to one of them")
    rows, total = [], 0
    for record in records:
        total += 1
        usable = paragraphs(record["text"])
        if usable:
            rows.append({**record, "text": "\n\n".join(usable), "source": "folder", "synthetic": False})
    if not rows:
        raise UserError(
            f"{key} {path} has no usable text, that is no paragraph of {MINIMUM_CHARACTERS} characters or more; "
            "paragraphs are separated by blank lines"
        )
    if len(rows) < total:
        short = "%s: %d of %d texts have no paragraph of %d characters and are left out"
        _log.warning(short, path, total - len(rows), total, MINIMUM_CHARACTERS)
    return rows


def _folder(path: Path, key: str) -> Iterator[dict[str, str]]:
    files = sorted(
        (p for p in path.rglob("*") if p.is_file() and p.suffix in _TEXT_SUFFIXES),
        key=lambda p: p.relative_to(path).as_posix(),
    )
    if not files:
        raise UserError(f"{key} {path} has no .txt or .md file; put prose there or correct the path")
    for file in files:
        yield {"title": file.stem.replace("_", " "), "text": _text(file), "url": "", "licence": "", "revision": ""}


def _jsonl(path: Path) -> Iterator[dict[str, str]]:
    # Not splitlines(): U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number} is not JSON ({error.msg}); mend or remove the line") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number} is not an object with title and text; mend or remove the line")
        yield _record(record, f"{path}, line {number}")


def _parquet(path: Path) -> Iterator[dict[str, str]]:
    try:
        names = pq.read_schema(path).names
        missing = [name for name in _NEEDED if name not in names]
        if missing:
            raise UserError(f"{path} has no column {' and no column '.join(missing)}; add it")
        rows = pq.read_table(path, columns=[n for n in (*_NEEDED, *_OPTIONAL) if n in names]).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}); write it again") from None
    for number, row in enumerate(rows, 1):
        yield _record(row, f"{path}, row {number}")


def _record(record: dict[str, Any], place: str) -> dict[str, str]:
    for name in _NEEDED:
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise UserError(f"{place} has no text under {name!r}; mend or remove it")
    row = {name: record[name] for name in _NEEDED}
    for name in _OPTIONAL:
        value = record.get(name)
        row[name] = "" if value is None else str(value)
    return row


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; convert it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); mend its permissions") from None
