"""Decode the answers of any method to questions about a document."""

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
from utaca.readers.questions import question
from utaca.readers.room import NoRoomError
from utaca.trace import Generation

LONGEST_CYCLE = 16
LOOPED = 48
"""An answer that the reader did not end is incoherent if its last ``LOOPED`` tokens repeat one cycle of at most
``LONGEST_CYCLE`` tokens."""


@dataclass(frozen=True)
class Asked:
    """A ``question`` about a document, given by its id ``document`` and its ``text``.

    The answer begins with ``prefix``, which the reader continues by at most ``longest`` tokens.
    """

    document: str
    text: str
    question: str
    longest: int
    prefix: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Fields of :class:`utaca.decoding.options.Decoding` for the answer."""
        return {"prefix": self.prefix, "max_new_tokens": self.longest}


@dataclass
class Answer:
    """A method's answer to one question, and what it cost.

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
    """Answers questions about one ``document``, given as its text or its token ids [N].

    Only the latest reading of the document is kept, and it is dropped before a method that cannot share it
    (:func:`shared_reading`) reads. So no method's peak memory includes another method's reading. Answers that share
    passes, for which no peak memory is measured, take the document's block memory from ``saved`` if it is there.
    """

    def __init__(self, reader: Reader, document: str | Tensor, saved: SavedDocuments | None = None) -> None:
        self.reader = reader
        self._document = document
        self._saved = saved
        # Key of the latest reading (see `read`), the reading, its seconds and its peak memory in bytes.
        self._kept: tuple[Hashable, Reading, float, int] | None = None

    def answer(
        self,
        method: Method | Adaptive,
        question: str,
        max_new_tokens: int,
        detector: Detector | None = None,
        **options: Any,
    ) -> Answer:
        """Answer a question in at most ``max_new_tokens`` tokens, the end token included.

        UT-ACA needs a ``detector``. ``options`` are further fields of :class:`utaca.decoding.options.Decoding`, which
        override the method's. If memory does not suffice, the answer has no token, and ``memory`` as its finish.
        """
        options = {**method.options(detector), **options, "max_new_tokens": max_new_tokens}
        # From here on, the method that reads and attends: UT-ACA's own part is in the options.
        method = method.base
        method.check(self.reader)
        reading = None
        seconds = 0.0
        peak_bytes = 0
        try:
            reading, seconds, peak_bytes = self.read(method, question, max_new_tokens, options.get("prefix", ""))
            with PeakMemory(self.reader.device) as peak:
                generation = generate(method.bind(reading), question, **options)
            peak_bytes = max(peak_bytes, peak.bytes)
            _name_loops(generation)
        except (MemoryError, RuntimeError, NoRoomError) as error:
            if not _out_of_memory(error):
                raise
            generation = Generation(1, finish="memory")
            self._kept = None
        n_context = len(reading) if reading else 0
        dropped = reading.dropped if reading else 0
        return Answer(generation, n_context, dropped, seconds, peak_bytes)

    @cached_property
    def _length(self) -> int:
        """Number of the document's tokens."""
        document = self._document
        return len(self.reader.encode_document(document) if isinstance(document, str) else document)

    def read(
        self, method: Method, question: str, longest: int, prefix: str, *, shared: bool = False
    ) -> tuple[Reading, float, int]:
        """Return the method's reading of the document, the seconds that reading took, and its peak memory in bytes.

        The latest reading is returned again if the method can share it. A reading leaves room for the question, with
        the answer's ``prefix``, and ``longest`` answer tokens. ``shared``: the answer will share passes.
        """
        room = len(self.reader.encode_question(question, prefix)) + longest
        # A document that is cut to leave room for a question is cut shorter for a longer question.
        length = min(self._length, method.longest(self.reader, room) or self._length)
        key = shared_reading(method, self.reader), length
        if self._kept is None or self._kept[0] != key:
            # The old reading is dropped before the new one is made, so that both are never in memory at once.
            self._kept = None
            return_freed_memory()
            started = time.perf_counter()
            with PeakMemory(self.reader.device) as peak:
                if shared and self._saved and method.reading == BLOCKS:
                    reading, seconds, _ = self._saved.read(self.reader, self._document, method.budget)
                else:
                    reading = method.read(self.reader, self._document, room)
                    seconds = time.perf_counter() - started
            self._kept = key, reading, seconds, peak.bytes
        return self._kept[1:]


def answer_together(wanted: Sequence[tuple[Answers, Asked, Method | Adaptive, Detector | None]]) -> list[Answer]:
    """Decode several answers in shared passes, and return them in the order of ``wanted``.

    Each item of ``wanted`` has the document's :class:`Answers`, the question, the method and its detector. All methods
    must have one kind of reading; documents may differ. Raises :class:`UserError` if memory does not suffice for the
    answers side by side.
    """
    decodings = []
    prefill_seconds = []
    with side_by_side_room(len(wanted)):
        for answers, asked, method, detector in wanted:
            options = {**method.options(detector), **asked.options}
            method = method.base
            method.check(answers.reader)
            reading, seconds, _ = answers.read(method, asked.question, asked.longest, asked.prefix, shared=True)
            decodings.append(Decoding(method.bind(reading), asked.question, **options))
            prefill_seconds.append(seconds)
        generations = generate_together(decodings)
    answered = []
    for decoding, seconds, generation in zip(decodings, prefill_seconds, generations, strict=True):
        generation.seconds = float("nan")
        _name_loops(generation)
        answered.append(Answer(generation, len(decoding.reading), decoding.reading.dropped, seconds, None))
    return answered


@contextmanager
def side_by_side_room(number: int) -> Iterator[None]:
    """Turn a lack of memory in the block, which decodes ``number`` answers side by side, into a :class:`UserError`."""
    try:
        yield
    except (MemoryError, RuntimeError, NoRoomError) as error:
        if not _out_of_memory(error):
            raise
        raise UserError(f"{number} answers do not fit into memory together; set generation.together=false") from error


def _name_loops(generation: Generation) -> None:
    """Set ``generation.finish`` to ``incoherent`` if the answer reached its greatest length in a loop."""
    if generation.finish == "length" and loops([token.token for token in generation.trace]):
        generation.finish = "incoherent"


def ask(reader: Reader, document: Mapping[str, Any]) -> Asked:
    """Return the question about all facts of a ``document`` (a row of schema "documents"), as the reader is asked."""
    attributes = [fact["attribute"] for fact in document["facts"]]
    text = question(attributes, document["person"], reader.settings.prompt)
    return Asked(document["id"], document["text"], text, reader.settings.max_new_tokens * len(attributes))


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last tokens of an answer, whose ids are ``tokens``, repeat one cycle (see :data:`LOOPED`)."""
    end = list(tokens[-LOOPED:])
    if len(end) < LOOPED:
        return False
    # A text that repeats a cycle equals itself when it is shifted by one cycle.
    return any(end[period:] == end[:-period] for period in range(1, LONGEST_CYCLE + 1))


def _out_of_memory(error: Exception) -> bool:
    """Whether ``error`` is a lack of memory.

    PyTorch has an exception for a GPU's memory only; for main memory, pinned memory and cuBLAS, it raises a plain
    RuntimeError, which its message identifies.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError | NoRoomError):
        return True
    messages = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
    return any(message in str(error) for message in messages)
