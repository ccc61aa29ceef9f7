"""Training of the tiny reader, from nothing.

Short documents first, read with full attention, then long ones read through block memory: a windowed prefill
shared by many questions, each answer token attending to the initial tokens, its own top blocks at the clipped
distance and the local window, just as in decoding. Blocks with the asked value are at times added to the retrieved
ones, and a contrastive loss on the retrieval scores pulls them up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from utaca.readers.attention import ATTENTION, Rotary
from utaca.readers.tiny.examples import Batch, Examples, Shape
from utaca.readers.tiny.reading import ReadingBatch
from utaca.records import atomic_path
from utaca.settings.schema import Memory, ReaderTraining

# Muon (matrices) and AdamW (embeddings, norms) share one rate, warmed up and then annealed by a cosine. With Muon,
# larger initial weights and shorter first documents copying had emerged at step 600; with AdamW at 2e-3 not at 700.
LEARNING_RATE, WARM_UP, WEIGHT_DECAY, CLIP = 4e-3, 50, 0.01, 1.0
RETRIEVAL_WEIGHT, LANGUAGE_WEIGHT, LANGUAGE_TOKENS = 0.1, 0.1, 128


@dataclass(frozen=True)
class Stage:
    """A stretch of ``steps`` optimisation steps on batches of the given shapes, taken in turn.

    ``forced`` is the share of questions whose value blocks are added to the retrieved ones; ``budgets`` are drawn
    from, a budget a question.
    """

    steps: int
    shapes: tuple[Shape, ...]
    forced: float = 0.0
    budgets: tuple[int, ...] = (1,)


SCHEDULE = (
    Stage(
        900,
        (
            Shape(24, 96, 4, 56, 1, (1, 2)),
            Shape(16, 160, 6, 56, 1, (2, 3)),
            Shape(12, 192, 4, 112, 2, (2, 3)),
        ),
    ),
    Stage(
        400,
        (
            Shape(6, 512, 8, 56, 1, (3, 8)),
            Shape(6, 512, 4, 112, 3, (2, 5)),
            Shape(6, 512, 3, 192, 6, (1, 3)),
        ),
        forced=0.9,
        budgets=(4, 8, 16),
    ),
    Stage(
        900,
        (
            Shape(2, 1536, 18, 56, 1, (8, 24)),
            Shape(2, 1024, 11, 112, 3, (4, 12)),
            Shape(2, 1024, 7, 192, 6, (3, 8)),
            Shape(1, 3072, 30, 56, 1, (16, 40)),
            Shape(1, 3072, 11, 192, 6, (4, 14)),
        ),
        forced=0.6,
        budgets=(1, 2, 4, 8, 16, 32, 64, 96),
    ),
)


def build(settings: ReaderTraining, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """A fresh Llama of the settings' size; the caller seeds torch."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=1024,
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


