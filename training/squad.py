"""Files of SQuAD's layout that users bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from utaca.records.texts import Filled, checked, read_json


class _Answer(TypedDict):
    text: Filled


class _Question(TypedDict):
    id: Filled
    question: Filled
    answers: list[_Answer]


class _Paragraph(TypedDict):
    context: Filled
    qas: list[_Question]


class _Article(TypedDict):
    title: str
    paragraphs: list[_Paragraph]


class _File(TypedDict):
    data: list[_Article]


def articles(path: str | Path, key: str) -> list[dict[str, Any]]:
    """The articles of a file; raises :class:`UserError`, naming the config ``key``, where it is of another layout."""
    mend = f"mend it, or set {key} to another file of SQuAD's layout, or to ''"
    found: Any = checked(_File, read_json(path, mend), str(path), mend)
    return found["data"]
