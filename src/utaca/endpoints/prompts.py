"""Instructions of the roles, and how a task is put to an endpoint.

A prompt is the text file beside the module that asks (``judging/cas.txt`` beside ``judging/cas.py``): a first line
``version: <name>``, a blank line, the instruction. Both are part of every request, so an edited prompt is asked anew
and mixes no old answers in, and other modules' requests stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """An instruction and its version."""

    version: str
    instruction: str

    def messages(self, task: Mapping[str, Any]) -> list[dict[str, str]]:
        """Chat messages: the instruction, then ``task`` as the one fenced JSON block that ends the user's message.

        Backticks are written as JSON escapes, so text under judgement cannot close the fence.
        """
        block = json.dumps(task, ensure_ascii=False).replace("`", "\\u0060")
        return [
            {"role": "system", "content": self.instruction},
            {"role": "user", "content": f"The task:\n\n```json\n{block}\n```"},
        ]


@cache
def load(module: str) -> Prompt:
    """The prompt of a module, given by its dotted name."""
    package, _, name = module.rpartition(".")
    head, instruction = (files(package) / f"{name}.txt").read_text(encoding="utf-8").split("\n\n", 1)
    return Prompt(head.removeprefix("version: ").strip(), instruction.strip())
