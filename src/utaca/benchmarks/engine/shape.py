"""A big reader's shape with random weights on a GPU: times and memory do not depend on what the weights say.

Quality is not measured here, so no weights are downloaded; the model is made on the device.
"""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerBase

from utaca.benchmarks.engine import dense
from utaca.benchmarks.engine.answers import WARM_UP, TimedAnswer, decode, random_detector, schedule
from utaca.benchmarks.engine.floors import Costs, Machine, now, probe
from utaca.benchmarks.engine.rows import BYTES, NAN, SECONDS, Bar, Part, Row
from utaca.decoding.policies import Sub
from utaca.errors import UserError
from utaca.generation.peak import PeakMemory
from utaca.memory import prefill
from utaca.readers.attention import ATTENTION
from utaca.readers.load import Reader
from utaca.records.progress import progress
from utaca.settings import schema
from utaca.settings.machine import natural_dtype

POLICY = Sub(16)
NAME = "random 8B shape"
PEAKS = {"device": 50 * 2**30, "host": 20 * 2**30}
"""Bars of the peak memory in bytes, by where the blocks are stored."""
_FULL = "full attention"
_GRAPHS = "graphs"

Found = dict[tuple[str, str], list[float]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """A document of ``length`` tokens, answers of ``tokens`` under each K_max of ``budgets``.

    Each ``every``-th step is expanded.
    """

    length: int
    budgets: Sequence[int]
    tokens: int
    every: int
    repeats: int


def llama31_8b() -> LlamaConfig:
    """The shape of Llama-3.1-8B (config.json of meta-llama/Llama-3.1-8B)."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        bos_token_id=128000,
        eos_token_id=128001,
    )


def build(
    config: PretrainedConfig, device: torch.device, tokenizer: PreTrainedTokenizerBase, memory: schema.Memory
) -> Reader:
    """A reader of random weights in the type that ``device`` multiplies natively, made there.

    ``tokenizer`` serves the question alone; its ids must be in the model's vocabulary. On the device "meta" the reader
    has sizes but no weights.
    """
    # Sizes alone are a GPU's.
    dtype = natural_dtype("cpu" if device.type == "cpu" else "cuda")
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=ATTENTION)
    settings = schema.Reader(name="random", path="", dtype=dtype, device=device.type, memory=memory)
    reader = Reader(model.eval().requires_grad_(False), tokenizer, settings)
    reader.stop_tokens = frozenset()
    return reader


def measure(
    config: PretrainedConfig,
    device: torch.device,
    tokenizer: PreTrainedTokenizerBase,
    memories: Mapping[str, schema.Memory],
    plan: Plan,
) -> list[Row]:
    """The rows of a shape on ``device``: block memory under each of ``memories``, full attention once.

    ``memories`` go by where they store blocks. One of them stores on the "device"; with it, block memory decodes by
    CUDA graphs too. What does not fit into the device's memory stands as not measured, with the reason.
    """
    found: Found = defaultdict(list)
    reader = build(config, device, tokenizer, schema.Memory())
    machine = probe(device, reader.dtype)
    drawn = torch.randint(config.vocab_size, (plan.length,), generator=torch.Generator().manual_seed(0))
    tokens, reasons, costs = drawn.to(device), {}, {}
    for storage, memory in memories.items():
        reader.settings = replace(reader.settings, memory=memory)
        costs[storage] = Costs.of(reader)
        work = partial(_block_memory, reader, tokens, plan, storage, costs[storage], found)
        reasons[storage] = _attempt(device, work)
    reader.settings = replace(reader.settings, memory=memories["device"], graphs=True)
    reasons[_GRAPHS] = _attempt(device, partial(_graphs, reader, tokens, plan, found))
    reasons[_FULL] = _attempt(device, partial(_full_attention, reader, tokens, plan, found))
    return [row for storage in memories for row in _rows(plan, storage, found, reasons, costs[storage], machine)]


def not_measured(memories: Mapping[str, schema.Memory], plan: Plan, reason: str) -> list[Row]:
    """The same rows without figures."""
    return [row for storage in memories for row in _rows(plan, storage, {}, {storage: reason, _GRAPHS: reason})]


def _attempt(device: torch.device, work: Callable[[], object]) -> str:
    """Why there was no room for the work; empty where it was done."""
    try:
        work()
    except torch.OutOfMemoryError:
        return f"out of memory on {torch.cuda.get_device_name(device)}"
    except UserError as error:
        return str(error)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return ""


def _block_memory(reader: Reader, tokens: Tensor, plan: Plan, storage: str, costs: Costs, found: Found) -> None:
    detector, forced = random_detector(reader), schedule(plan.tokens, plan.every)
    decode(prefill(reader, tokens[: 4 * reader.settings.memory.prefill_chunk]), plan.budgets[0], WARM_UP)
    laps = progress(range(plan.repeats), total=plan.repeats, unit="document", description=f"8B shape, {storage}")
    for _ in laps:
        with PeakMemory(reader.device) as peak:
            started = now(reader.device)
            memory = prefill(reader, tokens, description=f"prefill of {plan.length} tokens")
            seconds = now(reader.device) - started
            found[storage, "prefill"].append(seconds)
            for budget in plan.budgets:
                answer = decode(memory, budget, plan.tokens, policy=POLICY, detector=detector, interventions=forced)
                found[storage, f"token {budget}"].append(_token(answer))
                moved = sum(costs.pass_bytes(plan.length, each.attended) for each in answer.passes)
                found[storage, f"moved {budget}"].append(moved / plan.tokens)
            found[storage, "whole"].append(seconds + answer.seconds)
        found[storage, "peak"].append(peak.bytes)
        del memory


def _graphs(reader: Reader, tokens: Tensor, plan: Plan, found: Found) -> None:
    memory, budget = prefill(reader, tokens, description="prefill for CUDA graphs"), plan.budgets[-1]
    detector, forced = random_detector(reader), schedule(plan.tokens, plan.every)
    for _ in range(plan.repeats):
        answer = decode(memory, budget, plan.tokens, policy=POLICY, detector=detector, interventions=forced)
        found[_GRAPHS, f"token {budget}"].append(_token(answer))


def _token(answer: TimedAnswer) -> float:
    """Mean seconds of a token: one that is rolled back takes two passes, and one may have its pass captured."""
    return statistics.mean(answer.steps[WARM_UP:])


def _full_attention(reader: Reader, tokens: Tensor, plan: Plan, found: Found) -> None:
    log.info("full attention on %d tokens", plan.length)
    with PeakMemory(reader.device) as peak:
        first, steps = dense.generate(reader, tokens, plan.tokens)
    found[_FULL, "prefill"], found[_FULL, "token"] = [first], [statistics.mean(steps[WARM_UP:])]
    found[_FULL, "whole"], found[_FULL, "peak"] = [first + sum(steps)], [peak.bytes]


def _rows(
    plan: Plan,
    storage: str,
    found: Mapping[tuple[str, str], Sequence[float]],
    reasons: Mapping[str, str],
    costs: Costs | None = None,
    machine: Machine | None = None,
) -> list[Row]:
    """The rows of one storage; where ``found`` has no figure, ``reasons`` say why."""

    def row(what: str, unit: str, key: str, bar: Bar | None, floor: float, work: str, source: str = storage) -> Row:
        what, values = f"{NAME}, {plan.length} tokens, blocks on {storage}: {what}", found.get((source, key), ())
        if not values:
            return Row(what, unit, bar=bar, reason=reasons[source])
        full = found.get((_FULL, key.split()[0]))
        against = Part(_FULL, full[0]) if full else Part(f"{_FULL}: {reasons[_FULL]}", NAN)
        return Row(what, unit, values, bar, Part("block memory", statistics.median(values)), against, floor, work)

    def moving(budget: int) -> float:
        moved = found.get((storage, f"moved {budget}"))
        return statistics.median(moved) / machine.bandwidth if machine and moved else NAN

    reading = sum(costs.prefill_flops(plan.length).values()) / machine.rate if costs and machine else NAN
    kept = sum(costs.staying_bytes(plan.length, stored=storage != "host").values()) if costs else NAN
    adaptive = f"every {plan.every}th step expanded, UT-ACA K_max="
    widest = plan.budgets[-1]

    def token(what: str, k: int, source: str = storage) -> Row:
        named = f"{what}, {adaptive}{k}"
        return row(named, SECONDS, f"token {k}", Bar("<=", 0.01), moving(k), "bytes of the passes", source)

    return [
        row("prefill", SECONDS, "prefill", Bar("<=", 10), reading, "FLOPs"),
        *(token("time a token", k) for k in plan.budgets),
        *([token("time a token with CUDA graphs", widest, _GRAPHS)] if storage == "device" else []),
        row(
            f"prefill and {plan.tokens} tokens, {adaptive}{widest}",
            SECONDS,
            "whole",
            None,
            reading + plan.tokens * moving(widest),
            "FLOPs of the prefill, bytes of the passes",
        ),
        row("peak memory of the GPU", BYTES, "peak", Bar("<=", PEAKS[storage]), kept, "bytes that stay"),
    ]
