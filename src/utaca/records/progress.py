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
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return iter(tqdm(iterable, total=total, unit=unit, desc=description, mininterval=interval, dynamic_ncols=True))
