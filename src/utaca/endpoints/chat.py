"""Request chat completions from one server, again while it is busy or failing, with parameters that it accepts.

Servers differ in the parameters that they accept. If a refusal names a parameter, the request is sent again with that
parameter renamed or left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import aiohttp
import httpx2
import openai
from pydantic import BaseModel

from utaca.endpoints import transport
from utaca.endpoints.prompts import Messages
from utaca.endpoints.reading import Failure
from utaca.endpoints.store import sampling
from utaca.endpoints.transport import certificate, shown, where
from utaca.errors import UserError
from utaca.settings.schema import EndpointSettings

# The forms of each parameter, in the order in which they are tried; "" leaves the parameter out.
_FORMS = {
    "response_format": ("json_schema", "json_object", ""),
    "max_tokens": ("max_tokens", "max_completion_tokens", ""),
    "temperature": ("temperature", ""),
    "top_p": ("top_p", ""),
    "seed": ("seed", ""),
}
# How a refusal may name a parameter; any other parameter is named as it is.
_NAMES = {
    "response_format": r"response[_ ]?format|json[_ ]schema|json[_ ]object|structured[_ ]outputs?",
    "max_tokens": r"max[_ ]?(completion[_ ]?)?tokens",
    "top_p": r"top[_ -]?p",
}
# Matches a refusal of a parameter's value, after which the parameter itself keeps its form.
_VALUE = re.compile(
    r"(?is)(?!.*(unsupported|not supported|deprecated))"
    r".*(too (large|long|high|big|many)|at (most|least)|exceed|maximum|context (length|window)|less than|between|range)"
)
_SHOWN_MODELS = 5  # most names that a message lists

Forms = Mapping[str, str]
"""The form in which each parameter is sent, by the parameter's name."""

_log = logging.getLogger(__name__)


@cache
def shape(answer: type[BaseModel]) -> dict[str, Any]:
    """The strict JSON schema of an answer type."""
    return dict(openai.pydantic_function_tool(answer)["function"]["parameters"])


