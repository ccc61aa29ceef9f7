"""How fast a reader reads a long document and decodes from it, on the machine at hand.

Beside its own prefill stands the model's own forward pass under Hugging Face's fused attention, which sees the whole
document; beside a decoded token stand those of several operating points in shared passes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from utaca.card.material import Document
from utaca.decoding.loop import stream
from utaca.memory import BlockMemory, prefill
from utaca.readers.attention import ATTENTION
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.settings.machine import processor

PREFILLS, LONG = 3, 60.0
"""Readings timed; fewer where they have taken so many seconds."""

BUDGET, TOKENS, WARM_UP = 32, 48, 4
"""Blocks retrieved a token, decoded tokens timed, tokens decoded before."""

LENGTHS = (2048, 16384)
"""Tokens of a document that are read both ways."""

POINTS = (1, 2, 4, 8, 16, 32, 64, 96)
"""Budgets of the operating points that are decoded together."""


def measure(reader: Reader, document: Document) -> dict[str, Any]:
    """Median seconds of a prefill of the document, and median milliseconds of a token decoded from it.

    Asks the document's first question. A prefill of the document's beginning goes before, as warm-up;
    ``decode_milliseconds`` is None where the answer ends with it. ``against`` holds, by tokens read, seconds of the
    prefill and of Hugging Face's forward pass, ``points``
    how many operating points were decoded together, and milliseconds of a token of all of them and of one alone.
    """
    tokens = reader.encode_document(document.text())
    memory = prefill(reader, tokens[: 4 * reader.settings.memory.prefill_chunk])
    prefills = []
    while len(prefills) < PREFILLS and sum(prefills) < LONG:
        del memory
        started = time.perf_counter()
        memory = prefill(reader, tokens, description=f"prefill {len(prefills) + 1} of {PREFILLS}")
        _finish(reader)
        prefills.append(time.perf_counter() - started)
    asked = document.questions[0]
    text = question([attribute for attribute, _ in asked.facts], asked.person, reader.settings.prompt)
    marks = [time.perf_counter() for _ in stream(memory, text, budget=BUDGET, max_new_tokens=1 + WARM_UP + TOKENS)]
    steps = [after - before for before, after in itertools.pairwise(marks)][WARM_UP:]
    together, alone = (1000 * _step_seconds(memory, text, budgets) for budgets in (POINTS, (BUDGET,)))
    del memory
    return {
        "tokens": len(tokens),
        "prefills": len(prefills),
        "prefill_seconds": statistics.median(prefills),
        "budget": BUDGET,
        "decoded": len(steps),
        "decode_milliseconds": 1000 * statistics.median(steps) if steps else None,
        "points": {"number": len(POINTS), "milliseconds": together, "alone_milliseconds": alone},
        "against": {n: _against(reader, tokens[:n]) for n in LENGTHS if n <= len(tokens)},
        "threads": torch.get_num_threads(),
        "dtype": reader.settings.dtype,
        "device": _device(reader),
    }


def _against(reader: Reader, tokens: Tensor) -> dict[str, float]:
    """Seconds of reading tokens [N] by prefill and by Hugging Face's forward pass, in turns: medians."""
    seconds: dict[str, list[float]] = {"prefill": [], "forward": []}
    ways: dict[str, Callable[[], object]] = {
        "prefill": lambda: prefill(reader, tokens),
        "forward": lambda: _forward(reader, tokens),
    }
    while len(seconds["forward"]) < PREFILLS and sum(map(sum, seconds.values())) < LONG:
        for way, run in ways.items():
            started = time.perf_counter()
            run()
            _finish(reader)
            seconds[way].append(time.perf_counter() - started)
    return {way: statistics.median(found) for way, found in seconds.items()}


@torch.inference_mode()
def _forward(reader: Reader, tokens: Tensor) -> object:
    """Keys and values of all tokens, and the last one's logits, as Hugging Face computes them."""
    reader.model.set_attn_implementation("sdpa")
    try:
        return reader.model(tokens[None], use_cache=True, logits_to_keep=1)
    finally:
        reader.model.set_attn_implementation(ATTENTION)


def _step_seconds(memory: BlockMemory, text: str, budgets: Sequence[int]) -> float:
    """Median seconds of a decoding step of one answer a budget, all in one pass, the head's logits included."""
    reader = memory.reader
    prompt, marks = reader.encode_question(text), []
    branches = []
    for budget in budgets:
        branch, pieces, last = memory.begin(prompt, WARM_UP + TOKENS, budget, {})
        for piece, own in pieces:
            branch.commit(branch.step(piece, own))
        branches.append((branch, budget, last))
    for _ in range(WARM_UP + TOKENS):
        steps = [branch.plan(previous, budget) for branch, budget, previous in branches]
        branches[0][0].run(steps)
        best = reader.logits(torch.stack([step.hidden[-1] for step in steps])).argmax(-1)
        for (branch, _, _), step in zip(branches, steps, strict=True):
            branch.commit(step)
        branches = [(branch, budget, token[None]) for (branch, budget, _), token in zip(branches, best, strict=True)]
        marks.append(time.perf_counter())
    return statistics.median([after - before for before, after in itertools.pairwise(marks)][WARM_UP:])


def _finish(reader: Reader) -> None:
    """Wait for the device."""
    if reader.device.type == "cuda":
        torch.cuda.synchronize()


def _device(reader: Reader) -> str:
    if reader.device.type == "cuda":
        return torch.cuda.get_device_name(reader.device)
    return processor()
