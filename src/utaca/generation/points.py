"""All operating points of a document, by any methods."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.generation.answers import Answer, Answers, Asked, answer_together
from utaca.generation.kept import Kept
from utaca.methods.bases.method import Method
from utaca.methods.utaca import Adaptive
from utaca.readers.load import Reader
from utaca.records import SCHEMAS
from utaca.records.journal import Journal, fingerprint
from utaca.records.progress import counter
from utaca.settings.checks import digest
from utaca.settings.schema import NOT_RUN, OperatingPoint
from utaca.trace import Generation, NotFiniteError, Token

TOGETHER = 32
"""Most answers that share passes, be they about one document or about several."""
SHORT = 1 << 17
"""Most characters of documents, together, of which more than one question's answers share passes."""


@dataclass(frozen=True)
class PointDetector:
    """The detector of an operating point: its variant and seed, and the digest of the file it was read from."""

    detector: Detector
    digest: str
    variant: str
    seed: int


@dataclass
class Decoded:
    """Answers and traces (schemas of the same names) by label."""

    answers: dict[str, pa.Table] = field(default_factory=dict)
    traces: dict[str, pa.Table] = field(default_factory=dict)


def decode_points(
    reader: Reader,
    asked: Sequence[Asked],
    points: Sequence[OperatingPoint],
    methods: Mapping[str, Method | Adaptive],
    detectors: Mapping[str, PointDetector],
    journal: Journal,
    *,
    split: str,
    together: bool = False,
    kept: Kept | None = None,
) -> Decoded:
    """Answers and traces of every point.

    ``methods`` holds the method of every point by label, ``detectors`` the detector of every point that has one,
    ``split`` the split or set of tasks. Methods that can share a reading of the document follow
    each other, and so do questions about one document that stand side by side. ``together`` decodes points in block
    memory side by side (:func:`utaca.generation.answers.answer_together`), and journals them as one. Documents that an
    earlier stage has ``kept`` are not read again.

    An answer that a machine's memory does not suffice for, or whose method lacks something (:meth:`Method.missing`) or
    cannot do with the reader or the document, is a row too, without tokens; its ``finish`` says so. Of block memory it
    raises :class:`UserError` instead.
    """
    readings = list(dict.fromkeys(method.base.reading for method in methods.values()))
    order = sorted(points, key=lambda point: readings.index(methods[point.label].base.reading))
    found: dict[str, list[Answered]] = {point.label: [] for point in points}
    documents = [list(group) for _, group in groupby(asked, key=lambda one: one.text)]
    bar = counter(total=len(documents), done=0, unit="document", description=f"answers, {split}")
    for group in side_by_side(documents, len(points) if together else 0):
        questions = [
            [_Question(one, answers, journal, split) for one in document]
            for document in group
            for answers in [Answers(reader, document[0].text, kept)]
        ]
        shared: dict[Hashable, list[tuple[OperatingPoint, Method | Adaptive, PointDetector | None]]] = {}
        for point in order if together else ():
            if point.together:
                method = methods[point.label]
                shared.setdefault(method.base.reading, []).append((point, method, detectors.get(point.label)))
        for of_reading in shared.values():
            # Each answer about a long document has a long window of its own.
            size = max(1, TOGETHER // len(of_reading)) if len(group[0][0].text) <= SHORT else 1
            every = list(chain(*questions))
            for first in range(0, len(every), size):
                _answer_together(every[first : first + size], of_reading)
        for document in questions:
            for point in order:
                for one in document:
                    answer = one.answer(point, methods[point.label], detectors.get(point.label))
                    found[point.label].append(answer)
        bar.update(len(group))
    bar.close()
    return Decoded(
        {key: pa.concat_tables(answer for answer, _ in own) for key, own in found.items()},
        {key: pa.concat_tables(trace for _, trace in own) for key, own in found.items()},
    )


def side_by_side(documents: Sequence[list[Asked]], points: int) -> Iterator[list[list[Asked]]]:
    """Documents in groups: of no more than :data:`TOGETHER` answers and :data:`SHORT` characters, one at least."""
    group: list[list[Asked]] = []
    answers = characters = 0
    for document in documents:
        more, longer = len(document) * points, len(document[0].text)
        if group and (not points or answers + more > TOGETHER or characters + longer > SHORT):
            yield group
            group, answers, characters = [], 0, 0
        group.append(document)
        answers, characters = answers + more, characters + longer
    if group:
        yield group


Answered = tuple[pa.Table, pa.Table]
"""An answer (schema "answers", one row) and its trace (schema "traces")."""
_JOURNALED = SCHEMAS["answers"].append(pa.field("trace", pa.list_(pa.struct(SCHEMAS["traces"]))))
"""What a journal holds of an answer: its row, with the rows of its trace."""


class _Question:
    """Answers to a question, journaled; its document is read for the first one that is not journaled yet."""

    def __init__(self, asked: Asked, answers: Answers, journal: Journal, split: str) -> None:
        self.asked, self.answers = asked, answers
        self.journal, self.split, self.what = journal, split, f"{asked.document}/{digest(asked)}"
        self.together: dict[str, pa.Table] = {}

    def answer(self, point: OperatingPoint, method: Method | Adaptive, detector: PointDetector | None) -> Answered:
        """The answer at a point, named after the point and its detector."""
        row = self.together.get(point.label)
        if row is None and (lacking := _lacking(method, self.answers.reader)):
            # What is missing now may be there next time.
            row = self.table([(_not_run(lacking), point)])
        elif row is None:
            item = f"row/{_identity(method, detector)}/{self.what}"
            row = self.journal.table(item, lambda: self.table([(self._decode(point, method, detector), point)]))
        trace = pa.table(row["trace"].combine_chunks().flatten().flatten(), SCHEMAS["traces"])
        about: dict[str, str | int] = {"split": self.split, "point": point.label, "budget": point.budget}
        about["detector"] = detector.variant if detector else point.beside
        about |= {"seed": detector.seed} if detector else {}
        return with_columns(row.drop_columns("trace"), **about), with_columns(trace, point=point.label)

    def _decode(self, point: OperatingPoint, method: Method | Adaptive, detector: PointDetector | None) -> Answer:
        try:
            asked, judging = self.asked, detector and detector.detector
            return self.answers.answer(method, asked.question, asked.longest, judging, prefix=asked.prefix)
        except UserError as error:
            if point.in_blocks or isinstance(error, NotFiniteError):
                raise
            # What a method cannot do with this document, as LLMLingua-2 with a budget far below its length.
            return _not_run(str(error))

    def table(self, answers: Sequence[tuple[Answer, OperatingPoint]]) -> pa.Table:
        """Answers to the question as the journal holds them."""
        return pa.Table.from_pylist([self._row(*one) for one in answers], _JOURNALED)

    def _row(self, answer: Answer, point: OperatingPoint) -> dict[str, Any]:
        generation = answer.generation
        return {
            "document": self.asked.document,
            "question": self.asked.question,
            "method": point.decoder,
            "budget": point.budget,
            "policy": point.policy,
            "text": generation.text,
            "n_context": answer.n_context,
            "dropped": answer.dropped,
            "n_generated": len(generation.trace),
            "finish": generation.finish,
            "selected": generation.mean_selected_tokens,
            "attended": generation.mean_attended_tokens,
            "selected_with_tentative": generation.mean_selected_with_tentative,
            "attended_with_tentative": generation.mean_attended_with_tentative,
            "rollbacks": generation.rollbacks,
            "effective_rollbacks": generation.effective_rollbacks,
            "prefill_seconds": answer.prefill_seconds,
            "decode_seconds": generation.seconds,
            "peak_bytes": answer.peak_bytes,
            "trace": list(trace_rows(self.asked.document, generation)),
        }


def _answer_together(
    questions: Sequence[_Question], points: Sequence[tuple[OperatingPoint, Method | Adaptive, PointDetector | None]]
) -> None:
    """Decode those of the points that were not yet, all of one kind of reading, in shared passes.

    :meth:`_Question.answer` finds them. What is decoded side by side rounds alike, so that all of a question's points
    are journaled as one, and questions are decoded anew beside those that are missing.
    """
    reader = questions[0].answers.reader
    new = [how for how in points if how[0].label not in questions[0].together and not _lacking(how[1], reader)]
    if not new:
        return
    wanted = [(one, *how) for one in questions for how in new]

    @cache
    def decoded() -> dict[int, list[tuple[Answer, OperatingPoint]]]:
        asked = [(one.answers, one.asked, method, of and of.detector) for one, _, method, of in wanted]
        found: dict[int, list[tuple[Answer, OperatingPoint]]] = {}
        for answer, (one, point, *_) in zip(answer_together(asked), wanted, strict=True):
            found.setdefault(id(one), []).append((answer, point))
        return found

    identity = digest([_identity(method, detector) for _, method, detector in new])
    for one in questions:
        try:
            found = one.journal.table(f"rows/{identity}/{one.what}", lambda one=one: one.table(decoded()[id(one)]))
        except UserError as error:
            if new[0][0].in_blocks or isinstance(error, NotFiniteError):
                raise
            # What the method cannot do with a document is told when each is decoded by itself.
            return
        one.together |= {point.label: found.slice(place, 1) for place, (point, *_) in enumerate(new)}


def _identity(method: Method | Adaptive, detector: PointDetector | None) -> str:
    # Names of points and detectors are no part of an answer.
    identity = fingerprint(digest(repr(method)), method.base.files())
    return f"{identity}/{detector.digest if detector else ''}"


def _lacking(method: Method | Adaptive, reader: Reader) -> str:
    """What a method needs and is not there, or why it cannot work with the reader; "" where it can run."""
    try:
        if not (lacking := method.base.missing()):
            method.base.check(reader)
    except UserError as error:
        return str(error)
    return lacking


def _not_run(why: str) -> Answer:
    """The answer of a method that was not run."""
    return Answer(Generation(1, finish=NOT_RUN + why), 0, 0, float("nan"), 0)


def with_columns(table: pa.Table, **values: str | int) -> pa.Table:
    """``table`` with columns of one value each in the place of its own."""
    for name, value in values.items():
        kind = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, pa.array([value] * len(table), kind.type))
    return table


