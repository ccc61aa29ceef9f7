"""Documents that nobody here generated: biographies written by hand, and paragraphs with SQuAD's kind of questions.

A biography is asked the attributes that it states, one at a time or several at once, and by itself some that it does
not. It stands alone or between paragraphs of the corpus, at a random depth.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from typing_extensions import TypedDict

from utaca.biographies.padding import Padder
from utaca.errors import UserError
from utaca.records.squad import articles as squad_articles
from utaca.records.texts import Filled, checked, records
from utaca.tasks.card.material import Document, Fact, Question, padded

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


def alone(rows: Sequence[Biography], asked: int) -> list[Document]:
    """A document of each biography, asked for at most ``asked`` of its attributes at once, and for each absent one."""
    return [
        Document(
            row["id"],
            partial(str, row["text"]),
            (*_questions(row, asked), *(Question(row["person"], (Fact(name),)) for name in row["absent"])),
        )
        for row in rows
    ]


def long(rows: Sequence[Biography], length: int, asked: int, padder: Padder, seed: int) -> list[Document]:
    """Documents of ``length`` tokens around the biographies, asked for at most ``asked`` attributes at once."""
    people = max(1, min(MOST_PEOPLE, length // TOKENS_A_PERSON))
    found = []
    for group in (rows[first : first + people] for first in range(0, len(rows), people)):
        name = f"{WRITTEN}-{length}-{group[0]['id']}"
        # Each biography is one piece, and those of a document have attributes in common.
        facts = {f"{row['id']} {fact['attribute']}": fact["value"] for row in group for fact in row["facts"]}
        texts, number = [row["text"] for row in group], random.Random(f"{seed}:card:{name}").getrandbits(64)
        text = partial(padded, name, group[0]["person"], facts, texts, length, padder, number)
        found.append(Document(name, text, tuple(question for row in group for question in _questions(row, asked))))
    return found


def _questions(row: Biography, asked: int) -> list[Question]:
    facts = [Fact(fact["attribute"], fact["value"], tuple(fact["also"])) for fact in row["facts"]]
    return [Question(row["person"], tuple(facts[first : first + asked])) for first in range(0, len(facts), asked)]


def squad(path: str | Path) -> list[Document]:
    """Paragraphs of a file of SQuAD's layout with their answerable questions.

    Raises :class:`UserError` for a missing file and one of another layout.
    """
    found: dict[str, Document] = {}
    for article in squad_articles(path, "card.xquad"):
        for number, paragraph in enumerate(article["paragraphs"]):
            title, name = article["title"], f"{XQUAD}-{article['title']}-{number}"
            questions = []
            for row in paragraph["qas"]:
                if texts := list(dict.fromkeys(answer["text"] for answer in row["answers"])):
                    fact = Fact(row["id"], texts[0], tuple(texts[1:]))
                    questions.append(Question(title, (fact,), row["question"].strip()))
            if name in found:
                raise UserError(f"card.xquad={path} has two articles of the title {title!r}; give each its own")
            if questions:
                found[name] = Document(name, partial(str, paragraph["context"]), tuple(questions))
    if not found:
        raise UserError(f"card.xquad={path} has no question with an answer; name another file, or ''")
    return list(found.values())
