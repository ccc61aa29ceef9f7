"""The PostgreSQL database that the config key ``answers`` may name by a URL."""

from __future__ import annotations

import re

from utaca.errors import UserError

FORM = "postgresql://USER@HOST/DATABASE"
# User, host, port, database, and options without a secret.
_URL = re.compile(
    r"(?ai)postgresql(\+psycopg)?://([\w.%-]+@)?([\w.%-]+|\[[\da-f:]+\])?(:\d+)?/[\w.%-]+"
    r"(\?((?!\w*(password|secret|_key|token))\w+=[^&@#]*&?)+)?"
)


def is_database(answers: str) -> bool:
    """Whether ``answers`` names a database, by a URL, and not a file.

    Raises:
        UserError: the URL has a password, another scheme or no database; the URL is not quoted.
    """
    if "://" not in answers and not re.match(r"(?i)\s*postgres\w*:", answers):
        return False
    if not _URL.fullmatch(answers):
        raise UserError(
            f"answers must be the path of a file, or {FORM} without a password; put that into the environment variable "
            "PGPASSWORD or into ~/.pgpass"
        )
    return True
