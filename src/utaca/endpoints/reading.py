"""The text of an answer without its reasoning, and the JSON objects in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

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


def content(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content may be a list of parts; those of other kinds than text are left out."""
    return "".join(map(_text, _parts(message)))


def refusal(message: Mapping[str, Any]) -> str:
    """The words of a refusal in a message or in a part of its content; "" where there is none."""
    said = [part.get("refusal") for part in (message, *_parts(message)) if isinstance(part, Mapping)]
    return " ".join(str(words) for words in said if words)


def has_reasoning(message: Mapping[str, Any]) -> bool:
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


def answer(text: str) -> str:
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


def candidates(text: str) -> Iterator[list[str]]:
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