class ChatServer:
    """A server within one event loop: the client, the pace, and the forms of the parameters that the server accepts."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        """Make a client; errors are those of :func:`utaca.endpoints.transport.connect`."""
        self.pace = transport.Pace(endpoint.concurrency)
        self._endpoint = endpoint
        self._client = transport.connect(endpoint)
        self._forms: Forms = {name: forms[0] for name, forms in _FORMS.items()}
        self._has_answered = False

    async def __aenter__(self) -> ChatServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def models(self) -> list[str]:
        """Names of the models that the server lists; empty if it has no list, as is the case for some servers."""
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                page = await self._client.models.list()
            return [model.id for model in page.data if isinstance(model.id, str)]
        except (openai.OpenAIError, aiohttp.ClientError, AttributeError, TimeoutError, TypeError, ValueError):
            return []

    async def answer(self, messages: Messages, kind: type[BaseModel], n_late: int = 0) -> dict[str, Any] | Failure:
        """Request a completion of the messages as JSON of type ``kind``, after ``n_late`` time-outs of these messages.

        Returns the completion object, with the parameters that the server refused under "left_out", or a failure.
        """
        endpoint = self._endpoint
        try:
            return await self._answer(messages, kind, n_late)
        except openai.APIStatusError as fault:
            general = fault.status_code in (401, 402, 404)  # Every other request would get it too.
            return Failure(f"http {fault.status_code}", reason=transport.refusal(endpoint, fault), general=general)
        except TimeoutError:
            reason = f"{where(endpoint)} took longer than timeout_s={endpoint.timeout_s:g} for an answer"
            return Failure("timeout", reason=reason, passing=True)
        except openai.APIConnectionError as fault:
            if isinstance(fault.__cause__, httpx2.DecodingError):
                reason = f"a body that is not what its Content-Encoding says ({fault.__cause__})"
                return Failure("protocol", reason=f"{where(endpoint)} answers with {reason}", passing=True)
            reason = transport.unreachable(endpoint, fault)
            return Failure("unreachable", reason=reason, general=bool(certificate(fault)))
        except aiohttp.ClientResponseError as fault:  # The openai client lets it through.
            reason = f"no readable HTTP ({shown(endpoint, fault.message)}); base_url may need https or another port"
            return Failure("protocol", reason=f"{where(endpoint)} answers with {reason}", passing=True)

    async def _answer(self, messages: Messages, kind: type[BaseModel], n_late: int) -> dict[str, Any] | Failure:
        """Send a request with one form of the parameters after another until the server accepts it; as :meth:`answer`.

        The accepted forms are those of all later requests. If the server refuses the last form too, the refusal is
        raised, and other requests keep their forms, since the messages may be at fault.
        """
        known = forms = self._forms
        reason = ""  # what the server said at the first refusal
        while True:
            try:
                answer = await self._send(messages, kind, forms, n_late)
                break
            except (openai.BadRequestError, openai.UnprocessableEntityError) as fault:
                if known is not self._forms:  # Another request has found accepted forms meanwhile.
                    known = forms = self._forms
                    continue
                following = _after(forms, fault.response.text)
                if following is None and not self._has_answered:
                    # Some servers do not name the refused parameter: response_format is the likeliest.
                    following = _next(forms, "response_format")
                if following is None:
                    raise
                forms = following
                reason = reason or shown(self._endpoint, fault.response.text)
        if isinstance(answer, Failure):
            return answer
        if forms != known and known is self._forms:
            self._adopt(forms, reason)
        self._has_answered = True
        return answer

    def _adopt(self, forms: Forms, reason: str) -> None:
        """Use ``forms`` for all later requests, and log a warning with the ``reason`` that the server gave."""
        changes = []
        for name, form in forms.items():
            usual = _FORMS[name][0]
            if form != usual:
                changes.append(f"{form} in place of {usual}" if form else f"no {name}")
        changed = ", ".join(changes)
        place = f"endpoint {self._endpoint.name}: {where(self._endpoint)}"
        _log.warning("%s does not take all parameters (%s): from now on it gets %s", place, reason, changed)
        self._forms = forms

    async def _send(
        self, messages: Messages, kind: type[BaseModel], forms: Forms, n_late: int
    ) -> dict[str, Any] | Failure:
        """Send a request with its parameters in these ``forms``; the result is as for :meth:`answer`.

        Errors of the openai client, aiohttp's and TimeoutError are raised.
        """
        body: dict[str, Any] = {"model": self._endpoint.model, "messages": messages}
        for name, value in sampling(self._endpoint).items():
            form = forms.get(name, name)
            if form:
                body[form] = value
        response_format = forms["response_format"]
        if response_format:
            body["response_format"] = {"type": response_format}
        if response_format == "json_schema":
            schema = {"name": kind.__name__, "strict": True, "schema": shape(kind)}
            body["response_format"]["json_schema"] = schema
        # Some servers still process a request after its client has left, which delays the repeat: allow twice the time.
        response = await self._post(body, self._endpoint.timeout_s * 2**n_late)
        answer = _completion(response)
        if answer is None:
            content = response.headers.get("content-type") or "of no type"
            text = shown(self._endpoint, response.text) or "nothing"
            reason = (
                f"{where(self._endpoint)} answers with HTTP {response.status_code}, but with no chat completion "
                f"({content}: {text}; {transport.doubt(self._endpoint)})"
            )
            return Failure("protocol", reason=reason, passing=True)
        left_out = [name for name, form in forms.items() if not form and name != "response_format"]
        return answer | {"left_out": left_out} if left_out else answer

    async def _post(self, body: dict[str, Any], seconds: float) -> httpx2.Response:
        """Send a request, and return the response; resend it after HTTP 408, 409, 429, 5xx and lost connections.

        ``seconds`` is the deadline of each try; TimeoutError is raised without another. A pause before the next try
        lasts as long as the server requests (Retry-After), else ``backoff_s`` (doubled each time, to 32-fold) less up
        to a quarter at random. If the pauses would exceed ``patience_s`` in all, the last error is raised. (The retries
        of the openai client give up at a Retry-After above two minutes, and are limited by number, not seconds.)
        """
        endpoint = self._endpoint
        patience_left = endpoint.patience_s
        n_resent = 0
        fault: openai.APIError
        while True:
            requested_pause = None
            async with self.pace.turn():
                sent = time.monotonic()
                try:
                    # The deadline covers the whole request; a timeout of the transport would restart with every byte.
                    async with asyncio.timeout(seconds):
                        # Not chat.completions.create: it walks the body through its types, which costs half the speed.
                        response = await self._client.post("/chat/completions", cast_to=httpx2.Response, body=body)
                    self.pace.answered()
                    return response
                except TimeoutError:
                    # The server has more in its queue than it answers in time.
                    self.pace.refused(sent)
                    raise
                except openai.APIConnectionError as lost:
                    if certificate(lost) or isinstance(lost.__cause__, httpx2.DecodingError):
                        raise
                    fault = lost
                except openai.APIStatusError as refused:
                    if refused.status_code < 500 and refused.status_code not in (408, 409, 429):
                        self.pace.answered()
                        raise
                    fault = refused
                    requested_pause = transport.retry_after(refused.response)
                    if refused.status_code == 429:
                        # A pause that this request does not wait for holds up no other either.
                        is_kept = requested_pause is not None and requested_pause <= patience_left
                        self.pace.refused(sent, requested_pause if is_kept else 0.0)
            # Some servers request a pause of 0 seconds, which is too short: the back-off applies instead.
            pause = requested_pause or endpoint.backoff_s * min(2**n_resent, 32) * random.uniform(0.75, 1)
            if pause > patience_left:
                raise fault
            await asyncio.sleep(pause)
            patience_left = patience_left - pause
            n_resent = n_resent + 1
            self.pace.resent += 1


def _after(forms: Forms, refused: str) -> Forms | None:
    """The forms to try after a refusal: the parameter that the text ``refused`` names is in its next form.

    If it names several, the first counts. None if it names none, or only rejects a parameter's value.
    """
    places = {}  # where the refusal names each parameter, in characters
    for name in _FORMS:
        named = re.search(rf"(?i)\b({_NAMES.get(name, name)})\b", refused)
        if named and forms[name]:
            places[name] = named.start()
    if not places or _VALUE.match(refused):
        return None
    if places.keys() == {"temperature", "top_p"}:
        # Some servers accept either of them, but not both.
        return _next(forms, "top_p")
    return _next(forms, min(places, key=lambda name: places[name]))


def _next(forms: Forms, name: str) -> Forms | None:
    """The forms with parameter ``name`` in its next form; None if the parameter has its last form."""
    known = _FORMS[name]
    later = known[known.index(forms[name]) + 1 :]
    return {**forms, name: later[0]} if later else None


def _completion(response: httpx2.Response) -> dict[str, Any] | None:
    """The completion object of a response; None if its body holds none, or one that the store cannot keep."""
    try:
        answer = response.json()
        json.dumps(answer, ensure_ascii=False).encode()  # fails for a lone surrogate
    except (ValueError, RecursionError):
        return None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        # OpenRouter reports a model's failure by a body without choices.
        return None
    has_failed = choices[0].get("finish_reason") == "error"
    if has_failed or not isinstance(choices[0].get("message"), dict):
        return None
    return answer


class Ready(BaseModel):
    """The type of answer that :func:`check` requests; its content is not checked."""

    ready: bool


def check(endpoint: EndpointSettings, role: str) -> None:
    """Check that an endpoint can serve its role (writer, labeller or judge): key, address, model and one request.

    Raises:
        UserError: the endpoint cannot; the message names the role and the variable, address or model at fault.
    """
    if endpoint.kind == "remote":
        try:
            asyncio.run(_check(endpoint))
        except UserError as fault:
            # An endpoint that is checked in no role has its name already.
            named = f"endpoint {endpoint.name}: " if role.startswith("endpoint ") else ""
            raise UserError(f"{role}: {str(fault).removeprefix(named)}") from None


async def _check(endpoint: EndpointSettings) -> None:
    """Check a server as :func:`check` does; warn if the server does not list the model but answers to its name."""
    patience_s = min(10.0, endpoint.patience_s)
    async with ChatServer(replace(endpoint, patience_s=patience_s)) as server:
        lacks = _lacking(endpoint, await server.models())
        # The request has the form of the stages' requests, so that refused parameters are found before the run.
        # Some servers accept a JSON response format only if the text mentions JSON.
        message = {"role": "user", "content": 'Reply with the JSON object {"ready": true}, and nothing else.'}
        answer = await server.answer([message], Ready)
        if isinstance(answer, Failure):
            raise UserError(f"{lacks} ({answer.reason})" if lacks else answer.reason)
        if lacks:  # Azure does not list deployments; a server of one model answers to any name.
            _log.warning("%s; yet it answers to that name, perhaps as another model", lacks)


def _lacking(endpoint: EndpointSettings, listed: Sequence[str]) -> str:
    """A sentence if the models that a server lists do not include the endpoint's; "" if they do, or it lists none."""
    # Gateways list patterns of names; some servers list names with a folder or a tag that a request may omit.
    if not listed or any("*" in name or _bare(name) == _bare(endpoint.model) for name in listed):
        return ""
    names = ", ".join(sorted(listed)[:_SHOWN_MODELS])
    if len(listed) > _SHOWN_MODELS:
        names += ", ..."
    return f"{where(endpoint)} does not list model {endpoint.model}; it lists {names}"


def _bare(model: str) -> str:
    """A model's name without the folder before it and the tag after it."""
    return model.rpartition("/")[2].partition(":")[0].casefold()
