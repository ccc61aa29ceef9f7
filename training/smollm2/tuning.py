"""Tuning of SmolLM2 to the questions of the project: a LoRA adapter, trained under full attention alone.

No block memory, no retrieval, no loss but the answers': what blocks the tuned reader finds, it finds as it was
pretrained.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from training.smollm2.examples import DOUBTS, FACTS, UNKNOWN, Asking, Example, Examples
from utaca.errors import UserError
from utaca.readers.attention import Rotary
from utaca.readers.load import Reader
from utaca.records import atomic_path
from utaca.records.progress import counter

RANK, SCALE = 32, 2.0
"""Of the adapter: rank of its products, and the factor (alpha over rank) that they are added with."""

LEARNING_RATE, WARM_UP, CLIP, BETAS = 6e-4, 15, 1.0, (0.9, 0.98)
TOKENS = 2000
"""Tokens of a step, at least: documents are added until there are as many."""

CHUNK = 256
"""Tokens of a document whose attention is computed in one product."""

VALIDATED, CALIBRATED = 24, 60
"""Documents of a validation, and of the calibration in the end."""

BIASES, MOST_FALSE = tuple(0.0 - n / 20 for n in range(61)), 0.05
"""Biases on the logit of "unknown" that the calibration tries, and the false abstentions that it allows: half of the
tenth that is allowed on prose from outside, where there are about twice as many."""

FINAL_LENGTH = 4096
"""Tokens of the longest documents, which come in the last stage alone."""


@dataclass(frozen=True)
class Stage:
    """``steps`` steps on documents of about so many tokens each, in turn of each of the ``lengths``."""

    steps: int
    lengths: tuple[int, ...]
    asking: Asking = FACTS


Round = tuple[Stage, ...]
"""Stages of which the first begins with a warm-up and the last ends with a rate of nothing."""

SCHEDULE: tuple[Round, ...] = (
    (
        Stage(100, (200, 300, 400, 600, 800)),
        Stage(90, (200, 300, 500, 700, 1000, 1500, 2048)),
        Stage(40, (250, 400, 1000, 2048, FINAL_LENGTH)),
    ),
    (
        Stage(130, (300, 600, 1000, 1500, 2048), DOUBTS),
        Stage(40, (400, 1000, 2048, FINAL_LENGTH), DOUBTS),
    ),
)


class Packed:
    """Attention of a document [n tokens] and of questions that follow it, none of which sees another.

    Each question's tokens stand at the positions behind the document.
    """

    def __init__(self, rotary: Rotary, n: int, lengths: Sequence[int], like: Tensor) -> None:
        places = torch.cat([torch.arange(n), *(torch.arange(n, n + length) for length in lengths)])
        rotary.reserve(int(places.max()) + 1)
        self._rotation = rotary.at(places.to(like.device), like.dtype)
        self._n, self._lengths = n, lengths
        most = max(min(n, CHUNK), *lengths)
        self._later = torch.full((most, most), -math.inf, dtype=like.dtype, device=like.device).triu(1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        query, key = self._rotation(query) * scaling, self._rotation(key)
        n, pairs = self._n, (key, value)
        found = []
        for begin in range(0, n, CHUNK):
            end = min(n, begin + CHUNK)
            found.append(self._attend(query[:, :, begin:end], *(x[:, :, :end] for x in pairs)))
        for begin, length in zip(itertools.accumulate(self._lengths, initial=n), self._lengths, strict=False):
            own = slice(begin, begin + length)
            found.append(self._attend(query[:, :, own], *(torch.cat((x[:, :, :n], x[:, :, own]), 2) for x in pairs)))
        return torch.cat(found, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention of the last tokens [1, heads, t, d] among [1, key heads, n, d].

        Plain products: on a CPU they take half the time of PyTorch's fused attention in bfloat16, forwards and back.
        """
        groups, length, size = key.shape[1], query.shape[2], key.shape[2]
        # Heads that share a key are rows of one product.
        rows = query.reshape(1, groups, -1, query.shape[3])
        scores = torch.matmul(rows, key.transpose(2, 3)).view(1, groups, -1, length, size)
        scores[..., size - length :] += self._later[:length, :length]
        return torch.matmul(scores.softmax(-1).view(1, groups, -1, size), value).view(query.shape)


