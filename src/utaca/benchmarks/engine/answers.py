"""Timed answers of one length: by the engine as it is used, and by passes alone."""

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

from utaca.benchmarks.engine.floors import now
from utaca.decoding.loop import stream
from utaca.detection.detector import Detector
from utaca.memory import BlockMemory, Branch
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.settings import schema
from utaca.trace import Token

WARM_UP = 4
"""First tokens of an answer, and first passes of a kind, that are not timed. The first token waits for the question."""


@dataclass
class TimedAnswer:
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
        return [one for token in self.trace for one in token.passes]


def asked(reader: Reader) -> str:
    """The question that is asked of every document."""
    return question(["birth date"], "Emma Thompson", reader.settings.prompt)


def pieces(memory: BlockMemory) -> list[Tensor]:
    """The question's tokens in the pieces in which they are passed: as a prefill is, and the last one by itself."""
    prompt = memory.reader.encode_question(asked(memory.reader))
    return [*prompt[:-1].split(memory.settings.prefill_chunk), prompt[-1:]]


def room(memory: BlockMemory, tokens: int) -> int:
    """Tokens of the question and of an answer of ``tokens``."""
    return sum(map(len, pieces(memory))) + tokens


def decode(memory: BlockMemory, budget: int, tokens: int, **options: Any) -> TimedAnswer:
    """An answer by :func:`utaca.stream`, with its ``options``."""
    marks, trace = [time.perf_counter()], []
    for token in stream(memory, asked(memory.reader), budget=budget, max_new_tokens=tokens, **options):
        marks.append(time.perf_counter())
        trace.append(token)
    return TimedAnswer(marks[-1] - marks[0], _between(marks), trace)


@torch.inference_mode()
def decode_bare(memory: BlockMemory, step: Callable[[Tensor, int], Tensor], budgets: Sequence[int]) -> TimedAnswer:
    """An answer by passes alone, each token under a budget of its own: the best logit's token follows.

    ``step`` gives the hidden states [T, D] of tokens [T] under a budget, and commits them.
    """
    *first, previous = pieces(memory)
    marks = [time.perf_counter()]
    for piece in first:
        step(piece, memory.settings.prefill_budget)
    for budget in budgets:
        best = int(memory.reader.logits(step(previous, budget)[-1]).argmax())
        previous = previous.new_tensor([best])
        marks.append(time.perf_counter())
    return TimedAnswer(marks[-1] - marks[0], _between(marks), [])


def engine_step(branch: Branch) -> Callable[[Tensor, int], Tensor]:
    """The engine's passes behind a branch, for :func:`decode_bare`."""

    def step(tokens: Tensor, budget: int) -> Tensor:
        done = branch.step(tokens, budget)
        branch.commit(done)
        return done.hidden

    return step


def pass_seconds(memory: BlockMemory, kinds: Sequence[Sequence[int]], laps: int) -> list[float]:
    """Median seconds of a pass of one token behind the question, for each kind of pass: the budgets of its rows.

    The kinds take turns, ``laps`` times. Nothing is committed, so that every pass does the same.
    """
    branch = memory.branches(memory, room(memory, 1), max(itertools.chain(*kinds)))
    *first, last = pieces(memory)
    step, device = engine_step(branch), memory.reader.device
    for piece in first:
        step(piece, memory.settings.prefill_budget)
    took: list[list[float]] = [[] for _ in kinds]
    for _ in range(laps + WARM_UP):
        for seconds, budgets in zip(took, kinds, strict=True):
            started = now(device)
            branch.run([branch.plan(last, budget) for budget in budgets])
            seconds.append(now(device) - started)
    return [statistics.median(seconds[WARM_UP:]) for seconds in took]


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
    """Count the model's forward passes of the block. A replayed CUDA graph calls no module and is not seen."""
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
