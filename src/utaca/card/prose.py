"""Material that nobody here generated: biographies written by hand, and SQuAD's kind of questions.

A biography is asked one attribute at a time, those that it states and some that it does not. It stands alone or between
paragraphs of the corpus, at a random depth.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from utaca.biographies.padding import Padder
from utaca.card.material import SPLIT, Document, Question
from utaca.errors import UserError

WRITTEN, XQUAD = "written", "xquad"
TOKENS_A_PERSON, MOST_PEOPLE = 2048, 4
"""A document tells of one person for so many tokens of its length, of so many at most."""

_KEYS = {"id", "person", "text", "facts", "absent"}


def written_cell(length: int) -> str:
    """The cell of handwritten biographies in documents of ``length`` tokens."""
    return f"{WRITTEN}-{length}"


def biographies(path: str | Path) -> list[dict[str, Any]]:
    """Handwritten biographies of a JSONL file.

    A row has ``id``, ``person``, ``text``, ``facts`` (each an ``attribute``, its ``value`` as the text has it, and
    ``also``, other ways to write it) and ``absent``, attributes that the text does not tell. Raises
    :class:`UserError` for a missing file and for rows of another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"card.biographies={path} cannot be read; name a JSONL file of biographies, or ''") from error
    found = [json.loads(line) for line in lines if line.strip()]
    for row in found:
        if not row.keys() >= _KEYS or any(fact["value"] not in row["text"] for fact in row["facts"]):
            raise UserError(
                f"{path}: biography {row.get('id', '?')} needs {', '.join(sorted(_KEYS))}; values as in its text"
            )
    return found


def written(
    rows: Sequence[Mapping[str, Any]],
    length: int | None,
    padder: Callable[[], Padder] | None = None,
    *,
    seed: int,
    questions: int = 0,
) -> list[Document]:
    """Documents of handwritten biographies, each alone or, by a ``padder``, in ``length`` tokens of the corpus: then
    the first ones that ask at least so many ``questions``, all where it is 0."""
    if length is None or padder is None:
        return [Document(row["id"], partial(str, row["text"]), _asked(row, absent=True)) for row in rows]
    people = max(1, min(MOST_PEOPLE, length // TOKENS_A_PERSON))
    found: list[Document] = []
    for first in range(0, len(rows), people):
        if questions and sum(len(document.questions) for document in found) >= questions:
            break
        group = rows[first : first + people]
        name = f"{written_cell(length)}-{group[0]['id']}"
        text = partial(_padded, name, group, length, padder, random.Random(f"{seed}:card:{name}").getrandbits(64))
        found.append(Document(name, text, tuple(question for row in group for question in _asked(row))))
    return found


def _padded(name: str, group: Sequence[Mapping[str, Any]], length: int, padder: Callable[[], Padder], seed: int) -> str:
    """The biographies of a group, each in one piece, in a document of ``length`` tokens."""
    # A biography has each attribute once: theirs are told apart.
    facts = [{**fact, "attribute": f"{row['id']} {fact['attribute']}"} for row in group for fact in row["facts"]]
    biography = {
        "id": name,
        "split": SPLIT,
        "person": group[0]["person"],
        "facts": facts,
        "sentences": [row["text"] for row in group],
    }
    return padder().document(biography, length, random.Random(seed))["text"]


def _asked(row: Mapping[str, Any], absent: bool = False) -> tuple[Question, ...]:
    stated = [
        Question(row["person"], ((fact["attribute"], fact["value"]),), also=tuple(fact["also"]))
        for fact in row["facts"]
    ]
    lacking = [Question(row["person"], ((attribute, None),)) for attribute in row["absent"]] if absent else []
    return (*stated, *lacking)


def squad(path: str | Path) -> list[Document]:
    """Paragraphs of a file of SQuAD's layout with their answerable questions.

    Raises :class:`UserError` for a missing file and one of another layout.
    """
    try:
        articles = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
        paragraphs = [(a["title"], n, p) for a in articles for n, p in enumerate(a["paragraphs"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"card.xquad={path} is no file of SQuAD's layout; name xquad.en.json, or ''") from error
    found = []
    for title, number, paragraph in paragraphs:
        rows = [row for row in paragraph["qas"] if row.get("answers")]
        if not rows:
            continue
        questioned = tuple(
            Question(
                title,
                ((row["id"], row["answers"][0]["text"]),),
                also=tuple(dict.fromkeys(answer["text"] for answer in row["answers"][1:])),
                text=row["question"].strip(),
            )
            for row in rows
        )
        found.append(Document(f"{XQUAD}-{title}-{number}", partial(str, paragraph["context"]), questioned))
    return found
