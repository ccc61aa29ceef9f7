"""Chat completions of one server, by requests of the form that it takes.

Servers differ in the parameters that they take. What a refusal names is left out or goes under another name, and the
request is sent again; what then worked holds for the endpoint until the process ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2
import openai
import pydantic

from utaca.endpoints.reading import Failure
from utaca.endpoints.store import sampling
from utaca.endpoints.transport import Pace, certificate, connect, deadline, in_words, shown, stated, unreachable, where
from utaca.settings.schema import Endpoint

_REFUSED = (openai.BadRequestError, openai.UnprocessableEntityError)
# Every other request would get the same.
_GENERAL = (401, 402, 404)
# What may be sent in place of each parameter, one after the other; "": nothing.
_FORMS = {
    "response_format": ("json_schema", "json_object", ""),
    "max_tokens": ("max_tokens", "max_completion_tokens", ""),
    "temperature": ("temperature", ""),
    "top_p": ("top_p", ""),
    "seed": ("seed", ""),
}
_NAMES = {
    "response_format": r"response[_ ]?format|json[_ ]schema|json[_ ]object|structured[_ ]outputs?",
    "max_tokens": r"max[_ ]?(completion[_ ]?)?tokens",
    "top_p": r"top[_ -]?p",
}
# A refusal of the number, not of the parameter.
_VALUE = re.compile(
    r"(?is)(?!.*(unsupported|not supported|deprecated))"
    r".*(too (large|long|high|big|many)|at (most|least)|exceed|maximum|context (length|window)|less than|between|range)"
)

Forms = Mapping[str, str]
"""By parameter the form in which it is sent, where that is not the first of its forms."""

_log = logging.getLogger(__name__)
_learned: dict[tuple[str, str], Forms] = {}


@dataclass(frozen=True)
class Question:
    """What is asked in one request: messages, and the answer's strict JSON schema with its name."""

    messages: Sequence[Mapping[str, Any]]
    name: str
    shape: Mapping[str, Any]


@cache
def shape(answer: type[pydantic.BaseModel]) -> dict[str, Any]:
    """The strict JSON schema of an answer type."""
    return dict(openai.pydantic_function_tool(answer)["function"]["parameters"])


