"""Rows of the benchmark: a figure, the bar it is held to, what it is made of, and its floor."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NAN = float("nan")
RATIO, SECONDS, BYTES, PASSES = "ratio", "s", "B", "passes"
_HOLDS = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}


@dataclass(frozen=True)
class Bar:
    """A limit: a value is to be ``<=``, ``>=`` or exactly ``=`` it."""

    sign: str
    limit: float

    def met(self, value: float) -> bool:
        return _HOLDS[self.sign](value, self.limit)


@dataclass(frozen=True)
class Part:
    """A side of a row: its name, and seconds or bytes, the median over the repeats where it was measured."""

    name: str
    amount: float


@dataclass(frozen=True)
class Row:
    """A figure of the benchmark.

    ``values`` holds one figure a repeat, in ``unit``; it is empty where there is none, and ``reason`` says why.
    ``ours`` is the engine's side in seconds or bytes, ``against`` the other one. ``floor`` is the least that ``ours``
    could be, for the work named in ``work``: on this machine, or on the one that the row names.
    """

    what: str
    unit: str
    values: Sequence[float] = ()
    bar: Bar | None = None
    ours: Part | None = None
    against: Part | None = None
    floor: float = NAN
    work: str = ""
    reason: str = ""

    @property
    def value(self) -> float:
        """Median over the repeats; NaN where there is no figure."""
        return statistics.median(self.values) if self.values else NAN

    @property
    def distance(self) -> float:
        """How many times its floor the engine's side is; NaN where either is missing."""
        return self.ours.amount / self.floor if self.ours else NAN

    @property
    def verdict(self) -> str:
        """ "met" or "missed"; why there is no figure; empty where there is no bar."""
        if not self.values:
            return f"not measured ({self.reason})"
        if self.bar is None:
            return ""
        return "met" if self.bar.met(self.value) else "missed"
