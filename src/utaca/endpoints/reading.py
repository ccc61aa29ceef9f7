"""Read a completion object: its text without reasoning, and the value of the requested pydantic type in that text."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pydantic

# Marks at which reasoning begins or ends, for servers that leave reasoning in the text: tags of many models, channels
# of gpt-oss, and the channel names that remain if a server removes the special tokens around them.
_MARK = re.compile(
    r"<\|?/?[\w:]*(think(ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)(\s[^<>]*)?\|?>"
    r"|\[/?THINK(ING)?\]|◁/?think▷|(<\|start\|>\w+)?<\|channel\|?>\s*\w+|<channel\|>"
    r"|\A\s*(?-i:analysis(?=[A-Z]))|assistantfinal",
    re.IGNORECASE,
)
_DECODER = json.JSONDecoder()
# More opening braces than any answer has; each may cost a pass over the text.
_MOST_OBJECTS = 2000


@dataclass(frozen=True)
class Failure:
    """Why a request gave no value; ``kind`` is one of those listed at :func:`utaca.endpoints.client.ask`.

    For an unusable answer, ``complaint`` ends the sentence "Your answer ..." in the next request. If no answer came,
    ``reason`` says what the server did, as the rest of a sentence that begins with the endpoint. A ``passing`` failure
    is transient: the request may be sent again. A ``general`` failure would befall every other request too.
    """

    kind: str
    complaint: str = ""
    reason: str = ""
    passing: bool = False
    general: bool = False


def tokens(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of prompt and completion tokens of a completion object; 0 for a number that the server did not report."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return 0, 0

    def count(name: str) -> int:
        # A value that is not a whole number, or larger than any answer, is an error of the server.
        reported = usage.get(name)
        return reported if isinstance(reported, int) and 0 <= reported < 2**53 else 0

    return count("prompt_tokens"), count("completion_tokens")


def read(
    answer: Mapping[str, Any], shape: type[pydantic.BaseModel], check: Callable[[Any], str | None] | None = None
) -> tuple[str, pydantic.BaseModel | Failure]:
    """Read a completion object: return its text without reasoning, and the value of type ``shape`` or a failure.

    ``check`` returns what is wrong with a value of that type, or None; it makes the failure "check".
    """
    choice = (answer.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    objects = [part for part in parts if isinstance(part, Mapping)]
    # A server may put a refusal under a key of the message or of a part.
    refusals = [part.get("refusal") for part in (message, *objects)]
    refusal = " ".join(str(words) for words in refusals if words)
    whole = "".join(map(_text, parts))
    text = without_reasoning(whole)
    if refusal or choice.get("finish_reason") == "content_filter":
        return refusal or whole, Failure("refused", "was a refusal, but the data are fictitious")
    if choice.get("finish_reason") == "length":
        return text, Failure("truncated", "was cut off at the token limit; be brief")
    if not text:
        # Servers put reasoning into the text, into a part of its own type, or under a key of the message.
        kinds = [str(part.get("type")) for part in objects]
        kinds += [key for key, words in message.items() if words]
        has_reasoning = any("reasoning" in kind or "think" in kind for kind in kinds)
        if whole.strip() or has_reasoning:
            return "", Failure("reasoning", "ended with the reasoning")
        return "", Failure("empty", "was empty")
    value = _value(text, shape)
    if check and not isinstance(value, Failure):
        complaint = check(value)
        if complaint:
            return text, Failure("check", complaint)
    return text, value


def _value(text: str, shape: type[pydantic.BaseModel]) -> pydantic.BaseModel | Failure:
    """The value of type ``shape`` in a text, perhaps among other words; a failure if there is none, or several."""
    values: list[pydantic.BaseModel] = []
    failure = Failure("shape")
    parts = [text[start:end] for start, end in _objects(text)]
    # The failure names the error of the last candidate: the whole text if it has no complete JSON object, or begins
    # with an incomplete one.
    begins_incomplete = text.startswith("{") and not text.startswith(tuple(parts[:1]))
    candidates = [*parts, text] if begins_incomplete else [text, *parts]
    for candidate in candidates:
        try:
            values.append(shape.model_validate_json(candidate))
        except pydantic.ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            fault = f"{place}: {first['msg']}" if place else first["msg"]
            failure = Failure("shape", f"did not have the form asked for ({fault})")
    if any(value != values[0] for value in values):
        return Failure("shape", "was more than one object of the form asked for")
    return values[0] if values else failure


def _text(part: Any) -> str:
    """The text of a part of a message; "" for a part that is reasoning or not text."""
    if isinstance(part, Mapping):
        if part.get("type", "text") not in ("text", "output_text") or part.get("thought"):
            return ""
        part = part.get("text")
        if isinstance(part, Mapping):
            part = part.get("value")
    return part if isinstance(part, str) else ""


def without_reasoning(text: str) -> str:
    """Remove the reasoning from a text: keep what follows its last end mark, up to the next begin mark.

    Reasoning without an end mark extends to the end of the text.
    """
    text = text.strip().strip("\ufeff")
    objects = list(_objects(text))
    if objects == [(0, len(text))]:  # the whole text is one JSON object, and any marks are in it
        return text
    # Where the answer begins and ends; None: at the end of the text.
    begin = 0
    end = None
    for mark in _MARK.finditer(text):
        # A mark inside a JSON object is quoted by the answer and delimits no reasoning.
        if any(first <= mark.start() < last for first, last in objects):
            continue
        # These end reasoning: </think> and the like, the beginning of the channel "final", and <channel|>. All other
        # marks begin it.
        name = mark[0].strip("<>|[]◁▷ \n").lower()
        if name.startswith(("/", "end")) or name.endswith("final") or name == "channel":
            begin = mark.end()
            end = None
        elif end is None:
            end = mark.start()
    return text[begin:end].strip()


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Yield the character offsets (start, end) of the outermost JSON objects in a text."""
    end = 0
    for brace in islice(re.finditer("{", text), _MOST_OBJECTS):
        if brace.start() >= end:
            try:
                end = _DECODER.raw_decode(text, brace.start())[1]
            except (ValueError, RecursionError):
                continue
            yield brace.start(), end
