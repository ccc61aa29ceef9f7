"""All operating points of a document, by any methods."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, groupby
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
from utaca.settings.checks import build, digest
from utaca.settings.schema import NOT_RUN, OperatingPoint
from utaca.trace import Generation, NotFiniteError, Token

TOGETHER = 32
"""Most answers that share passes, be they about one document or about several."""
SHORT = 1 << 17
"""Most characters, in total, of documents whose answers to several questions share passes."""


@dataclass(frozen=True)
class PointDetector:
    """The detector of an operating point: its variant and seed, and the digest of the file it was read from."""

    detector: Detector
    digest: str
    variant: str
    seed: int


class Prepared(NamedTuple):
    """What answers are decoded with: the reader, the points, and the method and detector of each by its label."""

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

    ``reader`` and ``points`` are their settings, ``methods`` those of methods, ``triggers`` variant, seed and file of
    the detector of each point that has one, by label; ``taken`` the settings of those variants that the run takes from
    elsewhere. Raises :class:`UserError` if a setting is wrong, or if a detector is none for this reader or differs
    from the config.
    """
    loaded = load(build(schema.ReaderSettings, reader, "reader"))
    origin = Origin(loaded.settings.name, loaded.identity)
    built = [build(OperatingPoint, point) for point in points]
    detectors = {
        label: PointDetector(load_for(origin, path, taken.get(variant)), fingerprint("", [path]), variant, seed)
        for label, (variant, seed, path) in triggers.items()
    }
    return Prepared(loaded, built, {point.label: method_of(point, methods) for point in built}, detectors)


