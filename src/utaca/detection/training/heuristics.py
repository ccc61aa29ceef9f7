"""Training-free baselines: one threshold on the spread or the margin of a token's largest logits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from utaca.detection.training.data import Sequences
from utaca.detection.training.metrics import detection_metrics
from utaca.detection.training.thresholds import youden
from utaca.detection.training.verdicts import Verdicts
from utaca.errors import UserError
from utaca.records import atomic_path

STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "top10_std": lambda top10: top10.astype(np.float64).std(axis=1),
    "logit_margin": lambda top10: (top10[:, 0] - top10[:, 1]).astype(np.float64),
}
"""Statistics [n] of the ten largest logits [n, 10]: their population standard deviation; the first minus the second."""


@dataclass(frozen=True)
class Heuristic:
    """Distrust a token where its statistic lies strictly below the threshold, both in logits."""

    statistic: str
    threshold: float
    validation: dict[str, Any]  # detection_metrics on the tokens that the threshold was chosen on

    def verdicts(self, sequences: Sequences) -> Verdicts:
        """Decisions on every token; the score is the negated statistic."""
        value = STATISTICS[self.statistic](sequences.top10)
        return Verdicts(value < self.threshold, (-value).astype(np.float32), None)


def fit_heuristics(validation: Sequences) -> dict[str, Heuristic]:
    """A heuristic for each statistic, by its name, with a threshold chosen on ``validation``.

    Raises :class:`UserError` where that has no uncertain or no correct tokens, or a statistic is constant.
    """
    label, heuristics = validation.labels, {}
    for name, statistic in STATISTICS.items():
        value = statistic(validation.top10)
        threshold = -youden(-value, label)
        metrics = detection_metrics(value < threshold, label, -value)
        heuristics[name] = Heuristic(name, threshold, metrics)
    return heuristics


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
    if unknown := sorted({heuristic.statistic for heuristic in found.values()} - set(STATISTICS)):
        raise UserError(f"{path} names the unknown statistic {unknown[0]}; fit the baselines again")
    return found
