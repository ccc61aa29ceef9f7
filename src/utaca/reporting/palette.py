"""One colour a family of methods, in figures and pages: Okabe and Ito's, which the colour-blind tell apart.

Marks stand on white and on the pages' dark cards alike. A colour too pale for white is drawn with an edge of ink, and
text is never coloured: names are in ink beside a mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INK, MUTED, GRID = "#1c2126", "#59636e", "#dcdfe2"
"""Text, what stands behind (zero lines, intervals of the past), and grids."""
WHITE = "#ffffff"

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
PALE = (ORANGE, SKY)
"""Those with less than 3:1 of contrast to white."""


class Family(NamedTuple):
    """A family of methods: its title and colour, the marker of a method from block memory, or the methods it has."""

    title: str
    color: str
    marker: str = ""
    members: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "utaca": Family("UT-ACA", BLUE, "o"),
    "infllm": Family("InfLLM", VERMILLION, "s"),
    "agreement": Family("Token agreement", GREEN, "^"),
    "selection": Family(
        "Selection of tokens or blocks", PURPLE, "", ("retrieval_attention", "tokenselect", "omnikv", "infllm_v2")
    ),
    "eviction": Family("Eviction from the cache", ORANGE, "", ("snapkv", "adakv", "fastkv", "h2o")),
    "compression": Family("Compression", SKY, "", ("llmlingua2", "freqkv")),
    "reference": Family("All or the nearest tokens", BLACK, "", ("full", "window", "closed_book")),
    "no_detector": Family("No detector", OCHRE, "X"),
    "other": Family("Others", GREY),
}
MEMBER_MARKERS = "Dv<>Ph"
"""Markers of the members of a family, in their order."""
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
    trigger = method.partition("-")[0]
    if trigger in FAMILIES and FAMILIES[trigger].marker:
        return trigger
    return next((name for name, own in FAMILIES.items() if method in own.members), "other")


def mark(method: str) -> Mark:
    """Colour, edge and marker of a method; pale colours have an edge of ink."""
    own = FAMILIES[family(method)]
    place = own.members.index(method) if method in own.members else 0
    return Mark(own.color, edge(own.color), own.marker or MEMBER_MARKERS[place % len(MEMBER_MARKERS)])


def edge(color: str) -> str:
    """The edge of a mark on white: its own colour, ink where that is too pale."""
    return INK if color in PALE else color


def css() -> str:
    """The colours as custom properties of a style sheet, ``--utaca`` and so on; black is the text's colour."""
    colors = {name: "var(--text)" if own.color == BLACK else own.color for name, own in FAMILIES.items()}
    return ":root { " + " ".join(f"--{name}: {color};" for name, color in colors.items()) + " }"
