"""The answer store: every answer of a model, stored permanently under its request."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import psutil
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.schema import CreateTable

from utaca.errors import UserError
from utaca.settings.checks import DATABASE, is_database
from utaca.settings.schema import EndpointSettings

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""Seconds that the store waits for a busy file, or for a lost database server to come back."""
_ROWS_AT_ONCE = 500  # of an export, in memory
# Types of network file systems, as the system's table of mounts names them.
_NETWORK = re.compile(r"(fuse\.)?(afs|beegfs|ceph|cifs|glusterfs|gpfs|juicefs|lustre|nfs4?|rclone|smb\w+|sshfs|wekafs)")
# The digest identifies an answer; rowid gives the order of arrival.
_ANSWERS = sa.Table(
    "answers",
    sa.MetaData(),
    sa.Column("rowid", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("answered", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
)


def sampling(endpoint: EndpointSettings) -> dict[str, Any]:
    """The sampling parameters of an endpoint as the request carries them."""
    parameters = {name: getattr(endpoint, name) for name in ("temperature", "top_p", "seed", "max_tokens")}
    if endpoint.reasoning_effort:
        parameters["reasoning_effort"] = endpoint.reasoning_effort
    return parameters


def identity(
    endpoint: EndpointSettings, messages: Sequence[Mapping[str, Any]], answer_schema: Mapping[str, Any], version: str
) -> str:
    """The identity of a request as a JSON list: model, messages, sampling, shape of the answer, version of the prompt.

    Address, key and limits are left out, so that an answer is found again when the server moves. Parameters and shape
    are included even if the server refuses a parameter or the response format: the identity does not depend on
    refusals, so that a run that meets one midway still finds its earlier answers. An answer lists the parameters that
    the server refused under "left_out".
    """
    parts = [endpoint.model, list(messages), sampling(endpoint), answer_schema, version]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest(request: str) -> str:
    """The key of a request in the store: the SHA-256 of its :func:`identity`, in hexadecimal."""
    return hashlib.sha256(request.encode()).hexdigest()


class AnswerStore:
    """Append-only table of raw answers, in an SQLite file or a PostgreSQL database.

    Each answer is committed as it arrives: a killed process loses no answer, and several processes may read and write
    at once. An SQLite file is in write-ahead mode, and must lie on a file system that is local to all processes; a
    PostgreSQL database may be used from many machines. If the database server is lost, statements wait for its return.
    """

    def __init__(self, place: Path | str) -> None:
        """Open an SQLite file by path or a PostgreSQL database by URL; raises :class:`UserError` on failure."""
        self.place = place
        self._is_server = is_database(str(place))
        self._opened = False  # Statements wait for a lost server only after a first success.
        self._engine = _server_engine(str(place)) if self._is_server else _file_engine(Path(place))
        insert = (postgresql if self._is_server else sqlite).insert(_ANSWERS)
        # A second answer to the same request is ignored: no row is inserted.
        insert = insert.on_conflict_do_nothing(index_elements=["digest"])
        self._insert = insert.execution_options(preserve_rowcount=True)
        try:
            self._run(self._create_table)
        except UserError:
            self._engine.dispose()
            raise
        self._opened = True

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.dispose()

    def _create_table(self, connection: sa.Connection) -> None:
        """Create the table of answers if there is none.

        Raises :class:`UserError` for a table with other columns, and for a database in another encoding than UTF-8.
        """
        if not self._is_server:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        else:
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
            if encoding != "UTF8":
                raise UserError(
                    f"{self.place} has the encoding {encoding}, which cannot store every answer; make a database that "
                    "can: createdb --encoding=UTF8 --template=template0 NAME"
                )
        try:
            connection.execute(CreateTable(_ANSWERS, if_not_exists=True))
        except DBAPIError:
            # A server lets only one of several processes create the table, and requires the privilege CREATE even if
            # the table exists.
            if not sa.inspect(connection).has_table(_ANSWERS.name):
                raise
        columns = {str(column["name"]) for column in sa.inspect(connection).get_columns(_ANSWERS.name)}
        if not {*_ANSWERS.columns.keys()} - {"rowid"} <= columns:
            raise UserError(
                f"{self.place} has a table answers that another program or an earlier version made; name another file "
                "or database"
            )

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer kept under the digest ``key``, as the server's completion object; None if there is none."""
        statement = sa.select(_ANSWERS.c.answer).where(_ANSWERS.c.digest == key)
        answer = self._run(lambda connection: connection.execute(statement).scalar())
        return None if answer is None else self._parsed(answer)

    def put(
        self, request: str, model: str, answer: dict[str, Any], tokens: tuple[int, int], seconds: float
    ) -> dict[str, Any]:
        """Keep a model's answer to the request with identity ``request``, and return it.

        If another process has kept an answer to it, that answer stays and is returned. ``tokens`` are the numbers of
        prompt and completion tokens, ``seconds`` the time that the answer took.
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
        n_inserted = self._run(lambda connection: connection.execute(self._insert, row).rowcount)
        if n_inserted:
            return answer
        return self.get(row["digest"]) or answer

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield the answers in the order of arrival, each as a plain dict with its request, token counts and time."""
        statement = sa.select(_ANSWERS).order_by(_ANSWERS.c.rowid).execution_options(yield_per=_ROWS_AT_ONCE)
        # Outside of a transaction PostgreSQL would send all rows at once.
        engine = self._engine.execution_options(isolation_level="SERIALIZABLE")
        try:
            with engine.connect() as connection:
                for row in connection.execute(statement).mappings():
                    request = self._parsed(row["request"])
                    if not isinstance(request, list) or len(request) != 5:
                        raise self._damaged(row["request"])
                    _, messages, parameters, shape, version = request
                    yield {
                        "digest": row["digest"],
                        "model": row["model"],
                        "version": version,
                        "messages": messages,
                        "sampling": parameters,
                        "schema": shape,
                        "answer": self._parsed(row["answer"]),
                        "prompt_tokens": row["prompt_tokens"],
                        "completion_tokens": row["completion_tokens"],
                        "seconds": row["seconds"],
                        "answered": row["answered"],
                    }
        except DBAPIError as fault:
            raise self._fault(fault) from fault

    def prune(self, *, model: str | None, before: str | None, dry_run: bool) -> int:
        """Remove the answers of ``model`` from before the time ``before`` (ISO 8601, UTC); None sets no condition.

        Returns the number of these answers; if ``dry_run``, they are counted but not removed.
        """
        chosen = []
        if model is not None:
            chosen.append(_ANSWERS.c.model == model)
        if before is not None:
            chosen.append(_ANSWERS.c.answered < before)
        if dry_run:
            count = sa.select(sa.func.count()).select_from(_ANSWERS).where(*chosen)
            return self._run(lambda connection: connection.execute(count).scalar_one())
        return self._run(lambda connection: connection.execute(sa.delete(_ANSWERS).where(*chosen)).rowcount)

    def _parsed(self, text: str) -> Any:
        """The content of a stored JSON text; raises :class:`UserError` if it is damaged."""
        try:
            return json.loads(text)
        except (ValueError, TypeError):
            raise self._damaged(text) from None

    def _damaged(self, text: object) -> UserError:
        """The error for a stored text that is neither a request nor an answer."""
        return UserError(
            f"{self.place} has {str(text)[:60]!r} where a request or an answer should be; name another store"
        )

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        """Run ``work`` on a connection and return its result.

        While the file is locked or the server is lost, it is run again, for a minute; so it may run more than once.
        Raises :class:`UserError` for any other fault of the database.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = 0.05
        while True:
            try:
                with self._engine.connect() as connection:
                    return work(connection)
            except DBAPIError as fault:
                # SQLite itself waits for other writers, except when it changes a file to write-ahead mode.
                transient = "locked" in str(fault.orig)
                if self._is_server:
                    lost = fault.connection_invalidated or isinstance(fault, OperationalError)
                    transient = self._opened and lost
                if not transient or time.monotonic() > deadline:
                    raise self._fault(fault) from fault
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _fault(self, fault: DBAPIError) -> UserError:
        """The error for a fault of the database, with advice by what its driver says."""
        # The driver's message in one line; SQLAlchemy's would add the statement and its values.
        words = " ".join(str(fault.orig).split())
        if self._opened:
            return UserError(
                f"{self.place} can no longer be used as the answer store ({words}); repair it and run again. The "
                "answers so far are kept"
            )
        advice = "start the server, or correct the URL" if self._is_server else "move it away or free it"
        if "password" in words:
            advice = "put the password into the environment variable PGPASSWORD or into ~/.pgpass"
        elif self._is_server and "does not exist" in words:
            advice = f"make it on the server (createuser, createdb {self._engine.url.database}), or correct the URL"
        elif "permission denied" in words:
            advice = "let an owner of the schema GRANT it"
        return UserError(f"{self.place} cannot be used as the answer store ({words}); {advice}")


def _file_engine(path: Path) -> sa.Engine:
    """The engine of an SQLite file; makes the file's folder.

    Raises :class:`UserError` if the folder cannot be made, or is on a network file system.
    """
    _check_local(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise UserError(f"{path} cannot be used as the answer store ({fault}); move it away or free it") from fault
    url = sa.URL.create("sqlite", database=str(path.absolute()))
    timeout = {"timeout": PATIENCE_SECONDS}
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", hide_parameters=True, connect_args=timeout)
    # In write-ahead mode, NORMAL keeps all committed answers of a killed process, without a wait for the disk at each.
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
    return engine


def _server_engine(place: str) -> sa.Engine:
    """The engine of a PostgreSQL database; raises :class:`UserError` if its driver is not installed."""
    url = sa.make_url(place)
    # SQLAlchemy does not decode percent escapes in the database's name.
    url = url.set(
        drivername="postgresql+psycopg",
        database=unquote(url.database or ""),
        query={"connect_timeout": "10", "application_name": "utaca", **url.query},
    )
    try:
        return sa.create_engine(url, isolation_level="AUTOCOMMIT", hide_parameters=True)
    except ImportError as fault:
        raise UserError(f"{place} needs the driver psycopg ({fault}); run: pip install 'utaca[postgres]'") from fault


def _check_local(path: Path) -> None:
    """Raise :class:`UserError` if ``path`` is on a network file system, on which SQLite's write-ahead mode breaks."""
    resolved = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if resolved.is_relative_to(mount.mountpoint)]
    # The deepest mount has the file; a later mount hides an earlier one at the same mount point.
    mount = max(reversed(mounts), key=lambda mount: len(Path(mount.mountpoint).parts), default=None)
    if mount and _NETWORK.fullmatch(mount.fstype):
        raise UserError(
            f"{path} lies on a network file system ({mount.fstype}, mounted at {mount.mountpoint}), where SQLite can "
            f"lose answers; set answers to a file on a local disk, or to a PostgreSQL database, {DATABASE}"
        )


def check(place: str) -> str:
    """Check that the store can be used, before a run depends on it; returns a description of the store.

    Raises :class:`UserError` if the store cannot be used. A missing file is not created.
    """
    if not is_database(place) and not Path(place).exists():
        _check_local(Path(place))
        existing = [path for path in Path(place).absolute().parents if path.exists()]
        folder = existing[0]
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UserError(
                f"{place} cannot be made, because the folder {folder} cannot be written to; set answers to another file"
            )
        return f"{place}, to be made"
    with AnswerStore(place):
        return place
