"""Decode answers at all operating points, by any methods.

An operating point is a method under one setting. A document is read once for all points that can share the reading.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from utaca.detection.detector import Detector, load_for
from utaca.errors import UserError
from utaca.generation.answers import Answer, Answers, Asked, answer_together
from utaca.memory.saved import SavedDocuments
from utaca.methods import method_of
from utaca.methods.bases.method import Method
from utaca.methods.infllm import shared_reading
from utaca.methods.utaca import Adaptive
from utaca.readers.load import Reader, load
from utaca.records import SCHEMAS, Origin
from utaca.records.journal import Journal, fingerprint
from utaca.records.progress import progress
from utaca.settings import schema
from utaca.settings.budgets import resolve, share_of
from utaca.settings.checks import build, digest
from utaca.settings.schema import NOT_RUN, OperatingPoint
from utaca.trace import Generation, NotFiniteError, Token

TOGETHER = 32
"""Most answers that share passes, be they about one document or about several."""
SHORT = 1 << 17
"""Most characters, in total, of the documents in a group whose answers share passes; a longer document forms a group of
its own, and then only answers to one question share passes."""


@dataclass(frozen=True)
class PointDetector:
    """The detector of an operating point: its variant and seed, and the digest of the file it was read from."""

    detector: Detector
    digest: str
    variant: str
    seed: int


class Prepared(NamedTuple):
    """What answers are decoded with: the reader, the points, and each point's method and detector by its label.

    A point without a detector is not in ``detectors``.
    """

    reader: Reader
    points: list[OperatingPoint]
    methods: dict[str, Method | Adaptive]
    detectors: dict[str, PointDetector]


def prepare(
    reader: Mapping[str, Any],
    points: Iterable[Mapping[str, Any]],
    methods: Mapping[str, Mapping[str, Any]],
    triggers: Mapping[str, tuple[str, int, str]],
    taken: Mapping[str, Mapping[str, Any]],
) -> Prepared:
    """Load what a stage decodes with, from plain values of the config.

    ``reader``, ``points`` and ``methods`` are the settings of the config's sections. ``triggers`` has, by label of the
    point, the variant, seed and file of each detector. ``taken`` has, by variant, the settings of the detectors that
    the run does not train but takes from elsewhere. Raises :class:`UserError` if a setting is wrong, or if a detector
    was trained for another reader or with other settings than the config's.
    """
    loaded = load(build(schema.ReaderSettings, reader, "reader"))
    built = [build(OperatingPoint, point) for point in points]
    origin = Origin(loaded.settings.name, loaded.identity)
    detectors = {}
    for label, (variant, seed, path) in triggers.items():
        detector = load_for(origin, path, taken.get(variant))
        detectors[label] = PointDetector(detector, fingerprint("", [path]), variant, seed)
    methods_by_label = {point.label: method_of(point, methods) for point in built}
    return Prepared(loaded, built, methods_by_label, detectors)


@dataclass
class Decoded:
    """Answers and traces by label of the operating point, as tables of schemas "answers" and "traces"."""

    answers: dict[str, pa.Table] = field(default_factory=dict)
    traces: dict[str, pa.Table] = field(default_factory=dict)


def decode_points(
    prepared: Prepared,
    asked: Sequence[Asked],
    journal: Journal,
    *,
    split: str,
    together: bool = False,
    saved: SavedDocuments | None = None,
    codes: Mapping[str, str] | None = None,
) -> Decoded:
    """Answer every question at every point; return the answers and their traces.

    A document is read once for all methods that can share the reading, and once for all questions about it that are
    adjacent in ``asked``. ``split`` names the split or set of tasks, in the rows. With ``together``, points that allow
    it share passes (:func:`utaca.generation.answers.answer_together`) and are journaled as one. Documents that an
    earlier stage has ``saved`` are not read again. ``codes`` are digests, by label, of the code that only this point
    runs; if one changes, the journal's answers at that point do not count.

    If memory does not suffice for an answer, or if its method lacks something (:meth:`Method.missing`) or cannot handle
    the reader or the document, the answer is a row without tokens, whose ``finish`` gives the reason. For points in
    block memory, a lack of memory for shared passes or an unsuitable document raises :class:`UserError` instead.
    """
    setups = _setups(prepared, codes or {})
    sharing = [setup for setup in setups if together and setup.point.together]
    answered: dict[str, list[tuple[pa.Table, pa.Table]]] = {point.label: [] for point in prepared.points}
    documents = [list(questions) for _, questions in groupby(asked, key=lambda one: one.text)]
    bar = progress(total=len(documents), unit="document", desc="answers")
    for group in side_by_side(documents, len(setups) if together else 0):
        journaled = []
        for document in group:
            answers = Answers(prepared.reader, document[0].text, saved)
            journaled.append([_Journaled(question, answers, journal, split) for question in document])
        _share_passes(journaled, sharing)
        for questions in journaled:
            for setup in setups:
                answered[setup.point.label] += [question.answer(setup) for question in questions]
        bar.update(len(group))
    bar.close()
    return Decoded(
        answers={label: pa.concat_tables([answer for answer, _ in pairs]) for label, pairs in answered.items()},
        traces={label: pa.concat_tables([trace for _, trace in pairs]) for label, pairs in answered.items()},
    )


def side_by_side(documents: Sequence[list[Asked]], answers_each: int) -> Iterator[list[list[Asked]]]:
    """Group documents (each a list of its questions) whose answers may share passes.

    A group has at most :data:`TOGETHER` answers and :data:`SHORT` characters; a document that exceeds a limit is the
    only one in its group. ``answers_each`` counts the answers to each question; with 0, documents are not grouped.
    """
    group: list[list[Asked]] = []
    answers = 0
    characters = 0
    for document in documents:
        more_answers = len(document) * answers_each
        more_characters = len(document[0].text)
        full = answers + more_answers > TOGETHER or characters + more_characters > SHORT
        if group and (full or not answers_each):
            yield group
            group = []
            answers = 0
            characters = 0
        group.append(document)
        answers += more_answers
        characters += more_characters
    if group:
        yield group


_JOURNALED = SCHEMAS["answers"].append(pa.field("trace", pa.list_(pa.struct(SCHEMAS["traces"]))))
"""Schema of an answer in a journal: its row of "answers", with its rows of "traces" as a list in a further column."""
_COLUMNS = digest(str(_JOURNALED))
"""Digest of that schema. It is part of a journaled answer's key, so answers of an older schema are decoded again."""


