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
    """Make standard output raise :class:`UserError` if it cannot be written to; standard error then raises nothing.

    Raises :class:`UserError` at once if standard output is closed. A broken pipe stays a :class:`BrokenPipeError`.
    """
    _fill()
    sys.stderr = _wrapped(sys.stderr, _Error, 2)
    if sys.stdout is None:
        raise UserError("standard output is closed; send it to a file, or to /dev/null")
    sys.stdout = _wrapped(sys.stdout, _Output, 1)


def end() -> None:
    """Write what is left to standard output. Raises :class:`UserError` if that fails, except for a broken pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout.fileno())


def _drop(number: int) -> None:
    """Let the file ``number`` lead nowhere, so that what Python still writes to it when it exits raises no error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == number:
        # The number was closed, so the system gave it to the opened file; child processes must have it too.
        os.set_inheritable(number, True)
    else:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _fill() -> None:
    """Let closed standard streams lead nowhere: the next opened file would take their numbers, and get their text."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            _drop(number)


def _wrapped(stream: TextIO | None, kind: type[io.FileIO], number: int) -> TextIO:
    """A text stream to the file of ``stream`` whose writes are those of ``kind``; ``stream`` itself if it has no file.

    If ``stream`` is None (closed), the file is that with this ``number``.
    """
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
    """The file of standard output; see :func:`guard`."""

    def write(self, data: Any) -> int | None:
        """Write, or raise :class:`UserError`; BrokenPipeError if nobody reads."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _drop(self.fileno())
            raise UserError(f"standard output cannot be written to ({error.strerror}); send it elsewhere") from error


class _Error(io.FileIO):
    """The file of standard error; what cannot be written is lost."""

    def write(self, data: Any) -> int | None:
        # There is no other place to say that it failed, and the answer does not need it.
        with suppress(OSError):
            return super().write(data)
        return len(data)