@dataclass
class Decoded:
    """Answers and traces (schemas of the same names) by label of the operating point."""

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
    """Answers and traces of every point.

    ``split`` names the split or set of tasks. Methods that can share a reading of a document follow each other,
    and so do questions about one document if they are adjacent in ``asked``. With ``together``, points that allow it
    share passes (:func:`utaca.generation.answers.answer_together`) and are journaled as one. Documents that an earlier
    stage has ``saved`` are not read again. ``codes`` are digests, by label, of the code that a point has to itself; if
    one changes, the journal's answers at that point do not count.

    If memory does not suffice for an answer, or if its method lacks something (:meth:`Method.missing`) or cannot handle
    the reader or the document, the answer is a row without tokens, whose ``finish`` gives the reason. For points in
    block memory, a lack of memory for shared passes or an unsuitable document raises :class:`UserError` instead.
    """
    reader, points, methods, detectors = prepared
    reading = {label: shared_reading(method.base, reader) for label, method in methods.items()}
    readings = list(dict.fromkeys(reading.values()))
    codes = codes or {}
    setups = [
        _Setup(point, methods[point.label], detectors.get(point.label), codes.get(point.label, "")) for point in points
    ]
    setups.sort(key=lambda setup: readings.index(reading[setup.point.label]))
    answered: dict[str, list[tuple[pa.Table, pa.Table]]] = {point.label: [] for point in points}
    documents = [list(group) for _, group in groupby(asked, key=lambda one: one.text)]
    bar = progress(total=len(documents), unit="document", desc=f"answers, {split}")
    for group in side_by_side(documents, len(points) if together else 0):
        questions = []
        for document in group:
            answers = Answers(reader, document[0].text, saved)
            questions.append([_Journaled(one, answers, journal, split) for one in document])
        shared = [setup for setup in setups if together and setup.point.together]
        for _, of_reading in groupby(shared, key=lambda setup: reading[setup.point.label]):
            together_now = list(of_reading)
            every = list(chain(*questions))
            # Each answer about a long document holds a long window, so only answers to one question share passes.
            size = max(1, TOGETHER // len(together_now)) if len(every[0].asked.text) <= SHORT else 1
            for first in range(0, len(every), size):
                _answer_together(every[first : first + size], together_now)
        for document in questions:
            for setup in setups:
                answered[setup.point.label] += [one.answer(setup) for one in document]
        bar.update(len(group))
    bar.close()
    tables = {label: [pa.concat_tables(x) for x in zip(*pairs, strict=True)] for label, pairs in answered.items()}
    return Decoded(*({label: pair[which] for label, pair in tables.items()} for which in (0, 1)))


def side_by_side(documents: Sequence[list[Asked]], points: int) -> Iterator[list[list[Asked]]]:
    """Group documents: single ones, or at most :data:`TOGETHER` answers and :data:`SHORT` characters per group."""
    group: list[list[Asked]] = []
    answers = characters = 0
    for document in documents:
        more = len(document) * points
        longer = len(document[0].text)
        if group and (not points or answers + more > TOGETHER or characters + longer > SHORT):
            yield group
            group = []
            answers = 0
            characters = 0
        group.append(document)
        answers = answers + more
        characters = characters + longer
    if group:
        yield group


_JOURNALED = SCHEMAS["answers"].append(pa.field("trace", pa.list_(pa.struct(SCHEMAS["traces"]))))
"""Schema of an answer in a journal: its row, with the rows of its trace."""
_COLUMNS = digest(str(_JOURNALED))
"""A journal may be older than the schema: answers of other columns are decoded again."""


@dataclass(frozen=True)
class _Setup:
    """An operating point, the method and detector that answer at it, and the digest of their code."""

    point: OperatingPoint
    method: Method | Adaptive
    detector: PointDetector | None
    code: str

    @property
    def identity(self) -> str:
        # The names of points and detectors do not affect an answer.
        identity = fingerprint(digest(repr(self.method) + self.code), self.method.base.files())
        return f"{identity}/{self.detector.digest if self.detector else ''}"

    @property
    def loaded_detector(self) -> Detector | None:
        return self.detector and self.detector.detector

    def lacking(self, reader: Reader) -> str:
        """What the method needs and this machine lacks, or why it cannot work with the reader; "" if it can run."""
        try:
            if not (lacking := self.method.base.missing()):
                self.method.base.check(reader)
        except UserError as error:
            return str(error)
        return lacking

    def forgives(self, error: UserError) -> bool:
        """Whether ``error`` only means that the method cannot handle a document, such as one far above the budget."""
        return not self.point.in_blocks and not isinstance(error, NotFiniteError)


class _Journaled:
    """Journaled answers to one question; the document is read for the first answer that the journal lacks."""

    def __init__(self, asked: Asked, answers: Answers, journal: Journal, split: str) -> None:
        self.asked = asked
        self.answers = answers
        self.journal = journal
        self.split = split
        self.what = f"{_COLUMNS}/{asked.document}/{digest(asked)}"
        self.together: dict[str, pa.Table] = {}

    def answer(self, setup: _Setup) -> tuple[pa.Table, pa.Table]:
        """The answer (schema "answers", one row), named after the point and its detector, and its trace ("traces")."""
        point = setup.point
        detector = setup.detector
        row = self.together.get(point.label)
        if row is None and (lacking := setup.lacking(self.answers.reader)):
            # This row is not journaled, because what is missing now may be installed next time.
            row = self.table([(_not_run(lacking), point)])
        elif row is None:
            # Memory that does not suffice now may suffice next time, too.
            item = f"row/{setup.identity}/{self.what}"
            row = self.journal.table(item, partial(self._decode, setup), failed="memory")
        trace = pa.table(row["trace"].combine_chunks().flatten().flatten(), SCHEMAS["traces"])
        about: dict[str, str | int] = {"split": self.split, "point": point.label, "budget": point.budget}
        if detector:
            about |= {"detector": detector.variant, "seed": detector.seed}
        return _with_columns(row.drop_columns("trace"), **about), _with_columns(trace, point=point.label)

    def _decode(self, setup: _Setup) -> pa.Table:
        """Decode the answer; if the method cannot handle the document, the row says why it was not run."""
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
        """Answers to the question as the journal holds them."""
        return pa.Table.from_pylist([self._row(*one) for one in answers], _JOURNALED)

    def _row(self, answer: Answer, point: OperatingPoint) -> dict[str, Any]:
        generation = answer.generation
        return {
            "document": self.asked.document,
            "question": self.asked.question,
            "method": point.method,
            "base": point.base,
            "budget": point.budget,
            "policy": point.policy,
            "trigger": _trigger_of(point),
            "detector": "",
            "drafts": point.drafts,
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
    """The text of a point's trigger; "detector" whatever its name, "" without a trigger."""
    if not point.adaptive:
        return ""
    return "detector" if point.detected else str(point.trigger)


def _answer_together(questions: Sequence[_Journaled], setups: Sequence[_Setup]) -> None:
    """Answer ``questions`` at points of one kind of reading in shared passes, unless the journal holds all answers.

    :meth:`_Journaled.answer` finds the answers. Rounding depends on what shares passes, so all points of a question are
    journaled as one, and if the journal lacks one question, all ``questions`` are decoded again.
    """
    new = [setup for setup in setups if not setup.lacking(questions[0].answers.reader)]
    if not new:
        return
    wanted = [(one.answers, one.asked, setup.method, setup.loaded_detector) for one in questions for setup in new]
    decoded = cache(lambda: answer_together(wanted))
    points = [setup.point for setup in new]
    identity = digest([setup.identity for setup in new])
    for place, one in enumerate(questions):

        def make(one: _Journaled = one, first: int = place * len(new)) -> pa.Table:
            return one.table(zip(decoded()[first : first + len(new)], points, strict=True))

        try:
            table = one.journal.table(f"rows/{identity}/{one.what}", make)
        except UserError as error:
            if not new[0].forgives(error):
                raise
            # Each answer is then decoded by itself, which records what the method cannot handle.
            return
        one.together |= {point.label: table.slice(place, 1) for place, point in enumerate(points)}


def _not_run(why: str) -> Answer:
    """The answer of a method that was not run."""
    return Answer(Generation(1, finish=NOT_RUN + why), 0, 0, float("nan"), 0)


def _with_columns(table: pa.Table, **values: str | int) -> pa.Table:
    """``table`` with the named columns replaced by columns of one constant value each."""
    for name, value in values.items():
        kind = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, pa.array([value] * len(table), kind.type))
    return table


_OF_A_PASS = ("token", "k", "margin", "logprob", "top_tokens", "top_logits")
"""Fields that a trace holds both for the accepted pass and for the pass that was tried first."""


def trace_rows(document: str, generation: Generation) -> Iterator[dict[str, Any]]:
    """The rows of schema "traces" of an answer, without the name of its point."""
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
            "selected": [] if token.selected is None else token.selected.tolist(),
            "scores": [] if token.selected is None else token.scores.tolist(),
        }
