"""The answer store: every answer of a model, kept for good and found again by what was asked."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, Text, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError

from utaca.endpoints import engines
from utaca.errors import UserError
from utaca.settings.database import database
from utaca.settings.schema import Endpoint

T = TypeVar("T")
_ROWS_AT_ONCE = 500


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
    endpoint: Endpoint,
    messages: Sequence[Mapping[str, Any]],
    answer_schema: Mapping[str, Any],
    version: str,
    revision: str = "",
) -> str:
    """What identifies a request, as a JSON list: model, messages, sampling, shape of the answer, version of the prompt.

    Address, key and limits are left out, so that an answer is found again when the server moves. So is what the server
    refused of the request, a parameter or the response format: the settings ask a model for the same, refused or not,
    and a run that finds the refusal only midway, or not at all as all is here, has its answers. An answer without a
    parameter says so, under "left_out". Another ``revision`` of a model counts as another model.
    """
    model = f"{endpoint.model}@{revision}" if revision else endpoint.model
    parts = [model, list(messages), sampling(endpoint), answer_schema, version]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest(request: str) -> str:
    """The name of a request, given by :func:`identity`, in the store: its SHA-256."""
    return hashlib.sha256(request.encode()).hexdigest()


class Store:
    """Append-only table of raw answers, in an SQLite file or a PostgreSQL database.

    Each answer is committed as it arrives: a killed process loses nothing that it was given, and several processes may
    read and write at once. A file is in write-ahead mode, and must lie on a file system that all of them see as local;
    a database may be used from many machines. Where its server goes away, statements wait for it to come back.
    """

    def __init__(self, place: Path | str) -> None:
        """``place`` is a file, or the URL of a database; raises :class:`UserError` where it cannot be used."""
        named = database(str(place))
        self.place = place
        self._engine = engines.open_server(named) if named else engines.open_file(Path(place))
        self._answers = engines.table(self._engine.dialect.name)
        insert = postgresql.insert if named else sqlite.insert
        # The first answer to a request stays. Compiled once, as SQLAlchemy keeps no compiled statement of this kind.
        self._insert = self._compiled(insert(self._answers).on_conflict_do_nothing(index_elements=["digest"]))
        self._select = self._compiled(
            select(self._answers.c.answer).where(self._answers.c.digest == bindparam("key", type_=Text))
        )

    def _compiled(self, statement: Executable) -> str:
        columns = [column.name for column in self._answers.columns if column.name != "rowid"]
        return str(statement.compile(self._engine, column_keys=columns))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    def get(self, key: str) -> dict[str, Any] | None:
        """The raw answer kept under ``key``, the server's completion object, or None."""
        found = self._run(lambda connection: connection.exec_driver_sql(self._select, {"key": key}).scalar())
        return None if found is None else json.loads(found)

    def put(self, request: str, model: str, answer: Mapping[str, Any], tokens: tuple[int, int], seconds: float) -> None:
        """Keep a model's answer to a request given by :func:`identity`, under its :func:`digest`; the first one stays.

        ``tokens`` are those of prompt and completion, ``seconds`` the time it took.
        """
        row = {
            "digest": digest(request),
            "model": model,
            "answer": json.dumps(answer, ensure_ascii=False),
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "seconds": seconds,
            "answered": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "request": request,
        }
        self._run(lambda connection: connection.exec_driver_sql(self._insert, row))

    def export(self) -> Iterator[dict[str, Any]]:
        """The answers, each as a plain dict with its request and what it cost, in the order of their arrival."""
        kept = self._answers.c
        names = (kept.digest, kept.model, kept.request, kept.answer, kept.prompt_tokens, kept.completion_tokens)
        statement = select(*names, kept.seconds, kept.answered).order_by(kept.rowid)
        # Outside of a transaction PostgreSQL would send all of them at once.
        engine = self._engine.execution_options(isolation_level="SERIALIZABLE")
        try:
            with engine.connect() as connection:
                rows = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(statement)
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
        except DBAPIError as fault:
            raise self._fault(fault) from fault

    def prune(self, *, model: str | None, before: str | None, dry_run: bool) -> int:
        """Remove the answers of a model, those of before a time (ISO 8601, UTC), or those that are both.

        Returns their number; where ``dry_run`` is set, they stay.
        """
        kept = self._answers.c
        chosen = [] if model is None else [kept.model == model]
        chosen += [] if before is None else [kept.answered < before]
        if dry_run:
            count = select(func.count()).select_from(self._answers).where(*chosen)
            return self._run(lambda connection: connection.execute(count).scalar_one())
        removed = self._run(lambda connection: connection.execute(delete(self._answers).where(*chosen)).rowcount)
        if self._engine.dialect.name == "sqlite":
            # Servers look after this themselves.
            self._run(lambda connection: connection.exec_driver_sql("VACUUM"))
        return removed

    def _run(self, work: Callable[[Connection], T]) -> T:
        """Do one statement, which may be done twice; again where a server is gone, until patience ends."""
        deadline, pause = time.monotonic() + engines.PATIENCE_SECONDS, 0.05
        while True:
            try:
                with self._engine.connect() as connection:
                    return work(connection)
            except DBAPIError as fault:
                # A file that is busy has been waited for already.
                away = self._engine.dialect.name != "sqlite" and (
                    fault.connection_invalidated or isinstance(fault, OperationalError)
                )
                if not away or time.monotonic() > deadline:
                    raise self._fault(fault) from fault
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _fault(self, fault: DBAPIError) -> UserError:
        return UserError(
            f"{self.place} can no longer be used as the answer store ({engines.in_words(fault)}); mend it and run "
            "again: the answers so far are kept"
        )


def check(place: str) -> str:
    """Make sure that the store can be used, before a run depends on it; returns what was found.

    Raises :class:`UserError`. A file that is not there yet is not made.
    """
    if not database(place) and not Path(place).exists():
        engines.check_local(Path(place))
        folder = next(path for path in Path(place).absolute().parents if path.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(f"{place} cannot be made, for {folder} cannot be written; set answers to another file")
        return f"{place}, to be made"
    with Store(place):
        return place
