"""Training-free baselines: one threshold on the spread or the margin of a token's largest logits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utaca.detection.data import Sequences, Verdicts
from utaca.detection.metrics import detection_metrics
from utaca.errors import UserError
from utaca.records import atomic_path
from utaca.records.schemas import CORRECT

SIGNALS = {
    "top10_std": lambda sequences: sequences.top10.astype(np.float64).std(axis=1),
    "logit_margin": lambda sequences: sequences.margin[:-1].numpy().astype(np.float64),
}


@dataclass(frozen=True)
class Heuristic:
    """Distrust a token where its signal lies strictly below the threshold, both in logits."""

    signal: str  # "top10_std": population standard deviation of the ten largest logits; "logit_margin": first - second
    threshold: float
    validation: dict[str, Any]  # metrics on the tokens that the threshold was chosen on

    def verdicts(self, sequences: Sequences) -> Verdicts:
        """Decisions on every token; the score is the negated signal."""
        value = SIGNALS[self.signal](sequences)
        return Verdicts(value < self.threshold, (-value).astype(np.float32), None)


def fit_heuristics(validation: Sequences) -> dict[str, Heuristic]:
    """Both heuristics by signal, their thresholds chosen on ``validation`` alone.

    Raises :class:`UserError` where it lacks uncertain or correct tokens, or a signal is constant.
    """
    label = validation.labels
    known = label >= 0
    heuristics = {}
    for signal, measure in SIGNALS.items():
        value = measure(validation)
        threshold = best_threshold(value[known], label[known] != CORRECT)
        metrics = detection_metrics(value < threshold, label, -value)
        heuristics[signal] = Heuristic(signal, threshold, metrics)
    return heuristics


def best_threshold(value: np.ndarray, negative: np.ndarray) -> float:
    """The threshold on ``value`` [n] with the best balanced accuracy of ``value < threshold`` for ``negative`` [n].

    Candidates are the midpoints of adjacent distinct values; of equally good ones the largest, which flags most.
    """
    n_negative = int(negative.sum())
    n_positive = len(negative) - n_negative
    if not n_negative or not n_positive:
        lack = "uncertain" if not n_negative else "correct"
        raise UserError(f"the validation labels have no {lack} token to fit a threshold on; enlarge scale.validation")
    order = np.argsort(value, kind="stable")
    ranked = value[order].astype(np.float64)
    ends = np.flatnonzero(ranked[1:] != ranked[:-1])
    if not len(ends):
        raise UserError(
            "a logit signal is the same for all validation tokens, so no threshold splits them; check the reader"
        )
    hits = np.cumsum(negative[order], dtype=np.int64)[ends]
    # Youden's J times both class counts: integers, so that ties are exact.
    youden = hits * n_positive - (ends + 1 - hits) * n_negative
    best = ends[len(youden) - 1 - int(youden[::-1].argmax())]
    return float((ranked[best] + ranked[best + 1]) / 2)


def save_heuristics(path: str | Path, heuristics: Mapping[str, Heuristic]) -> None:
    """Write thresholds and validation metrics as JSON."""
    text = json.dumps({name: asdict(heuristic) for name, heuristic in heuristics.items()}, indent=2)
    with atomic_path(path) as scratch:
        scratch.write_text(text + "\n", encoding="utf-8")


def load_heuristics(path: str | Path) -> dict[str, Heuristic]:
    """Read what :func:`save_heuristics` wrote; :class:`UserError` where it is missing or something else."""
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist; fit the baselines first")
    try:
        found = {name: Heuristic(**entry) for name, entry in json.loads(Path(path).read_text(encoding="utf-8")).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no thresholds of this version of utaca; fit the baselines again") from error
    if unknown := sorted({heuristic.signal for heuristic in found.values()} - set(SIGNALS)):
        raise UserError(f"{path} names the unknown signal {unknown[0]}; fit the baselines again")
    return found
