"""Send many requests to a server: answers are validated and kept as they arrive, failures counted by kind.

After an unusable answer, the next request names the fault of that answer, up to ``attempts`` answers in all. The store
keeps the whole exchange, so a later run replays the exchange, failures included, without a request, and a run with more
``attempts`` continues it. If no answer came (time-out, HTTP error, broken body), a later run sends the request again.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic
from tqdm import tqdm

from utaca.endpoints import reading
from utaca.endpoints.chat import ChatServer, shape
from utaca.endpoints.prompts import Messages, Prompt
from utaca.endpoints.reading import Failure
from utaca.endpoints.store import AnswerStore, digest, identity
from utaca.errors import UserError
from utaca.records.progress import progress
from utaca.settings.schema import EndpointSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A task, the prompt with the instruction for the task, and the type of the answer.

    ``key`` names the request in :class:`Outcomes`. ``check`` returns what is wrong with an answer of the right type, as
    the end of the sentence "Your answer ...", or None.
    """

    key: str
    task: Mapping[str, Any]
    prompt: Prompt
    answer: type[pydantic.BaseModel]
    check: Callable[[Any], str | None] | None = None

    @cached_property
    def messages(self) -> Messages:
        """The chat messages with the instruction and the task."""
        return self.prompt.messages(self.task)


@dataclass
class Usage:
    """Cost of a call of :func:`ask`.

    ``requests`` counts the answers of the server, ``cached`` the requests that the store settled, ``retries`` the
    repeats after an unusable or missing answer, and ``resent`` the requests that were sent again to a busy, failing or
    unreachable server. Tokens are those of the server's answers.
    """

    requests: int = 0
    cached: int = 0
    retries: int = 0
    resent: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def in_words(self, endpoint: EndpointSettings) -> str:
        """The figures as one line of text, with the cost in USD if the endpoint has prices."""
        figures = (
            f"{self.cached} from the store, {self.requests} answers sent for, {self.retries} asked again, "
            f"{self.resent} sent again, {self.prompt_tokens} + {self.completion_tokens} tokens"
        )
        cost = endpoint.cost(self.prompt_tokens, self.completion_tokens)
        return f"{figures}, {cost:.4g} USD" if cost else figures


@dataclass
class Outcomes:
    """Every request's key is in exactly one of ``values`` (key to answer) and ``failures`` (key to kind of failure).

    ``used`` has a row of schema "usage" for each request, in the requests' order: the answers that the outcome rests
    on, whether the server or the store gave them.
    """

    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    used: list[dict[str, Any]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)


def ask(endpoint: EndpointSettings, requests: Sequence[Request], *, store: Path | str, description: str) -> Outcomes:
    """Send all requests to a server, at most ``endpoint.concurrency`` at once, and return their outcomes.

    A request is not sent if ``store`` (path of a file or URL of a database) has the answer. New answers are stored as
    they arrive; identical requests are sent once. ``description`` is the label of the progress bar and of log lines.

    Kinds of failure are, of an answer: "shape" (not of the type asked for), "check" (:attr:`Request.check` finds a
    fault), "truncated" (at the token limit), "refused", "empty", "reasoning" (without an answer after it); if no answer
    came: "timeout", "unreachable", "protocol" (the body has no completion) and "http NNN" (the status).

    Raises:
        UserError: more than the share ``endpoint.max_failed`` of the requests failed (raised as soon as that is
            certain); the server cannot be reached or refuses the key or the model; the store cannot be used.
    """
    if len({request.key for request in requests}) != len(requests):
        raise ValueError("requests share a key")
    exchanges = [_Exchange(request, endpoint) for request in requests]
    with AnswerStore(store) as opened:
        session = _Session(endpoint, opened, description, exchanges)
        try:
            session.run()
        finally:
            usage = session.usage.in_words(endpoint)
            where = f"endpoint {endpoint.name} (model {endpoint.model})"
            _log.info("%s: %d requests to %s: %s", description, len(exchanges), where, usage)
    outcomes = Outcomes(used=[exchange.used() for exchange in exchanges], usage=session.usage)
    for exchange in exchanges:
        if isinstance(exchange.outcome, Failure):
            outcomes.failures[exchange.request.key] = exchange.outcome.kind
        else:
            outcomes.values[exchange.request.key] = exchange.outcome
    return outcomes