def on_host(tensors: Sequence[Tensor]) -> list[list[list[Any]]]:
    """Tensors of two dimensions as lists, with one transfer from the device for all of them."""
    flat = torch.cat([tensor.flatten() for tensor in tensors]).tolist() if tensors else []
    rows, start = [], 0
    for tensor in tensors:
        height, width = tensor.shape
        rows.append([flat[start + row * width : start + (row + 1) * width] for row in range(height)])
        start += height * width
    return rows


_OF_A_PASS = ("token", "k", "margin", "logprob", "top_tokens", "top_logits")
"""What a trace has of the accepted pass and of the one that was tried first."""


def trace_rows(document: str, generation: Generation) -> Iterator[dict[str, Any]]:
    """The rows of schema "traces" of an answer, without the name of its point."""
    retrieved = [token for token in generation.trace if token.selected is not None]
    selected, scores = (on_host([getattr(token, name) for token in retrieved]) for name in ("selected", "scores"))
    by_token = {id(token): pair for token, *pair in zip(retrieved, selected, scores, strict=True)}
    for step, token in enumerate(generation.trace):
        first: Token = token.tentative or token
        hallucinated, correct, unknown = token.gdm or (None, None, None)
        blocks, block_scores = by_token.get(id(token), ([], []))
        yield {
            "document": document,
            "point": "",
            "step": step,
            **{name: getattr(token, name) for name in (*_OF_A_PASS, "text", "rolled_back", "attended")},
            **{f"tentative_{name}": getattr(first, name) for name in _OF_A_PASS},
            "p_hallucinated": hallucinated,
            "p_correct": correct,
            "p_unknown": unknown,
            "selected": blocks,
            "scores": block_scores,
        }
