"""Asking a model many things at once: validated answers, kept as they arrive, failures counted by kind.

An answer that cannot be used is asked for again with its fault named, up to ``attempts`` times. The whole exchange is
kept, so a later run replays it, failures included, without a request; raising ``attempts`` continues where it ended.
Where there was no answer (time-outs, refusals by HTTP, broken bodies) nothing is kept, and a later run asks again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pydantic
from tqdm import tqdm

from utaca.endpoints.store import Store, digest, identity, sampling
from utaca.endpoints.transport import Pace, address, connect, deadline, in_words
from utaca.errors import UserError
from utaca.records.progress import counter
from utaca.settings.schema import Endpoint

Messages = list[dict[str, Any]]

_UNREACHABLE_IN_A_ROW = 3
# Every other request would get the same.
_HOPELESS = (401, 402, 404)
_FORMATS = ("json_schema", "json_object", "text")
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

    Without it there was no answer: where ``passing``, the same may be asked again.
    """

    kind: str
    told: str = ""
    passing: bool = False


def ask(endpoint: Endpoint, requests: Sequence[Request], *, store: Path | str, description: str) -> Answers:
    """Ask ``endpoint`` every request, with at most ``endpoint.concurrency`` in flight.

    Answers already in ``store``, a file or the URL of a database, are not sent for; new ones are kept there as they
    arrive; identical requests are sent once. Kinds of failure are "shape", "check", "truncated", "refused", "empty",
    "reasoning" (and no answer after it), "timeout", "unreachable", "protocol" (no completion in the body) and
    "http NNN". Raises :class:`UserError` where more than the share ``endpoint.max_failed`` of the requests failed, as
    soon as that is certain; where ``endpoint.run_timeout_s`` is over; where the server is gone or refuses key or model;
    where the store cannot be used.
    """
    schemas = _Schemas()
    exchanges = [_Exchange(request, endpoint, schemas.of(request.answer)) for request in requests]
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


class _Schemas:
    """Strict JSON schemas of the answer types, each made once."""

    def __init__(self) -> None:
        self._made: dict[type[pydantic.BaseModel], dict[str, Any]] = {}

    def of(self, answer: type[pydantic.BaseModel]) -> dict[str, Any]:
        if answer not in self._made:
            function = openai.pydantic_function_tool(answer)["function"]
            self._made[answer] = dict(function["parameters"])
        return self._made[answer]