@dataclass(frozen=True)
class _Setup:
    """What answers at an operating point: its method, its detector, and the digest of the code that only it runs.

    Setups with equal ``reading`` (:func:`shared_reading`) can share one reading of a document.
    """

    point: OperatingPoint
    method: Method | Adaptive
    detector: PointDetector | None
    code: str
    reading: Hashable

    @property
    def identity(self) -> str:
        """Digests of all that the setup's answers depend on, except the reader and the question."""
        # The names of points and detectors do not affect an answer.
        method = fingerprint(digest(repr(self.method) + self.code), self.method.base.files())
        detector = self.detector.digest if self.detector else ""
        return f"{method}/{detector}"

    @property
    def loaded_detector(self) -> Detector | None:
        return self.detector.detector if self.detector else None

    def lacking(self, reader: Reader) -> str:
        """Why the method cannot run: what this machine lacks, or why this reader does not suit; "" if it can run."""
        try:
            if not (lacking := self.method.base.missing()):
                self.method.base.check(reader)
        except UserError as error:
            return str(error)
        return lacking

    def forgives(self, error: UserError) -> bool:
        """Whether ``error``, raised by an answer, becomes a row that says so and does not end the run.

        It does for other methods than block memory, which may be unable to handle a document, such as one far above
        the budget. Values that are not finite end the run under any method.
        """
        return not self.point.in_blocks and not isinstance(error, NotFiniteError)


def _setups(prepared: Prepared, codes: Mapping[str, str]) -> list[_Setup]:
    """The setup of each point; ``codes`` are its code's digests, by label.

    Points of one reading are side by side, readings in the order of their first point.
    """
    setups = []
    for point in prepared.points:
        method = prepared.methods[point.label]
        reading = shared_reading(method.base, prepared.reader)
        detector = prepared.detectors.get(point.label)
        setups.append(_Setup(point, method, detector, codes.get(point.label, ""), reading))
    order = list(dict.fromkeys(setup.reading for setup in setups))
    return sorted(setups, key=lambda setup: order.index(setup.reading))