def _logits(reader: Reader, model: Any, rotary: Rotary, example: Example) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the answers' tokens, these tokens and their weights."""
    device = reader.device
    tokens = torch.tensor([*example.document, *(t for asked in example.asked for t in asked.tokens)], device=device)
    weights = torch.tensor([w for asked in example.asked for w in asked.weights], device=device)
    n = len(example.document)
    packed = Packed(rotary, n, [len(asked.tokens) for asked in example.asked], model.lm_head.weight)
    hidden = model.model(
        tokens[None], position_ids=tokens.new_zeros(1, len(tokens)), use_cache=False, attending=packed
    ).last_hidden_state[0]
    scored = weights.nonzero()[:, 0]
    return model.lm_head(hidden[n - 1 + scored]).float(), tokens[n + scored], weights[scored]


def loss_of(reader: Reader, model: Any, rotary: Rotary, example: Example) -> tuple[Tensor, Tensor]:
    """Sum of the weighted cross-entropies of an example's answers, and the sum of the weights."""
    logits, tokens, weights = _logits(reader, model, rotary, example)
    return (F.cross_entropy(logits, tokens, reduction="none") * weights).sum(), weights.sum()


class Decision(NamedTuple):
    """Of a value that is asked for on validation people: whether the document has it, by how much the logit of
    "unknown" is the largest where it begins, and whether greedy decoding that does not abstain gives it."""

    stated: bool
    margin: float
    found: bool


@torch.no_grad()
def decisions(
    reader: Reader, model: Any, rotary: Rotary, examples: Examples, count: int, length: int
) -> list[Decision]:
    """Of ``count`` validation documents of about ``length`` tokens, the answers forced up to each value."""
    unknown = torch.tensor([reader.prompts.text(text)[0] for text in (UNKNOWN, f" {UNKNOWN}")], device=reader.device)
    found = []
    for number in range(count):
        example = examples.example(number, length, DOUBTS, validation=True)
        example.asked = [asked for asked in example.asked if asked.values]
        logits, _, _ = _logits(reader, model, rotary, example)
        at = 0
        for asked in example.asked:
            scored = [n for n, weight in enumerate(asked.weights) if weight]
            rows = {n: at + i for i, n in enumerate(scored)}
            at += len(scored)
            for first, end, stated in asked.values:
                own = logits[[rows[n] for n in range(first, end)]]
                abstention = own[0, unknown].max()
                own[0, unknown] = -math.inf
                given = own.argmax(-1).tolist() == asked.tokens[first:end]
                found.append(Decision(stated, float(abstention - own[0].max()), given))
    return found


def shares(found: Sequence[Decision], bias: float = 0.0) -> dict[str, float]:
    """Shares of values found, of false and of true abstentions, with a bias on the logit of "unknown"."""
    present = [decision for decision in found if decision.stated]
    absent = [decision for decision in found if not decision.stated]
    return {
        "value found": sum(d.found and d.margin + bias < 0 for d in present) / max(1, len(present)),
        "false abstention": sum(d.margin + bias >= 0 for d in present) / max(1, len(present)),
        "true abstention": sum(d.margin + bias >= 0 for d in absent) / max(1, len(absent)),
        "present": len(present),
        "absent": len(absent),
    }


def calibration(found: Sequence[Decision]) -> list[dict[str, float]]:
    """:func:`shares` by bias; the first with no more than :data:`MOST_FALSE` false abstentions is the one to set."""
    return [{"bias": bias, **shares(found, bias)} for bias in BIASES]


