"""The one thread that runs the model: it reads documents and decodes answers in turns.

A turn is one pass over a chunk of the document being read, if any, and one pass of all answers under way
(:class:`utaca.decoding.loop.Batch`), so an answer waits for at most one prefill chunk between two tokens. Documents are
read one at a time, in order of arrival; questions about a document in memory are answered without reading it again.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from utaca.app.serving.memories import Memories, StoredDocument
from utaca.app.serving.protocol import Fault, Order, StopFilter
from utaca.app.serving.scores import Scored, Scores
from utaca.decoding.loop import Batch, OpenAnswer
from utaca.decoding.options import Decoding
from utaca.errors import UserError
from utaca.machine import return_freed_memory
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader
from utaca.trace import Generation, NotFiniteError, Token

WAITING = 256
"""Orders that may wait; while as many do, the server rejects requests."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` tokens of the document are read."""

    done: int
    total: int


@dataclass(frozen=True)
class Piece:
    """``text`` to send: the echoed prompt, or the part of the answer that can be sent once ``token`` is committed.

    ``scored`` has the tokens of the piece with their scores. Only the last piece has ``reason`` and ``generation``.
    """

    text: str
    scored: Sequence[Scored] = ()
    token: Token | None = None
    reason: str | None = None
    generation: Generation | None = None


@dataclass(eq=False)
class Job:
    """An order that is being carried out; the worker's thread calls ``tell`` with every event of the job.

    Jobs of one request have the same ``request``, any object. ``cached`` is the number of the document's tokens that
    were read before. If another thread sets ``cancelled``, the job ends at the next turn, without an event. While
    the answer is under way, ``answer`` decodes it, ``stored`` is its document, ``scores`` are those of the prompt until
    the prompt is sent (None if none are wanted), and ``text`` cuts it at stop texts.
    """

    order: Order
    tell: Callable[[Progress | Piece | Fault], None]
    request: object = field(default_factory=object)
    cached: int = 0
    cancelled: bool = False
    answer: OpenAnswer | None = None
    stored: StoredDocument | None = None
    scores: Scores | None = None
    text: StopFilter = field(default_factory=StopFilter)


