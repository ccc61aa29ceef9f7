"""From answers to the rows of a trace, as the stage that generates suites makes them."""

from __future__ import annotations

from collections.abc import Iterable

from utaca.trace import Generation


def suite_rows(generations: Iterable[Generation]) -> None:
    """Turn what every token retrieved into lists of numbers, and let go of them.

    It stands for the function of :mod:`utaca.decoding.suites` that makes tables of answers and traces, and is to call
    it: this is the one place where the benchmark knows of such tables.
    """
    for generation in generations:
        for token in generation.trace:
            # All else is numbers and lists already; embeddings are no part of a trace.
            token.selected.tolist(), token.scores.tolist()
