"""Training of the tiny reader, from nothing.

Short documents first, read with full attention, then long ones read through block memory: a windowed prefill
shared by many questions, each answer token attending to the initial tokens, its own top blocks at the clipped
distance and the local window, just as in decoding. Blocks with the asked value are at times added to the retrieved
ones, and a contrastive loss on the retrieval scores pulls them up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from training.settings import Settings, Tiny
from training.tiny.examples import ALL_ATTRIBUTES, Batch, Examples, Shape
from training.tiny.reading import ReadingBatch
from utaca.errors import UserError
from utaca.machine import keep_freed_memory, natural_dtype, return_freed_memory
from utaca.readers.attention import ATTENTION, Rotary
from utaca.records import atomic_path
from utaca.records.progress import progress
from utaca.settings.schema import MemorySettings

# Muon (matrices) and AdamW (embeddings, norms) share one rate, warmed up and annealed by a cosine, twice. With Muon,
# larger initial weights and shorter first documents copying had emerged at step 600, with AdamW at 2e-3 not at 700.
# Now that the copying heads are taught, it emerges at step 200.
LEARNING_RATE = 4e-3
WARM_UP = 50
WEIGHT_DECAY = 0.01
CLIP = 1.0
WEIGHTS = {"answer": 1.0, "language": 0.1, "retrieval": 0.2, "copy": 0.3, "name": 0.3, "attribute": 0.3}
LANGUAGE_TOKENS = 512
MEAN = 0.5
"""Share of steps that represent blocks by the mean of their keys, whatever the memory does, so that either will do."""

WHOLE = 10**6
"""A local window longer than any document: full attention."""

COPYING_LAYERS = 2
"""The last so many layers are taught where to copy from."""

TRIM_EVERY = 20
"""Steps after which freed memory goes back to the system; by then fragments may fill gigabytes."""


@dataclass(frozen=True)
class Stage:
    """A stretch of ``steps`` optimisation steps on batches of the given shapes, taken in turn.

    ``forced`` is the share of questions whose value blocks are added to the retrieved ones; ``budgets`` are drawn
    from, a budget a question. Where ``restart`` is given, the rate is warmed up to this share of its peak anew and
    annealed from there.
    """

    steps: int
    shapes: tuple[Shape, ...]
    forced: float = 0.0
    budgets: tuple[int, ...] = (1,)
    restart: float = 0.0


BUDGETS = (1, 2, 4, 8, 16, 32, 64, 96, 96, 128)
SHORT = (
    Shape(20, 96, 160, 1, (1, 2), full=True),
    Shape(16, 128, 192, 1, (1, 3), full=True),
    Shape(12, 192, 224, 2, (2, 4), full=True),
)
# From here on most questions ask for several attributes, which costs the least for each value to be found.
SEVERAL: dict[str, Any] = {"single": 0.15, "least": 3}
MIDDLE = (
    Shape(8, 256, 384, 4, (2, 4), full=True, single=0.3, least=2),
    Shape(6, 384, 448, 6, (2, 4), full=True, **SEVERAL),
    Shape(5, 512, 512, 6, (2, 7), full=True, **SEVERAL),
)
MIDDLE_SEVERAL = (
    Shape(4, 384, 896, 6, (2, 4), full=True, **SEVERAL),
    Shape(3, 512, 1024, 6, (3, 6), full=True, **SEVERAL),
)
LONG = Shape(1, 3072, 1536, 6, (4, 14), **SEVERAL)
FULL = Shape(2, 1024, 1024, 6, (3, 8), full=True, **SEVERAL)
WINDOWED = (
    Shape(2, 1024, 1024, 6, (3, 7), **SEVERAL),
    Shape(2, 1024, 1024, 4, (4, 12), **SEVERAL),
)
# In the end more single questions, as in use, and more facts that are absent, which it learns last.
SETTLED: dict[str, Any] = {"single": 0.35, "least": 3, "absent": 0.4}
SCHEDULE = (
    Stage(400, SHORT),
    Stage(800, MIDDLE),
    Stage(700, (*MIDDLE_SEVERAL, *WINDOWED, FULL), forced=0.9, budgets=(4, 16, 64)),
    Stage(
        900,
        (
            *WINDOWED,
            LONG,
            Shape(1, 3072, 1536, 4, (8, 30), **SEVERAL),
            FULL,
            MIDDLE_SEVERAL[0],
        ),
        forced=0.5,
        budgets=BUDGETS,
    ),
    Stage(
        150,
        (
            Shape(1, 8192, 1024, 6, (10, 40), **SEVERAL),
            LONG,
            FULL,
            MIDDLE_SEVERAL[0],
        ),
        forced=0.4,
        budgets=BUDGETS,
    ),
    Stage(
        1500,
        (
            replace(FULL, **SETTLED),
            replace(WINDOWED[0], **SETTLED),
            replace(MIDDLE_SEVERAL[0], **SETTLED),
            replace(LONG, **SETTLED),
            replace(MIDDLE_SEVERAL[1], **SETTLED),
            Shape(1, 8192, 1024, 6, (10, 40), **SETTLED),
            replace(FULL, **SETTLED),
            replace(WINDOWED[1], **SETTLED),
        ),
        forced=0.4,
        budgets=BUDGETS,
        restart=0.5,
    ),
)


def build(settings: Tiny, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """A fresh Llama of the settings' size; the caller seeds torch."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    model.set_attn_implementation(ATTENTION)
    return model


