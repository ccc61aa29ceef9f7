"""Reading of text and JSON files that users provide; every mistake in a file is reported in one sentence."""

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


def whole_characters(text: str) -> str:
    """Replace each lone surrogate (half of an emoji in scraped JSON) by U+FFFD: UTF-8 has no surrogates."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


@contextmanager
def opened(path: str | Path, mend: str, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file as UTF-8, with or without a byte order mark; :class:`UserError` if it is unreadable or not UTF-8."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); convert it, or {mend}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {mend}") from error


def read_json(path: str | Path, mend: str) -> Any:
    """The content of a JSON file; raises :class:`UserError` (with advice ``mend``) if it is unreadable or not JSON."""
    with opened(path, mend) as file:
        return parsed(file.read(), str(path), mend)


def records(path: str | Path, mend: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location in words, object) for every line of a JSONL file; blank lines are skipped."""
    with opened(path, mend) as file:
        # Not splitlines(): U+2028 and similar characters may occur inside a JSON text.
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number},"
                record = parsed(line, where, mend)
                if not isinstance(record, dict):
                    raise UserError(f"{where} is not a JSON object; {mend}")
                yield where, record


def parsed(text: str, where: str, mend: str) -> Any:
    """Parse JSON, with :func:`whole_characters` on its texts; ``where`` names the JSON text in error messages."""
    try:
        found = json.loads(text)
        return json.loads(whole_characters(json.dumps(found, ensure_ascii=False))) if _HALF.search(text) else found
    except RecursionError as error:
        raise UserError(f"{where} is JSON that is nested too deep; {mend}") from error
    except json.JSONDecodeError as error:
        place = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise UserError(f"{where} is not JSON ({place}); {mend}") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise UserError(f"{where} holds a number of more than 4,300 digits; {mend}") from error


def checked(kind: type[T], value: Any, where: str, mend: str) -> T:
    """Return ``value`` if it fits ``kind`` (a mapping; further keys are allowed); else raise :class:`UserError`."""
    try:
        pydantic.TypeAdapter(kind).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f" at {'.'.join(map(str, first['loc']))}" if first["loc"] else ""
        raise UserError(f"{where} has a fault{place}: {first['msg']}; {mend}") from None
    return value
