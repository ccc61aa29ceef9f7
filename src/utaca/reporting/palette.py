"""One colour a method, in figures and pages: Okabe and Ito's, which the colour-blind tell apart.

Marks stand on white and on the pages' dark cards alike; text is never coloured: names are in ink beside a mark.
"""

from __future__ import annotations

from typing import NamedTuple

INK, MUTED, GRID, WHITE = "#1c2126", "#59636e", "#dcdfe2", "#ffffff"
"""Text, axes, grids, the page."""
LINES = ("-", "--", ":", "-.")
"""Lines of a method's curves: the main one, then other policies and detectors."""
MARKERS = "Dv<>Ph"
"""Markers of a method's further curves."""


class Mark(NamedTuple):
    """How a method is drawn."""

    color: str
    marker: str


MARKS = {
    "utaca": Mark("#0072b2", "o"),
    "infllm": Mark("#d55e00", "s"),
    "agreement": Mark("#009e73", "^"),
    "no_detector": Mark("#a6761d", "X"),
    "other": Mark("#767676", "D"),
}
"""By method; one put on another method (``utaca-snapkv``) is the first's."""


def family(method: str) -> str:
    """The key of :data:`MARKS` of a method, by its name in the config.

    >>> family("utaca-retrieval_attention"), family("my-method")
    ('utaca', 'other')
    """
    trigger = method.partition("-")[0]
    return trigger if trigger in MARKS else "other"
