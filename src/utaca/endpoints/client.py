"""Asking a model many things at once: validated answers, kept as they arrive, failures counted by kind.

An answer that cannot be used is asked for again with its fault named, up to ``attempts`` times. The whole exchange is
kept, so a later run replays it, failures included, without a request; raising ``attempts`` continues where it ended.
Where there was no answer (time-outs, refusals by HTTP, broken bodies) nothing is kept, and a later run asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
from tqdm import tqdm

from utaca.endpoints import reading
from utaca.endpoints.reading import Failure
from utaca.endpoints.server import Question, Server, shape
from utaca.endpoints.store import Store, digest, identity
from utaca.errors import UserError
from utaca.records.progress import counter
from utaca.settings.schema import Endpoint

Messages = list[dict[str, Any]]

_UNREACHABLE_IN_A_ROW = 3
_QUOTED_CHARACTERS = 4000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """One thing to ask.

    ``key`` names it in the answers, ``answer`` is the shape wanted, ``version`` that of the prompt. ``check``
    returns what is wrong with a well-shaped answer, as the end of the sentence "Your answer ...", or None.
    """

    key: str
    messages: Messages
    answer: type[pydantic.BaseModel]
    version: str
    check: Callable[[Any], str | None] | None = None


@dataclass(frozen=True)
class InProcess:
    """A model in this process: what gives the completion object for messages, and what tells its versions apart."""

    complete: Callable[[Messages], dict[str, Any]]
    revision: str


@dataclass
class Usage:
    """What a call of :func:`ask` cost: answers sent for, requests answered from the store, answers asked for again,
    sendings repeated for a busy, failing or unreachable server, tokens of the answers sent for."""

    requests: int = 0
    cached: int = 0
    retries: int = 0
    resent: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def in_words(self, endpoint: Endpoint) -> str:
        """The figures as a list for people; the price where the endpoint has one."""
        figures = (
            f"{self.cached} from the store, {self.requests} answers sent for, {self.retries} asked again, "
            f"{self.resent} sent again, {self.prompt_tokens} + {self.completion_tokens} tokens"
        )
        cost = endpoint.cost(self.prompt_tokens, self.completion_tokens)
        return f"{figures}, {cost:.4g} USD" if cost else figures


@dataclass
class Answers:
    """Answers by key; every key asked is in exactly one of ``values`` and ``failures`` (key to kind of failure).

    ``used`` has a row of schema "usage" for each request, in their order: the answers that its outcome rests on,
    whether they were sent for or found in the store.
    """

    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    used: list[dict[str, Any]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


def ask(
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    store: Path | str,
    description: str,
    model: InProcess | None = None,
) -> Answers:
    """Ask ``endpoint`` every request, with at most ``endpoint.concurrency`` in flight; or a ``model`` in its place.

    Answers already in ``store``, a file or the URL of a database, are not sent for; new ones are kept there as they
    arrive; identical requests are sent once. Kinds of failure are "shape", "check", "truncated", "refused", "empty",
    "reasoning" (and no answer after it), "timeout", "unreachable", "protocol" (no completion in the body) and
    "http NNN". Raises :class:`UserError` where more than the share ``endpoint.max_failed`` of the requests failed, as
    soon as that is certain; where ``endpoint.run_timeout_s`` is over; where the server is gone or refuses key or model;
    where the store cannot be used.
    """
    exchanges = [_Exchange(request, endpoint, model.revision if model else "") for request in requests]
    if len({request.key for request in requests}) != len(requests):
        raise ValueError("requests share a key")
    with Store(store) as kept:
        session = _Session(endpoint, kept, description, exchanges)
        try:
            session.run(model)
        finally:
            usage = session.usage.in_words(endpoint)
            where = f"endpoint {endpoint.name} (model {endpoint.model})"
            _log.info("%s: %d requests to %s: %s", description, len(exchanges), where, usage)
    answers = Answers(used=[exchange.used() for exchange in exchanges], usage=session.usage)
    for exchange in exchanges:
        if isinstance(exchange.outcome, Failure):
            answers.failures[exchange.request.key] = exchange.outcome.kind
        else:
            answers.values[exchange.request.key] = exchange.outcome
    return answers


class _Exchange:
    """The talk about one request: what to ask next, the answers so far, and the outcome once there is one."""

    def __init__(self, request: Request, endpoint: Endpoint, revision: str) -> None:
        self.request = request
        self.outcome: pydantic.BaseModel | Failure | None = None
        self.late = 0
        self._endpoint = endpoint
        self._revision = revision
        self._answers: list[dict[str, Any]] = []
        self._misses = 0
        self._say(list(request.messages))

    def _say(self, messages: Messages) -> None:
        answer = self.request.answer
        self.question = Question(messages, answer.__name__, shape(answer))
        self.digest = digest(self.identity)

    @property
    def identity(self) -> str:
        """What identifies the request that is next."""
        question, version = self.question, self.request.version
        return identity(self._endpoint, question.messages, question.shape, version, self._revision)

    def take(self, answer: dict[str, Any]) -> None:
        """Go on from an answer: it holds the value, or is asked for again, or was the last one."""
        prompt, completion = reading.tokens(answer)
        self._answers.append({"request": self.digest, "prompt_tokens": prompt, "completion_tokens": completion})
        content, outcome = reading.read(answer, self.request.answer, self.request.check)
        if not isinstance(outcome, Failure) or len(self._answers) >= self._endpoint.attempts:
            self.outcome = outcome
            return
        again = (
            f"Your answer {outcome.complaint}. Answer the request above again, with nothing but a JSON object of the "
            "form asked for."
        )
        self._say(
            [
                *self.question.messages,
                {"role": "assistant", "content": content[:_QUOTED_CHARACTERS] or "(no answer)"},
                {"role": "user", "content": again},
            ]
        )

    def miss(self, failure: Failure) -> None:
        """Go on without an answer: the same is asked again, or it was the last time."""
        # Counted apart from the answers: a later run, which knows those alone, must come to the same outcome.
        self._misses += 1
        self.late += failure.kind == "timeout"
        if not failure.passing or self._misses >= self._endpoint.attempts:
            self.outcome = failure

    def used(self) -> dict[str, Any]:
        """A row of schema "usage"."""
        failure = self.outcome.kind if isinstance(self.outcome, Failure) else None
        return {"item": self.request.key, "failure": failure, "answers": self._answers}


class _Session:
    """One call of :func:`ask`: brings exchanges to their outcomes, from the store as far as it goes."""

    def __init__(self, endpoint: Endpoint, store: Store, description: str, exchanges: Sequence[_Exchange]) -> None:
        self.usage = Usage()
        self._endpoint = endpoint
        self._store = store
        self._description = description
        self._exchanges = exchanges
        self._warned: set[str] = set()
        self._unreachable = 0
        self._failed = 0
        # Of requests that are the same, the first is sent; the others find its answer in the store.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def run(self, model: InProcess | None) -> None:
        """Bring all exchanges to their outcomes; raises :class:`UserError` as :func:`ask` does."""
        for exchange in self._exchanges:
            while exchange.outcome is None and (answer := self._store.get(exchange.digest)) is not None:
                exchange.take(answer)
        waiting = [exchange for exchange in self._exchanges if exchange.outcome is None]
        self.usage.cached = total = len(self._exchanges) - len(waiting)
        self._failed = len(self._failures())
        bar = counter(total=len(self._exchanges), done=total, unit="request", description=self._description)
        with bar:
            if model is not None:
                self._complete(waiting, model, bar)
            elif waiting and not self._stopped:
                asyncio.run(self._serve(waiting, bar))
        if self._stopped:
            raise self._too_many()

    @property
    def _stopped(self) -> bool:
        return self._failed > self._endpoint.max_failed * len(self._exchanges)

    def _complete(self, exchanges: Sequence[_Exchange], model: InProcess, bar: tqdm) -> None:
        for exchange in exchanges:
            if self._stopped:
                return
            while exchange.outcome is None:
                started = time.monotonic()
                answer = self._store.get(exchange.digest)
                exchange.take(answer or self._keep(exchange, model.complete(exchange.question.messages), started))
            self._count(exchange, bar)

    async def _serve(self, exchanges: Sequence[_Exchange], bar: tqdm) -> None:
        waiting = iter(exchanges)
        server = Server(self._endpoint)
        try:
            async with asyncio.timeout(self._endpoint.run_timeout_s or None), server, asyncio.TaskGroup() as tasks:
                for _ in range(min(self._endpoint.concurrency, len(exchanges))):
                    tasks.create_task(self._work(server, waiting, bar))
        except ExceptionGroup as faults:
            # Python before 3.11.4 wraps what is raised under ``except*`` in a group once more.
            if faults.split(UserError)[1] is not None:
                raise
            raise faults.exceptions[0] from None
        except TimeoutError:
            raise self._too_late() from None
        finally:
            self.usage.resent = server.pace.resent

    async def _work(self, server: Server, waiting: Iterator[_Exchange], bar: tqdm) -> None:
        for exchange in waiting:
            again = 0
            while exchange.outcome is None:
                self.usage.retries += again
                async with self._turns[exchange.digest]:
                    answer = self._store.get(exchange.digest) or await self._send(server, exchange)
                exchange.miss(answer) if isinstance(answer, Failure) else exchange.take(answer)
                again = 1
            self.usage.resent = server.pace.resent
            width = server.pace.width
            self._count(exchange, bar, f"at most {width} at once, " if width < self._endpoint.concurrency else "")
            if self._stopped:
                return

    async def _send(self, server: Server, exchange: _Exchange) -> dict[str, Any] | Failure:
        started = time.monotonic()
        answer = await server.answer(exchange.question, exchange.late)
        if not isinstance(answer, Failure):
            self._unreachable = 0
            return self._keep(exchange, answer, started)
        self._unreachable = self._unreachable + 1 if answer.kind == "unreachable" else 0
        if answer.general or self._unreachable >= _UNREACHABLE_IN_A_ROW:
            raise self._stop(f"endpoint {self._endpoint.name}: {answer.reason}")
        if answer.kind not in self._warned:
            self._warned.add(answer.kind)
            slower = (
                f"; what does is asked again with twice the time, and fewer go out at once (now {server.pace.width})"
            )
            reason = answer.reason + (slower if answer.kind == "timeout" else "")
            _log.warning("%s: endpoint %s: %s", self._description, self._endpoint.name, reason)
        return answer

    def _keep(self, exchange: _Exchange, answer: dict[str, Any], started: float) -> dict[str, Any]:
        prompt, completion = reading.tokens(answer)
        seconds = time.monotonic() - started
        self._store.put(exchange.identity, self._endpoint.model, answer, (prompt, completion), seconds)
        self.usage.requests += 1
        self.usage.prompt_tokens += prompt
        self.usage.completion_tokens += completion
        return answer

    def _count(self, exchange: _Exchange, bar: tqdm, pace: str = "") -> None:
        self._failed += isinstance(exchange.outcome, Failure)
        bar.set_postfix_str(pace + self.usage.in_words(self._endpoint), refresh=False)
        bar.update()

    def _failures(self) -> list[Failure]:
        return [exchange.outcome for exchange in self._exchanges if isinstance(exchange.outcome, Failure)]

    def _of_all(self, number: int) -> str:
        endpoint = self._endpoint
        return f"{number} of {len(self._exchanges)} requests to endpoint {endpoint.name} (model {endpoint.model})"

    def _too_many(self) -> UserError:
        endpoint, failures = self._endpoint, self._failures()
        mend = "mend the endpoint or raise its attempts, max_tokens or max_failed"
        if any(failure.kind == "timeout" for failure in failures):
            mend = (
                f"the server is too slow for its timeout_s={endpoint.timeout_s:g} and concurrency="
                f"{endpoint.concurrency}: raise the one, lower the other"
            )
        elif reason := next((failure.reason for failure in failures if failure.reason), ""):
            mend = f"{reason}; mend that"
        failed = f"{self._of_all(len(failures))} failed ({_kinds(failures)})"
        return self._stop(f"{failed}, more than its max_failed={endpoint.max_failed:g} allows; {mend} and run again")

    def _too_late(self) -> UserError:
        failures = self._failures()
        answered = sum(exchange.outcome is not None for exchange in self._exchanges) - len(failures)
        failed = f"{len(failures)} failed ({_kinds(failures)})" if failures else "none failed"
        return self._stop(
            f"{self._of_all(answered)} were answered and {failed} when its run_timeout_s="
            f"{self._endpoint.run_timeout_s:g} was over; run again to go on"
        )

    def _stop(self, reason: str) -> UserError:
        return UserError(f"{self._description}: {reason}; answers so far are kept in {self._store.place}")


def _kinds(failures: Sequence[Failure]) -> str:
    kinds = Counter(failure.kind for failure in failures)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
