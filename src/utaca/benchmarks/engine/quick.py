"""A minute's worth of the engine's figures as a line of JSON, of whichever checkout is on the import path.

``python -P quick.py SHORT MIDDLE LONG TOKENS`` takes the contexts and the length of an answer in tokens. It uses no
more than the public API, so that the engine of another commit can be measured by this very file (``compare.py``).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

import utaca
from utaca.detection.detector import Detector
from utaca.settings import schema

QUESTION = "Summarize the birth date of Emma Thompson."
WARM_UP, BUDGET = 4, 32
POINTS = ((8, False), (16, False), (32, False), (32, True), (48, True), (64, True), (96, True))
"""The paper's operating points with Llama-3.1-8B: K of InfLLM; K_max of UT-ACA, here with each 11th step expanded."""


def measure(short: int, middle: int, long: int, tokens: int) -> Iterator[tuple[str, float]]:
    """Figures by name: times in seconds, and a ratio."""
    reader = utaca.load_reader("tiny")
    # Answers are to be of one length.
    reader.stop_tokens = frozenset()
    torch.manual_seed(0)
    text = torch.randint(reader.model.config.vocab_size, (long,)).to(reader.device)
    detector = Detector(schema.Detector(), reader.width).eval().to(reader.device)

    def read(length: int) -> tuple[Any, float]:
        started = time.perf_counter()
        memory = utaca.prefill(reader, text[:length])
        if text.is_cuda:
            torch.cuda.synchronize()
        return memory, time.perf_counter() - started

    def token(memory: Any, budget: int, **adaptive: Any) -> float:
        options = {"budget": budget, "max_new_tokens": tokens, **adaptive}
        marks = [time.perf_counter() for _ in utaca.stream(memory, QUESTION, **options)]
        return statistics.median(b - a for a, b in zip(marks[WARM_UP:], marks[WARM_UP + 1 :], strict=False))

    memory, _ = read(short)
    token(memory, BUDGET)
    yield f"decode a token behind {short}", token(memory, BUDGET)
    yield f"prefill a token of {middle}", read(middle)[1] / middle
    memory, _ = read(long)
    fixed = token(memory, BUDGET)
    yield f"decode a token behind {long}", fixed
    never, every = dict.fromkeys(range(tokens), False), {step: step % 11 == 10 for step in range(tokens)}
    judged = token(memory, 2 * BUDGET, policy=utaca.Set(BUDGET), detector=detector, interventions=never)
    yield f"decode a token behind {long}, with detector and policy against without", judged / fixed
    adaptive, started = {"policy": utaca.Sub(16), "detector": detector, "interventions": every}, time.perf_counter()
    for budget, judging in POINTS:
        options = {"budget": budget, "max_new_tokens": tokens, **(adaptive if judging else {})}
        for one in utaca.generate(memory, QUESTION, **options).trace:
            # What a trace holds as tensors becomes lists, whatever the commit calls it.
            for kept in (one.selected, one.scores, getattr(one, "top10", ())):
                kept.tolist() if isinstance(kept, torch.Tensor) else [layer.tolist() for layer in kept]
    yield f"decode {len(POINTS)} operating points behind {long}, with their traces", time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(dict(measure(*map(int, sys.argv[1:])))))
