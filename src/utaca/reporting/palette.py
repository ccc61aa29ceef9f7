"""One colour per method, in figures and pages: colours of Okabe and Ito, which suit colour blindness, and a few more.

Marks are used on white and on the dark background of pages; text is never coloured.
"""

from typing import NamedTuple

INK, WHITE = "#1c2126", "#ffffff"
"""Colours of lines and the page."""
LINES = ("-", "--", ":", "-.")
"""Line styles of a method's curves, by policy and detector."""
MARKERS = "Dv<>Ph"
"""Markers of a method's third and further curves, which have none of :data:`MARKS`."""


class Mark(NamedTuple):
    """Colour and marker of a method."""

    color: str
    marker: str


MARKS = {
    "utaca": Mark("#0072b2", "o"),
    "infllm": Mark("#d55e00", "s"),
    "agreement": Mark("#009e73", "^"),
    "no_detector": Mark("#a6761d", "X"),
    "top_p": Mark("#8a63d2", "P"),
    "margin": Mark("#c06a9a", "v"),
    "other": Mark("#767676", "D"),
}
"""Marks by family of points (:attr:`utaca.reporting.results.PointResult.family`)."""


CLASSES = {"hallucinated": "#a8246c", "correct": "#0a6a7f", "unknown": "#c98a12"}
"""Colours of the labels of tokens, by class; pages have the same hues."""


def known(family: str) -> str:
    """The key in :data:`MARKS` of a ``family`` of points: the family, or "other" if it has no mark of its own."""
    return family if family in MARKS else "other"
