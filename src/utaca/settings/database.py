"""The database that the config key ``answers`` may name by a URL.

No sentence here quotes a URL: what is refused may hold a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from utaca.errors import UserError

if TYPE_CHECKING:
    from sqlalchemy import URL

FORM = "postgresql://USER@HOST/DATABASE"
_SCHEMES = ("postgresql", "postgresql+psycopg")
# Of libpq's options those that hold no secret.
_OPTIONS = (
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "host", "keepalives_idle", "options",
    "passfile", "port", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "tcp_user_timeout",
)  # fmt: skip
_PASSWORD = "holds a password; leave it out, and put it into the environment variable PGPASSWORD or into ~/.pgpass"


def database(answers: str) -> URL | None:
    """The PostgreSQL database that ``answers`` names by a URL; None where it names a file.

    Raises :class:`UserError` where the URL has a password, another scheme, no database, or cannot be read.
    """
    scheme = answers.partition(":")[0].strip().lower()
    if "://" not in answers and not (scheme.startswith("postgres") and ":" in answers):
        return None
    if scheme not in _SCHEMES:
        raise UserError(f"answers has a URL of another kind; write the path of a file, or {FORM}")
    from sqlalchemy import exc, make_url  # Configs that name a file, which are most, do without.

    malformed = UserError(f"answers is a URL that cannot be read; write {FORM}, as in postgresql://ada@db1:5432/utaca")
    try:
        url = make_url(answers)
    except (ValueError, exc.ArgumentError):
        raise malformed from None
    if url.password is not None or any("pass" in key and key not in _OPTIONS for key in url.query):
        raise UserError(f"answers {_PASSWORD}")
    if not url.database:
        raise UserError(f"answers names no database; write {FORM}")
    # An unquoted password may end the host early, and so come to stand here.
    if any(mark in url.database for mark in "/@:#"):
        raise malformed
    if not url.query.keys() <= set(_OPTIONS):
        raise UserError(f"answers has an option that is unknown; known are {', '.join(_OPTIONS)}")
    return url.set(database=unquote(url.database))
