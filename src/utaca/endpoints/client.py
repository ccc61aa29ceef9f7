"""Asking a model many things at once: validated answers, kept as they arrive, failures counted by kind.

An answer that cannot be used is asked for again with its fault named, up to ``attempts`` times. The whole exchange is
kept, so a later run replays it, failures included, without a request; raising ``attempts`` continues where it ended.
Where there was no answer (time-outs, refusals by HTTP, broken bodies) nothing is kept, and a later run asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pydantic
from tqdm import tqdm

from utaca.endpoints import completions, reading
from utaca.endpoints.completions import Dialect, NoCompletion, Question
from utaca.endpoints.store import Store, digest, identity
from utaca.endpoints.transport import Pace, certificate, connect, in_words, unreachable
from utaca.errors import UserError
from utaca.records.progress import counter
from utaca.settings.schema import Endpoint

Messages = list[dict[str, Any]]

_UNREACHABLE_IN_A_ROW = 3
# Every other request would get the same.
_HOPELESS = (401, 402, 404)
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
        said = (
            f"{self.cached} from the store, {self.requests} answers sent for, {self.retries} asked again, "
            f"{self.resent} sent again, {self.prompt_tokens} + {self.completion_tokens} tokens"
        )
        cost = endpoint.cost(self.prompt_tokens, self.completion_tokens)
        return f"{said}, {cost:.4g} USD" if cost else said


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


@dataclass(frozen=True)
class _Fault:
    """Why an answer cannot be used; ``told`` ends the sentence "Your answer ..." in the next request.

    Without it there was no answer: where ``passing``, the same may be asked again. ``said`` is then what the server did
    instead, as the rest of a sentence that begins with the endpoint.
    """

    kind: str
    told: str = ""
    passing: bool = False
    said: str = ""


def ask(endpoint: Endpoint, requests: Sequence[Request], *, store: Path | str, description: str) -> Answers:
    """Ask ``endpoint`` every request, with at most ``endpoint.concurrency`` in flight.

    Answers already in ``store``, a file or the URL of a database, are not sent for; new ones are kept there as they
    arrive; identical requests are sent once. Kinds of failure are "shape", "check", "truncated", "refused", "empty",
    "reasoning" (and no answer after it), "timeout", "unreachable", "protocol" (no completion in the body) and
    "http NNN". Raises :class:`UserError` where more than the share ``endpoint.max_failed`` of the requests failed, as
    soon as that is certain; where ``endpoint.run_timeout_s`` is over; where the server is gone or refuses key or model;
    where the store cannot be used.
    """
    exchanges = [_Exchange(request, endpoint) for request in requests]
    if len({request.key for request in requests}) != len(requests):
        raise ValueError("requests share a key")
    usage = Usage()
    with Store(store) as kept:
        for exchange in exchanges:
            exchange.replay(kept)
        open_ones = [exchange for exchange in exchanges if exchange.outcome is None]
        usage.cached = len(exchanges) - len(open_ones)
        allowed = endpoint.max_failed * len(exchanges)
        try:
            if open_ones and _failed(exchanges) <= allowed:
                session = _Session(endpoint, kept, usage, allowed - _failed(exchanges), description)
                asyncio.run(session.run(open_ones, len(exchanges)))
        except TimeoutError:
            raise _too_late(endpoint, description, store, exchanges) from None
        finally:
            said = "%s: %d requests to endpoint %s (model %s): %s"
            _log.info(said, description, len(exchanges), endpoint.name, endpoint.model, usage.in_words(endpoint))
    if _failed(exchanges) > allowed:
        raise _too_many(endpoint, description, store, exchanges)
    answers = Answers(used=[exchange.used() for exchange in exchanges], usage=usage)
    for exchange in exchanges:
        if isinstance(exchange.outcome, _Fault):
            answers.failures[exchange.request.key] = exchange.outcome.kind
        else:
            answers.values[exchange.request.key] = exchange.outcome
    return answers


class _Exchange:
    """The talk about one request: what to ask next, the answers so far, and the outcome once there is one."""

    def __init__(self, request: Request, endpoint: Endpoint) -> None:
        self.request = request
        self.outcome: pydantic.BaseModel | _Fault | None = None
        self._endpoint = endpoint
        self._answers: list[dict[str, Any]] = []
        self._misses = 0
        self.late = 0
        self._say(list(request.messages))

    def _say(self, messages: Messages) -> None:
        answer = self.request.answer
        self.question = Question(messages, answer.__name__, completions.shape(answer))
        self.digest = digest(self.identity)

    @property
    def identity(self) -> str:
        """What identifies the request that is next."""
        return identity(self._endpoint, self.question.messages, self.question.shape, self.request.version)

    def replay(self, store: Store) -> None:
        """Take what is stored, as far as it goes."""
        while self.outcome is None and (kept := store.get(self.digest)) is not None:
            self.take(kept)

    def take(self, answer: dict[str, Any]) -> None:
        """Go on from an answer: it holds the value, or is asked for again, or was the last one."""
        prompt, completion = _tokens(answer)
        self._answers.append({"request": self.digest, "prompt_tokens": prompt, "completion_tokens": completion})
        content, outcome = _read(self.request, answer)
        if not isinstance(outcome, _Fault) or len(self._answers) >= self._endpoint.attempts:
            self.outcome = outcome
            return
        self._say(
            [
                *self.question.messages,
                {"role": "assistant", "content": content[:_QUOTED_CHARACTERS] or "(no answer)"},
                {
                    "role": "user",
                    "content": f"Your answer {outcome.told}. Answer the request above again, with nothing but a JSON "
                    "object of the form asked for.",
                },
            ]
        )

    def miss(self, fault: _Fault) -> None:
        """Go on without an answer: the same is asked again, or it was the last time."""
        # Counted apart from the answers: a later run, which knows those alone, must come to the same outcome.
        self._misses += 1
        if not fault.passing or self._misses >= self._endpoint.attempts:
            self.outcome = fault

    def used(self) -> dict[str, Any]:
        """A row of schema "usage"."""
        failure = self.outcome.kind if isinstance(self.outcome, _Fault) else None
        return {"item": self.request.key, "failure": failure, "answers": self._answers}


class _Session:
    """One event loop's worth of asking: client, answers in flight, and what the server takes, found out once."""

    def __init__(self, endpoint: Endpoint, store: Store, usage: Usage, allowed: float, description: str) -> None:
        self._endpoint = endpoint
        self._store = store
        self._usage = usage
        self._allowed = allowed
        self._description = description
        self._pace = Pace(endpoint.concurrency)
        self._client = connect(endpoint, pace=self._pace)
        self._in_flight: dict[str, asyncio.Future[dict[str, Any] | _Fault]] = {}
        self._unreachable = 0
        self._told: set[str] = set()
        self._dialect: Dialect | None = None
        self._finding = asyncio.Lock()
        self._hopeless = False

    async def run(self, exchanges: Sequence[_Exchange], total: int) -> None:
        """Bring the exchanges to their outcomes, stopping early once more than allowed have failed.

        Raises ``TimeoutError`` after ``run_timeout_s``.
        """
        waiting = iter(exchanges)
        done = total - len(exchanges)
        bar = counter(total=total, done=done, unit="request", description=self._description)
        with bar:
            try:
                async with (
                    asyncio.timeout(self._endpoint.run_timeout_s or None),
                    self._client,
                    asyncio.TaskGroup() as tasks,
                ):
                    for _ in range(min(self._endpoint.concurrency, len(exchanges))):
                        tasks.create_task(self._work(waiting, bar))
            except ExceptionGroup as faults:
                # Python before 3.11.4 wraps what is raised under ``except*`` in a group once more.
                if faults.split(UserError)[1] is not None:
                    raise
                raise faults.exceptions[0] from None
            finally:
                self._usage.resent = self._pace.resent

    async def _work(self, waiting: Iterator[_Exchange], bar: tqdm) -> None:
        for exchange in waiting:
            again = 0
            while exchange.outcome is None:
                self._usage.retries += again
                answer = await self._answer(exchange)
                exchange.miss(answer) if isinstance(answer, _Fault) else exchange.take(answer)
                again = 1
            self._allowed -= isinstance(exchange.outcome, _Fault)
            self._usage.resent = self._pace.resent
            narrow = f"at most {self._pace.width} at once, " if self._pace.width < self._endpoint.concurrency else ""
            bar.set_postfix_str(narrow + self._usage.in_words(self._endpoint), refresh=False)
            bar.update()
            if self._allowed < 0:
                return

    async def _answer(self, exchange: _Exchange) -> dict[str, Any] | _Fault:
        if exchange.digest in self._in_flight:
            return await self._in_flight[exchange.digest]
        kept = self._store.get(exchange.digest)
        if kept is not None:
            return kept
        waited = self._in_flight[exchange.digest] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._send(exchange)
            waited.set_result(answer)
            return answer
        finally:
            waited.cancel()
            del self._in_flight[exchange.digest]

    async def _send(self, exchange: _Exchange) -> dict[str, Any] | _Fault:
        started = time.monotonic()
        try:
            answer = await self._complete(exchange)
        except openai.APIStatusError as fault:
            if fault.status_code in _HOPELESS:
                raise self._stop(in_words(self._endpoint, fault)) from None
            return self._fault(f"http {fault.status_code}", in_words(self._endpoint, fault))
        except openai.APITimeoutError:
            exchange.late += 1
            said = (
                f"an answer took longer than timeout_s={self._endpoint.timeout_s:g}; each request that does is asked "
                f"again with twice the time, and fewer go out at once (now {self._pace.width})"
            )
            return self._fault("timeout", said, passing=True)
        except openai.APIConnectionError as fault:
            self._unreachable += 1
            if self._unreachable >= _UNREACHABLE_IN_A_ROW or certificate(fault):
                raise self._stop(unreachable(self._endpoint, fault, "start the server and run again")) from None
            return self._fault("unreachable", unreachable(self._endpoint, fault))
        except NoCompletion as fault:
            self._unreachable = 0
            return self._fault("protocol", str(fault), passing=True)
        self._unreachable = 0
        tokens = _tokens(answer)
        self._store.put(exchange.identity, self._endpoint.model, answer, tokens, time.monotonic() - started)
        self._usage.requests += 1
        self._usage.prompt_tokens += tokens[0]
        self._usage.completion_tokens += tokens[1]
        return answer

    def _stop(self, said: str) -> UserError:
        place = f"{self._description}: endpoint {self._endpoint.name}"
        return UserError(f"{place}: {said}; answers so far are kept in {self._store.place}")

    def _fault(self, kind: str, said: str, *, passing: bool = False) -> _Fault:
        """That there was no answer; the first of a kind is warned of."""
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s: endpoint %s: %s", self._description, self._endpoint.name, said)
        return _Fault(kind, passing=passing, said=said)

    async def _complete(self, exchange: _Exchange) -> dict[str, Any]:
        dialect = self._dialect
        if dialect is not None:
            try:
                return await self._create(exchange, dialect)
            except completions.REFUSED as fault:
                if dialect.after(self._endpoint, fault) is None:
                    raise
        async with self._finding:
            if self._hopeless:
                raise asyncio.CancelledError  # before the fault of another request has ended the session
            if self._dialect is dialect:
                return await self._find(exchange)
        return await self._complete(exchange)

    async def _find(self, exchange: _Exchange) -> dict[str, Any]:
        formed = self._dialect is not None
        dialect = self._dialect or completions.known(self._endpoint)
        try:
            answer, self._dialect = await completions.find(
                partial(self._create, exchange), self._endpoint, dialect, formed=formed
            )
        except openai.APIStatusError as fault:
            self._hopeless = fault.status_code in _HOPELESS
            raise
        return answer

    async def _create(self, exchange: _Exchange, dialect: Dialect) -> dict[str, Any]:
        return await completions.create(self._client, self._endpoint, exchange.question, dialect, exchange.late)