class Worker(threading.Thread):
    """The thread that carries out jobs, with at most ``parallel`` answers at once and ``room`` bytes of documents.

    ``saved``, if given, has documents that were read before, and keeps those that are read now.

    :meth:`submit`, :meth:`close` and the properties without an underscore are for other threads; all other methods run
    in this one.
    """

    def __init__(self, reader: Reader, room: int, parallel: int, saved: SavedDocuments | None = None) -> None:
        super().__init__(name="utaca-worker", daemon=True)
        self.reader = reader
        self.memories = Memories(reader, room, saved)
        self._parallel = parallel
        # Jobs that were submitted and not yet received; None only wakes the thread.
        self._news: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting: list[Job] = []
        # The job whose document is being read, the document so far, and the passes that read the rest.
        self._reading: tuple[Job, StoredDocument, Iterator[int]] | None = None
        self._batch = Batch()
        self._answering = list[Job]()
        self._deadline: float | None = None  # of answers under way, once the worker must end (monotonic)

    @property
    def waiting(self) -> int:
        """Jobs whose answers have not begun."""
        return len(self._waiting) + self._news.qsize() + (self._reading is not None)

    @property
    def answering(self) -> int:
        """Answers under way."""
        return len(self._answering)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue a request's jobs, all or none of them.

        Raises :class:`Fault` if a document is too long, or the server is overloaded or ending. Only jobs of earlier
        requests count as waiting. Otherwise a request with more than ``WAITING`` prompts would always be rejected.
        """
        longest = max(len(job.order.document) for job in jobs)
        message = self.memories.fault(longest)
        if message:
            raise Fault(message, code="context_length_exceeded")
        if self._deadline is not None:
            raise _ending()
        if self.waiting >= WAITING:
            raise Fault(f"{WAITING} prompts are already waiting for an answer; try again later", 503, "overloaded")
        for job in jobs:
            self._news.put(job)

    def close(self, grace_s: float) -> None:
        """Take no more jobs, give answers under way ``grace_s`` seconds to end, and end the thread."""
        self._deadline = time.monotonic() + grace_s
        self._news.put(None)  # wakes the thread

    def run(self) -> None:
        """Run one turn after another until the worker is closed and no answer is under way.

        Then, or after an error, end all jobs that are left.
        """
        try:
            while self._deadline is None or self._answering or self._news.qsize():
                self._turn()
        except Exception:
            _log.exception("the worker has ended")
        finally:
            self._deadline = self._deadline or time.monotonic()
            self._receive()
            for job in self._jobs:
                self._end(job, _ending())
            self.memories.finish_saving()

    @property
    def _being_read(self) -> list[Job]:
        """The job whose document is being read, if there is one."""
        return [self._reading[0]] if self._reading else []

    @property
    def _jobs(self) -> list[Job]:
        """All jobs that have not ended."""
        return [*self._waiting, *self._being_read, *self._answering]

    def _turn(self) -> None:
        """Run one turn: receive jobs, end those that must not continue, read a chunk, decode a step of all answers."""
        self._receive()
        is_closed = self._deadline is not None
        is_late = is_closed and time.monotonic() > self._deadline
        for job in self._jobs:
            if job.cancelled:
                self._end(job)
            elif is_late or (is_closed and job.answer is None):
                self._end(job, _ending())
        # Reading comes first, so that a document that is now read gets its answer begun before jobs that came later.
        self._read()
        self._begin()
        self._decode()

    def _receive(self) -> None:
        """Add newly submitted jobs to the waiting ones; wait for a new job if there is nothing else to do."""
        must_wait = self._deadline is None and not self._jobs
        if must_wait:
            # The thread has time for it now.
            return_freed_memory()
        while must_wait or not self._news.empty():
            must_wait = False
            job = self._news.get()
            if job:
                self._waiting.append(job)

    def _in_turn(self) -> list[Job]:
        """The waiting jobs, in the order in which they may begin.

        The n-th job of a request comes after the earlier jobs of every other request, where jobs that have begun count
        as well; jobs with the same n come in the order of arrival. So a request with many prompts does not hold up the
        others.
        """
        n_jobs = Counter(job.request for job in [*self._answering, *self._being_read])  # so far, by request
        numbered: list[tuple[int, Job]] = []
        for job in self._waiting:
            n_jobs[job.request] += 1
            numbered.append((n_jobs[job.request], job))
        numbered.sort(key=lambda pair: pair[0])  # stable
        return [job for _, job in numbered]

    def _begin(self) -> None:
        """Begin the answers about documents in memory, and begin to read the next document that is not in memory."""
        unread = []
        for job in self._in_turn():
            if len(self._answering) >= self._parallel:
                return
            if stored := self.memories.get(job.order.key):
                job.cached = len(job.order.document)
                self._waiting.remove(job)
                self._answer(job, stored)
            else:
                unread.append(job)
        if self._reading is None and unread:
            job = unread[0]
            with self._guarded(job):
                # It may have no room while answers need other documents: then it waits for a later turn.
                if begun := self.memories.begin(job.order.document, scored=job.order.scored):
                    self._waiting.remove(job)
                    stored, passes, job.cached = begun
                    self._reading = job, stored, passes
                    # How much there is to read, before the first chunk.
                    job.tell(Progress(job.cached, len(job.order.document)))

    def _read(self) -> None:
        """Read a chunk of the document being read, if there is one; begin its answer once it is read and may begin."""
        if self._reading is None:
            return
        job, stored, passes = self._reading
        total = len(job.order.document)
        with self._guarded(job):
            # No pass is left if the document was read in an earlier turn, was copied as a whole, or came from a file.
            done = next(passes, total)
            job.tell(Progress(done, total))
            # If as many answers as may be are under way, the document waits here, and no other is read.
            if done == total and len(self._answering) < self._parallel:
                self._reading = None
                self.memories.keep(job.order.key, stored)
                self._answer(job, stored)
                self.memories.save(stored)

    def _answer(self, job: Job, stored: StoredDocument) -> None:
        """Begin the answer to a job's question about a stored document; :meth:`_decode` continues the answer."""
        order = job.order
        with self._guarded(job):
            if order.scored:
                job.scores = stored.scores.followed(stored.memory.tokens.new_tensor(order.question))
            job.answer = self._batch.add(Decoding(stored.memory, order.question, **order.options))
            job.stored = stored
            job.text = StopFilter(order.stop)
            stored.users += 1
            self._answering.append(job)
            if order.echo:
                self._echo(job)

    def _echo(self, job: Job) -> None:
        """Send the echoed prompt, unless some of its scores are still missing; end the job if no answer follows.

        If scores are missing, :meth:`_decode` calls this again after each step.
        """
        if job.scores is None or job.scores.complete:
            scored = job.scores.listed(job.order.echo) if job.scores else ()
            job.tell(Piece("".join(job.order.echo), scored))
            job.scores = None
            if not job.order.generate:
                self._end(job, Piece("", reason="length", generation=job.answer.generation))

    def _decode(self) -> None:
        """Decode a step of every answer under way, send what it adds, and end the answers that are complete."""
        if not self._answering:
            return
        # Jobs whose question is still to be scored, each with the step that reads the question now.
        scoring: list[tuple[Job, Any]] = []
        for job in self._answering:
            if job.answer and job.scores:
                scoring.append((job, job.answer.planned[0]))
        try:
            committed = self._batch.step()
        except Exception as error:
            # Fewer answers may succeed, as after a lack of memory: end the youngest answer, continue the others.
            self._end(self._answering[-1], _fault(error))
            return
        for job, step in scoring:
            with self._guarded(job):
                job.scores.add(step.hidden)
                self._echo(job)
        jobs = {id(job.answer): job for job in self._answering}
        for answer, token in committed:
            job = jobs[id(answer)]
            if not job.text.ended:
                job.tell(Piece(job.text.add(token.text), [Scored.of(token)], token))
        for job in jobs.values():
            answer: Any = job.answer
            if answer.error:
                self._end(job, _fault(answer.error))
            elif job.text.ended or answer.generation.finish:
                is_cut = answer.generation.finish == "length" and not job.text.ended
                reason = "length" if is_cut else "stop"
                self._end(job, Piece(job.text.rest(), reason=reason, generation=answer.generation))

    @contextmanager
    def _guarded(self, job: Job) -> Iterator[None]:
        """End only this job if the body of the ``with`` statement raises an error."""
        try:
            yield
        except Exception as error:
            self._end(job, _fault(error))

    def _end(self, job: Job, event: Piece | Fault | None = None) -> None:
        """End a job at whatever stage it is (waiting, reading, answering), and send its last ``event``, if any."""
        if job in self._waiting:
            self._waiting.remove(job)
        if self._reading and self._reading[0] is job:
            if event is None:
                # A client that left may ask again: what was read of its document is kept, to continue from.
                self.memories.keep(("begun", job.order.key), self._reading[1])
            self._reading = None
        if job.answer is not None:
            self._batch.drop(job.answer)
            self._answering.remove(job)
            job.stored.users -= 1
            job.answer = job.stored = None
        if event is not None:
            job.tell(event)


def _ending() -> Fault:
    """The error for jobs that the end of the server stops."""
    return Fault("the server is shutting down; ask again when it is back", 503, "shutting_down")


def _fault(error: Exception) -> Fault:
    """The error that a client gets for ``error``: the sentence of a :class:`UserError`, else one that names the class.

    In the latter case the details are logged.
    """
    if isinstance(error, UserError):
        return Fault(str(error), 500 if isinstance(error, NotFiniteError) else 400)
    _log.error("an answer failed", exc_info=error)
    return Fault(f"the answer failed ({type(error).__name__}); the server's log says more", 500, "failed")
