"""What a completion object says: its text without reasoning, and the value of the shape asked for in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pydantic

# Where reasoning begins and ends in the texts of servers that leave it there: tags of many makes, gpt-oss's channels,
# and what is left of the channels once their marks are removed.
_MARK = re.compile(
    r"<\|?/?[\w:]*(think(ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)(\s[^<>]*)?\|?>"
    r"|\[/?THINK(ING)?\]|◁/?think▷|(<\|start\|>\w+)?<\|channel\|?>\s*\w+|<channel\|>"
    r"|\A\s*(?-i:analysis(?=[A-Z]))|assistantfinal",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```(\w*)[^\n]*\n(.*?)\n[ \t]*```", re.DOTALL)
_DECODER = json.JSONDecoder()
# More opening braces than any answer has; each may cost a pass over the text.
_MOST_OBJECTS = 2000


@dataclass(frozen=True)
class Failure:
    """Why there is no value, by its kind.

    Of an answer that cannot be used, ``complaint`` ends the sentence "Your answer ..." in the next request. Where there
    was none, ``reason`` is what the server did instead, as the rest of a sentence that begins with the endpoint; where
    ``passing``, the same may be asked again, and where ``general``, every other request would meet it too.
    """

    kind: str
    complaint: str = ""
    reason: str = ""
    passing: bool = False
    general: bool = False


def tokens(answer: Mapping[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens of a completion object; 0 where the server does not count."""
    spent = answer.get("usage")
    counts = [spent.get(name) if isinstance(spent, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if isinstance(count, int) and 0 <= count < 2**53 else 0 for count in counts)
    return prompt, completion


def read(
    answer: Mapping[str, Any], shape: type[pydantic.BaseModel], check: Callable[[Any], str | None] | None = None
) -> tuple[str, pydantic.BaseModel | Failure]:
    """The text of a completion object, and the value in it, which ``check`` may complain of, or its failure."""
    choice = (answer.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    whole, refusal = _content(message), _refusal(message)
    text = without_reasoning(whole)
    if refusal or choice.get("finish_reason") == "content_filter":
        return refusal or whole, Failure("refused", "was a refusal, but the data are fictitious")
    if choice.get("finish_reason") == "length":
        return text, Failure("truncated", "was cut off at the token limit; be brief")
    if not text:
        if whole.strip() or _has_reasoning(message):
            return "", Failure("reasoning", "ended with the reasoning")
        return "", Failure("empty", "was empty")
    value = _value(text, shape)
    complaint = check(value) if check and not isinstance(value, Failure) else None
    return (text, Failure("check", complaint)) if complaint else (text, value)


def _value(text: str, shape: type[pydantic.BaseModel]) -> pydantic.BaseModel | Failure:
    """The one value that is in a text, or what is wrong with it."""
    failure = Failure("shape")
    for objects in _candidates(text):
        values: list[pydantic.BaseModel] = []
        for each in objects:
            try:
                values.append(shape.model_validate_json(each))
            except pydantic.ValidationError as wrong:
                first = wrong.errors(include_url=False, include_input=False, include_context=False)[0]
                place = "".join(f"{part}." for part in first["loc"]).removesuffix(".")
                fault = f"{place}: {first['msg']}" if place else first["msg"]
                failure = Failure("shape", f"did not have the form asked for ({fault})")
        if any(value != values[0] for value in values):
            return Failure("shape", "was more than one object of the form asked for")
        if values:
            return values[0]
    return failure


def _content(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content may be a list of parts; those of other kinds than text are left out."""
    return "".join(map(_text, _parts(message)))


def _refusal(message: Mapping[str, Any]) -> str:
    """The words of a refusal in a message or in a part of its content; "" where there is none."""
    said = [part.get("refusal") for part in (message, *_parts(message)) if isinstance(part, Mapping)]
    return " ".join(str(words) for words in said if words)


def _has_reasoning(message: Mapping[str, Any]) -> bool:
    """Whether a message holds reasoning beside its text."""
    kinds = [str(part.get("type")) for part in _parts(message) if isinstance(part, Mapping)]
    kinds += [key for key, said in message.items() if said]
    return any("reasoning" in kind or "think" in kind for kind in kinds)


def _parts(message: Mapping[str, Any]) -> list[Any]:
    parts = message.get("content")
    return parts if isinstance(parts, list) else [parts]


def _text(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type", "text") in ("text", "output_text") and not part.get("thought"):
        part = part.get("text")
        part = part.get("value") if isinstance(part, Mapping) else part
    return part if isinstance(part, str) else ""


def without_reasoning(text: str) -> str:
    """A text without the reasoning in it; what follows reasoning that does not end is left out."""
    text = text.strip().strip("\ufeff")
    held = list(_objects(text))
    if held == [(0, len(text))]:
        return text
    begin, end = 0, None
    for mark in _MARK.finditer(text):
        # A reason in the answer may speak of such marks.
        if any(first <= mark.start() < last for first, last in held):
            continue
        name = mark[0].strip("<>|[]◁▷ \n").lower()
        if name.startswith(("/", "end")) or name.endswith("final") or name == "channel":
            begin, end = mark.end(), None
        elif end is None:
            end = mark.start()
    return text[begin:end].strip()


def _candidates(text: str) -> Iterator[list[str]]:
    """What may be the object wanted in a text: all of it, objects in fenced blocks, all objects, a broken one."""
    yield [text]
    fenced = [block for language, block in _FENCE.findall(text) if language.lower() in ("", "json")]
    for part in ("\n".join(fenced), text):
        yield [part[first:last] for first, last in _objects(part)]
    start, end = text.find("{"), text.rfind("}")
    yield [text[start : end + 1] if 0 <= start < end else text]


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Where the JSON objects of a text begin and end; those inside of others are not told."""
    end = 0
    for brace in islice(re.finditer("{", text), _MOST_OBJECTS):
        if brace.start() >= end:
            try:
                end = _DECODER.raw_decode(text, brace.start())[1]
            except (ValueError, RecursionError):
                continue
            yield brace.start(), end
