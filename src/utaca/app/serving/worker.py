"""The one thread that owns the model: documents are read and answers decoded by turns.

A turn is one pass that reads a document, if one is being read, and one pass of all answers under way
(:class:`utaca.decoding.loop.Batch`): an answer waits for a prefill chunk at most between two of its tokens. Documents
are read one at a time, in the order in which they came. A document that is there already is answered from at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from utaca.app.serving.memories import Entry, Memories, key_of
from utaca.app.serving.protocol import Fault, Order, Text
from utaca.decoding.loop import Batch, OpenAnswer
from utaca.decoding.options import Decoding
from utaca.errors import UserError
from utaca.readers.load import Reader
from utaca.settings.machine import return_freed_memory
from utaca.trace import Generation, NotFiniteError, Token

WAITING = 256
"""Orders that may wait; more are turned away."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` tokens of the document are read."""

    done: int
    total: int


@dataclass(frozen=True)
class Piece:
    """A token was committed, and ``text`` may be sent; it may be that of earlier tokens, or empty."""

    text: str
    token: Token


@dataclass(frozen=True)
class End:
    """The answer has ended: why, with what text that was held back, and what the ``generation`` shows."""

    reason: str
    text: str
    generation: Generation


Event = Progress | Piece | End | Fault


@dataclass(eq=False)
class Job:
    """An order under way. ``tell`` is called with what happens to it, by the worker's thread."""

    order: Order
    tell: Callable[[Event], None]
    cached: int = 0
    cancelled: bool = False
    answer: OpenAnswer | None = None
    entry: Entry | None = None
    text: Text = field(init=False)
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.text, self.key = Text(self.order.stop), key_of(self.order.document)


class Worker(threading.Thread):
    """Carries out jobs, ``parallel`` answers at once, from documents that take ``room`` bytes at most."""

    def __init__(self, reader: Reader, room: int, parallel: int) -> None:
        super().__init__(name="utaca-worker", daemon=True)
        self.reader, self.memories, self._parallel = reader, Memories(reader, room), parallel
        self._news: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting: list[Job] = []
        self._reading: tuple[Job, Entry, Iterator[int]] | None = None
        self._batch, self._answering = Batch(), list[Job]()
        self._deadline: float | None = None

    @property
    def waiting(self) -> int:
        """Jobs whose answers have not begun."""
        return len(self._waiting) + self._news.qsize() + (self._reading is not None)

    @property
    def answering(self) -> int:
        """Answers under way."""
        return len(self._answering)

    def submit(self, job: Job) -> None:
        """Have a job carried out; raises :class:`Fault` if it cannot be."""
        if message := self.memories.fault(len(job.order.document)):
            raise Fault(message, code="context_length_exceeded")
        if self._deadline is not None:
            raise _ending()
        if self.waiting >= WAITING:
            raise Fault(f"{WAITING} requests wait for an answer already; try again later", 503, "overloaded")
        self._news.put(job)

    def close(self, grace_s: float) -> None:
        """Take no more jobs, give answers under way ``grace_s`` seconds to end, and end the thread."""
        self._deadline = time.monotonic() + grace_s
        self._news.put(None)

    def run(self) -> None:
        try:
            while self._deadline is None or self._answering or self._news.qsize():
                self._turn()
        except Exception:
            _log.exception("the worker has ended")
        finally:
            self._deadline = self._deadline or time.monotonic()
            self._turn_away(list(self._answering))

    def _turn(self) -> None:
        self._receive()
        if self._deadline is not None:
            self._turn_away(list(self._answering) if time.monotonic() > self._deadline else [])
        self._drop_cancelled()
        self._begin()
        self._read()
        self._decode()

    def _receive(self) -> None:
        """Take in what came; wait for it if there is nothing else to do."""
        idle = not (self._waiting or self._reading or self._answering)
        if idle and self._deadline is None:
            return_freed_memory()
            self._waiting += [job for job in [self._news.get()] if job]
        while not self._news.empty():
            self._waiting += [job for job in [self._news.get()] if job]

    def _turn_away(self, answering: list[Job]) -> None:
        reading = [self._reading[0]] if self._reading else []
        self._reading = None
        for job in [*self._waiting, *reading, *answering]:
            self._end(job, _ending())
        self._waiting = []

    def _drop_cancelled(self) -> None:
        self._waiting = [job for job in self._waiting if not job.cancelled]
        if self._reading and self._reading[0].cancelled:
            self._reading = None
        for job in [job for job in self._answering if job.cancelled]:
            self._end(job)

    def _begin(self) -> None:
        """Begin answers about documents that are there, and to read the next document that is not."""
        for job in list(self._waiting):
            if len(self._answering) >= self._parallel:
                return
            entry = self.memories.get(job.key)
            if entry is not None:
                job.cached = len(job.order.document)
                self._waiting.remove(job)
                self._answer(job, entry)
        if self._reading is None and self._waiting:
            job = self._waiting[0]
            try:
                begun = self.memories.begin(job.order.document)
            except Exception as error:
                self._waiting.remove(job)
                self._end(job, _fault(error))
                return
            if begun:
                self._waiting.remove(job)
                entry, passes, job.cached = begun
                self._reading = job, entry, passes

    def _answer(self, job: Job, entry: Entry) -> None:
        try:
            job.answer = self._batch.add(Decoding(entry.memory, job.order.question, **job.order.options))
        except Exception as error:
            self._end(job, _fault(error))
        else:
            job.entry = entry
            entry.users += 1
            self._answering.append(job)

    def _read(self) -> None:
        if self._reading is None:
            return
        job, entry, passes = self._reading
        total = len(job.order.document)
        try:
            done = next(passes, total)
        except Exception as error:
            self._reading = None
            self._end(job, _fault(error))
            return
        job.tell(Progress(done, total))
        if done == total:
            self._reading = None
            self.memories.keep(job.key, entry)
            self._answer(job, entry)

    def _decode(self) -> None:
        if not self._answering:
            return
        try:
            committed = self._batch.step()
        except Exception as error:
            # As a lack of memory, which fewer answers may not have: the youngest leaves, the others go on.
            self._end(self._answering[-1], _fault(error))
            return
        jobs = {id(job.answer): job for job in self._answering}
        for answer, token in committed:
            job = jobs[id(answer)]
            if not job.text.ended:
                job.tell(Piece(job.text.add(token.text), token))
        for job in jobs.values():
            answer: Any = job.answer
            if answer.error:
                self._end(job, _fault(answer.error))
            elif job.text.ended or answer.generation.finish:
                reason = "length" if answer.generation.finish == "length" and not job.text.ended else "stop"
                self._end(job, End(reason, job.text.rest(), answer.generation))

    def _end(self, job: Job, event: Event | None = None) -> None:
        """End a job, whatever has become of it."""
        if job.answer is not None:
            self._batch.drop(job.answer)
            self._answering.remove(job)
            job.entry.users -= 1
            job.answer = job.entry = None
        if event is not None:
            job.tell(event)


def _ending() -> Fault:
    return Fault("the server is shutting down; ask again when it is back", 503, "shutting_down")


def _fault(error: Exception) -> Fault:
    """The sentence that a client gets for an error: a user's mistake in its words; details of others are logged."""
    if isinstance(error, UserError):
        return Fault(str(error), 500 if isinstance(error, NotFiniteError) else 400)
    _log.error("an answer failed", exc_info=error)
    return Fault(f"the answer failed ({type(error).__name__}); the server's log says more", 500, "failed")
