"""A big reader's shape with random weights on a GPU: times and memory do not depend on what the weights say.

Quality is not measured here, so no weights are downloaded; the model is made on the device.
"""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerBase

from utaca.decoding.benchmark import dense
from utaca.decoding.benchmark.answers import WARM_UP, decode, random_detector, schedule
from utaca.decoding.benchmark.floors import Costs, Machine, now, probe
from utaca.decoding.benchmark.rows import BYTES, NAN, SECONDS, Bar, Part, Row
from utaca.decoding.peak import PeakMemory
from utaca.decoding.policies import Sub
from utaca.errors import UserError
from utaca.memory import prefill
from utaca.readers.attention import ATTENTION
from utaca.readers.load import Reader
from utaca.records.progress import progress
from utaca.settings import schema

POLICY = Sub(16)

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
    """A bfloat16 reader of random weights, made on ``device``.

    ``tokenizer`` serves the question alone; its ids must be in the model's vocabulary.
    """
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=ATTENTION)
    settings = schema.Reader(name="random", path="", dtype="bfloat16", device=device.type, memory=memory)
    reader = Reader(model.eval().requires_grad_(False), tokenizer, settings)
    reader.stop_tokens = frozenset()
    return reader


def measure(
    config: PretrainedConfig,
    device: torch.device,
    tokenizer: PreTrainedTokenizerBase,
    memory: schema.Memory,
    plan: Plan,
) -> list[Row]:
    """The rows of a shape on ``device``: block memory in each repeat, then full attention once.

    What does not fit into the device's memory stands as not measured, with the reason.
    """
    found: dict[str, list[float]] = defaultdict(list)
    machine = probe(device, torch.bfloat16)
    reader = build(config, device, tokenizer, memory)
    drawn = torch.randint(config.vocab_size, (plan.length,), generator=torch.Generator().manual_seed(0))
    tokens = drawn.to(device)
    reason = _attempt(device, lambda: _block_memory(reader, tokens, plan, found))
    full_reason = _attempt(device, lambda: _full_attention(reader, tokens, plan, found))
    return _rows(plan, found, reason, full_reason, Costs.of(reader), machine)


def not_measured(plan: Plan, reason: str) -> list[Row]:
    """The same rows without figures."""
    return _rows(plan, {}, reason, reason)


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


def _block_memory(reader: Reader, tokens: Tensor, plan: Plan, found: dict[str, list[float]]) -> None:
    detector = random_detector(reader)
    decode(prefill(reader, tokens[: 4 * reader.settings.memory.prefill_chunk]), plan.budgets[0], WARM_UP)
    for _ in progress(range(plan.repeats), total=plan.repeats, unit="document", description="random weights"):
        with PeakMemory(reader.device) as peak:
            started = now(reader.device)
            memory = prefill(reader, tokens, description=f"prefill of {plan.length} tokens")
            seconds = now(reader.device) - started
            found["prefill"].append(seconds)
            for budget in plan.budgets:
                forced = schedule(plan.tokens, plan.every)
                answer = decode(memory, budget, plan.tokens, policy=POLICY, detector=detector, interventions=forced)
                # The mean, for a rolled-back token takes two passes.
                found[f"token {budget}"].append(statistics.mean(answer.steps[WARM_UP:]))
                found[f"end to end {budget}"].append(seconds + answer.seconds)
                found[f"attended {budget}"].append(statistics.mean(token.attended for token in answer.trace))
        found["peak"].append(peak.bytes)
        del memory


def _full_attention(reader: Reader, tokens: Tensor, plan: Plan, found: dict[str, list[float]]) -> None:
    log.info("full attention on %d tokens", plan.length)
    with PeakMemory(reader.device) as peak:
        first, steps = dense.generate(reader, tokens, plan.tokens)
    found["full prefill"], found["full token"] = [first], [statistics.mean(steps[WARM_UP:])]
    found["full end to end"], found["full peak"] = [first + sum(steps)], [peak.bytes]


def _rows(
    plan: Plan,
    found: Mapping[str, Sequence[float]],
    reason: str,
    full_reason: str,
    costs: Costs | None = None,
    machine: Machine | None = None,
) -> list[Row]:
    """All rows; without figures where ``found`` has none, for the given reasons."""

    def row(what: str, unit: str, key: str, full: str, bar: Bar | None, floor: float, work: str) -> Row:
        what, values = f"random 8B shape, {plan.length} tokens: {what}", found.get(key, ())
        if not values:
            return Row(what, unit, bar=bar, reason=reason)
        against = (
            Part("full attention", found[full][0]) if full in found else Part(f"full attention: {full_reason}", NAN)
        )
        return Row(what, unit, values, bar, Part("block memory", statistics.median(values)), against, floor, work)

    def token_floor(budget: int) -> float:
        if costs is None or machine is None or f"attended {budget}" not in found:
            return NAN
        attended = statistics.mean(found[f"attended {budget}"])
        return costs.pass_bytes(plan.length, int(attended)) / machine.bandwidth

    reading = costs.prefill_flops(plan.length) / machine.rate if costs and machine else NAN
    rows = [row("prefill", SECONDS, "prefill", "full prefill", Bar("<=", 10), reading, "FLOPs")]
    for budget in plan.budgets:
        whom, floor = f"UT-ACA K_max={budget}, every {plan.every}th step expanded", token_floor(budget)
        answer, all_of_it = f"time a token, {whom}", f"prefill and {plan.tokens} tokens, {whom}"
        work = "FLOPs of the prefill, bytes of a pass a token"
        whole = reading + plan.tokens * floor
        rows += [
            row(answer, SECONDS, f"token {budget}", "full token", Bar("<=", 0.01), floor, "bytes of a pass"),
            row(all_of_it, SECONDS, f"end to end {budget}", "full end to end", None, whole, work),
        ]
    kept = costs.resident_bytes(plan.length) if costs else NAN
    work = "bytes of weights, keys, values, representatives"
    return [*rows, row("peak memory", BYTES, "peak", "full peak", Bar("<=", 50 * 2**30), kept, work)]
