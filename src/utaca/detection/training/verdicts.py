"""Decisions of a trained detector, or of a threshold on logits, on every token of some sequences.

A token is distrusted if its score is above the threshold of a decision rule, which is chosen on the validation set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from utaca.detection.detector import Detector, concentration, distrust
from utaca.detection.training.data import Sequences
from utaca.errors import UserError
from utaca.records import SCHEMAS
from utaca.records.schemas import CORRECT


class Verdicts(NamedTuple):
    """Decisions on the ``n`` tokens of some sequences, in the order of their flat tensors."""

    uncertain: np.ndarray  # [n] bool, the decision
    score: np.ndarray  # [n] float32, grows with distrust
    probabilities: np.ndarray | None  # [n, 3] float32 hallucinated, correct, unknown


@torch.no_grad()
def token_logits(detector: Detector, sequences: Sequences, chain: int = 1) -> Tensor:
    """Class logits [n, C] of all tokens, in the order of the flat tensors, on the CPU.

    Every ``chain`` of the sequences are read as one (:meth:`Sequences.split`, :meth:`Sequences.padded`).
    """
    logits = torch.empty(sequences.n_tokens + 1, detector.settings.classes)
    for indices in sequences.split(chain=chain):
        # A few at a time: padded embeddings are large.
        for position in sequences.padded(indices, chain).split(32):
            logits[position] = detector(sequences.signals[position], sequences.embedding[position]).cpu()
    return logits[:-1]


def verdicts(detector: Detector, sequences: Sequences) -> dict[str, Verdicts]:
    """Decisions on all tokens under several rules, by name: "" is the detector's own rule.

    Where that is the paper's, "youden" is the same score with the threshold of the best balanced accuracy; for an
    evidential detector, "mass" is such a threshold on its lack of evidence, :func:`vacuity`.
    """
    logits = token_logits(detector, sequences)
    p, rules = detector.probabilities(logits), {"": detector.settings.decision}
    if detector.settings.decision == "argmax":
        rules["youden"] = "youden"
    decided = {name: _decided(detector, distrust(p, rule), rule, p) for name, rule in rules.items()}
    if detector.settings.kind == "evidential":
        decided["mass"] = _decided(detector, vacuity(logits), "mass", None)
    return decided


def _decided(detector: Detector, score: Tensor, rule: str, p: Tensor | None) -> Verdicts:
    uncertain = score > detector.thresholds[rule]
    return Verdicts(uncertain.numpy(), score.numpy(), None if p is None else p.numpy())


def vacuity(logits: Tensor) -> Tensor:
    """u = C / (sum of the concentrations), in (0, 1], of ``logits`` [..., C]: 1 without any evidence."""
    return logits.shape[-1] / concentration(logits).sum(-1)


def detections(verdicts: Verdicts, sequences: Sequences, name: str, seed: int) -> pa.Table:
    """The verdicts of a detector or heuristic as a table of schema "detections", one row a token of ``sequences``.

    The label is null if the labeller failed, the probabilities if the detector has none. ``name`` and ``seed`` fill the
    columns ``detector`` and ``seed``.
    """
    uncertain, score, p = verdicts
    n, length = sequences.n_tokens, sequences.length.numpy()
    owner = pa.array(np.repeat(np.arange(len(sequences)), length))
    label = sequences.labels
    nothing = pa.nulls(n, pa.float32())
    columns = [
        pa.repeat(pa.scalar(name), n),
        pa.repeat(pa.scalar(seed, pa.int32()), n),
        pa.array(sequences.document, pa.string()).take(owner),
        pa.array(sequences.budget, pa.int32()).take(owner),
        pa.array(sequences.step),
        pa.array(label.astype(np.int8), mask=label < 0),
        pa.array(sequences.value),
        pa.array(uncertain),
        pa.array(score),
        *((pa.array(np.ascontiguousarray(column)) for column in p.T) if p is not None else [nothing] * 3),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS["detections"])


# Training-free baselines: one threshold on the spread or the margin of a token's largest logits

STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "top10_std": lambda top10: top10.astype(np.float64).std(axis=1),
    "logit_margin": lambda top10: (top10[:, 0] - top10[:, 1]).astype(np.float64),
}
"""Statistics [n] of the ten largest logits [n, 10]: their population standard deviation; the first minus the second."""


def heuristics(validation: Sequences, sequences: Sequences) -> dict[str, Verdicts]:
    """Decisions on all tokens of ``sequences`` by each of :data:`STATISTICS`: uncertain if the statistic is low.

    Thresholds have the best balanced accuracy on ``validation``; scores are the negated statistics. Raises
    :class:`UserError` if the validation split has no uncertain or no correct tokens, or if a statistic is constant.
    """
    decided = {}
    for name, statistic in STATISTICS.items():
        score = -statistic(sequences.top10)
        threshold = youden(-statistic(validation.top10), validation.labels)
        decided[name] = Verdicts(score > threshold, score.astype(np.float32), None)
    return decided


# Thresholds


def youden(score: np.ndarray, label: np.ndarray) -> float:
    """The threshold on ``score`` [n] with the best balanced accuracy for ``label`` [n]; negative labels are left out.

    Candidates are the midpoints of adjacent distinct scores; of equally good ones it is the least, which distrusts the
    most tokens. Raises :class:`UserError` if there are no uncertain or no correct tokens, or all scores are equal.
    """
    labelled = label >= 0
    value, negative = score[labelled].astype(np.float64), label[labelled] != CORRECT
    n_negative = int(negative.sum())
    n_positive = len(negative) - n_negative
    if not n_negative or not n_positive:
        lack = "uncertain" if not n_negative else "correct"
        raise UserError(f"the validation labels have no {lack} token to fit a threshold on; enlarge scale.validation")
    order = np.argsort(-value, kind="stable")
    ranked = value[order]
    ends = np.flatnonzero(ranked[1:] != ranked[:-1])
    if not len(ends):
        raise UserError("a score is the same for all validation tokens, so no threshold splits them; check the reader")
    hits = np.cumsum(negative[order], dtype=np.int64)[ends]
    # Youden's J times both class counts: integers, so that ties are exact.
    gain = hits * n_positive - (ends + 1 - hits) * n_negative
    best = ends[len(gain) - 1 - int(gain[::-1].argmax())]
    return float((ranked[best] + ranked[best + 1]) / 2)
