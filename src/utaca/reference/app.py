"""The reference model behind ``/v1/chat/completions`` and ``/v1/models``.

A request names its task in the last fenced ``json`` block of the user's messages; everything around it is
for models that read prose. Sampling parameters are accepted and change nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from utaca.biographies import templates
from utaca.reference import judge, labeller

MODEL = "utaca-reference"

_BLOCK = re.compile(r"```json[ \t]*\r?\n(.*?)\r?\n[ \t]*```", re.DOTALL)
_UNABLE = "I can only write a biography, label tokens or score an answer, given as a JSON block with its task."


def _biography(given: Mapping[str, Any]) -> dict[str, Any]:
    facts = [(fact["attribute"], fact["value"]) for fact in given["facts"]]
    return {"sentences": templates.write(given["person"], facts)}


def _label(given: Mapping[str, Any]) -> dict[str, Any]:
    tokens = [(token["index"], token["text"]) for token in given["tokens"]]
    return _labels(labeller.label(given["person"], given["attribute"], given["answer"], given["prediction"], tokens))


def _label_answer(given: Mapping[str, Any]) -> dict[str, Any]:
    tokens = [(token["index"], token["text"]) for token in given["tokens"]]
    return _labels(labeller.label_answer(given["question"], given["answers"], tokens))


def _labels(labels: Sequence[labeller.Labelled]) -> dict[str, Any]:
    return {"labels": [{"index": index, "label": label, "reason": reason} for index, label, reason in labels]}


def _score(given: Mapping[str, Any]) -> dict[str, Any]:
    score, reason = judge.score(given["question"], given["attribute"], given["prediction"], given["reference"])
    return {"score": score, "reason": reason}


TASKS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "biography": _biography,
    "label": _label,
    "label_answer": _label_answer,
    "score": _score,
}


def respond(method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON answer to one request."""
    if path == "/v1/models":
        if method != "GET":
            return _error(405, f"{path} takes GET")
        return 200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "utaca"}]}
    if path != "/v1/chat/completions":
        return _error(404, f"there is no {path}")
    if method != "POST":
        return _error(405, f"{path} takes POST")
    try:
        request = json.loads(body)
        model, messages = request["model"], [(message["role"], _text(message)) for message in request["messages"]]
    except (ValueError, KeyError, TypeError):
        return _error(400, "the body must be a JSON object with model and messages")
    if model != MODEL:
        return _error(404, f"the model {model} does not exist; this server has {MODEL}")
    if request.get("stream"):
        return _error(400, "answers are not streamed")
    return 200, _completion(body, messages, _answer(messages))


def _answer(messages: list[tuple[str, str]]) -> str:
    blocks = [block for role, text in messages if role == "user" for block in _BLOCK.findall(text)]
    try:
        given = json.loads(blocks[-1])
        return json.dumps(TASKS[given["task"]](given), ensure_ascii=False)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        return _UNABLE


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _completion(body: bytes, messages: list[tuple[str, str]], content: str) -> dict[str, Any]:
    read, written = sum(len(text.split()) for _, text in messages), len(content.split())
    return {
        "id": f"chatcmpl-{hashlib.sha256(body).hexdigest()[:24]}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _error(status: int, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