def losses(
    model: LlamaForCausalLM, rotary: Rotary, memory: Memory, batch: Batch, budget: Tensor, forced: Tensor, part: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Answer loss, language-modelling loss on ``LANGUAGE_TOKENS`` document tokens from ``part`` on, retrieval loss."""
    b, n = batch.document.shape
    ids = torch.cat((batch.document, batch.question.view(b, -1)), 1)
    reading = ReadingBatch(memory, rotary, batch, budget, forced, model.config.num_hidden_layers // 2)
    hidden = model.model(
        ids, position_ids=torch.zeros(1, ids.shape[1], dtype=torch.long), use_cache=False, attending=reading
    ).last_hidden_state
    answers = hidden[:, n:].view(*batch.question.shape, -1)[:, :, :-1]
    weight = batch.weight[:, :, 1:]
    scored = weight > 0
    each = F.cross_entropy(model.lm_head(answers[scored]).float(), batch.question[:, :, 1:][scored], reduction="none")
    answer = (each * weight[scored]).sum() / weight.sum()
    prose = hidden[:, part : part + LANGUAGE_TOKENS - 1]
    target = batch.document[:, part + 1 : part + LANGUAGE_TOKENS][:, : prose.shape[1]]
    language = F.cross_entropy(model.lm_head(prose[:, : target.shape[1]]).flatten(0, 1).float(), target.flatten())
    retrieval = torch.stack(reading.retrieval_losses).mean() if reading.retrieval_losses else torch.zeros(())
    return answer, language, retrieval


def train(
    settings: ReaderTraining,
    memory: Memory,
    tokenizer: PreTrainedTokenizerBase,
    paragraphs: Sequence[str],
    folder: Path,
    *,
    schedule: Sequence[Stage] = SCHEDULE,
    report: Callable[[str], None] = print,
    checkpoint_every: int = 100,
) -> float:
    """Train a tiny reader and leave model, tokenizer and loss curve in ``folder``; returns the seconds it took.

    A killed run resumes from its last checkpoint, ``folder/checkpoint.pt``; the stream of examples is replayed from
    its recorded state, so that the weights are those of an uninterrupted run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    model = build(settings, tokenizer)
    rotary = Rotary(model)
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(
            matrices, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=LEARNING_RATE, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    total = sum(stage.steps for stage in schedule)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: _rate(step, total)) for o in optimizers]
    examples = Examples(tokenizer, paragraphs, settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    checkpoint = folder / "checkpoint.pt"
    curve: list[dict[str, float]] = []
    begin, spent = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(state["model"])
        for part, saved in zip([*optimizers, *schedulers], state["optimization"], strict=True):
            part.load_state_dict(saved)
        generator.set_state(state["generator"])
        examples.restore(state["examples"])
        curve, begin, spent = state["curve"], state["step"], state["seconds"]
        report(f"resuming from step {begin}")
    started, step = time.monotonic(), 0
    model.train()
    for stage in schedule:
        for i in range(stage.steps):
            step += 1
            if step <= begin:
                continue
            batch = examples.batch(stage.shapes[i % len(stage.shapes)])
            shape = batch.question.shape[:2]
            choice = torch.randint(len(stage.budgets), shape, generator=generator)
            budget = torch.tensor(stage.budgets)[choice]
            forced = torch.rand(shape, generator=generator) < stage.forced
            length = batch.document.shape[1]
            at = int(torch.randint(max(1, length - LANGUAGE_TOKENS), (1,), generator=generator))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                answer, language, retrieval = losses(model, rotary, memory, batch, budget, forced, at)
            loss = answer + LANGUAGE_WEIGHT * language + RETRIEVAL_WEIGHT * retrieval
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for part in [*optimizers, *schedulers]:
                part.step()
            curve.append(
                {"step": step, "answer": answer.item(), "language": language.item(), "retrieval": retrieval.item()}
            )
            if step % 20 == 0:
                rate = (step - begin) / (time.monotonic() - started)
                recent = curve[-20:]
                mean = {k: sum(r[k] for r in recent) / len(recent) for k in ("answer", "language", "retrieval")}
                report(
                    f"step {step}/{total}  answer {mean['answer']:.3f}  language {mean['language']:.3f}  "
                    f"retrieval {mean['retrieval']:.3f}  {rate:.2f} steps/s  ETA {(total - step) / rate / 60:.0f} min"
                )
            if step % checkpoint_every == 0:
                scratch = checkpoint.with_suffix(".tmp")
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimization": [part.state_dict() for part in [*optimizers, *schedulers]],
                        "generator": generator.get_state(),
                        "examples": examples.state(),
                        "curve": curve,
                        "step": step,
                        "seconds": spent + time.monotonic() - started,
                    },
                    scratch,
                )
                scratch.replace(checkpoint)
    model.eval()
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with atomic_path(folder / "curve.csv") as scratch:
        lines = (",".join(map(str, row.values())) for row in curve)
        scratch.write_text("\n".join((",".join(curve[0]), *lines)) + "\n")
    return spent + time.monotonic() - started


def _rate(step: int, total: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, total - WARM_UP)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
