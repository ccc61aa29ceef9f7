"""One progress bar for all long work: rate, ETA, readable in a terminal and in a log file."""

import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(iterable: Iterable[Any] | None = None, **options: Any) -> tqdm:
    """Make a tqdm bar with these options on standard error; without a terminal, it prints every ten seconds."""
    terminal = sys.stderr.isatty()
    # A terminal without a size, as a CI's may be, would show no bar.
    width = {"dynamic_ncols": True} if not terminal or _columns() else {"ncols": 80}
    return tqdm(iterable, mininterval=0.1 if terminal else 10.0, **width, **options)


def _columns() -> int:
    """The width of the terminal in characters; 0 if it has no size."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0
