"""Questions of a task to a reader, and scores of the reader's answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from utaca.errors import UserError
from utaca.tasks.task import Task

if TYPE_CHECKING:
    from utaca.generation.answers import Asked

VALIDATION_EVERY = 8
"""Of how many documents one is kept for validation."""


def ask(task: Task, examples: Iterable[Mapping[str, Any]]) -> list[Asked]:
    """The questions of rows of schema "examples"."""
    # Scoring does without the packages that decode.
    from utaca.generation.answers import Asked

    asked = []
    for row in examples:
        longest = task.longest(row["references"])
        asked.append(Asked(row["id"], row["text"], row["question"], longest, task.prefix))
    return asked


def learned(examples: Iterable[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
    """Ids of the rows that a detector learns from, and of those on which its checkpoint and thresholds are chosen.

    One document in :data:`VALIDATION_EVERY` is for this choice, with all rows that share the document. Raises
    :class:`UserError` if all rows share one document.
    """
    rows = list(examples)
    documents = sorted({row["document"] for row in rows})
    if len(documents) == 1:
        where = f"row {rows[0]['id']}, of a set that detectors learn from,"
        raise UserError(f"{where} has the set's one document, and they need another to validate on; raise its examples")
    held_documents = set(documents[::VALIDATION_EVERY])
    held = {row["id"] for row in rows if row["document"] in held_documents}
    learned_from = {row["id"] for row in rows} - held
    return learned_from, held


def scores(
    task: Task, examples: Iterable[Mapping[str, Any]], answers: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Rows of schema "task_scores", one for each of the ``answers``; an empty answer scores 0."""
    rows = {row["id"]: row for row in examples}
    for answer in answers:
        row = rows[answer["document"]]
        yield {
            "example": row["id"],
            "document": row["document"],
            "split": answer["split"],
            "point": answer["point"],
            "score": task.score(answer["text"], row["references"]),
        }
