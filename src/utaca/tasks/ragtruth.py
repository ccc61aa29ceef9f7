"""RAGTruth: answers of six models to questions about passages, in which people marked what the passages do not say.

The answers are given, so nothing is decoded: a reader scores their tokens (:func:`utaca.score`), and the scores are
held against the marks. The files are those of github.com/ParticleMedia/RAGTruth. Only its questions count here
(``task_type`` QA); it has summaries and descriptions of data too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from utaca.errors import UserError
from utaca.records.texts import records
from utaca.tasks.rows import REMEDY, identity, objects, text

QUESTION = (
    "Briefly answer the following question:\n{question}\nBear in mind that your response should be strictly based on "
    "the passages above.\nIn case the passages do not contain the necessary information to answer the question, please "
    'reply with: "Unable to answer based on given passages."'
)
"""The official prompt, but for the passages: it has them behind its second line, and here they come first."""


@dataclass(frozen=True)
class GivenAnswer:
    """An ``answer`` of a ``model`` to ``question`` about the passages ``text``.

    ``source`` names the question, to which each model has an answer. ``marks`` are the characters of the answer that
    people marked as hallucinated, whatever the kind.
    """

    id: str
    source: str
    model: str
    text: str
    question: str
    answer: str
    marks: tuple[range, ...]


class Responses:
    """The file of answers."""

    files: ClassVar[Mapping[str, str]] = {"responses": "RAGTruth/response.jsonl"}
    rows = 17_790
    unit = "rows"

    def is_official(self, files: Mapping[str, Path]) -> bool:
        """Whether the file has as many answers as the official one; raises :class:`UserError` for another layout."""
        return sum(1 for _ in _responses(files["responses"])) == self.rows


class Sources:
    """The file of what the answers are about."""

    files: ClassVar[Mapping[str, str]] = {"sources": "RAGTruth/source_info.jsonl"}
    rows = 2_965
    unit = "rows"

    def is_official(self, files: Mapping[str, Path]) -> bool:
        """Whether the file has as many rows as the official one; raises :class:`UserError` for another layout."""
        rows = [text(record, "task_type", where) for where, record in records(files["sources"], REMEDY)]
        return len(rows) == self.rows


def given_answers(folder: Path, split: str = "test") -> list[GivenAnswer]:
    """Read the answers of a split ("train" or "test") whose quality is good, as the official evaluation does.

    They are in the order of the file; empty answers are left out. Raises :class:`UserError` if a file is missing or has
    another layout, if an answer is about no question of the files, or if the split has none.
    """
    (responses,) = (folder / path for path in Responses.files.values())
    (sources,) = (folder / path for path in Sources.files.values())
    for path in (responses, sources):
        if not path.is_file():
            raise UserError(f"{path} is not there; utaca fetch-tasks ragtruth-responses ragtruth-sources fetches it")
    questions = {}
    others = set()  # what is no question: summaries and descriptions of data
    for where, record in records(sources, REMEDY):
        name = identity(record, "source_id", where)
        if text(record, "task_type", where) != "QA":
            others.add(name)
            continue
        info = record.get("source_info")
        if not isinstance(info, dict):
            raise UserError(f"{where} has no object under 'source_info'; {REMEDY}")
        asked = QUESTION.format(question=text(info, "question", where).strip())
        questions[name] = (text(info, "passages", where).strip(), asked)
    found = []
    for where, record in _responses(responses):
        source = identity(record, "source_id", where)
        if record["split"] != split or record["quality"] != "good" or source in others:
            continue
        if not record["response"].strip():
            continue
        if source not in questions:
            raise UserError(f"{where} is about source {source}, which {sources} lacks; {REMEDY}")
        passages, question = questions[source]
        answer = record["response"]
        marks = tuple(_mark(mark, answer, where) for mark in record["labels"])
        row_id = identity(record, "id", where)
        found.append(GivenAnswer(row_id, source, record["model"], passages, question, answer, marks))
    if not found:
        raise UserError(f"{responses} has no answers to questions in split {split!r}; its splits are train and test")
    return found


def _responses(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place in words and the record of each answer; raises :class:`UserError` for another layout."""
    for where, record in records(path, REMEDY):
        for key in ("model", "split", "quality"):
            text(record, key, where)
        text(record, "response", where, blank=True)
        objects(record, "labels", where)
        yield where, record


def _mark(mark: Mapping[str, Any], answer: str, where: str) -> range:
    """The characters of a marked span of the ``answer``; raises :class:`UserError` if it has no places."""
    start, end = mark.get("start"), mark.get("end")
    if not isinstance(start, int) or not isinstance(end, int):
        raise UserError(f"{where} has a label without 'start' and 'end'; {REMEDY}")
    return range(max(start, 0), min(end, len(answer)))


def marked_tokens(pieces: Sequence[str], marks: Sequence[range]) -> np.ndarray:
    """Which of an answer's tokens have a marked character: boolean [n].

    ``pieces`` [n] are the texts of the tokens, which make up the answer. White space at the beginning of a token does
    not count. A token without text, whose character the next one completes, counts as the character that follows it.
    """
    is_marked = np.zeros(len(pieces), bool)
    start = 0
    for place, piece in enumerate(pieces):
        end = start + len(piece)
        first = end - len(piece.lstrip()) if piece.strip() else start
        last = max(end, first + 1)
        is_marked[place] = any(mark.start < last and first < mark.stop for mark in marks)
        start = end
    return is_marked
