"""Read text and JSON files that users provide; every mistake in a file is reported in one sentence.

The sentence ends with ``advice``, which each function takes: what the user can do about the file.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import pydantic

from utaca.errors import UserError

T = TypeVar("T")
Filled = Annotated[str, pydantic.Field(pattern=r"\S")]
"""A text of more than white space, for :func:`checked`."""
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""A surrogate as JSON escapes it, which may be a lone one."""


def whole_characters(text: str) -> str:
    """Replace each lone surrogate (half of an emoji in scraped JSON) by U+FFFD: UTF-8 has no surrogates."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


@contextmanager
def opened(path: str | Path, advice: str, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file for the block as UTF-8, with or without a byte order mark.

    ``newline`` is as in :func:`open`. Raises :class:`UserError` if the file cannot be read or is not UTF-8.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); convert it, or {advice}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {advice}") from error


def read_json(path: str | Path, advice: str) -> Any:
    """Read a JSON file; raises :class:`UserError` if it cannot be read or is not JSON."""
    with opened(path, advice) as file:
        return parsed(file.read(), str(path), advice)


def records(path: str | Path, advice: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place of the line in words, object) for every line of a JSONL file; blank lines are skipped.

    The place begins error messages. Raises :class:`UserError` as :func:`read_json`, and for a line that is not an
    object.
    """
    with opened(path, advice) as file:
        # Not splitlines(): U+2028 and similar characters may occur inside a JSON text.
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number},"
                record = parsed(line, where, advice)
                if not isinstance(record, dict):
                    raise UserError(f"{where} is not a JSON object; {advice}")
                yield where, record


def parsed(text: str, where: str, advice: str) -> Any:
    """Parse JSON, with :func:`whole_characters` on its texts; ``where`` names the JSON text in error messages.

    Raises :class:`UserError` if it is not JSON, nested too deep, or has a number too long for Python.
    """
    try:
        value = json.loads(text)
        if _HALF.search(text):
            # Escapes of both halves in a row have become one character in ``value``; surrogates there are lone ones.
            value = json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
        return value
    except RecursionError as error:
        raise UserError(f"{where} is JSON that is nested too deeply; {advice}") from error
    except json.JSONDecodeError as error:
        place = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise UserError(f"{where} is not JSON ({place}); {advice}") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise UserError(f"{where} has a number with more than 4,300 digits; {advice}") from error


def checked(kind: type[T], value: Any, where: str, advice: str) -> T:
    """Return ``value`` if it fits ``kind``, a typed mapping; further keys are allowed.

    Else raise :class:`UserError`, whose message begins with ``where``.
    """
    try:
        pydantic.TypeAdapter(kind).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f" at {'.'.join(map(str, first['loc']))}" if first["loc"] else ""
        raise UserError(f"{where} has an error{place}: {first['msg']}; {advice}") from None
    return value
