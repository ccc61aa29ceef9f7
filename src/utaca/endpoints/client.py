"""Asking a model many things at once: validated answers, kept as they arrive, failures counted by kind.

An answer that cannot be used is asked for again with its fault named. The whole exchange is kept, so a
later run replays it, failures included, without a request; raising ``attempts`` continues where it ended.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pydantic

from utaca.endpoints.store import Store, digest, sampling
from utaca.errors import UserError
from utaca.records.progress import progress
from utaca.settings.schema import Endpoint

Messages = list[dict[str, Any]]

_NETWORK_RETRIES = 5
_CONNECT_SECONDS = 20.0
_UNREACHABLE_IN_A_ROW = 3
_FORMATS = ("json_schema", "json_object", "text")
_QUOTED_CHARACTERS = 4000


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
    tokens of the answers sent for."""

    requests: int = 0
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Answers:
    """Answers by key; every key asked is in exactly one of ``values`` and ``failures`` (key to kind of failure)."""

    values: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True)
class _Fault:
    """Why an answer cannot be used; ``told`` ends the sentence "Your answer ..." in the next request."""

    kind: str
    told: str = ""


def ask(endpoint: Endpoint, requests: Sequence[Request], *, store: Path, description: str) -> Answers:
    """Ask ``endpoint`` every request, with at most ``endpoint.concurrency`` in flight.

    Answers already in ``store`` are not sent for; new ones are kept there as they arrive; identical requests
    are sent once. Kinds of failure are "shape", "check", "truncated", "refused", "empty", "timeout",
    "unreachable", "protocol" and "http NNN". Raises :class:`UserError` where more than the share
    ``endpoint.max_failed`` of the requests failed, as soon as that is certain, and where the server is gone.
    """
    keys = [request.key for request in requests]
    if len(set(keys)) != len(keys):
        raise ValueError("requests share a key")
    found: dict[str, pydantic.BaseModel | str] = {}
    usage = Usage()
    with Store(store) as kept:
        schemas = _Schemas()
        for request in requests:
            outcome = _replay(endpoint, kept, schemas, request)
            if outcome is not None:
                found[request.key] = outcome
        usage.cached = len(found)
        missing = [request for request in requests if request.key not in found]
        allowed = endpoint.max_failed * len(requests)
        if missing and _failed(found) <= allowed:
            label = f"{description} ({usage.cached} of {len(requests)} stored)" if usage.cached else description
            session = _Session(endpoint, kept, schemas, usage, allowed - _failed(found))
            asyncio.run(session.run(missing, found, label))
    if _failed(found) > allowed:
        raise _too_many(endpoint, description, store, found, len(requests))
    answers = Answers(usage=usage)
    for key in keys:
        outcome = found[key]
        if isinstance(outcome, str):
            answers.failures[key] = outcome
        else:
            answers.values[key] = outcome
    return answers


def connect(endpoint: Endpoint, retries: int = _NETWORK_RETRIES) -> openai.AsyncOpenAI:
    """A client of the endpoint that retries 429, 5xx and broken connections, heeding Retry-After.

    Raises :class:`UserError` where the address or the key's environment variable is not set.
    """
    transport, address, key = _transport(endpoint), "http://reference/v1", "none"
    if endpoint.kind == "remote":
        address, key = endpoint.base_url, api_key(endpoint)
        if not address.startswith(("http://", "https://")):
            raise UserError(f"endpoint {endpoint.name}: base_url {address!r} must be an http address ending in /v1")
    timeout = openai.Timeout(None, connect=_CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=endpoint.concurrency, max_keepalive_connections=endpoint.concurrency)
    http = _Deadline(endpoint.timeout_s, transport=transport, timeout=timeout, limits=limits)
    return openai.AsyncOpenAI(base_url=address, api_key=key, max_retries=retries, timeout=timeout, http_client=http)


def api_key(endpoint: Endpoint) -> str:
    """The key of a remote endpoint, from the environment variable that its config names."""
    if not endpoint.api_key_env:
        return "none"
    key = os.environ.get(endpoint.api_key_env, "")
    if not key:
        raise UserError(f"endpoint {endpoint.name}: environment variable {endpoint.api_key_env} (its key) is not set")
    return key


def _transport(endpoint: Endpoint) -> httpx2.AsyncBaseTransport | None:
    if endpoint.kind != "reference":
        return None
    from utaca.reference.app import application

    return httpx2.ASGITransport(app=application)


