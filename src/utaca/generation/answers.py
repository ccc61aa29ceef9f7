"""Answers of any method about a document."""

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from utaca.decoding.loop import generate, generate_together
from utaca.decoding.options import Decoding, Reading
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.generation.peak import PeakMemory
from utaca.machine import return_freed_memory
from utaca.memory.saved import SavedDocuments
from utaca.methods.bases.method import Method
from utaca.methods.infllm import BLOCKS, shared_reading
from utaca.methods.utaca import Adaptive
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.readers.room import NoRoomError
from utaca.trace import Generation

LONGEST_CYCLE = 16
LOOPED = 48
"""An answer that the reader did not end is incoherent if its last ``LOOPED`` tokens repeat one cycle of at most
``LONGEST_CYCLE`` tokens."""


@dataclass(frozen=True)
class Asked:
    """A ``question`` about a document's ``text``; the answer continues ``prefix`` by at most ``longest`` tokens."""

    document: str
    text: str
    question: str
    longest: int
    prefix: str = ""


@dataclass
class Answer:
    """What a method answered.

    ``generation.finish`` is ``eos``, ``length``, ``incoherent`` (see :data:`LOOPED`) or ``memory`` (memory did not
    suffice; no token). ``n_context`` counts the document's tokens that were read, ``dropped`` those that were cut.
    ``prefill_seconds`` is the time that reading the document took, even if other answers used that reading. If the
    answer shared passes, ``peak_bytes`` is None and ``generation.seconds`` NaN: neither can be measured for one answer.
    """

    generation: Generation
    n_context: int
    dropped: int
    prefill_seconds: float
    peak_bytes: int | None


class Answers:
    """Answers about one document, its text or token ids [N].

    The latest reading is kept only for questions and methods that can share it (:func:`shared_reading`), so that no
    method's peak memory includes another method's reading. Answers that share passes, for which no peak memory is
    measured, take a document's block memory from ``saved`` if an earlier stage has saved it.
    """

    def __init__(self, reader: Reader, document: str | Tensor, saved: SavedDocuments | None = None) -> None:
        self.reader = reader
        self._document = document
        self._documents = saved
        self._kept: tuple[Hashable, Reading, float, int] | None = None

    def answer(
        self,
        method: Method | Adaptive,
        question: str,
        max_new_tokens: int,
        detector: Detector | None = None,
        **options: Any,
    ) -> Answer:
        """The answer to a question, of at most ``max_new_tokens`` tokens, the end token included.

        UT-ACA needs a ``detector``; ``options`` are further fields of :class:`utaca.decoding.options.Decoding`, which
        override the method's.
        """
        options = {**method.options(detector), **options, "max_new_tokens": max_new_tokens}
        method = method.base
        method.check(self.reader)
        reading = None
        seconds = 0.0
        peak = 0
        try:
            reading, seconds, peak = self.read(method, question, max_new_tokens, options.get("prefix", ""))
            with PeakMemory(self.reader.device) as decoding:
                generation = generate(method.bind(reading), question, **options)
            peak = max(peak, decoding.bytes)
            _name_loops(generation)
        except (MemoryError, RuntimeError, NoRoomError) as error:
            if not _out_of_memory(error):
                raise
            generation = Generation(1, finish="memory")
            self._kept = None
        n_context, dropped = (len(reading), reading.dropped) if reading else (0, 0)
        return Answer(generation, n_context, dropped, seconds, peak)

    @cached_property
    def _length(self) -> int:
        document = self._document
        return len(self.reader.encode_document(document) if isinstance(document, str) else document)

    def read(
        self, method: Method, question: str, longest: int, prefix: str, *, shared: bool = False
    ) -> tuple[Reading, float, int]:
        """The document as a method reads it, the seconds that reading it took, and its peak memory in bytes.

        The reading leaves room for the question and ``longest`` answer tokens; ``shared``: the answer shares passes.
        """
        room = len(self.reader.encode_question(question, prefix)) + longest
        # A document that is cut to leave room for a question is cut shorter for a longer question.
        key = shared_reading(method, self.reader), min(self._length, method.longest(self.reader, room) or self._length)
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            return_freed_memory()
            started = time.perf_counter()
            with PeakMemory(self.reader.device) as peak:
                if shared and self._documents and method.reading == BLOCKS:
                    reading, seconds, _ = self._documents.read(self.reader, self._document, method.budget)
                else:
                    reading = method.read(self.reader, self._document, room)
                    seconds = time.perf_counter() - started
            self._kept = key, reading, seconds, peak.bytes
        return self._kept[1:]


def answer_together(wanted: Sequence[tuple[Answers, Asked, Method | Adaptive, Detector | None]]) -> list[Answer]:
    """As :meth:`Answers.answer`, in shared passes, by methods of one kind of reading; documents may differ.

    Raises :class:`UserError` if memory does not suffice for the answers side by side.
    """
    decodings = []
    read = []
    with side_by_side_room(len(wanted)):
        for answers, one, method, detector in wanted:
            options = {**method.options(detector), "prefix": one.prefix, "max_new_tokens": one.longest}
            method = method.base
            method.check(answers.reader)
            reading, seconds, _ = answers.read(method, one.question, one.longest, one.prefix, shared=True)
            decodings.append(Decoding(method.bind(reading), one.question, **options))
            read.append(seconds)
        generations = generate_together(decodings)
    answered = []
    for decoding, seconds, generation in zip(decodings, read, generations, strict=True):
        generation.seconds = float("nan")
        _name_loops(generation)
        answered.append(Answer(generation, len(decoding.reading), decoding.reading.dropped, seconds, None))
    return answered


@contextmanager
def side_by_side_room(number: int) -> Iterator[None]:
    """Raise :class:`UserError` if memory does not suffice in the block for ``number`` answers side by side."""
    try:
        yield
    except (MemoryError, RuntimeError, NoRoomError) as error:
        if not _out_of_memory(error):
            raise
        raise UserError(
            f"{number} answers do not fit into memory side by side; set generation.together=false"
        ) from error


def _name_loops(generation: Generation) -> None:
    if generation.finish == "length" and loops([token.token for token in generation.trace]):
        generation.finish = "incoherent"


def ask(reader: Reader, document: Mapping[str, Any]) -> Asked:
    """The question about all facts of a document, a row of schema "documents"."""
    attributes = [fact["attribute"] for fact in document["facts"]]
    text = question(attributes, document["person"], reader.settings.prompt)
    return Asked(document["id"], document["text"], text, reader.settings.max_new_tokens * len(attributes))


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last of an answer's ``tokens`` repeat one cycle, see :data:`LOOPED`."""
    end = list(tokens[-LOOPED:])
    return len(end) == LOOPED and any(end[period:] == end[:-period] for period in range(1, LONGEST_CYCLE + 1))


def _out_of_memory(error: Exception) -> bool:
    """Whether ``error`` is a lack of memory; for main and pinned memory and cuBLAS, PyTorch raises a RuntimeError."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError | NoRoomError)
    return known or any(x in str(error) for x in ("can't allocate memory", "out of memory", "ALLOC_FAILED"))
