"""The 8B shape on paper: seconds of a prefill and bytes at the peak, worked out from sizes alone.

Where there is no GPU, this is all that is known of it; where there is one, its rows stand beside those measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from utaca.benchmarks.engine import shape
from utaca.benchmarks.engine.floors import Costs
from utaca.benchmarks.engine.rows import BYTES, SECONDS, Bar, Part, Row
from utaca.settings.schema import Memory

RATE = 790e12
"""FLOP/s of an H200 in a large bfloat16 matrix product, as measured on one."""
ANSWER, BUDGET = 256, 96
"""Tokens of question and answer that a branch has room for, and the largest budget of the paper's operating points."""
_NAME = "8B shape on paper"


def rows(tokenizer: PreTrainedTokenizerBase, length: int) -> list[Row]:
    """A prefill of ``length`` tokens by InfLLM's rule and by its linear form, and the peak by where blocks lie.

    ``tokenizer`` is that of any reader; no token is encoded.
    """
    memory = Memory()
    reader = shape.build(shape.llama31_8b(), torch.device("meta"), tokenizer, memory)
    costs = replace(Costs.of(reader), cuda=True)
    linear_form = replace(costs, memory=replace(memory, representatives="prefix_sum"))
    return [
        _prefill(costs, length),
        _prefill(linear_form, length),
        *(_peak(costs, length, storage, limit) for storage, limit in shape.PEAKS.items()),
    ]


def caption() -> str:
    """How the rows were worked out, and what they leave out."""
    m = Memory()
    return (
        f"Rows of the {_NAME} are arithmetic and no measurement: Llama-3.1-8B in bfloat16 and the default memory of "
        f"{m.n_init} initial tokens, a window of {m.n_local}, blocks of {m.block_size}, {m.prefill_budget} of them "
        f"retrieved by each prefill chunk of {m.prefill_chunk} tokens. Seconds: the FLOPs of the engine's matrix "
        "products and attentions, the second attention that gives the attention mass among them, over "
        f"{RATE / 1e12:.0f} TFLOP/s, the rate of an H200 in a large matrix product; attention kernels are slower, and "
        "norms, rotations, sums, copies and launches are left out. Bytes: what stays, and the larger of what reading a "
        f"chunk and of what a branch of {ANSWER} tokens with a pass under {BUDGET} blocks needs besides."
    )


def peak(costs: Costs, length: int, *, stored: bool) -> dict[str, int]:
    """Bytes at the peak by what they hold; reading is over when a branch begins, so that the larger of both counts."""
    beside = {
        "a reading pass": costs.reading_bytes(length),
        f"a branch of {ANSWER} tokens": costs.branch_bytes(length, ANSWER, BUDGET),
    }
    name = max(beside, key=beside.__getitem__)
    return costs.staying_bytes(length, stored=stored) | {name: beside[name]}


def _prefill(costs: Costs, length: int) -> Row:
    seconds = {name: flops / RATE for name, flops in costs.prefill_flops(length).items()}
    total, rule = sum(seconds.values()), costs.memory.representatives.replace("_", " ")
    return Row(
        f"{_NAME}, {length} tokens: prefill, representatives by {rule}, {RATE / 1e12:.0f} TFLOP/s",
        SECONDS,
        [total],
        Bar("<=", 6),
        Part(_parts(seconds, "s", 1), total),
        None,
        seconds["linear layers"],
        "FLOPs of the linear layers",
    )


def _peak(costs: Costs, length: int, storage: str, limit: int) -> Row:
    stored = storage == "device"
    held = peak(costs, length, stored=stored)
    total = sum(held.values())
    return Row(
        f"{_NAME}, {length} tokens, blocks on {storage}: peak memory of the GPU",
        BYTES,
        [total],
        Bar("<=", limit),
        Part(_parts(held, "GiB", 2**30), total),
        None,
        sum(costs.staying_bytes(length, stored=stored).values()),
        "bytes that stay",
    )


def _parts(amounts: Mapping[str, float], unit: str, size: float) -> str:
    """The parts that count, as in ``weights 15.0 GiB, keys and values 30.8 GiB``."""
    shown = {name: f"{amount / size:.2f}" for name, amount in amounts.items()}
    return ", ".join(f"{name} {amount} {unit}" for name, amount in shown.items() if float(amount))