class _Deadline(openai.DefaultAsyncHttpxClient):
    """An HTTP client with one deadline over a whole request, answered as an HTTP 408 that the SDK does not retry.

    The SDK's own time-outs restart with every byte and are retried as network faults.
    """

    def __init__(self, seconds: float, **settings: Any) -> None:
        super().__init__(**settings)
        self._seconds = seconds

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:
        try:
            async with asyncio.timeout(self._seconds):
                return await super().send(request, **settings)
        except TimeoutError:
            return httpx2.Response(408, headers={"x-should-retry": "false"}, request=request)


class _Schemas:
    """Strict JSON schemas of the answer types, each made once."""

    def __init__(self) -> None:
        self._made: dict[type[pydantic.BaseModel], dict[str, Any]] = {}

    def of(self, answer: type[pydantic.BaseModel]) -> dict[str, Any]:
        if answer not in self._made:
            function = openai.pydantic_function_tool(answer)["function"]
            self._made[answer] = dict(function["parameters"])
        return self._made[answer]


class _Session:
    """One event loop's worth of asking: shared client, shared answers in flight, response format found out once."""

    def __init__(self, endpoint: Endpoint, store: Store, schemas: _Schemas, usage: Usage, allowed: float) -> None:
        self._endpoint = endpoint
        self._store = store
        self._schemas = schemas
        self._usage = usage
        self._allowed = allowed
        self._client = connect(endpoint)
        self._in_flight: dict[str, asyncio.Future[dict[str, Any] | _Fault]] = {}
        self._unreachable = 0
        self._format: str | None = None
        self._finding_format = asyncio.Lock()

    async def run(self, requests: list[Request], found: dict[str, pydantic.BaseModel | str], description: str) -> None:
        """Put the outcome of each request into ``found``, stopping early once more than allowed have failed."""
        bar = progress(requests, total=len(requests), unit="request", description=description)
        next(bar)
        waiting = iter(requests)
        try:
            async with self._client, asyncio.TaskGroup() as tasks:
                for _ in range(min(self._endpoint.concurrency, len(requests))):
                    tasks.create_task(self._work(waiting, found, bar))
        except* UserError as faults:
            raise faults.exceptions[0] from None
        next(bar, None)

    async def _work(
        self, waiting: Iterator[Request], found: dict[str, pydantic.BaseModel | str], bar: Iterator[Request]
    ) -> None:
        for request in waiting:
            exchange = _exchange(request, self._endpoint.attempts)
            messages = next(exchange)
            for attempt in itertools.count():
                self._usage.retries += attempt > 0
                try:
                    messages = exchange.send(await self._answer(request, messages))
                except StopIteration as end:
                    found[request.key] = end.value
                    self._allowed -= isinstance(end.value, str)
                    break
            next(bar, None)
            if self._allowed < 0:
                return

    async def _answer(self, request: Request, messages: Messages) -> dict[str, Any] | _Fault:
        key = digest(self._endpoint, messages, self._schemas.of(request.answer), request.version)
        if key in self._in_flight:
            return await self._in_flight[key]
        kept = self._store.get(key)
        if kept is not None:
            return kept
        sent = self._in_flight[key] = asyncio.ensure_future(self._send(key, request, messages))
        try:
            return await sent
        finally:
            del self._in_flight[key]

    async def _send(self, key: str, request: Request, messages: Messages) -> dict[str, Any] | _Fault:
        started = time.monotonic()
        try:
            completion = await self._complete(request, messages)
        except openai.APIStatusError as fault:
            return _Fault("timeout" if fault.status_code == 408 else f"http {fault.status_code}")
        except openai.APIConnectionError as fault:
            self._unreachable += 1
            if self._unreachable >= _UNREACHABLE_IN_A_ROW:
                raise UserError(
                    f"endpoint {self._endpoint.name}: {self._endpoint.base_url} cannot be reached; start the server "
                    f"and run again: the answers so far are kept in {self._store.path}"
                ) from fault
            return _Fault("unreachable")
        except (openai.OpenAIError, ValueError):
            return _Fault("protocol")
        if not isinstance(completion, openai.types.chat.ChatCompletion):
            return _Fault("protocol")
        answer = completion.to_dict(mode="json")
        spent = answer.get("usage") or {}
        self._unreachable = 0
        tokens = (spent.get("prompt_tokens") or 0, spent.get("completion_tokens") or 0)
        self._store.put(key, self._endpoint.model, answer, tokens, time.monotonic() - started)
        self._usage.requests += 1
        self._usage.prompt_tokens += tokens[0]
        self._usage.completion_tokens += tokens[1]
        return answer

    async def _complete(self, request: Request, messages: Messages) -> Any:
        if self._format is None:
            async with self._finding_format:
                if self._format is None:
                    return await self._find_format(request, messages)
        return await self._create(request, messages, self._format)

    async def _find_format(self, request: Request, messages: Messages) -> Any:
        # A 400 may also be about the request itself: it then persists in plain text and settles nothing.
        for form in _FORMATS:
            try:
                completion = await self._create(request, messages, form)
            except openai.BadRequestError:
                if form == _FORMATS[-1]:
                    raise
            else:
                self._format = form
                return completion
        raise AssertionError("unreachable")

    async def _create(self, request: Request, messages: Messages, form: str) -> Any:
        parameters: dict[str, Any] = sampling(self._endpoint)
        if form == "json_schema":
            shape = {"name": request.answer.__name__, "strict": True, "schema": self._schemas.of(request.answer)}
            parameters["response_format"] = {"type": "json_schema", "json_schema": shape}
        elif form == "json_object":
            parameters["response_format"] = {"type": "json_object"}
        return await self._client.chat.completions.create(model=self._endpoint.model, messages=messages, **parameters)