class _Exchange:
    """The talk about one request: what to ask next, the answers so far, and the outcome once there is one."""

    def __init__(self, request: Request, endpoint: Endpoint, shape: dict[str, Any]) -> None:
        self.request = request
        self.shape = shape
        self.outcome: pydantic.BaseModel | _Fault | None = None
        self._endpoint = endpoint
        self._answers: list[dict[str, Any]] = []
        self._misses = 0
        self.late = 0
        self._say(list(request.messages))

    def _say(self, messages: Messages) -> None:
        self.messages = messages
        self.digest = digest(self.identity)

    @property
    def identity(self) -> str:
        """What identifies the request that is next."""
        return identity(self._endpoint, self.messages, self.shape, self.request.version)

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
                *self.messages,
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
    """One event loop's worth of asking: shared client, shared answers in flight, response format found out once."""

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
        self._format: str | None = None
        self._finding_format = asyncio.Lock()
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
        name, started = self._endpoint.name, time.monotonic()
        try:
            response = await self._complete(exchange)
        except openai.APIStatusError as fault:
            if fault.status_code in _HOPELESS:
                raise UserError(
                    f"{self._description}: endpoint {name}: {in_words(self._endpoint, fault)}; answers so far are kept "
                    f"in {self._store.place}"
                ) from None
            kind = f"http {fault.status_code}"
            self._tell(kind, in_words(self._endpoint, fault))
            return _Fault(kind)
        except openai.APITimeoutError:
            exchange.late += 1
            self._tell(
                "timeout",
                f"an answer took longer than timeout_s={self._endpoint.timeout_s:g}; each request that does is asked "
                f"again with twice the time, and fewer go out at once (now {self._pace.width})",
            )
            return _Fault("timeout", passing=True)
        except openai.APIConnectionError:
            self._unreachable += 1
            if self._unreachable >= _UNREACHABLE_IN_A_ROW:
                raise UserError(
                    f"{self._description}: endpoint {name}: {address(self._endpoint)} cannot be reached; start the "
                    f"server and run again: the answers so far are kept in {self._store.place}"
                ) from None
            return _Fault("unreachable")
        self._unreachable = 0
        answer = _completion(response)
        if answer is None:
            return _Fault("protocol", passing=True)
        tokens = _tokens(answer)
        self._store.put(exchange.identity, self._endpoint.model, answer, tokens, time.monotonic() - started)
        self._usage.requests += 1
        self._usage.prompt_tokens += tokens[0]
        self._usage.completion_tokens += tokens[1]
        return answer

    def _tell(self, kind: str, what: str) -> None:
        """Warn of a kind of failure, once."""
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("%s: endpoint %s: %s", self._description, self._endpoint.name, what)

    async def _complete(self, exchange: _Exchange) -> httpx2.Response:
        if self._format is None:
            async with self._finding_format:
                if self._hopeless:
                    raise asyncio.CancelledError  # before the fault of another request has ended the session
                if self._format is None:
                    return await self._find_format(exchange)
        return await self._create(exchange, self._format)

    async def _find_format(self, exchange: _Exchange) -> httpx2.Response:
        # A refusal may also be about the request itself: it then persists in plain text and settles nothing.
        for form in _FORMATS:
            try:
                response = await self._create(exchange, form)
            except (openai.BadRequestError, openai.UnprocessableEntityError):
                if form == _FORMATS[-1]:
                    raise
            except openai.APIStatusError as fault:
                self._hopeless = fault.status_code in _HOPELESS
                raise
            else:
                self._format = form
                return response
        raise AssertionError("unreachable")

    async def _create(self, exchange: _Exchange, form: str) -> httpx2.Response:
        body: dict[str, Any] = {"model": self._endpoint.model, "messages": exchange.messages}
        body |= sampling(self._endpoint)
        if form == "json_schema":
            shape = {"name": exchange.request.answer.__name__, "strict": True, "schema": exchange.shape}
            body["response_format"] = {"type": "json_schema", "json_schema": shape}
        elif form == "json_object":
            body["response_format"] = {"type": "json_object"}
        # Not chat.completions.create: it walks all of the body through its types, which halves the requests a second.
        options = openai.RequestOptions(timeout=deadline(self._endpoint, exchange.late))
        return await self._client.post("/chat/completions", cast_to=httpx2.Response, body=body, options=options)


def _completion(response: httpx2.Response) -> dict[str, Any] | None:
    """The completion object of a response; None where its body holds none."""
    try:
        answer = response.json()
        json.dumps(answer, ensure_ascii=False).encode()  # a lone surrogate cannot be kept
    except ValueError:
        return None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        # OpenRouter reports a model's failure so.
        return None
    broken = choices[0].get("finish_reason") == "error" or not isinstance(choices[0].get("message"), dict)
    return None if broken else answer


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
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    # Servers without a reasoning parser leave the reasoning in the text.
    text = content.rpartition("</think>")[2].strip()
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        return str(message.get("refusal") or content), _Fault("refused", "was a refusal, but the data are fictitious")
    if choice.get("finish_reason") == "length":
        return text, _Fault("truncated", "was cut off at the token limit; be brief")
    if not text:
        if content or message.get("reasoning") or message.get("reasoning_content"):
            return "", _Fault("reasoning", "ended with the reasoning")
        return "", _Fault("empty", "was empty")
    try:
        value = request.answer.model_validate_json(_json(text))
    except pydantic.ValidationError as fault:
        return text, _Fault("shape", f"did not have the form asked for ({_told(fault)})")
    complaint = request.check(value) if request.check else None
    return (text, _Fault("check", complaint)) if complaint else (text, value)


def _json(text: str) -> str:
    """The JSON object in an answer that may be fenced or wrapped in prose."""
    fenced = re.search(r"```(?:json)?\s*\n(.*?)\n\s*```", text, re.DOTALL)
    text = fenced.group(1) if fenced else text
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else text


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
    slow = (
        f"the server is too slow for its timeout_s={endpoint.timeout_s:g} and concurrency={endpoint.concurrency}: "
        "raise the one, lower the other"
    )
    mend = "mend the endpoint or raise its attempts, max_tokens or max_failed"
    return UserError(
        f"{description}: {_failed(exchanges)} of {len(exchanges)} requests to endpoint {endpoint.name} (model "
        f"{endpoint.model}) failed ({kinds}), more than its max_failed={endpoint.max_failed:g} allows; "
        f"{slow if 'timeout' in kinds else mend} and run again: answers so far are kept in {store}"
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
