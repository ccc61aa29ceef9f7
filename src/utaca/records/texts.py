"""Text and JSON of files that users bring: one way to read them, and a sentence for every mistake."""

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
    """A text with U+FFFD for each lone surrogate, as half an emoji in scraped JSON is one: UTF-8 has none."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


@contextmanager
def opened(path: str | Path, mend: str, newline: str | None = None) -> Iterator[TextIO]:
    """A file to read as UTF-8, with or without a mark at its start; raises :class:`UserError` where it is none."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); convert it, or {mend}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {mend}") from error


def read_json(path: str | Path, mend: str) -> Any:
    """What a JSON file holds."""
    with opened(path, mend) as file:
        return parsed(file.read(), str(path), mend)


def records(path: str | Path, mend: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each object of a JSONL file stands, and the object; blank lines are passed over."""
    with opened(path, mend) as file:
        # Not splitlines(): U+2028 and its like may stand inside a JSON text.
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number},"
                record = parsed(line, where, mend)
                if not isinstance(record, dict):
                    raise UserError(f"{where} is not a JSON object; {mend}")
                yield where, record


def parsed(text: str, where: str, mend: str) -> Any:
    """What JSON says, halves of characters as :func:`whole_characters` has them; ``where`` names it in messages."""
    try:
        found = json.loads(text)
        return json.loads(whole_characters(json.dumps(found, ensure_ascii=False))) if _HALF.search(text) else found
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({getattr(error, 'msg', error)}); {mend}") from error


def checked(kind: type[T], value: Any, where: str, mend: str) -> T:
    """``value`` where it is a ``kind`` (a typed mapping), keys of its own aside; else :class:`UserError` on its first
    fault."""
    try:
        pydantic.TypeAdapter(kind).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f" at {'.'.join(map(str, first['loc']))}" if first["loc"] else ""
        raise UserError(f"{where} has a fault{place}: {first['msg']}; {mend}") from None
    return value
