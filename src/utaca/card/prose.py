"""Material that nobody here generated: biographies written by hand, and SQuAD's kind of questions.

A biography is asked the attributes that it states, one at a time or several at once, and by itself some that it does
not. It stands alone or between paragraphs of the corpus, at a random depth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from utaca.biographies.padding import Padder
from utaca.card.material import SPLIT, Document, Question
from utaca.errors import UserError
from utaca.records.squad import articles as squad_articles
from utaca.records.texts import Filled, checked, records

WRITTEN, XQUAD = "written", "xquad"
TOKENS_A_PERSON, MOST_PEOPLE = 2048, 4
"""A document tells of one person for so many tokens of its length, of so many at most."""


class _Fact(TypedDict):
    attribute: Filled
    value: Filled
    also: list[str]


class Biography(TypedDict):
    """A handwritten biography: its ``facts``, and the attributes that are ``absent`` from its text."""

    id: Filled
    person: Filled
    text: Filled
    facts: list[_Fact]
    absent: list[Filled]


def written_cell(length: int) -> str:
    """The cell of handwritten biographies in documents of ``length`` tokens."""
    return f"{WRITTEN}-{length}"


def biographies(path: str | Path) -> list[Biography]:
    """Handwritten biographies of a JSONL file.

    A row has ``id``, ``person``, ``text``, ``facts`` (each an ``attribute``, its ``value`` as the text has it, and
    ``also``, other ways to write it) and ``absent``, attributes that the text does not tell. Raises
    :class:`UserError` for a missing file and for rows of another form.
    """
    mend = "mend it, or set card.biographies to another JSONL file of biographies, or to ''"
    found: dict[str, Biography] = {}
    for where, record in records(path, mend):
        row = checked(Biography, record, where, mend)
        if missing := [fact["value"] for fact in row["facts"] if fact["value"] not in row["text"]]:
            raise UserError(f"{where} has the value {missing[0]!r}, which its text has not; {mend}")
        names = [*(fact["attribute"] for fact in row["facts"]), *row["absent"]]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{where} has the attribute {twice[0]!r} twice; {mend}")
        if found.setdefault(row["id"], row) is not row:
            raise UserError(f"{where} has the id {row['id']!r}, as a row before has; {mend}")
    if not found:
        raise UserError(f"{path} has no biographies; {mend}")
    return list(found.values())


def written(
    rows: Sequence[Mapping[str, Any]],
    length: int | None,
    padder: Callable[[], Padder] | None = None,
    *,
    seed: int,
    asked: int = 1,
    questions: int = 0,
) -> list[Document]:
    """Documents of handwritten biographies, each alone or, by a ``padder``, in ``length`` tokens of the corpus: then
    the first ones with at least so many ``questions``, a question being one attribute, all where it is 0.

    ``asked`` attributes of a person are asked at once, at most.
    """
    if length is None or padder is None:
        return [Document(row["id"], partial(str, row["text"]), _asked(row, asked, absent=True)) for row in rows]
    people = max(1, min(MOST_PEOPLE, length // TOKENS_A_PERSON))
    found: list[Document] = []
    for first in range(0, len(rows), people):
        if questions and sum(len(one.facts) for document in found for one in document.questions) >= questions:
            break
        group = rows[first : first + people]
        name = f"{written_cell(length)}-{group[0]['id']}"
        text = partial(_padded, name, group, length, padder, random.Random(f"{seed}:card:{name}").getrandbits(64))
        found.append(Document(name, text, tuple(question for row in group for question in _asked(row, asked))))
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


def _asked(row: Mapping[str, Any], asked: int, absent: bool = False) -> tuple[Question, ...]:
    facts = [(fact["attribute"], fact["value"]) for fact in row["facts"]]
    also = {fact["attribute"]: fact["also"] for fact in row["facts"]}
    groups = [tuple(facts[first : first + asked]) for first in range(0, len(facts), asked)]
    lacking = [((attribute, None),) for attribute in row["absent"]] if absent else []
    return tuple(Question(row["person"], group, also) for group in [*groups, *lacking])


def squad(path: str | Path) -> list[Document]:
    """Paragraphs of a file of SQuAD's layout with their answerable questions.

    Raises :class:`UserError` for a missing file and one of another layout.
    """
    articles = squad_articles(path, "card.xquad")
    found: dict[str, Document] = {}
    for title, number, paragraph in ((a["title"], n, p) for a in articles for n, p in enumerate(a["paragraphs"])):
        rows = [row for row in paragraph["qas"] if row["answers"]]
        if not rows:
            continue
        name = f"{XQUAD}-{title}-{number}"
        if name in found:
            raise UserError(f"card.xquad={path} has two articles of the title {title!r}; give each its own")
        questioned = tuple(
            Question(
                title,
                ((row["id"], row["answers"][0]["text"]),),
                also={row["id"]: list(dict.fromkeys(answer["text"] for answer in row["answers"][1:]))},
                text=row["question"].strip(),
            )
            for row in rows
        )
        found[name] = Document(name, partial(str, paragraph["context"]), questioned)
    if not found:
        raise UserError(f"card.xquad={path} has no question with an answer; name another file, or ''")
    return list(found.values())
