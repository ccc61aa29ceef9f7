"""What users add, as docs/extending.md shows it: its examples run here as files outside of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from brute_methods import Loop, turned
from conftest import ROOT
from small import SIZES, full_attention, in_float64, make_reader, some_tokens
from test_methods import steps
from test_readers import NEOX
from torch import Tensor

import utaca
from utaca.decoding.loop import generate
from utaca.detection.detector import Detector
from utaca.detection.signals import SIGNALS
from utaca.errors import UserError
from utaca.generation.answers import Answers
from utaca.memory import BlockMemory, prefill
from utaca.methods import METHODS, Method, build
from utaca.methods.registry import method_of
from utaca.readers.families import FAMILIES, Family
from utaca.readers.load import Reader
from utaca.records import Origin
from utaca.settings import schema
from utaca.settings.checks import load
from utaca.settings.compose import compose
from utaca.settings.modules import closure
from utaca.trace import Generation, Token

QUESTION = "Who is it?"


def blocks(page: str, heading: str) -> list[str]:
    """The Python code of a section of a page of documentation, block by block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def example(heading: str) -> str:
    return blocks("docs/extending.md", heading)[0]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example of a section, which the test's parameter names, imported from a file of its own."""
    raise NotImplementedError


def imported(heading: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example of a section, from a file outside of the package."""
    path.write_text(example(heading), encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


# A method


class Agreeing:
    """Greedy decoding by the method of the example, stated once more in float64, query by query and head by head."""

    def __init__(self, reader: Reader, document: Tensor) -> None:
        self.loop = Loop(reader)
        prompt = torch.cat((document, reader.encode_question(QUESTION)))
        self.loop.run(prompt[:-1], self.loop.full)
        self.last, self.kept = prompt[-1:], 0

    def tried(self, budget: int) -> tuple[Tensor, int]:
        """Logits [V] behind the tokens so far and the last one, which may attend to so many keys; and how many it did.

        Nothing stays of it.
        """
        loop, counts = self.loop, []

        def look(layer: int, first: int, queries: Tensor) -> Tensor:
            worth = [0.0] * first
            for head in range(loop.heads):
                keys = torch.stack([key[loop.group(head)] for key in loop.keys[layer][:first]])
                (asked,) = turned(queries[0, head], [first])
                products = turned(keys, range(first)) @ asked
                worth = [sum(pair) for pair in zip(worth, products.tolist(), strict=True)]
            chosen = sorted(range(first), key=lambda token: -worth[token])[: budget - 1]
            counts.append(len(chosen) + 1)
            return loop.over(layer, first, queries, lambda at, head: [*chosen, at])

        logits = loop.run(self.last, look)[-1]
        for column in (*loop.keys, *loop.values):
            column.pop()
        return logits, counts[0]

    def go_on(self, budget: int, token: int) -> None:
        """Accept the token that a try under the budget gave."""
        self.commit(budget)
        self.last = torch.tensor([token])
