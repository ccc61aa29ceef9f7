"""Training of the detector (paper, appendix "Training Details")."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch.nn import functional

from utaca.detection.data import Sequences
from utaca.detection.detector import Detector
from utaca.detection.metrics import detection_metrics
from utaca.errors import UserError
from utaca.records import progress
from utaca.records.schemas import CORRECT
from utaca.settings import schema


def train(
    settings: schema.Detector,
    train: Sequences,
    validation: Sequences,
    *,
    steps: int,
    seed: int,
    description: str = "detector",
) -> tuple[Detector, list[dict[str, Any]]]:
    """Train a detector on the CPU and keep the weights of the best validation F1 (uncertain class, earliest on ties).

    Adam without weight decay, rate annealed to 0 by a cosine over ``steps``, no early stopping. A batch is
    ``settings.batch_size`` trajectories; passes over the data follow each other without a gap, each in an own
    random order. Validation takes place every ``settings.evaluate_every`` steps and after the last.

    Returns the detector, in eval mode, and a row a validation: ``step``, ``loss`` (mean over the steps since the
    row before), ``learning_rate`` (of the last step), ``f1`` and the other validation metrics, ``kept`` (best so
    far). The same seed gives the same weights; the caller's random state is untouched. Raises :class:`UserError`
    where either set lacks uncertain or correct tokens, or the widths differ.
    """
    _check(settings, train, validation)
    weights = torch.tensor(settings.class_weights, dtype=torch.float32)
    order = _order(len(train), steps * settings.batch_size, seed).view(steps, settings.batch_size)
    curve: list[dict[str, Any]] = []
    best, best_row, losses = {}, {"f1": -1.0}, []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        detector = Detector(settings, train.width).train()
        optimiser = torch.optim.Adam(detector.parameters(), lr=settings.learning_rate, fused=True)
        for done, indices in enumerate(progress(order, total=steps, unit="step", description=description), start=1):
            rate = settings.learning_rate * (1 + math.cos(math.pi * (done - 1) / steps)) / 2
            optimiser.param_groups[0]["lr"] = rate
            batch = train.batch(indices)
            loss = weighted_loss(detector(batch.margin, batch.embedding), batch.label, weights)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            if done % settings.evaluate_every == 0 or done == steps:
                row = {"step": done, "loss": sum(losses) / len(losses), "learning_rate": rate}
                if not math.isfinite(row["loss"]):
                    raise UserError(f"the detector's loss is not finite by step {done}; lower detector.learning_rate")
                row |= _evaluate(detector, validation)
                row["kept"] = row["f1"] > best_row["f1"]
                if row["kept"]:
                    best, best_row = {name: value.clone() for name, value in detector.state_dict().items()}, row
                curve.append(row)
                losses = []
    detector.load_state_dict(best)
    detector.facts = {
        "seed": seed,
        "steps": steps,
        "kept_step": best_row["step"],
        "validation_f1": best_row["f1"],
        "train_trajectories": len(train),
        "train_tokens": train.n_tokens,
        "train_failed": train.n_failed,
        "validation_trajectories": len(validation),
        "validation_tokens": validation.n_tokens,
        "validation_failed": validation.n_failed,
    }
    return detector.eval(), curve


def weighted_loss(logits: torch.Tensor, label: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over labelled tokens, each weighted by its label, divided by the sum of these weights.

    ``logits`` [B, T, C], ``label`` [B, T] (negative: no part of the loss), ``weights`` [3] of hallucinated, correct
    and unknown. With C = 2 the target is uncertain (0) or correct (1) and the weight still the label's own.
    Zero for a batch without labels.
    """
    known = label >= 0
    label = label[known]
    target = label if logits.shape[-1] == 3 else (label == CORRECT).long()
    weight = weights[label]
    loss = functional.cross_entropy(logits[known], target, reduction="none")
    return (weight * loss).sum() / weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)


def _order(count: int, total: int, seed: int) -> torch.Tensor:
    """``total`` indices below ``count``: shuffled passes end to end."""
    generator = torch.Generator().manual_seed(random.Random(f"{seed}:order").getrandbits(63))
    passes = [torch.randperm(count, generator=generator) for _ in range(-(-total // count))]
    return torch.cat(passes)[:total]


def _evaluate(detector: Detector, validation: Sequences) -> dict[str, Any]:
    verdicts = detector.verdicts(validation)
    metrics = detection_metrics(verdicts.uncertain, validation.labels, verdicts.score)
    names = ["balanced_accuracy", "macc", "recall_n", "recall_p", "auroc", "auprc"]
    return {"f1": metrics["f1_n"], **{name: metrics[name] for name in names}}


def _check(settings: schema.Detector, train: Sequences, validation: Sequences) -> None:
    if len(settings.class_weights) != 3 or min(settings.class_weights) < 0 or not any(settings.class_weights):
        raise UserError(
            f"detector.class_weights is {settings.class_weights}; give three weights of 0 or more, for hallucinated, "
            "correct and unknown tokens (a detector of two classes uses them too)"
        )
    if train.width != validation.width:
        raise UserError(
            f"embeddings are {train.width} wide in the training split and {validation.width} in the validation split; "
            "decode both with the same reader"
        )
    for name, split in [("train", train), ("validation", validation)]:
        correct = int((split.labels == CORRECT).sum())
        if correct in (0, split.n_tokens - split.n_failed):
            lack, budget = ("correct", "larger") if not correct else ("uncertain", "smaller")
            raise UserError(
                f"the {name} split has no token labelled {lack} among {split.n_tokens} ({split.n_failed} failed), "
                f"so no detector can be trained; enlarge scale.{name} or add a {budget} budget to it"
            )