class _Exchange:
    """The dialogue with the model about one request: next messages, answers so far, the outcome (None until known)."""

    def __init__(self, request: Request, endpoint: EndpointSettings) -> None:
        self.request = request
        self.outcome: pydantic.BaseModel | Failure | None = None
        self.n_late = 0  # time-outs so far
        self._endpoint = endpoint
        self._answers: list[dict[str, Any]] = []
        self._n_misses = 0  # requests without an answer
        self._put(request.messages)

    def _put(self, messages: Messages) -> None:
        """Set the messages that are sent next, and their key in the store."""
        self.messages = messages
        self.digest = digest(self.identity)

    @property
    def identity(self) -> str:
        """The next request's identity, under which the store keeps its answer."""
        return identity(self._endpoint, self.messages, shape(self.request.answer), self.request.prompt.version)

    def answer(self, answer: dict[str, Any]) -> None:
        """Take the model's next answer: set ``outcome``, or the messages of another attempt, which name the fault.

        The outcome is the answer's value if it is usable, or the failure if it was the last attempt.
        """
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
        quoted = {"role": "assistant", "content": content[:4000] or "(no answer)"}
        self._put([*self.messages, quoted, {"role": "user", "content": again}])

    def miss(self, failure: Failure) -> None:
        """Record that no answer came. The failure becomes the outcome unless the same messages may be sent again."""
        # Misses are not counted with the answers: a later run replays only answers, and must come to the same outcome.
        self._n_misses += 1
        self.n_late += failure.kind == "timeout"
        if not failure.passing or self._n_misses >= self._endpoint.attempts:
            self.outcome = failure

    def used(self) -> dict[str, Any]:
        """The row of schema "usage" for this request."""
        failure = self.outcome.kind if isinstance(self.outcome, Failure) else None
        return {"item": self.request.key, "failure": failure, "answers": self._answers}


