"""One progress bar for all long work: rate, ETA, readable in a terminal and in a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(
    iterable: Iterable[T], *, total: int | None = None, unit: str = "it", description: str = ""
) -> Iterator[T]:
    """Iterate with a bar on standard error: done, total, rate, ETA.

    Where standard error is no terminal (a rule's log) a line is written every ten seconds instead.
    """
    return iter(_bar(iterable, total=total, unit=unit, desc=description))


def counter(*, total: int, done: int, unit: str, description: str, disable: bool = False) -> tqdm:
    """The same bar, moved on by hand (``update``); ``done`` were done by an earlier run; hidden if ``disable``."""
    return _bar(None, total=total, initial=done, unit=unit, desc=description, disable=disable)


def _bar(iterable: Iterable[T] | None, **options: object) -> tqdm:
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(iterable, mininterval=interval, dynamic_ncols=True, **options)
