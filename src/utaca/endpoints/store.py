"""The answer store: every answer of a model, kept for good and found again by what was asked."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from utaca import reference
from utaca.errors import UserError
from utaca.settings.schema import Endpoint

_BUSY_SECONDS = 60.0
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    digest TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    answer TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    answered TEXT NOT NULL,
    request TEXT NOT NULL DEFAULT ''
) STRICT
"""
# Stores of before the requests themselves were kept, too; their digests hold.
_ADD_REQUEST = "ALTER TABLE answers ADD COLUMN request TEXT NOT NULL DEFAULT ''"


def sampling(endpoint: Endpoint) -> dict[str, Any]:
    """The sampling parameters of an endpoint as the request carries them."""
    parameters = {
        "temperature": endpoint.temperature,
        "top_p": endpoint.top_p,
        "seed": endpoint.seed,
        "max_tokens": endpoint.max_tokens,
    }
    if endpoint.reasoning_effort:
        parameters["reasoning_effort"] = endpoint.reasoning_effort
    return parameters


def identity(
    endpoint: Endpoint, messages: Sequence[Mapping[str, Any]], answer_schema: Mapping[str, Any], version: str
) -> str:
    """What identifies a request, as a JSON list: model, messages, sampling, shape of the answer, version of the prompt.

    Address, key and limits are left out, so that an answer is found again when the server moves. The embedded
    reference counts as another model once its rules change.
    """
    model = f"{endpoint.model}@{reference.revision()}" if endpoint.kind == "reference" else endpoint.model
    parts = [model, list(messages), sampling(endpoint), answer_schema, version]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest(request: str) -> str:
    """The name of a request, given by :func:`identity`, in the store: its SHA-256."""
    return hashlib.sha256(request.encode()).hexdigest()


class Group(NamedTuple):
    """Answers of one kind: how many, their tokens, the seconds they took in all, when the first and last arrived.

    Version and shape are None for answers of before they were kept.
    """

    model: str
    version: str | None
    shape: str | None
    answers: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    first: str
    last: str


class Store:
    """Append-only SQLite file of raw answers.

    Each answer is committed as it arrives, in write-ahead mode: a killed process loses nothing that it
    was given, and several processes may read and write at once. The file must lie on a file system that all
    of them see as local, which is what SQLite's write-ahead mode asks for.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        try:
            self._connection = _open(path)
        except sqlite3.Error as fault:
            raise UserError(f"{path} cannot be used as the answer store ({fault}); move it away or free it") from fault

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """The raw answer kept under ``key``, the server's completion object, or None."""
        row = self._connection.execute("SELECT answer FROM answers WHERE digest = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def put(self, request: str, model: str, answer: Mapping[str, Any], tokens: tuple[int, int], seconds: float) -> None:
        """Keep a model's answer to a request given by :func:`identity`, under its :func:`digest`; the first one stays.

        ``tokens`` are those of prompt and completion, ``seconds`` the time it took.
        """
        answered = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = json.dumps(answer, ensure_ascii=False)
        self._connection.execute(
            "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (digest(request), model, text, *tokens, seconds, answered, request),
        )

    def groups(self) -> list[Group]:
        """What is kept, by model, version of the prompt and shape of the answer, in their order."""
        rows = self._connection.execute(
            "SELECT model, json_extract(nullif(request, ''), '$[4]'), json_extract(nullif(request, ''), '$[3].title'), "
            "count(*), sum(prompt_tokens), sum(completion_tokens), sum(seconds), min(answered), max(answered) "
            "FROM answers GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
        return [Group(*row) for row in rows]

    def export(self) -> Iterator[dict[str, Any]]:
        """The answers, each as a plain dict with its request and what it cost, in the order of their arrival."""
        rows = self._connection.execute(
            "SELECT digest, model, request, answer, prompt_tokens, completion_tokens, seconds, answered "
            "FROM answers ORDER BY rowid"
        )
        for key, model, request, answer, prompt, completion, seconds, answered in rows:
            _, messages, sampled, shape, version = json.loads(request) if request else [None] * 5
            yield {
                "digest": key,
                "model": model,
                "version": version,
                "messages": messages,
                "sampling": sampled,
                "schema": shape,
                "answer": json.loads(answer),
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "seconds": seconds,
                "answered": answered,
            }

    def prune(self, *, model: str | None, before: str | None, dry_run: bool) -> int:
        """Remove the answers of a model, those of before a time (ISO 8601, UTC), or those that are both.

        Returns their number; where ``dry_run`` is set, they stay.
        """
        chosen = "(:model IS NULL OR model = :model) AND (:before IS NULL OR answered < :before)"
        values = {"model": model, "before": before}
        if dry_run:
            return int(self._connection.execute(f"SELECT count(*) FROM answers WHERE {chosen}", values).fetchone()[0])
        removed = self._connection.execute(f"DELETE FROM answers WHERE {chosen}", values).rowcount
        self._connection.execute("VACUUM")
        return removed


def _open(path: Path) -> sqlite3.Connection:
    deadline = time.monotonic() + _BUSY_SECONDS
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_TABLE)
            _migrate(connection)
            return connection
        except sqlite3.OperationalError as fault:
            # The change to write-ahead mode does not wait for other openers as ordinary statements do.
            if "locked" not in str(fault) or time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(0.05)
        except sqlite3.Error:
            connection.close()
            raise


def _migrate(connection: sqlite3.Connection) -> None:
    if "request" in _columns(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been first.
        if "request" not in _columns(connection):
            connection.execute(_ADD_REQUEST)
    finally:
        connection.execute("COMMIT")


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(answers)")}
