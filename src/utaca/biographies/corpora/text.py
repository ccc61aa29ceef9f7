"""Usable paragraphs of padding prose, and the articles that they make."""

import re
from typing import Any

MINIMUM_CHARACTERS = 80
"""Shortest paragraph that is used; headings, captions and list items fall below it."""

_BLANK_LINES = re.compile(r"\n\s*\n")


def paragraphs(text: str) -> list[str]:
    """The usable paragraphs of a text, in order, with runs of white space as one space.

    Paragraphs are the parts between blank lines; those below :data:`MINIMUM_CHARACTERS` are not usable.
    """
    parts = _BLANK_LINES.split(text.replace("\r\n", "\n"))
    collapsed = [" ".join(part.split()) for part in parts]
    return [part for part in collapsed if len(part) >= MINIMUM_CHARACTERS]


def article(
    source: str, title: str, text: str, url: str = "", licence: str = "", revision: str = "", synthetic: bool = False
) -> dict[str, Any]:
    """Make a row of schema ``corpus``; its text has the usable paragraphs of ``text``, and may be empty."""
    return {
        "title": title,
        "text": "\n\n".join(paragraphs(text)),
        "url": url,
        "licence": licence,
        "revision": revision,
        "source": source,
        "synthetic": synthetic,
    }