def _tokens(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens of a completion object; 0 where the server does not count."""
    spent = answer.get("usage")
    spent = spent if isinstance(spent, dict) else {}
    prompt, completion = (spent.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return _count(prompt), _count(completion)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def _read(request: Request, answer: Mapping[str, Any]) -> tuple[str, pydantic.BaseModel | _Fault]:
    """The text of a completion object, and the value in it or its fault."""
    choice = (answer.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    content, refusal = reading.content(message), reading.refusal(message)
    text = reading.answer(content)
    if refusal or choice.get("finish_reason") == "content_filter":
        return refusal or content, _Fault("refused", "was a refusal, but the data are fictitious")
    if choice.get("finish_reason") == "length":
        return text, _Fault("truncated", "was cut off at the token limit; be brief")
    if not text:
        if content.strip() or reading.has_reasoning(message):
            return "", _Fault("reasoning", "ended with the reasoning")
        return "", _Fault("empty", "was empty")
    value = _value(request, text)
    complaint = request.check(value) if request.check and not isinstance(value, _Fault) else None
    return (text, _Fault("check", complaint)) if complaint else (text, value)


def _value(request: Request, text: str) -> pydantic.BaseModel | _Fault:
    """The one value that is in a text, or what is wrong with it."""
    fault = _Fault("shape")
    for objects in reading.candidates(text):
        values: list[pydantic.BaseModel] = []
        for each in objects:
            try:
                values.append(request.answer.model_validate_json(each))
            except pydantic.ValidationError as wrong:
                fault = _Fault("shape", f"did not have the form asked for ({_told(wrong)})")
        if any(value != values[0] for value in values):
            return _Fault("shape", "was more than one object of the form asked for")
        if values:
            return values[0]
    return fault


def _told(fault: pydantic.ValidationError) -> str:
    first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def _failed(exchanges: Sequence[_Exchange]) -> int:
    return sum(isinstance(exchange.outcome, _Fault) for exchange in exchanges)


def _kinds(exchanges: Sequence[_Exchange]) -> str:
    kinds = Counter(exchange.outcome.kind for exchange in exchanges if isinstance(exchange.outcome, _Fault))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _too_many(endpoint: Endpoint, description: str, store: Path | str, exchanges: Sequence[_Exchange]) -> UserError:
    kinds = _kinds(exchanges)
    faults = [exchange.outcome for exchange in exchanges if isinstance(exchange.outcome, _Fault)]
    mend = "mend the endpoint or raise its attempts, max_tokens or max_failed"
    if "timeout" in kinds:
        mend = (
            f"the server is too slow for its timeout_s={endpoint.timeout_s:g} and concurrency={endpoint.concurrency}: "
            "raise the one, lower the other"
        )
    elif said := next((fault.said for fault in faults if fault.said), ""):
        mend = f"{said}; mend that"
    return UserError(
        f"{description}: {len(faults)} of {len(exchanges)} requests to endpoint {endpoint.name} (model "
        f"{endpoint.model}) failed ({kinds}), more than its max_failed={endpoint.max_failed:g} allows; {mend} and run "
        f"again: answers so far are kept in {store}"
    )


def _too_late(endpoint: Endpoint, description: str, store: Path | str, exchanges: Sequence[_Exchange]) -> UserError:
    failed = _failed(exchanges)
    answered = sum(exchange.outcome is not None for exchange in exchanges) - failed
    said = f"{failed} failed ({_kinds(exchanges)})" if failed else "none failed"
    return UserError(
        f"{description}: {answered} of {len(exchanges)} requests to endpoint {endpoint.name} (model {endpoint.model}) "
        f"were answered and {said} when its run_timeout_s={endpoint.run_timeout_s:g} was over; run again to go on: "
        f"answers so far are kept in {store}"
    )
