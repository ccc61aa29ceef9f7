"""Standard input, output and error of the command, which may be closed, full, or pipes that nobody reads."""

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from utaca.errors import UserError


def tell(sentence: str) -> None:
    """Show the user a sentence, on standard error."""
    if sys.stderr is not None:  # closed; print would take standard output in its place
        print(sentence, file=sys.stderr, flush=True)


def guard() -> None:
    """Make standard output raise :class:`UserError` where it cannot be written to, and standard error go on.

    Raises :class:`UserError` at once if standard output is closed. A broken pipe stays a :class:`BrokenPipeError`.
    """
    _fill()
    sys.stderr = _wrapped(sys.stderr, _Error, 2)
    if sys.stdout is None:
        raise UserError("standard output is closed; send it to a file, or to /dev/null")
    sys.stdout = _wrapped(sys.stdout, _Output, 1)


def end() -> None:
    """Write what is left to standard output. Raises :class:`UserError` if that fails, but for a broken pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout.fileno())


def _drop(number: int) -> None:
    """Send what is still to come for a stream nowhere: Python writes it once more when it exits."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _fill() -> None:
    """Open the numbers of streams that are closed: the next file would take them, and what is written to the stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _drop(number)


def _wrapped(stream: TextIO | None, kind: type[io.FileIO], number: int) -> TextIO:
    """A stream that writes to the file of another as ``kind`` does; what has no file stays."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(kind(number, "w", closefd=False)), "utf-8", "backslashreplace")
    try:
        file = io.BufferedWriter(kind(stream.fileno(), "w", closefd=False))
    except (OSError, ValueError):
        return stream
    return io.TextIOWrapper(
        file,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Output(io.FileIO):
    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _drop(self.fileno())
            raise UserError(f"standard output cannot be written to ({error.strerror}); send it elsewhere") from error


class _Error(io.FileIO):
    def write(self, data: Any) -> int | None:
        # There is no other place to say so, and the answer does not need it.
        with suppress(OSError):
            return super().write(data)
        return len(data)