class Server:
    """A server within an event loop: its client, how much goes out at once, and what it takes, found out once."""

    def __init__(self, endpoint: Endpoint, patience_s: float | None = None) -> None:
        """Arguments and errors are those of :func:`utaca.endpoints.transport.connect`."""
        self.pace = Pace(endpoint.concurrency)
        self._endpoint = endpoint
        self._client = connect(endpoint, patience_s=patience_s, pace=self.pace)
        self._forms = _learned.get(self._place, {})
        self._takes = False  # Whether a request in these forms was answered.
        self._finding = asyncio.Lock()
        self._hopeless = False

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    @property
    def _place(self) -> tuple[str, str]:
        return self._endpoint.base_url, self._endpoint.model

    async def models(self) -> list[str]:
        """Names of the models that the server lists; none where it lists none, as not every compatible one does."""
        try:
            page = await self._client.models.list()
            return [model.id for model in page.data if isinstance(model.id, str)]
        except (openai.OpenAIError, AttributeError, TypeError, ValueError):
            return []

    async def answer(self, question: Question, late: int = 0) -> dict[str, Any] | Failure:
        """The completion object that answers a question, which has missed its deadline ``late`` times.

        One without a parameter that the server refuses names it under "left_out".
        """
        endpoint = self._endpoint
        try:
            return await self._ask(question, late)
        except openai.APIStatusError as fault:
            general = fault.status_code in _GENERAL
            self._hopeless |= general
            return Failure(f"http {fault.status_code}", reason=in_words(endpoint, fault), general=general)
        except openai.APITimeoutError:
            reason = f"{where(endpoint)} took longer than timeout_s={endpoint.timeout_s:g} for an answer"
            return Failure("timeout", reason=reason, passing=True)
        except openai.APIConnectionError as fault:
            if isinstance(fault.__cause__, httpx2.DecodingError):
                reason = f"a body that is not what its Content-Encoding says ({fault.__cause__})"
                return Failure("protocol", reason=f"{where(endpoint)} answers with {reason}", passing=True)
            reason = unreachable(endpoint, fault)
            return Failure("unreachable", reason=reason, general=bool(certificate(fault)))

    async def _ask(self, question: Question, late: int) -> dict[str, Any] | Failure:
        forms, takes = self._forms, self._takes
        if takes:
            try:
                return await self._send(question, forms, late)
            except _REFUSED as fault:
                if self._after(forms, fault) is None:
                    raise
        async with self._finding:
            if self._hopeless:
                raise asyncio.CancelledError  # before the failure of another request has ended the session
            if (forms, takes) == (self._forms, self._takes):
                return await self._find(question, late)
        return await self._ask(question, late)

    async def _find(self, question: Question, late: int) -> dict[str, Any] | Failure:
        """Ask in one form after the other until the server takes all that a request carries.

        The last refusal is raised: where it is about the question itself, it persists, and settles nothing.
        """
        forms, why = self._forms, ""
        while True:
            try:
                answer = await self._send(question, forms, late)
                break
            except _REFUSED as fault:
                # Not every server names what it refuses.
                following = self._after(forms, fault) or (None if self._takes else _next(forms, "response_format"))
                if following is None:
                    raise
                forms, why = following, why or shown(self._endpoint, stated(fault.body))
        if isinstance(answer, Failure):
            return answer
        if forms != self._forms:
            changed = ", ".join(f"{form} in place of {_FORMS[name][0]}" if form else f"no {name}"
                                for name, form in forms.items())  # fmt: skip
            place = f"endpoint {self._endpoint.name}: {where(self._endpoint)}"
            _log.warning("%s does not take all parameters (%s): from now on it gets %s", place, why, changed)
            _learned[self._place] = {name: form for name, form in forms.items() if name != "response_format"}
        self._forms, self._takes = forms, True
        return answer

    async def _send(self, question: Question, forms: Forms, late: int) -> dict[str, Any] | Failure:
        body: dict[str, Any] = {"model": self._endpoint.model, "messages": question.messages}
        body |= {form: value for name, value in sampling(self._endpoint).items() if (form := forms.get(name, name))}
        if form := _form(forms, "response_format"):
            body["response_format"] = {"type": form}
            if form == "json_schema":
                body["response_format"][form] = {"name": question.name, "strict": True, "schema": question.shape}
        # Not chat.completions.create: it walks all of the body through its types, which halves the requests a second.
        options = openai.RequestOptions(timeout=deadline(self._endpoint, late))
        response = await self._client.post("/chat/completions", cast_to=httpx2.Response, body=body, options=options)
        answer = _completion(response)
        if answer is None:
            kind = response.headers.get("content-type") or "of no type"
            reason = (
                f"{where(self._endpoint)} answers with HTTP {response.status_code}, but with no chat completion "
                f"({kind}: {shown(self._endpoint, response.text) or 'nothing'}; does base_url end in /v1?)"
            )
            return Failure("protocol", reason=reason, passing=True)
        left_out = [name for name, form in forms.items() if not form and name != "response_format"]
        return answer | {"left_out": left_out} if left_out else answer

    def _after(self, forms: Forms, fault: openai.APIStatusError) -> Forms | None:
        """What to try after a refusal: the parameter that it names in its next form; None where it names none."""
        text = stated(fault.body)
        places = {
            name: match.start()
            for name in _FORMS
            if _form(forms, name) and (match := re.search(rf"(?i)\b({_NAMES.get(name, name)})\b", text))
        }
        if not places:
            return None
        chosen = {name for name in places if getattr(self._endpoint, name, None) != getattr(Endpoint, name, None)}
        name = min(places, key=lambda name: places[name])
        # Some servers take but one of them.
        if places.keys() == {"temperature", "top_p"}:
            name = "temperature" if chosen == {"top_p"} else "top_p"
        if (name == "max_tokens" or name in chosen) and _VALUE.match(text):
            return None
        return _next(forms, name)


def _form(forms: Forms, name: str) -> str:
    return forms.get(name, _FORMS[name][0])


def _next(forms: Forms, name: str) -> Forms | None:
    """With the next form of a parameter; None after the last."""
    later = _FORMS[name][_FORMS[name].index(_form(forms, name)) + 1 :]
    return {**forms, name: later[0]} if later else None


def _completion(response: httpx2.Response) -> dict[str, Any] | None:
    """The completion object of a response; None where its body holds none."""
    try:
        answer = response.json()
        json.dumps(answer, ensure_ascii=False).encode()  # a lone surrogate cannot be kept
    except (ValueError, RecursionError):
        return None
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        # OpenRouter reports a model's failure so.
        return None
    broken = choices[0].get("finish_reason") == "error" or not isinstance(choices[0].get("message"), dict)
    return None if broken else answer
