"""Timed answers of one length: by the engine as it is used, and token by token with nothing around the passes."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utaca.decoding.generate import Token, stream
from utaca.detection.detector import Detector
from utaca.memory import BlockMemory, Branch
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.settings import schema

WARM_UP = 4
"""Tokens of an answer that are not timed, the question's pass among them."""


@dataclass
class Answer:
    """Seconds of a whole answer and of each of its tokens; its trace where it was decoded by the engine."""

    seconds: float
    steps: list[float]
    trace: list[Token]

    @property
    def token(self) -> float:
        """Median seconds of a token."""
        return statistics.median(self.steps[WARM_UP:])

    @property
    def passes(self) -> list[Token]:
        """What every pass of the trace gave, those that were rolled back included."""
        return [one for token in self.trace for one in (token.tentative, token) if one is not None]


def asked(reader: Reader) -> str:
    """The question that every answer is to."""
    return question(["birth date"], "Emma Thompson", reader.settings.prompt)


def decode(memory: BlockMemory, budget: int, tokens: int, **options: Any) -> Answer:
    """An answer by :func:`utaca.decoding.generate.stream`."""
    marks, trace = [time.perf_counter()], []
    for token in stream(memory, asked(memory.reader), budget=budget, max_new_tokens=tokens, **options):
        marks.append(time.perf_counter())
        trace.append(token)
    return Answer(marks[-1] - marks[0], _between(marks), trace)


@torch.inference_mode()
def decode_bare(memory: BlockMemory, step: Callable[[Tensor, int], Tensor], budgets: Sequence[int]) -> Answer:
    """An answer by passes alone, each token under a budget of its own.

    ``step`` gives the hidden states [T, D] of tokens [T] under a budget, and commits them.
    """
    reader = memory.reader
    prompt = reader.encode_question(asked(reader))
    marks = [time.perf_counter()]
    step(prompt[:-1], memory.settings.prefill_budget)
    previous = prompt[-1:]
    for budget in budgets:
        best = int(reader.logits(step(previous, budget)[-1]).argmax())
        previous = previous.new_tensor([best])
        marks.append(time.perf_counter())
    return Answer(marks[-1] - marks[0], _between(marks), [])


def engine_step(memory: BlockMemory, capacity: int) -> Callable[[Tensor, int], Tensor]:
    """The engine's passes on a new branch of ``capacity`` tokens, for :func:`decode_bare`."""
    branch = Branch(memory, capacity)

    def step(tokens: Tensor, budget: int) -> Tensor:
        done = branch.step(tokens, budget)
        branch.commit(done)
        return done.hidden

    return step


def schedule(tokens: int, every: int) -> dict[int, bool]:
    """Interventions that expand each ``every``-th step, and no other."""
    return {step: step % every == every - 1 for step in range(tokens)}


def random_detector(reader: Reader) -> Detector:
    """A detector of the default architecture with seeded random weights: it costs what a trained one costs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Detector(schema.Detector(), reader.width).eval().to(reader.device)


@dataclass
class Passes:
    """Forward passes of the model that were seen."""

    count: int = 0


@contextmanager
def passes(reader: Reader) -> Iterator[Passes]:
    """Count the model's forward passes of the block."""
    seen = Passes()

    def note(*_: object) -> None:
        seen.count += 1

    hook = reader.model.base_model.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def _between(marks: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(marks)]
