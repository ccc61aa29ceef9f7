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


class ReadingBatch:
    """Attention of a training batch: documents and the questions about them in one sequence [B, N + Q * S].

    Documents are read through a window that grows over each chunk of ``n_local`` tokens, plus the initial tokens;
    questions see the window that ends with them and, from the last prompt token on, the blocks that their own
    query ranks highest, ``budget`` of them. Layers from ``retrieving`` on are taught to rank the asked block first.
    Here a block is represented by the mean of its keys, whatever the memory does later: every key gets a gradient.
    """

    def __init__(
        self, memory: Memory, rotary: Rotary, batch: Batch, budget: Tensor, forced: Tensor, retrieving: int
    ) -> None:
        self.memory, self.rotary, self.batch, self.retrieving = memory, rotary, batch, retrieving
        self.retrieval_losses: list[Tensor] = []
        self.length = batch.document.shape[1]
        self.questions, self.width = batch.question.shape[1:]
        m, n, s = memory, self.length, self.width
        position = torch.arange(n, n + s)
        blocks = max(0, (n - m.n_init) // m.block_size)
        # A block is far for a token once all of it lies outside of the token's window.
        n_far = ((position + 1 - m.n_local - m.n_init) // m.block_size).clamp(0, blocks)
        window = m.n_init + n_far * m.block_size
        window[position + 1 <= m.n_local + m.n_init] = 0
        self.blocks = int(n_far.max())
        self.local_start = int(window.min())
        self.n_far, self.position, self.window = n_far, position, window
        self.budget, self.forced = budget, forced
        if self.blocks:
            first, end = batch.source[..., 0], batch.source[..., 1]
            low = torch.arange(self.blocks) * m.block_size + m.n_init
            self.gold = (first[..., None] < low + m.block_size) & (end[..., None] > low)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        n = self.length
        full_key, full_value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        document = self._read(query[:, :, :n], full_key[:, :, :n], full_value[:, :, :n], scaling)
        answers = self._answer(layer, query[:, :, n:], key, full_key, full_value, scaling)
        return torch.cat((document, answers), dim=2)

    def _read(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        n, local, init = self.length, self.memory.n_local, self.memory.n_init
        positions = torch.arange(n)
        if n <= 2 * local:
            q, k = self.rotary(query, positions), self.rotary(key, positions)
            return F.scaled_dot_product_attention(q, k, value, is_causal=True, scale=scaling)
        # Chunks become rows of the batch: [B, H, chunks, local, D]; each sees the chunk before and the initial tokens.
        b, h, _, d = query.shape
        chunks = n // local
        where = torch.arange(2 * local)

        def before_and_own(x: Tensor) -> Tensor:
            x = x.view(b, h, chunks, local, d)
            return torch.cat((x.roll(1, 2), x), dim=3)

        q = query.reshape(b, h, chunks, local, d)
        near = self.rotary(q, where[local:])
        far = self.rotary(q, torch.tensor([local - 1]))
        near_keys = self.rotary(before_and_own(key), where)
        keys = torch.cat((_widen(key[:, :, None, :init].expand(b, h, chunks, init, d), 1), _widen(near_keys, 0)), 3)
        values = torch.cat((value[:, :, None, :init].expand(b, h, chunks, init, d), before_and_own(value)), 3)
        visible = torch.ones(chunks, local, init + 2 * local, dtype=torch.bool)
        visible[:, :, init:] = where[None, None] <= where[None, local:, None]
        visible[:2, :, :init] = False
        visible[0, :, init : init + local] = False
        shape = (b * h, chunks)
        out = F.scaled_dot_product_attention(
            torch.cat((near, far), -1).reshape(*shape, local, 2 * d),
            keys.reshape(*shape, init + 2 * local, 2 * d),
            F.pad(values, (0, d)).reshape(*shape, init + 2 * local, 2 * d),
            attn_mask=_additive(visible, query.dtype),
            scale=scaling,
        )
        return out[..., :d].reshape(b, h, n, d)

    def _answer(
        self, layer: int, query: Tensor, key: Tensor, full_key: Tensor, full_value: Tensor, scaling: float
    ) -> Tensor:
        n, s, m, start = self.length, self.width, self.memory, self.local_start
        b, h, _, d = query.shape
        questions = self.questions
        q = query.view(b, h, questions, s, d)
        own_key = full_key[:, :, n:].view(b, h, questions, s, d)
        own_value = full_value[:, :, n:].view(b, h, questions, s, d)
        near = self.rotary(q, self.position)
        local_positions = torch.arange(start, n)
        seen = local_positions[None] >= self.window[:, None]
        own = torch.tril(torch.ones(s, s, dtype=torch.bool))

        def shared(x: Tensor) -> Tensor:
            return x[:, :, None].expand(b, h, questions, *x.shape[2:])

        keys = [shared(self.rotary(full_key[:, :, start:n], local_positions)), self.rotary(own_key, self.position)]
        values = [shared(full_value[:, :, start:n]), own_value]
        visible = [seen.expand(b, questions, s, -1), own.expand(b, questions, s, s)]
        if not self.blocks:
            out = F.scaled_dot_product_attention(
                near.reshape(b, h * questions, s, d),
                torch.cat(keys, 3).reshape(b, h * questions, -1, d),
                torch.cat(values, 3).reshape(b, h * questions, -1, d),
                attn_mask=_additive(torch.cat(visible, -1)[:, None], query.dtype)
                .expand(b, h, questions, s, -1)
                .reshape(b, h * questions, s, -1),
                scale=scaling,
            )
            return out.view(b, h, questions * s, d)
        far = self.rotary(q, torch.tensor([m.n_local - 1]))
        edge = m.n_init + self.blocks * m.block_size
        chosen = self._select(layer, far, key, scaling)
        far_keys = full_key[:, :, :edge]
        init = (self.window > 0)[:, None].expand(b, questions, s, m.n_init)
        visible = [init, chosen.repeat_interleave(m.block_size, -1), *visible]
        keys = [_widen(shared(far_keys), 1), *(_widen(k, 0) for k in keys)]
        values = [shared(full_value[:, :, :edge]), *values]
        mask = _additive(torch.cat(visible, -1), query.dtype)
        out = F.scaled_dot_product_attention(
            torch.cat((near, far), -1).transpose(1, 2).reshape(b * questions, h, s, 2 * d),
            torch.cat(keys, 3).transpose(1, 2).reshape(b * questions, h, -1, 2 * d),
            F.pad(torch.cat(values, 3), (0, d)).transpose(1, 2).reshape(b * questions, h, -1, 2 * d),
            attn_mask=mask.reshape(b * questions, 1, s, -1),
            scale=scaling,
        )
        out = out[..., :d].view(b, questions, h, s, d).transpose(1, 2)
        return out.reshape(b, h, questions * s, d)

    def _select(self, layer: int, far: Tensor, key: Tensor, scaling: float) -> Tensor:
        """Blocks that each token attends to, [B, Q, S, blocks]; adds this layer's contrastive loss."""
        m, (b, h, questions, s, d) = self.memory, far.shape
        g = key.shape[1]
        representatives = key[:, :, m.n_init : m.n_init + self.blocks * m.block_size]
        representatives = representatives.reshape(b, g, self.blocks, m.block_size, d).mean(3)
        summed = far.view(b, g, h // g, questions, s, d).sum(2)
        scores = torch.einsum("bgqsd,bgnd->bqsn", summed, representatives).float()
        exists = torch.arange(self.blocks) < self.n_far[:, None]
        scores = scores.masked_fill(~exists, -math.inf)
        gold = self.gold & exists
        asked = gold.any(-1)
        if layer >= self.retrieving and asked.any():
            logits = scores[asked] * scaling / math.sqrt(h)
            target = logits.masked_fill(~gold[asked], -math.inf)
            self.retrieval_losses.append((logits.logsumexp(-1) - target.logsumexp(-1)).mean())
        with torch.no_grad():
            place = (self.budget - 1).clamp(max=self.blocks - 1)[..., None, None].expand(b, questions, s, 1)
            least = scores.sort(-1, descending=True).values.gather(-1, place)
            chosen = scores >= least
            chosen |= gold & self.forced[..., None, None]
            return chosen & exists & self.batch.decoding[..., None]


def _widen(x: Tensor, half: int) -> Tensor:
    """Put ``x`` [..., D] into one half of [..., 2 D]: queries carry the local rotation in half 0, the far one in 1."""
    d = x.shape[-1]
    return F.pad(x, (d, 0) if half else (0, d))


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -math.inf)


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
