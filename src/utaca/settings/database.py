"""The database that the config key ``answers`` may name by a URL; without heavy imports, as it is checked early.

No sentence here quotes a URL: what is refused may hold a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from utaca.errors import UserError

FORM = "postgresql://USER@HOST/DATABASE"
_SCHEMES = ("postgresql", "postgresql+psycopg")
# Of libpq's options those that hold no secret.
_OPTIONS = (
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "host", "keepalives_idle", "options",
    "passfile", "port", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "tcp_user_timeout",
)  # fmt: skip
_PASSWORD = "holds a password; leave it out, and put it into the environment variable PGPASSWORD or into ~/.pgpass"


@dataclass(frozen=True)
class Database:
    """A PostgreSQL database: its ``url``, without a password, and the parts of it; None where libpq is to decide."""

    url: str
    user: str | None
    host: str | None
    port: int | None
    name: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        return self.url


def database(answers: str) -> Database | None:
    """The database that ``answers`` names by a URL; None where it names a file.

    Raises :class:`UserError` where the URL has a password, another scheme, no database, or cannot be read.
    """
    scheme = answers.partition(":")[0].strip().lower()
    if "://" not in answers and not (scheme.startswith("postgres") and ":" in answers):
        return None
    if scheme not in _SCHEMES:
        raise UserError(f"answers has a URL of another kind; write the path of a file, or {FORM}")
    malformed = UserError(f"answers is a URL that cannot be read; write {FORM}, as in postgresql://ada@db1:5432/utaca")
    try:
        parts = urlsplit(answers)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        if parts.password is not None or any("pass" in key and key not in _OPTIONS for key in options):
            raise UserError(f"answers {_PASSWORD}")
        port = parts.port
    except ValueError:
        raise malformed from None
    name = unquote(parts.path.removeprefix("/"))
    # An unquoted password may end the host early, and so come to stand here.
    if parts.fragment or "://" not in answers or any(mark in name for mark in "/@:"):
        raise malformed
    if not name:
        raise UserError(f"answers names no database; write {FORM}")
    if not options.keys() <= set(_OPTIONS):
        raise UserError(f"answers has an option that is unknown; known are {', '.join(_OPTIONS)}")
    user = unquote(parts.username) if parts.username else None
    return Database(answers, user, parts.hostname, port, name, options)
