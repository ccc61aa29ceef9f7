"""Figures of a measurement as a Markdown table."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One figure in seconds or bytes, and the figure that it is compared with, both measured in the same round."""

    what: str
    amount: float
    base: str
    base_amount: float
    unit: str = "s"


def compared(rounds: Sequence[Sequence[Row]]) -> str:
    """Rows of several rounds as one table: medians of both figures, and the ratio's median [least, most]."""
    rows = []
    for same in zip(*rounds, strict=True):
        first = same[0]
        amount = shown(statistics.median(row.amount for row in same), first.unit)
        base = shown(statistics.median(row.base_amount for row in same), first.unit)
        ratio = spread([row.amount / row.base_amount for row in same])
        rows.append((first.what, amount, first.base, base, ratio))
    return markdown(("What", "Takes", "Against", "Takes", "Ratio"), rows)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts whose first column is aligned left, the others right."""
    rule = ("---", *["---:"] * (len(header) - 1))
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def spread(values: Sequence[float]) -> str:
    """Median [least, most]."""
    return f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"


def shown(amount: float, unit: str) -> str:
    """Seconds or bytes ("s", "B") in the unit that leaves one to four digits before the point."""
    steps = [(2**30, "GiB"), (2**20, "MiB")] if unit == "B" else [(1, "s"), (1e-3, "ms"), (1e-6, "µs")]
    size, name = next((step for step in steps if amount >= step[0]), steps[-1])
    return f"{amount / size:.3g} {name}"
