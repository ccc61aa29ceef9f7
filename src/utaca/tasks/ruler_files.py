"""Files that RULER's questions are made from, in the layouts of SQuAD and HotpotQA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from utaca.errors import UserError
from utaca.records.texts import read_json, records
from utaca.tasks.rows import MEND, objects, text


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """SQuAD's articles, the rows of a JSON list, or those of a JSONL file, and the place of each."""
    try:
        content = read_json(path, MEND)
    except UserError:
        yield from records(path, MEND)
        return
    if isinstance(content, dict):
        content = content.get("data", [content])
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise UserError(f"{path} is no list of rows; {MEND}")
    yield from ((f"{path}, row {number},", row) for number, row in enumerate(content, start=1))


def titled(row: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """A HotpotQA row's paragraphs, title and text, each from its sentences or whole; several may have one title."""
    try:
        paragraphs = [(title, "".join(sentences)) for title, sentences in row["context"]]
    except (KeyError, TypeError, ValueError):
        paragraphs = []
    if not paragraphs or not all(isinstance(title, str) for title, _ in paragraphs):
        raise UserError(f"{where} has no titled paragraphs under 'context'; {MEND}")
    return list(dict.fromkeys(paragraphs))


def supporting(row: Mapping[str, Any], where: str) -> list[str]:
    """The titles of a HotpotQA row's supporting paragraphs, each once."""
    try:
        titles = row["supporting_titles"] if "supporting_titles" in row else [x for x, _ in row["supporting_facts"]]
        return list(dict.fromkeys(titles))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} has no titles under 'supporting_facts'; {MEND}") from error


def pool(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Title and text of every paragraph of files of SQuAD's or HotpotQA's layout, or with both in a row."""
    for path in paths:
        for where, row in rows(path):
            if "paragraphs" in row:
                title = text(row, "title", where)
                yield from ((title, text(x, "context", where)) for x in objects(row, "paragraphs", where))
            elif "context" in row:
                yield from titled(row, where)
            else:
                yield text(row, "title", where), text(row, "text", where)


def plain(text: str) -> str:
    """A text by which it is known again, whatever white space it was saved with."""
    return " ".join(text.split())
