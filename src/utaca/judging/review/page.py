"""A review page: one HTML file that needs no network, filled with the units that a person gives a value each.

The template is ``page.html`` beside this module, filled by :mod:`utaca.pages`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from utaca.pages import fill


@dataclass(frozen=True)
class Unit:
    """What gets one value: a token of an answer, or a prediction.

    ``rows`` are the rows of the sheet that it stands for, without person's value and name. ``given`` is the value that
    it has so far, None where it has none or the person must not know; ``source`` and ``reason`` say where it is from.
    """

    text: str
    rows: Sequence[Sequence[str | int | None]]
    given: int | None = None
    source: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Item:
    """Units that are looked at together, beside the facts that decide; ``doubts`` are reasons to look closely.

    A fact is attribute, value and the sentence of the biography that states it ("": none was found). ``entry`` is the
    item's name in the list below the section's.
    """

    section: str
    entry: str
    heading: str
    place: str
    facts: Sequence[tuple[str, str, str]]
    units: Sequence[Unit]
    doubts: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """A page: ``columns`` of the sheet that it exports as ``file``, ``instruction`` as the endpoint has it."""

    kind: Literal["labels", "scores"]
    title: str
    about: str
    instruction: str
    file: str
    columns: Sequence[str]
    items: Sequence[Item]


def draw(name: str) -> str:
    """A sort key that shuffles names in the same way in every run."""
    return hashlib.sha256(name.encode()).hexdigest()


def render(page: Page) -> str:
    """The page as HTML; pure ASCII, and the same for the same page."""
    content: dict[str, Any] = asdict(page)
    content["key"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return fill(__package__, "page.html", content)
