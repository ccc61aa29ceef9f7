"""What the rules answer to a chat: the task is the last fenced ``json`` block of the user's messages.

Everything around the block is for models that read prose.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from utaca.biographies import templates
from utaca.judging.rules import judge, labeller
from utaca.settings.checks import EMBEDDED

_BLOCK = re.compile(r"```json[ \t]*\r?\n(.*?)\r?\n[ \t]*```", re.DOTALL)
_UNABLE = "I can only write a biography, label tokens or score an answer, given as a JSON block with its task."


def answer(task: Mapping[str, Any]) -> dict[str, Any]:
    """The rules' answer to a task; raises ``KeyError`` where it is of no kind that is known, or not whole."""
    kind = task["task"]
    if kind == "biography":
        facts = [(fact["attribute"], fact["value"]) for fact in task["facts"]]
        return {"sentences": templates.write(task["person"], facts)}
    if kind == "score":
        score, reason = judge.score(task["question"], task["attribute"], task["prediction"], task["reference"])
        return {"score": score, "reason": reason}
    tokens = [(token["index"], token["text"]) for token in task["tokens"]]
    if kind == "label":
        labels = labeller.label(task["person"], task["attribute"], task["answer"], task["prediction"], tokens)
    elif kind == "label_answer":
        labels = labeller.label_answer(task["question"], task["answers"], tokens)
    else:
        raise KeyError(kind)
    return {"labels": [{"index": index, "label": label, "reason": reason} for index, label, reason in labels]}


def complete(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The completion object that answers a chat; what is no task gets words in place of JSON."""
    texts = [_text(message) for message in messages]
    blocks = [block for message, text in zip(messages, texts, strict=True) if message["role"] == "user"
              for block in _BLOCK.findall(text)]  # fmt: skip
    try:
        content = json.dumps(answer(json.loads(blocks[-1])), ensure_ascii=False)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        content = _UNABLE
    read, written = sum(len(text.split()) for text in texts), len(content.split())
    return {
        "id": f"chatcmpl-{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:24]}",
        "object": "chat.completion",
        "created": 0,
        "model": EMBEDDED,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
