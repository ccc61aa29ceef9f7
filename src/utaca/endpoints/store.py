"""The answer store: every answer of a model, kept for good and found again by what was asked."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    answered TEXT NOT NULL
) STRICT
"""


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


def digest(
    endpoint: Endpoint, messages: Sequence[Mapping[str, Any]], answer_schema: Mapping[str, Any], version: str
) -> str:
    """What identifies a request: model, messages, sampling, shape of the answer, version of the prompt.

    Address, key and limits are left out, so that an answer is found again when the server moves.
    """
    identity = [endpoint.model, list(messages), sampling(endpoint), answer_schema, version]
    text = json.dumps(identity, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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

    def put(self, key: str, model: str, answer: Mapping[str, Any], tokens: tuple[int, int], seconds: float) -> None:
        """Keep an answer with its prompt and completion tokens and the seconds it took; the first one kept stays."""
        answered = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._connection.execute(
            "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)",
            (key, model, json.dumps(answer, ensure_ascii=False), *tokens, seconds, answered),
        )


def _open(path: Path) -> sqlite3.Connection:
    deadline = time.monotonic() + _BUSY_SECONDS
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_TABLE)
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
