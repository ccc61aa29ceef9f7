"""Instructions of the roles (writer, labeller, judge), and the chat messages that carry a task to an endpoint.

A prompt is the text file next to the module that uses it (``judging/cas.txt`` for ``judging/cas.py``): a first line
``version: <name>``, a blank line, the instruction. Version and instruction are part of every request: after a prompt
is edited, its requests are sent again and get no answers to the old prompt; requests of other modules stay the same.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Prompt:
    """An instruction and its version."""

    version: str
    instruction: str

    def messages(self, task: Mapping[str, Any]) -> Messages:
        """Chat messages: the instruction, then ``task`` as the only fenced JSON block, which ends the user's message.

        Backticks are written as JSON escapes, so text under judgement cannot close the fence.
        """
        block = json.dumps(task, ensure_ascii=False).replace("`", "\\u0060")
        return [
            {"role": "system", "content": self.instruction},
            {"role": "user", "content": f"The task:\n\n```json\n{block}\n```"},
        ]


@cache
def load(module: str) -> Prompt:
    """The prompt of a module, by its dotted name."""
    package, _, name = module.rpartition(".")
    text = (files(package) / f"{name}.txt").read_text(encoding="utf-8")
    head, instruction = text.split("\n\n", 1)
    return Prompt(head.removeprefix("version: ").strip(), instruction.strip())