class _Journaled:
    """One question and its answers, each from the journal or, if that lacks it, decoded and journaled.

    The document is read for the first answer that the journal lacks. ``shared`` has, by label of the point, the answers
    that were decoded in shared passes (:func:`_answer_together` fills it), each as a journal's row.
    """

    def __init__(self, asked: Asked, answers: Answers, journal: Journal, split: str) -> None:
        self.asked = asked
        self.answers = answers
        self.journal = journal
        self.split = split
        self.key = f"{_COLUMNS}/{asked.document}/{digest(asked)}"
        self.shared: dict[str, pa.Table] = {}

    def answer(self, setup: _Setup) -> tuple[pa.Table, pa.Table]:
        """Return the answer at a point (schema "answers", one row) and its trace (schema "traces").

        Points with equal settings share a journaled answer, so the journal stores neither the name of the point nor
        that of its detector. Both are filled in here.
        """
        row = self._row(setup)
        # The column has a list of structs: the first step flattens the list, the second the structs into columns.
        trace = pa.table(row["trace"].combine_chunks().flatten().flatten(), SCHEMAS["traces"])
        point = setup.point
        budget = self._budget(point, row["n_context"][0].as_py())
        names: dict[str, str | int] = {"split": self.split, "point": point.label, **budget}
        if setup.detector:
            names |= {"detector": setup.detector.variant, "seed": setup.detector.seed}
        return _with_columns(row.drop_columns("trace"), **names), _with_columns(trace, point=point.label)

    def _row(self, setup: _Setup) -> pa.Table:
        """The answer at a point as a journal's row.

        It was decoded in passes shared with other points, cannot be run, is in the journal, or is decoded now.
        """
        if setup.point.label in self.shared:
            return self.shared[setup.point.label]
        if lacking := setup.lacking(self.answers.reader):
            # This row is not journaled, because what is missing now may be installed next time.
            return self.table([(_not_run(lacking), setup.point)])
        # An answer that failed for lack of memory is not journaled either: the memory may suffice next time.
        return self.journal.table(f"row/{setup.identity}/{self.key}", partial(self._decode, setup), failed="memory")

    def _decode(self, setup: _Setup) -> pa.Table:
        """Decode the answer at a point; if the method cannot handle the document, the row says why it was not run."""
        asked = self.asked
        try:
            answer = self.answers.answer(
                setup.method, asked.question, asked.longest, setup.loaded_detector, prefix=asked.prefix
            )
        except UserError as error:
            if not setup.forgives(error):
                raise
            answer = _not_run(str(error))
        return self.table([(answer, setup.point)])

    def table(self, answers: Iterable[tuple[Answer, OperatingPoint]]) -> pa.Table:
        """Answers to the question, each with its point, as rows of a journal."""
        return pa.Table.from_pylist([self._fields(answer, point) for answer, point in answers], _JOURNALED)

    def _budget(self, point: OperatingPoint, n_context: int) -> dict[str, Any]:
        """The columns of a point's budget for the document. ``n_context`` of its tokens were read."""
        blocks = self.answers.reader.settings.memory.layout.blocks(n_context)
        return {"budget": resolve(point.budget, blocks), "share": share_of(point.budget)}

    def _fields(self, answer: Answer, point: OperatingPoint) -> dict[str, Any]:
        """The fields of a journal's row; those that name the point, the split and the detector stay empty."""
        generation = answer.generation
        return {
            "document": self.asked.document,
            "question": self.asked.question,
            "method": point.method,
            "base": point.base,
            **self._budget(point, answer.n_context),
            "policy": point.policy,
            "trigger": _trigger_of(point),
            "detector": "",
            "drafts": point.drafts,
            "draft_budget": point.draft_budget,
            "text": generation.text,
            "n_context": answer.n_context,
            "dropped": answer.dropped,
            "n_generated": len(generation.trace),
            "passes": generation.passes,
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


def _trigger_of(point: OperatingPoint) -> str:
    """The trigger as a row says it: "detector" for any detector, "" for a point without a trigger, else its text."""
    if not point.adaptive:
        return ""
    return "detector" if point.detected else str(point.trigger)


def _share_passes(journaled: Sequence[Sequence[_Journaled]], sharing: Sequence[_Setup]) -> None:
    """Answer the questions about a group of documents at the points that share passes.

    ``journaled`` has a list of questions for each document of a group of :func:`side_by_side`. ``sharing`` are these
    points' setups, those of one reading side by side. The answers are put where :meth:`_Journaled.answer` finds them.
    """
    questions = [question for document in journaled for question in document]
    # A long document is the only one of its group.
    long = len(questions[0].asked.text) > SHORT
    for _, of_reading in groupby(sharing, key=lambda setup: setup.reading):
        setups = list(of_reading)
        # Each answer about a long document holds a long window, so only answers to one question share passes.
        questions_at_once = 1 if long else max(1, TOGETHER // len(setups))
        for first in range(0, len(questions), questions_at_once):
            _answer_together(questions[first : first + questions_at_once], setups)


def _answer_together(questions: Sequence[_Journaled], setups: Sequence[_Setup]) -> None:
    """Answer ``questions`` at points of one reading in shared passes, unless the journal holds all of the answers.

    Puts the answers into ``question.shared``, where :meth:`_Journaled.answer` finds them. Rounding depends on what
    shares passes, so all points of a question are journaled as one, and if the journal lacks one question, all
    ``questions`` are decoded again.
    """
    able = [setup for setup in setups if not setup.lacking(questions[0].answers.reader)]
    if not able:
        return
    wanted = [
        (question.answers, question.asked, setup.method, setup.loaded_detector)
        for question in questions
        for setup in able
    ]
    decoded = cache(lambda: answer_together(wanted))
    points = [setup.point for setup in able]
    identity = digest([setup.identity for setup in able])
    for place, question in enumerate(questions):
        # The answers to a question follow each other in ``decoded``, in the order of ``able``.

        def make(question: _Journaled = question, first: int = place * len(able)) -> pa.Table:
            return question.table(zip(decoded()[first : first + len(able)], points, strict=True))

        try:
            table = question.journal.table(f"rows/{identity}/{question.key}", make)
        except UserError as error:
            # Points of one reading are all in block memory, or none is.
            if not able[0].forgives(error):
                raise
            # This question and those after it share nothing. Each of their answers then gets its own passes, and the
            # row of one that fails says why.
            return
        question.shared |= {point.label: table.slice(row, 1) for row, point in enumerate(points)}


def _not_run(why: str) -> Answer:
    """An answer without tokens, of a method that was not run; its ``finish`` says why."""
    return Answer(Generation(1, finish=NOT_RUN + why), 0, 0, float("nan"), 0)


def _with_columns(table: pa.Table, **values: str | int) -> pa.Table:
    """``table`` with the named columns replaced by columns of one constant value each."""
    for name, value in values.items():
        column = table.schema.field(name)
        values_of_rows = pa.array([value] * len(table), column.type)
        table = table.set_column(table.schema.get_field_index(name), column, values_of_rows)
    return table


_OF_A_PASS = ("token", "k", "margin", "logprob", "top_tokens", "top_logits")
"""Fields of a token that a trace holds twice: of the accepted pass, and of the token's first pass."""


def trace_rows(document: str, generation: Generation) -> Iterator[dict[str, Any]]:
    """Yield an answer's rows of schema "traces", one per token.

    The column ``point`` is left empty; :meth:`_Journaled.answer` puts the point's name there.
    The columns ``tentative_…`` are those of the token's first pass, which is the accepted pass if none was rolled back.
    """
    for step, token in enumerate(generation.trace):
        first: Token = token.tentative or token
        hallucinated, correct, unknown = token.gdm or (None, None, None)
        yield {
            "document": document,
            "point": "",
            "step": step,
            **{name: getattr(token, name) for name in (*_OF_A_PASS, "text", "rolled_back", "attended", "rows")},
            **{f"tentative_{name}": getattr(first, name) for name in _OF_A_PASS},
            "p_hallucinated": hallucinated,
            "p_correct": correct,
            "p_unknown": unknown,
            "selected": token.blocks,
            "scores": token.block_scores,
        }
