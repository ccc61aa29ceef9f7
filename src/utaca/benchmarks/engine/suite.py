"""From answers to the tables of a suite, as the stage that generates suites makes them."""

from __future__ import annotations

from collections.abc import Iterable

from utaca.generation.suites import packed, unpacked
from utaca.settings.schema import Point
from utaca.trace import Generation


def suite_rows(generations: Iterable[Generation]) -> None:
    """Make the tables of answers and traces, and let go of them: the one place where the benchmark knows of them."""
    point = Point("utaca", 64, "sub.16")
    columns = {"document": "benchmark", "question": "", "n_context": 0, "dropped": 0, "prefill_seconds": 0.0}
    for generation in generations:
        unpacked(packed(generation, point, **columns, peak_bytes=0), {"suite": "benchmark", "point": point.label})