class _Session:
    """One call of :func:`ask`: finds the outcome of every exchange, first from the store, then from the server."""

    def __init__(
        self, endpoint: EndpointSettings, store: AnswerStore, description: str, exchanges: Sequence[_Exchange]
    ) -> None:
        self.usage = Usage()
        self._endpoint = endpoint
        self._store = store
        self._description = description
        self._exchanges = exchanges
        self._warned: set[str] = set()  # kinds of failures
        self._n_unreachable = 0  # failed connections in a row
        # Locks by digest: only the first of identical requests is sent; the rest read its answer from the store.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def run(self) -> None:
        """Find the outcome of every exchange; raises :class:`UserError` as :func:`ask` does."""
        for exchange in self._exchanges:
            self._replay(exchange)
        waiting = [exchange for exchange in self._exchanges if exchange.outcome is None]
        outcomes = [exchange.outcome for exchange in self._exchanges]
        self._failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        total = len(self._exchanges)
        n_settled = total - len(waiting)
        self.usage.cached = n_settled
        with progress(total=total, initial=n_settled, unit="request", desc=self._description) as bar:
            if waiting and not self._stopped:
                asyncio.run(self._serve(waiting, bar))
        if self._stopped:
            raise self._too_many()

    def _replay(self, exchange: _Exchange) -> None:
        """Feed an exchange the answers that the store has, until it has an outcome or the store lacks the next one."""
        while exchange.outcome is None:
            answer = self._store.get(exchange.digest)
            if answer is None:
                return
            exchange.answer(answer)

    @property
    def _stopped(self) -> bool:
        """Whether more requests failed than the endpoint's config allows."""
        return len(self._failures) > self._endpoint.max_failed * len(self._exchanges)

    async def _serve(self, exchanges: Sequence[_Exchange], bar: tqdm) -> None:
        """Find the outcomes of ``exchanges`` by requests to the server, several at once."""
        # One iterator for all workers: each takes the next exchange when it is done with one.
        waiting = iter(exchanges)
        try:
            async with ChatServer(self._endpoint) as server, asyncio.TaskGroup() as tasks:
                for _ in range(min(self._endpoint.concurrency, len(exchanges))):
                    tasks.create_task(self._work(server, waiting, bar))
        except ExceptionGroup as faults:
            # The first error ended the other workers, so it is the one to report.
            raise faults.exceptions[0] from None

    async def _work(self, server: ChatServer, waiting: Iterator[_Exchange], bar: tqdm) -> None:
        """Take one exchange after another from ``waiting``, and send its requests until its outcome is known.

        Ends when none is left, or when too many requests have failed.
        """
        for exchange in waiting:
            is_retry = False
            while exchange.outcome is None:
                self.usage.retries += is_retry
                async with self._turns[exchange.digest]:
                    answer = self._store.get(exchange.digest) or await self._send(server, exchange)
                if isinstance(answer, Failure):
                    exchange.miss(answer)
                else:
                    exchange.answer(answer)
                is_retry = True
            if isinstance(exchange.outcome, Failure):
                self._failures.append(exchange.outcome)
            self.usage.resent = server.pace.resent
            width = server.pace.width
            narrowed = f"at most {width} at once, " if width < self._endpoint.concurrency else ""
            bar.set_postfix_str(narrowed + self.usage.in_words(self._endpoint), refresh=False)
            bar.update()
            if self._stopped:
                return

    async def _send(self, server: ChatServer, exchange: _Exchange) -> dict[str, Any] | Failure:
        """Send the next messages of an exchange once; store and return the answer, or return the failure.

        Raises :class:`UserError` if every other request would fail too: a general failure, or the third failed
        connection in a row.
        """
        started = time.monotonic()
        answer = await server.answer(exchange.messages, exchange.request.answer, exchange.n_late)
        if not isinstance(answer, Failure):
            prompt, completion = reading.tokens(answer)
            seconds = time.monotonic() - started
            answer = self._store.put(exchange.identity, self._endpoint.model, answer, (prompt, completion), seconds)
            self.usage.requests += 1
            self.usage.prompt_tokens += prompt
            self.usage.completion_tokens += completion
            self._n_unreachable = 0
            return answer
        self._n_unreachable = self._n_unreachable + 1 if answer.kind == "unreachable" else 0
        if answer.general or self._n_unreachable >= 3:
            raise self._stop(f"endpoint {self._endpoint.name}: {answer.reason}")
        if answer.kind not in self._warned:
            self._warned.add(answer.kind)
            reason = answer.reason
            if answer.kind == "timeout":
                reason += (
                    f"; it is asked again with twice the time, and fewer are sent together (now {server.pace.width})"
                )
            _log.warning("%s: endpoint %s: %s", self._description, self._endpoint.name, reason)
        return answer

    def _too_many(self) -> UserError:
        """The error for more failed requests than the endpoint's config allows."""
        endpoint = self._endpoint
        failures = self._failures
        kinds = Counter(failure.kind for failure in failures)
        reasons = [failure.reason for failure in failures if failure.reason]
        advice = "repair the endpoint, or raise its attempts, max_tokens or max_failed"
        if kinds["timeout"]:
            advice = (
                f"the server is too slow for its timeout_s={endpoint.timeout_s:g} and concurrency="
                f"{endpoint.concurrency}: raise the one, lower the other"
            )
        elif reasons:
            advice = f"{reasons[0]}; correct that"
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        requests = f"{len(failures)} of {len(self._exchanges)} requests to endpoint {endpoint.name}"
        return self._stop(
            f"{requests} (model {endpoint.model}) failed ({counts}), more than its max_failed={endpoint.max_failed:g} "
            f"allows; {advice} and run again"
        )

    def _stop(self, reason: str) -> UserError:
        """The error that ends the call of :func:`ask`; it says that answers so far are kept."""
        return UserError(f"{self._description}: {reason}; answers so far are kept in {self._store.place}")
