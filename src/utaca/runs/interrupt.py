"""End a workflow on Ctrl-C without tracebacks, and with a last line that says how to continue."""

import atexit
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

import psutil

INTERRUPTED = "Interrupted. Finished work is kept; the same command continues."
DEAF = "set -euo pipefail; trap '' INT;"
"""Shell prefix of jobs: they ignore Ctrl-C themselves, whatever they import just then; their parent ends them."""
_received: list[int] = []
"""Numbers of the signals that :func:`_interrupted` received."""


def end_quietly() -> None:
    """Have Ctrl-C end this process and its jobs without tracebacks, and with :data:`INTERRUPTED` as the last line.

    A second Ctrl-C ends the process immediately, and leaves Snakemake's lock.
    """
    # What is registered first runs last.
    atexit.register(lambda: _received and print(INTERRUPTED, file=sys.stderr, flush=True))
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: Any) -> NoReturn:
    """End the jobs and this process; from now on, a second Ctrl-C ends it immediately."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _received.append(number)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    # Snakemake's scheduler catches this exception, ends its work and removes its lock.
    raise SystemExit(128 + number)
