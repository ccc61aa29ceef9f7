"""The databases under the answer store: an SQLite file or a PostgreSQL database, with the same table in them."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy import (
    DOUBLE_PRECISION,
    REAL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Identity,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    inspect,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.schema import CreateTable

from utaca.errors import UserError
from utaca.settings import machine
from utaca.settings.database import FORM, Database

PATIENCE_SECONDS = 60.0
"""How long a busy file, or a server that went away, is waited for."""
_CONNECT_SECONDS = 10
_NETWORK = {
    "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
    "fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs",
}  # fmt: skip


def table(dialect: str) -> Table:
    """The table of answers; ``rowid``, which tells their order, is SQLite's own there."""
    sqlite = dialect == "sqlite"
    count = Integer() if sqlite else BigInteger()
    return Table(
        "answers",
        MetaData(),
        Column("rowid", count, system=True) if sqlite else Column("rowid", count, Identity(always=True)),
        Column("digest", Text, primary_key=True),
        Column("model", Text, nullable=False),
        Column("answer", Text, nullable=False),
        Column("prompt_tokens", count, nullable=False),
        Column("completion_tokens", count, nullable=False),
        Column("seconds", REAL() if sqlite else DOUBLE_PRECISION(), nullable=False),
        Column("answered", Text, nullable=False),
        Column("request", Text, nullable=False, server_default=""),
        sqlite_strict=True,
    )


def open_file(path: Path) -> Engine:
    """The store in an SQLite file, which is made where need be.

    Raises :class:`UserError` where it lies on a network file system, or is none.
    """
    check_local(path)
    engine = create_engine(
        URL.create("sqlite", database=str(path.absolute())),
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
        paramstyle="named",
        connect_args={"timeout": PATIENCE_SECONDS},
    )
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                with engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                    _lay_out(connection, str(path))
                return engine
            except OperationalError as fault:
                # The change to write-ahead mode does not wait for other openers as ordinary statements do.
                if "locked" not in str(fault.orig) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    except (DBAPIError, OSError) as fault:
        engine.dispose()
        raise UserError(
            f"{path} cannot be used as the answer store ({in_words(fault)}); move it away or free it"
        ) from fault


def check_local(path: Path) -> None:
    """Raise :class:`UserError` where ``path`` is on a network file system: SQLite's write-ahead mode breaks there."""
    kind, point = machine.filesystem(path) or ("", "")
    if kind in _NETWORK:
        raise UserError(
            f"{path} lies on a network file system ({kind}, mounted at {point}), on which SQLite loses answers; set "
            f"answers to a file on a local disk, or to a PostgreSQL database, {FORM}"
        )


def open_server(database: Database) -> Engine:
    """The store in a PostgreSQL database, in which the table is made where need be.

    Raises :class:`UserError` where the driver is missing, or the database cannot be reached or used.
    """
    try:
        engine = create_engine(
            URL.create("postgresql+psycopg", database.user, None, database.host, database.port, database.name),
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
            connect_args={"connect_timeout": _CONNECT_SECONDS, "application_name": "utaca", **database.options},
        )
    except ImportError as fault:
        raise UserError(
            f"{database} needs the driver psycopg ({fault}), which the extra postgres brings: pip install "
            "'utaca[postgres]'"
        ) from fault
    try:
        with engine.connect() as connection:
            encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
            if encoding != "UTF8":
                raise UserError(
                    f"{database} is in encoding {encoding}, which cannot hold every answer; make one that can: "
                    f"createdb --encoding=UTF8 --template=template0 NAME"
                )
            _lay_out(connection, str(database))
        return engine
    except DBAPIError as fault:
        engine.dispose()
        said = in_words(fault)
        mend = "start the server, or correct the URL"
        if "password" in said:
            mend = "put the password into the environment variable PGPASSWORD or into ~/.pgpass"
        elif "does not exist" in said:
            mend = f"make it on the server (createuser, createdb {database.name}), or correct the URL"
        elif "permission denied" in said:
            mend = "let an owner of the schema GRANT it"
        raise UserError(f"{database} cannot be used as the answer store ({said}); {mend}") from fault


def in_words(fault: BaseException) -> str:
    """What a database said, in one line, without the statement and its values."""
    return " ".join(str(getattr(fault, "orig", None) or fault).split())


def _lay_out(connection: Connection, name: str) -> None:
    """Make the table where there is none; a foreign one is refused."""
    answers = table(connection.dialect.name)
    try:
        connection.execute(CreateTable(answers, if_not_exists=True))
    except DBAPIError:
        # A server lets but one of several processes make it, and asks for a right to even where it is there.
        if not inspect(connection).has_table(answers.name):
            raise
    wanted = {column.name for column in answers.columns if not column.system}
    if not wanted <= {str(column["name"]) for column in inspect(connection).get_columns(answers.name)}:
        raise UserError(
            f"{name} has a table answers of another program's, or of an early version; name another file or database"
        )