@dataclass(frozen=True)
class Losses:
    """What a step minimises: answers, language modelling of some document tokens, ranking, copying; of document tokens
    that tell a value, whom and what they tell."""

    answer: Tensor
    language: Tensor
    retrieval: Tensor
    copy: Tensor
    name: Tensor
    attribute: Tensor

    def total(self) -> Tensor:
        return torch.stack([WEIGHTS[name] * part for name, part in vars(self).items()]).sum()


def losses(
    model: LlamaForCausalLM,
    probe: torch.nn.Linear,
    rotary: Rotary,
    memory: MemorySettings,
    batch: Batch,
    budget: Tensor,
    forced: Tensor,
    part: float,
) -> Losses:
    """The losses of a batch; ``part`` in [0, 1) says where in the documents language is modelled.

    ``probe`` reads from what the copying layers are given which attribute a document token tells; it is a teacher only,
    no part of the reader.

    A value token whose source was in no block that the copying layers attended to is not trained: nothing but a
    guess could be learnt from it.
    """
    n = batch.document.shape[1]
    ids = torch.cat((batch.document, batch.tokens), 1)
    copying = model.config.num_hidden_layers - COPYING_LAYERS
    reading = ReadingBatch(memory, rotary, batch, budget, forced, copying)
    output = model.model(
        ids,
        position_ids=ids.new_zeros(1, ids.shape[1]),
        use_cache=False,
        attending=reading,
        output_hidden_states=True,
    )
    hidden = output.last_hidden_state
    weight = batch.weight[:, 1:] * reading.answerable()[:, :-1]
    scored = weight > 0
    each = F.cross_entropy(
        model.lm_head(hidden[:, n:-1][scored]).float(), batch.tokens[:, 1:][scored], reduction="none"
    )
    answer = (each * weight[scored]).sum() / weight.sum()
    width = min(n - 1, LANGUAGE_TOKENS // len(ids))
    first = int(part * (n - width))
    language = F.cross_entropy(
        model.lm_head(hidden[:, first : first + width]).flatten(0, 1).float(),
        batch.document[:, first + 1 : first + 1 + width].flatten(),
    )
    taught = (reading.retrieval_losses, reading.copy_losses, reading.name_losses)
    told = batch.attribute >= 0
    given = output.hidden_states[copying][:, :n][told]
    guessed = probe(F.rms_norm(given.float(), given.shape[-1:])).float()
    attribute = F.cross_entropy(guessed, batch.attribute[told]) if told.any() else answer.new_zeros(())
    return Losses(answer, language, *(_mean(parts, answer) for parts in taught), attribute)


def _mean(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.stack(list(parts)).mean() if parts else like.new_zeros(())


def train(
    settings: Settings,
    tokenizer: PreTrainedTokenizerBase,
    paragraphs: Sequence[str],
    folder: Path,
    *,
    schedule: tuple[Stage, ...] = SCHEDULE,
    device: str = "cpu",
    checkpoint_every: int = 100,
) -> float:
    """Train a tiny reader and leave model, tokenizer and loss curve in ``folder``; returns the seconds it took.

    A killed run resumes from its last checkpoint, ``folder/checkpoint.pt``; the stream of examples goes on from its
    recorded state, so that on a CPU the weights are those of an uninterrupted run. Raises :class:`UserError` where
    the schedule does not fit the memory, and where the checkpoint is of other settings, prose or tokenizer.
    """
    memory = settings.tiny.memory
    _check(memory, schedule)
    keep_freed_memory()
    torch.set_flush_denormal(True)  # Attention far from its peak is denormal, and slow to multiply.
    folder.mkdir(parents=True, exist_ok=True)
    place = torch.device(device)
    torch.manual_seed(settings.seed)
    model = build(settings.tiny, tokenizer).to(place)
    probe = torch.nn.Linear(settings.tiny.hidden_size, len(ALL_ATTRIBUTES)).to(place)
    rotary = Rotary(model.model.rotary_emb, place)
    narrow = natural_dtype(place.type) == "bfloat16"
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    others += probe.parameters()
    optimizers = [
        torch.optim.Muon(
            matrices, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=LEARNING_RATE, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    total = sum(stage.steps for stage in schedule)
    rates = _rates(schedule)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: rates[min(step, total - 1)]) for o in optimizers]
    examples = Examples(tokenizer, paragraphs, settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    prose = sha256("\n".join([tokenizer.backend_tokenizer.to_str(), *paragraphs]).encode()).hexdigest()
    checkpoint = folder / "checkpoint.pt"
    recipe = repr((settings, schedule, prose))
    curve: list[dict[str, float]] = []
    begin = 0
    spent = 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=place, weights_only=False)
        if state["recipe"] != recipe:
            raise UserError(f"{checkpoint} is of a training with other settings or prose; delete it to train anew")
        model.load_state_dict(state["model"])
        probe.load_state_dict(state["probe"])
        for part, saved in zip([*optimizers, *schedulers], state["optimization"], strict=True):
            part.load_state_dict(saved)
        generator.set_state(state["generator"].cpu())
        examples.restore(state["examples"])
        curve = state["curve"]
        begin = state["step"]
        spent = state["seconds"]
    started = time.monotonic()
    model.train()
    plan = [(stage, stage.shapes[i % len(stage.shapes)]) for stage in schedule for i in range(stage.steps)]
    bar = progress(total=total, initial=begin, unit="step", desc="training the reader")
    for step, (stage, shape) in enumerate(plan[begin:], begin + 1):
        batch = examples.batch(shape).to(place)
        loss = _losses(model, probe, rotary, memory, stage, shape, batch, generator, narrow)
        for part in optimizers:
            part.zero_grad(set_to_none=True)
        loss.total().backward()
        torch.nn.utils.clip_grad_norm_([*matrices, *others], CLIP)
        for part in [*optimizers, *schedulers]:
            part.step()
        curve.append({"step": step, **{name: part.item() for name, part in vars(loss).items()}})
        recent = curve[-50:]
        bar.set_postfix({k: f"{sum(r[k] for r in recent) / len(recent):.3f}" for k in vars(loss)}, refresh=False)
        bar.update()
        if step % TRIM_EVERY == 0:
            return_freed_memory()
        if step % checkpoint_every == 0:
            with atomic_path(checkpoint) as scratch:
                torch.save(
                    {
                        "recipe": recipe,
                        "model": model.state_dict(),
                        "probe": probe.state_dict(),
                        "optimization": [part.state_dict() for part in [*optimizers, *schedulers]],
                        "generator": generator.get_state(),
                        "examples": examples.state(),
                        "curve": curve,
                        "step": step,
                        "seconds": spent + time.monotonic() - started,
                    },
                    scratch,
                )
    bar.close()
    model.eval()
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with atomic_path(folder / "curve.csv") as scratch:
        lines = (",".join(f"{value:.6g}" for value in row.values()) for row in curve)
        scratch.write_text("\n".join((",".join(curve[0]), *lines)) + "\n")
    return spent + time.monotonic() - started


def _check(memory: MemorySettings, schedule: Sequence[Stage]) -> None:
    """Training reads documents chunk by chunk, a window each, without retrieval."""
    if memory.prefill_budget or memory.prefill_chunk != memory.n_local:
        raise UserError(
            "the tiny reader is trained for a prefill without retrieval, a window at a time; "
            "set tiny.memory.prefill_budget to 0 and tiny.memory.prefill_chunk to tiny.memory.n_local"
        )
    for shape in (shape for stage in schedule for shape in stage.shapes if not shape.full):
        if shape.length > 2 * memory.n_local and shape.length % memory.n_local:
            raise UserError(
                f"tiny.memory.n_local is {memory.n_local}, of which the training documents of {shape.length} tokens "
                "are no multiple; choose 256 or 512"
            )


def _losses(
    model: LlamaForCausalLM,
    probe: torch.nn.Linear,
    rotary: Rotary,
    memory: MemorySettings,
    stage: Stage,
    shape: Shape,
    batch: Batch,
    generator: torch.Generator,
    narrow: bool,
) -> Losses:
    """The losses of a batch (``narrow``: in bfloat16) under budgets, forced blocks and representatives drawn for it."""
    questions = (len(batch.tokens), int(batch.question.max()) + 1)
    choice = torch.randint(len(stage.budgets), questions, generator=generator)
    forced = torch.rand(questions, generator=generator) < stage.forced
    rule, part = torch.rand(2, generator=generator).tolist()
    if shape.full:
        memory = replace(memory, n_local=WHOLE)
    elif rule < MEAN:
        memory = replace(memory, n_representatives=memory.block_size)
    device = batch.tokens.device
    asker = batch.question.clamp_min(0)
    budget = torch.tensor(stage.budgets)[choice].to(device).gather(1, asker)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=narrow):
        return losses(model, probe, rotary, memory, batch, budget, forced.to(device).gather(1, asker), part)


def _rates(schedule: Sequence[Stage]) -> list[float]:
    """The rate of every step as a share of its peak: linear warm-ups, each with a cosine to a fiftieth behind it."""
    rounds: list[tuple[float, int]] = []
    for number, stage in enumerate(schedule):
        if stage.restart or not number:
            rounds.append((stage.restart or 1.0, stage.steps))
        else:
            rounds[-1] = (rounds[-1][0], rounds[-1][1] + stage.steps)
    return [peak * _rate(step, steps) for peak, steps in rounds for step in range(steps)]


def _rate(step: int, total: int) -> float:
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, total - WARM_UP)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
