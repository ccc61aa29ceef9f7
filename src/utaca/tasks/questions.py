"""Questions of a task to a reader, and scores of the reader's answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from utaca.errors import UserError
from utaca.tasks.task import Task

if TYPE_CHECKING:
    from utaca.generation.answers import Asked

VALIDATION_EVERY = 8
"""One document in this many is kept for validation."""


def ask(task: Task, examples: Iterable[Mapping[str, Any]]) -> list[Asked]:
    """The questions that rows of schema "examples" ask, as stages that decode take them."""
    # Imported here, because scoring needs this module and does without the packages that decode.
    from utaca.generation.answers import Asked

    asked = []
    for row in examples:
        longest = task.longest(row["references"])
        asked.append(Asked(row["id"], row["text"], row["question"], longest, row["prefix"]))
    return asked


def learned(examples: Iterable[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
    """Split a set's rows (schema "examples") into those that a detector learns from and those that validate it.

    Returns the ids of both. Checkpoint and thresholds are chosen on the second ones: all rows of one document in
    :data:`VALIDATION_EVERY`. Raises :class:`UserError` if all rows share one document.
    """
    rows = list(examples)
    documents = sorted({row["document"] for row in rows})
    if len(documents) == 1:
        where = f"row {rows[0]['id']}, of a set that detectors learn from,"
        raise UserError(
            f"{where} has only one document, but training also needs one for validation; raise the set's examples"
        )
    # The first document and each eighth after it, so that there is always one.
    validation_documents = set(documents[::VALIDATION_EVERY])
    validation = {row["id"] for row in rows if row["document"] in validation_documents}
    training = {row["id"] for row in rows} - validation
    return training, validation


def scores(
    task: Task, examples: Iterable[Mapping[str, Any]], answers: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Score answers (rows of schema "answers") to a set's ``examples`` by the task's metric.

    Yields a row of schema "task_scores" for each answer; an empty answer scores 0.
    """
    by_id = {example["id"]: example for example in examples}
    for answer in answers:
        # The column "document" of an answer to a task has the id of the example (see `ask`).
        example = by_id[answer["document"]]
        yield {
            "example": example["id"],
            "document": example["document"],
            "split": answer["split"],
            "point": answer["point"],
            "score": task.score(answer["text"], example["references"]),
        }
