"""One chat completion: the request as far as the server takes it, and what a server says that gives none.

Servers differ in the parameters that they take. What a refusal names is left out or goes under another name, and the
request is sent again; what then worked holds for the endpoint until the process ends.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import httpx2
import openai
import pydantic

from utaca.endpoints.store import sampling
from utaca.endpoints.transport import deadline, said, shown, where
from utaca.settings.schema import Endpoint

REFUSED = (openai.BadRequestError, openai.UnprocessableEntityError)
"""What a server answers where it takes the request, but not all that it carries."""

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
# Some servers take but one of them.
_EITHER = {"temperature", "top_p"}
# A refusal of the number, not of the parameter.
_VALUE = re.compile(
    r"(?is)(?!.*(unsupported|not supported|deprecated))"
    r".*(too (large|long|high|big|many)|at (most|least)|exceed|maximum|context (length|window)|less than|between|range)"
)

_log = logging.getLogger(__name__)
_learned: dict[tuple[str, str], Mapping[str, str]] = {}


class NoCompletion(Exception):  # noqa: N818
    """HTTP 200 without a chat completion; the message is the rest of a sentence that begins with the endpoint."""


@dataclass(frozen=True)
class Question:
    """What is asked in one request: messages, and the answer's strict JSON schema with its name."""

    messages: Sequence[Mapping[str, Any]]
    name: str
    shape: Mapping[str, Any]


@dataclass(frozen=True)
class Dialect:
    """What a server takes: by parameter the form in which it is sent, where that is not the first of its forms."""

    forms: Mapping[str, str] = field(default_factory=dict)

    def body(self, endpoint: Endpoint, question: Question) -> dict[str, Any]:
        """The request."""
        body: dict[str, Any] = {"model": endpoint.model, "messages": question.messages}
        for parameter, value in sampling(endpoint).items():
            if form := self.forms.get(parameter, parameter):
                body[form] = value
        if form := self._form("response_format"):
            body["response_format"] = {"type": form}
            if form == "json_schema":
                body["response_format"][form] = {"name": question.name, "strict": True, "schema": question.shape}
        return body

    @property
    def left_out(self) -> list[str]:
        """The sampling parameters that are not sent."""
        return [parameter for parameter, form in self.forms.items() if not form and parameter != "response_format"]

    def after(self, endpoint: Endpoint, fault: openai.APIStatusError) -> Dialect | None:
        """What to try after a refusal: the parameter that it names in its next form; None where it names none."""
        text = said(fault.body)
        places = {
            parameter: match.start()
            for parameter in _FORMS
            if self._form(parameter) and (match := re.search(rf"(?i)\b({_NAMES.get(parameter, parameter)})\b", text))
        }
        if not places:
            return None
        parameter = min(places, key=lambda name: places[name])
        if places.keys() == _EITHER:
            parameter = (
                "temperature" if _chosen(endpoint, "top_p") and not _chosen(endpoint, "temperature") else "top_p"
            )
        of_value = _VALUE.match(text) and (parameter == "max_tokens" or _chosen(endpoint, parameter))
        return None if of_value else self.next(parameter)

    def next(self, parameter: str) -> Dialect | None:
        """With the next form of a parameter; None after the last."""
        later = _FORMS[parameter][_FORMS[parameter].index(self._form(parameter)) + 1 :]
        return replace(self, forms={**self.forms, parameter: later[0]}) if later else None

    def _form(self, parameter: str) -> str:
        return self.forms.get(parameter, _FORMS[parameter][0])

    def __str__(self) -> str:
        return ", ".join(
            f"{form} in place of {_FORMS[parameter][0]}" if form else f"no {parameter}"
            for parameter, form in self.forms.items()
        )


def _chosen(endpoint: Endpoint, parameter: str) -> bool:
    return getattr(endpoint, parameter, None) != getattr(Endpoint, parameter, None)


def known(endpoint: Endpoint) -> Dialect:
    """What the endpoint's server is known to take."""
    return Dialect(_learned.get(_place(endpoint), {}))


def _place(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.base_url, endpoint.model


@cache
def shape(answer: type[pydantic.BaseModel]) -> dict[str, Any]:
    """The strict JSON schema of an answer type."""
    return dict(openai.pydantic_function_tool(answer)["function"]["parameters"])


async def create(
    client: openai.AsyncOpenAI, endpoint: Endpoint, question: Question, dialect: Dialect, late: int = 0
) -> dict[str, Any]:
    """The completion object that answers a question, which has missed its deadline ``late`` times.

    Raises :class:`NoCompletion` where the body holds none, and what ``client`` raises.
    """
    # Not chat.completions.create: it walks all of the body through its types, which halves the requests a second.
    options = openai.RequestOptions(timeout=deadline(endpoint, late))
    body = dialect.body(endpoint, question)
    try:
        response = await client.post("/chat/completions", cast_to=httpx2.Response, body=body, options=options)
    except openai.APIConnectionError as fault:
        if not isinstance(fault.__cause__, httpx2.DecodingError):
            raise
        raise NoCompletion(
            f"{where(endpoint)} answers with a body that is not what its Content-Encoding says ({fault.__cause__})"
        ) from None
    answer = _completion(response)
    if answer is None:
        kind = response.headers.get("content-type") or "of no type"
        raise NoCompletion(
            f"{where(endpoint)} answers with HTTP {response.status_code}, but with no chat completion ({kind}: "
            f"{shown(endpoint, response.text) or 'nothing'}; does base_url end in /v1?)"
        )
    return answer | {"left_out": dialect.left_out} if dialect.left_out else answer


async def find(
    ask: Callable[[Dialect], Awaitable[dict[str, Any]]], endpoint: Endpoint, dialect: Dialect, *, formed: bool = False
) -> tuple[dict[str, Any], Dialect]:
    """The answer to a question, sent by ``ask`` until the server takes all that it carries; and what that was.

    Where ``formed``, the server is known to take the response format. Raises the last refusal: where it is about the
    question itself, it persists, and settles nothing.
    """
    before, why = dialect, ""
    while True:
        try:
            answer = await ask(dialect)
        except REFUSED as fault:
            # Not every server names what it refuses.
            following = dialect.after(endpoint, fault) or (None if formed else dialect.next("response_format"))
            if following is None:
                raise
            dialect, why = following, why or shown(endpoint, said(fault.body))
        else:
            break
    if dialect != before:
        told = "endpoint %s: %s does not take all parameters (%s): from now on it gets %s"
        _log.warning(told, endpoint.name, where(endpoint), why, dialect)
        kept = {parameter: form for parameter, form in dialect.forms.items() if parameter != "response_format"}
        _learned[_place(endpoint)] = kept
    return answer, dialect


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
