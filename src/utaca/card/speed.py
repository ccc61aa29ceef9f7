"""How fast a reader reads a long document and decodes from it, on the machine at hand."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch

from utaca.card.material import Document
from utaca.decoding.loop import stream
from utaca.memory import prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.settings.machine import processor

PREFILLS = 3
"""Prefills timed."""

BUDGET, TOKENS, WARM_UP = 32, 48, 4
"""Blocks retrieved a token, decoded tokens timed, tokens decoded before."""


def measure(reader: Reader, document: Document) -> dict[str, Any]:
    """Median seconds of a prefill of the document, and median milliseconds of a token decoded from it.

    Asks the document's first question. A prefill of the document's beginning goes before, as warm-up;
    ``decode_milliseconds`` is None where the answer ends with it.
    """
    tokens = reader.encode_document(document.text())
    memory = prefill(reader, tokens[: 4 * reader.settings.memory.prefill_chunk])
    prefills = []
    for number in range(PREFILLS):
        del memory
        started = time.perf_counter()
        memory = prefill(reader, tokens, description=f"prefill {number + 1} of {PREFILLS}")
        if reader.device.type == "cuda":
            torch.cuda.synchronize()
        prefills.append(time.perf_counter() - started)
    asked = document.questions[0]
    text = question([attribute for attribute, _ in asked.facts], asked.person, reader.settings.prompt)
    marks = [time.perf_counter() for _ in stream(memory, text, budget=BUDGET, max_new_tokens=1 + WARM_UP + TOKENS)]
    steps = [after - before for before, after in itertools.pairwise(marks)][WARM_UP:]
    return {
        "tokens": len(tokens),
        "prefills": PREFILLS,
        "prefill_seconds": statistics.median(prefills),
        "budget": BUDGET,
        "decoded": len(steps),
        "decode_milliseconds": 1000 * statistics.median(steps) if steps else None,
        "threads": torch.get_num_threads(),
        "dtype": reader.settings.dtype,
        "device": _device(reader),
    }


def _device(reader: Reader) -> str:
    if reader.device.type == "cuda":
        return torch.cuda.get_device_name(reader.device)
    return processor()
