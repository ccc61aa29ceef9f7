"""One colour a family of methods, in figures and pages: Okabe and Ito's, which the colour-blind tell apart.

Marks stand on white and on the pages' dark cards alike. A colour too pale for white is drawn with an edge of ink, and
text is never coloured: names are in ink beside a mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INK, MUTED, GRID = "#1c2126", "#59636e", "#dcdfe2"
"""Text, what stands behind (zero lines, intervals of the past), and grids."""
WHITE, DARK = "#ffffff", "#1c2024"
"""What figures stand on: white, and the pages' dark cards."""

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
"""Okabe and Ito's colours but yellow, which no edge makes readable on white."""
OCHRE, GREY = "#a6761d", "#767676"
PALE = (ORANGE, SKY, PURPLE)
"""Those with less than 3:1 of contrast to white."""

FAMILIES: Mapping[str, str] = {
    "utaca": BLUE,
    "infllm": VERMILLION,
    "agreement": GREEN,
    "selection": PURPLE,
    "eviction": ORANGE,
    "compression": SKY,
    "reference": BLACK,
    "no_detector": OCHRE,
    "other": GREY,
}
"""Colours by family."""
TITLES: Mapping[str, str] = {
    "utaca": "UT-ACA",
    "infllm": "InfLLM",
    "agreement": "Token agreement",
    "selection": "Selection of tokens or blocks",
    "eviction": "Eviction from the cache",
    "compression": "Compression",
    "reference": "All or the nearest tokens",
    "no_detector": "No detector",
    "other": "Others",
}
_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "selection": ("retrieval_attention", "tokenselect", "omnikv", "infllm_v2"),
    "eviction": ("snapkv", "adakv", "fastkv", "h2o"),
    "compression": ("llmlingua2", "freqkv"),
    "reference": ("full", "window", "closed_book"),
}
MARKERS: Mapping[str, str] = {"utaca": "o", "infllm": "s", "agreement": "^", "no_detector": "X"}
"""Markers of the methods from block memory; members of another family count through :data:`MEMBER_MARKERS`."""
MEMBER_MARKERS = "Dv<>Ph"
LINES = ("-", "--", ":", "-.")
"""Lines of a method's curves: the main one, then other policies and detectors."""


class Mark(NamedTuple):
    """How a method is drawn."""

    color: str
    edge: str
    marker: str


def family(method: str) -> str:
    """The family of a method, by its name in the config; one put on another method (``utaca-snapkv``) is the first's.

    >>> family("utaca-retrieval_attention"), family("h2o"), family("my-method")
    ('utaca', 'eviction', 'other')
    """
    if (trigger := method.partition("-")[0]) in MARKERS:
        return trigger
    return next((name for name, members in _MEMBERS.items() if method in members), "other")


def mark(method: str) -> Mark:
    """Colour, edge and marker of a method; pale colours have an edge of ink."""
    own = family(method)
    color = FAMILIES[own]
    members = _MEMBERS.get(own, ())
    place = members.index(method) if method in members else 0
    marker = MARKERS.get(own, MEMBER_MARKERS[place % len(MEMBER_MARKERS)])
    return Mark(color, edge(color), marker)


def edge(color: str) -> str:
    """The edge of a mark on white: its own colour, ink where that is too pale."""
    return INK if color in PALE else color


def css() -> str:
    """The colours as custom properties of a style sheet, ``--utaca`` and so on; black is the text's colour."""
    colors = {name: "var(--text)" if color == BLACK else color for name, color in FAMILIES.items()}
    return ":root { " + " ".join(f"--{name}: {color};" for name, color in colors.items()) + " }"