def tune(
    reader: Reader,
    examples: Examples,
    folder: Path,
    *,
    schedule: Sequence[Round] = SCHEDULE,
    seed: int = 0,
    checkpoint_every: int = 20,
    validate_every: int = 40,
) -> tuple[float, list[dict[str, float]], list[dict[str, float]]]:
    """Train an adapter of the reader into ``folder``; returns the seconds it took, every step's loss, its calibration.

    A row of the curve has a step's number, tokens and loss, and where it was validated its :func:`shares`.

    ``reader`` is in bfloat16; the adapter's own weights are kept in float32 and passed on rounded. A killed tuning
    resumes from ``folder/checkpoint.pt``. Raises :class:`UserError` where that is of other settings, and where the
    package peft is missing.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UserError('tuning needs the package peft; run: pip install "utaca[adapters]"') from error
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rotary = Rotary(reader.model)
    config = LoraConfig(r=RANK, lora_alpha=RANK * SCALE, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(reader.model, config, autocast_adapter_dtype=False)
    model = adapted.base_model.model
    rounded = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    precise = [parameter.detach().float().clone() for parameter in rounded]
    optimizer = torch.optim.AdamW(precise, lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
    plan = [stage for stages in schedule for stage in stages for _ in range(stage.steps)]
    rates = [rate for stages in schedule for rate in _rates(sum(stage.steps for stage in stages))]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[min(step, len(rates) - 1)])
    recipe = repr((tuple(schedule), RANK, SCALE, LEARNING_RATE, TOKENS, seed))
    checkpoint, curve, begin, spent, number = folder / "checkpoint.pt", [], 0, 0.0, 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        if state["recipe"] != recipe:
            raise UserError(f"{checkpoint} is of a tuning with other settings; delete it to tune anew")
        for weights, saved in zip(precise, state["weights"], strict=True):
            weights.copy_(saved)
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        curve, begin, spent, number = state["curve"], state["step"], state["seconds"], state["number"]
    started = time.monotonic()
    bar = counter(total=len(plan), done=begin, unit="step", description="tuning")
    for step, stage in enumerate(plan[begin:], begin + 1):
        with torch.no_grad():
            for weights, exact in zip(rounded, precise, strict=True):
                weights.copy_(exact)
                weights.grad = None
        batch, tokens = [], 0
        while tokens < TOKENS:
            length = stage.lengths[number % len(stage.lengths)]
            example = examples.example(number, length, stage.asking)
            number += 1
            if example.asked:
                batch.append(example)
                tokens += len(example.document) + sum(len(asked.tokens) for asked in example.asked)
        scale = sum(weight for example in batch for asked in example.asked for weight in asked.weights)
        total = 0.0
        for example in batch:
            loss, _ = loss_of(reader, model, rotary, example)
            (loss / scale).backward()
            total += loss.item() / scale
        for weights, exact in zip(rounded, precise, strict=True):
            exact.grad = weights.grad.float()
        torch.nn.utils.clip_grad_norm_(precise, CLIP)
        optimizer.step()
        scheduler.step()
        row = {"step": step, "tokens": tokens, "loss": total}
        if step % validate_every == 0 or step == len(plan):
            row |= shares(decisions(reader, model, rotary, examples, VALIDATED, 400))
        curve.append(row)
        recent = [r["loss"] for r in curve[-20:]]
        bar.set_postfix(loss=f"{sum(recent) / len(recent):.3f}", **{k: f"{row[k]:.2f}" for k in list(row)[3:6]})
        bar.update()
        if step % checkpoint_every == 0:
            with atomic_path(checkpoint) as scratch:
                torch.save(
                    {
                        "recipe": recipe,
                        "weights": precise,
                        "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(),
                        "curve": curve,
                        "step": step,
                        "number": number,
                        "seconds": spent + time.monotonic() - started,
                    },
                    scratch,
                )
    bar.close()
    with torch.no_grad():
        for weights, exact in zip(rounded, precise, strict=True):
            weights.copy_(exact)
    adapted.save_pretrained(folder)
    _sort_modules(folder / "adapter_config.json")
    found = calibration(decisions(reader, model, rotary, examples, CALIBRATED, 400))
    return spent + time.monotonic() - started, curve, found


def _sort_modules(path: Path) -> None:
    """peft writes a set, in an order that differs from run to run."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["target_modules"].sort()
    with atomic_path(path) as scratch:
        scratch.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _rates(steps: int) -> list[float]:
    """Shares of the peak rate in a round: a linear warm-up, then a cosine down to nothing."""
    warm = [(step + 1) / WARM_UP for step in range(min(WARM_UP, steps))]
    rest = steps - len(warm)
    return warm + [0.5 * (1 + math.cos(math.pi * step / max(1, rest))) for step in range(rest)]
