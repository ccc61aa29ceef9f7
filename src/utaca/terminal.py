"""Standard output of the commands."""

from __future__ import annotations

import io
import sys


def print_any_letter() -> None:
    """From now on, write letters that the encoding of standard output lacks as escapes, in place of raising."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
