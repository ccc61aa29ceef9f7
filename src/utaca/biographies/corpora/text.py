"""Usable paragraphs of padding prose."""

from __future__ import annotations

import re

MINIMUM_CHARACTERS = 80
"""Shortest paragraph that is used; headings, captions and list items fall below it."""

_BLANK_LINES = re.compile(r"\n\s*\n")


def paragraphs(text: str) -> list[str]:
    """The usable paragraphs of a text, in order: parts between blank lines, white space collapsed, long enough."""
    parts = (" ".join(part.split()) for part in _BLANK_LINES.split(text.replace("\r\n", "\n")))
    return [part for part in parts if len(part) >= MINIMUM_CHARACTERS]
