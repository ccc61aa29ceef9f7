"""One progress bar for all long work: rate, ETA, readable in a terminal and in a log file."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

_jobs: list[str] = []
"""The name of this process's job, if it has one (:func:`named`)."""


@contextmanager
def named(job: str) -> Iterator[None]:
    """Put the name of a job after the description of each bar in the block; "" adds nothing.

    Jobs that run side by side write into one terminal, where only the name says whose bar it is.
    """
    _jobs.append(job)
    try:
        yield
    finally:
        _jobs.pop()


def progress(iterable: Iterable[Any] | None = None, *, desc: str = "", **options: Any) -> tqdm:
    """Make a tqdm bar with these options on standard error; without a terminal, it prints every ten seconds."""
    terminal = sys.stderr.isatty()
    # A terminal without a size, as a CI's may be, would show no bar.
    width = {"dynamic_ncols": True} if not terminal or _columns() else {"ncols": 80}
    job = _jobs[-1] if _jobs else ""
    label = f"{desc} {job}".strip()
    return tqdm(iterable, desc=label, mininterval=0.1 if terminal else 10.0, **width, **options)


def _columns() -> int:
    """The width of the terminal in characters; 0 if it has no size."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0
