"""One progress bar for all long work: rate, ETA, readable in a terminal and in a log file."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(iterable: Iterable[Any] | None = None, **options: Any) -> tqdm:
    """Make a tqdm bar with these options on standard error; without a terminal, it prints every ten seconds."""
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(iterable, mininterval=interval, dynamic_ncols=True, **options)