def _replay(endpoint: Endpoint, store: Store, schemas: _Schemas, request: Request) -> pydantic.BaseModel | str | None:
    """The outcome of a request from stored answers alone; None where one is missing."""
    exchange = _exchange(request, endpoint.attempts)
    messages = next(exchange)
    while True:
        kept = store.get(digest(endpoint, messages, schemas.of(request.answer), request.version))
        if kept is None:
            return None
        try:
            messages = exchange.send(kept)
        except StopIteration as end:
            return end.value


def _exchange(
    request: Request, attempts: int
) -> Generator[Messages, dict[str, Any] | _Fault, pydantic.BaseModel | str]:
    """The talk about one request: yields messages, is sent answers, returns the value or the kind of failure."""
    messages = list(request.messages)
    kind = ""
    for _ in range(attempts):
        answer = yield messages
        if isinstance(answer, _Fault):
            kind = answer.kind
            if kind == "timeout":
                continue
            return kind
        content, outcome = _read(request, answer)
        if not isinstance(outcome, _Fault):
            return outcome
        kind = outcome.kind
        messages = [
            *messages,
            {"role": "assistant", "content": content[:_QUOTED_CHARACTERS] or "(no answer)"},
            {
                "role": "user",
                "content": f"Your answer {outcome.told}. Answer the request above again, with nothing but a JSON "
                "object of the form asked for.",
            },
        ]
    return kind


def _read(request: Request, answer: Mapping[str, Any]) -> tuple[str, pydantic.BaseModel | _Fault]:
    """The text of a completion object, and the value in it or its fault."""
    choice = (answer.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    content = message.get("content") or ""
    # Servers without a reasoning parser leave the reasoning in the text.
    text = content.rpartition("</think>")[2].strip()
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        return message.get("refusal") or content, _Fault("refused", "was a refusal, but the data are fictitious")
    if choice.get("finish_reason") == "length":
        return text, _Fault("truncated", "was cut off at the token limit; be brief")
    if not text:
        told = "was empty"
        if content or message.get("reasoning") or message.get("reasoning_content"):
            told = "ended with the reasoning"
        return "", _Fault("empty", told)
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


def _failed(found: Mapping[str, pydantic.BaseModel | str]) -> int:
    return sum(isinstance(outcome, str) for outcome in found.values())


def _too_many(
    endpoint: Endpoint, description: str, store: Path, found: Mapping[str, pydantic.BaseModel | str], total: int
) -> UserError:
    kinds = Counter(outcome for outcome in found.values() if isinstance(outcome, str))
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return UserError(
        f"{description}: {sum(kinds.values())} of {total} requests to endpoint {endpoint.name} (model "
        f"{endpoint.model}) failed ({counts}), more than its max_failed={endpoint.max_failed:g} allows; mend the "
        f"endpoint or raise its attempts, max_tokens or max_failed and run again: answers so far are kept in {store}"
    )
