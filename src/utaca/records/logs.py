"""A stage's log file: a copy of standard error, in which a user's mistake is one sentence and no traceback."""

import errno
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NoReturn, TextIO

from utaca.errors import UserError
from utaca.records.progress import named

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Faults of a full disk."""
_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EIO,
    errno.ESTALE,
)  # fmt: skip
"""Faults of a folder or a disk that a stage reads or writes."""


class _Tee(io.TextIOBase):
    """A text stream that writes to a file and, the same, to ``terminal``, the standard error so far.

    That may be a terminal or not; programs that ask this stream get its answers.
    """

    def __init__(self, terminal: TextIO, file: TextIO) -> None:
        self._terminal = terminal
        self._file = file

    def write(self, text: str) -> int:
        # A progress bar redraws itself in a terminal; in the file, each of its states becomes a line.
        self._file.write(text.replace("\r", "\n") if self.isatty() else text)
        self._file.flush()
        return self._terminal.write(text)

    def flush(self) -> None:
        self._terminal.flush()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def fileno(self) -> int:
        return self._terminal.fileno()


def _stop(number: int, frame: Any) -> NoReturn:
    """End on SIGTERM as on Ctrl-C, so that what is half written is removed."""
    raise KeyboardInterrupt


def job_of(path: str | Path) -> str:
    """The name of a job by its log file: split and shard, variant, table or set of tasks, as in ``train-0``.

    Logs are ``logs/RUN/RULE/JOB.log``. A rule that has one job has ``logs/RUN/RULE.log``, and its job no name.
    """
    path = Path(path)
    is_only_job = path.parent.parent.name == "logs"
    return "" if is_only_job else path.stem


@contextmanager
def stage_log(path: str | Path) -> Iterator[None]:
    """Copy what the block writes to standard error, log records included, to the file ``path``.

    Progress bars in the block get the job's name (:func:`job_of`).

    A :class:`UserError`, a full disk or a place that cannot be read or written prints one sentence and exits with
    status 1; Ctrl-C or SIGTERM exits with status 130 and a line in the file; any other exception is raised again after
    its traceback was written to the file.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    terminal = sys.stderr
    with open(path, "w", encoding="utf-8") as file, redirect_stderr(_Tee(terminal, file)), named(job_of(path)):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("utaca")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        handler_before = signal.getsignal(signal.SIGTERM)
        # Only the main thread may set a handler.
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread:
            signal.signal(signal.SIGTERM, _stop)
        try:
            yield
        except KeyboardInterrupt:
            file.write("interrupted\n")
            raise SystemExit(130) from None
        except UserError as error:
            print(f"Error: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                # Only to the terminal: the log file may be on the full disk.
                place = error.filename or "the disk"
                print(f"Error: {place}: {os.strerror(error.errno)}; free some and run again", file=terminal)
                raise SystemExit(1) from None
            file.write(traceback.format_exc())
            if isinstance(error, OSError) and error.errno in _PLACE and error.filename:
                print(f"Error: {error.filename}: {os.strerror(error.errno)}; correct it and run again", file=terminal)
                raise SystemExit(1) from None
            raise
        finally:
            if in_main_thread:
                signal.signal(signal.SIGTERM, handler_before)
            logger.removeHandler(handler)
