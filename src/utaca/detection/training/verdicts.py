"""Decide on every token of a set of trajectories whether to distrust it, by a detector or by a threshold on logits.

A token is distrusted if its score is above the threshold of a decision rule: 0 for the paper's rule, else chosen on
validation data.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from utaca.detection.detector import Detector, concentration, distrust
from utaca.detection.training.data import Sequences
from utaca.detection.training.metrics import youden
from utaca.records import SCHEMAS


class Verdicts(NamedTuple):
    """Decisions on the ``n`` tokens of trajectories, in the order of the flat tensors of :class:`Sequences`."""

    uncertain: np.ndarray  # [n] bool, the decision
    score: np.ndarray  # [n] float32, grows with distrust
    probabilities: np.ndarray | None  # [n, 3] float32 hallucinated, correct, unknown


@torch.no_grad()
def token_logits(detector: Detector, sequences: Sequences, chain: int = 1) -> Tensor:
    """Class logits [n, C] of all tokens, in the order of the flat tensors of :class:`Sequences`, on the CPU.

    Every ``chain`` sequences are read as one (:meth:`Sequences.split`, :meth:`Sequences.padded`).
    """
    # The extra last row takes the logits of padding.
    logits = torch.empty(sequences.n_tokens + 1, detector.settings.classes)
    for indices in sequences.split(chain=chain):
        # A few at a time: padded embeddings are large.
        for position in sequences.padded(indices, chain).split(32):
            logits[position] = detector(sequences.signals[position], sequences.embedding[position]).cpu()
    return logits[:-1]


def verdicts(detector: Detector, sequences: Sequences) -> dict[str, Verdicts]:
    """Decide on all tokens under several rules; returns the verdicts by the rule's name.

    The rules are that of the detector's settings, whose name is "" here; "youden", unless the settings have it, with
    the log odds of failure (:func:`utaca.detection.detector.distrust`) as score; and, for an evidential detector,
    "mass", with the lack of evidence (:func:`vacuity`) as score. The detector has a threshold for each.
    """
    logits = token_logits(detector, sequences)
    decision = detector.settings.decision
    p = detector.probabilities(logits)
    scores = {rule: distrust(p, rule) for rule in dict.fromkeys((decision, "youden"))}
    if detector.settings.kind == "evidential":
        scores["mass"] = vacuity(logits)
    result = {}
    for rule, score in scores.items():
        uncertain = (score > detector.thresholds[rule]).numpy()
        probabilities = None if rule == "mass" else p.numpy()
        name = "" if rule == decision else rule
        result[name] = Verdicts(uncertain, score.numpy(), probabilities)
    return result


def vacuity(logits: Tensor) -> Tensor:
    """Vacuity [...] of ``logits`` [..., C]: C / (sum of the concentrations), in (0, 1]; 1 means no evidence."""
    return logits.shape[-1] / concentration(logits).sum(-1)


def detections(verdicts: Verdicts, sequences: Sequences, name: str, seed: int) -> pa.Table:
    """Convert the verdicts on ``sequences`` to a table of schema "detections", one row per token.

    The label is null if the labeller failed; the probabilities are null if the verdicts hold none. ``name`` (of a
    detector or heuristic) and ``seed`` fill the columns ``detector`` and ``seed``.
    """
    uncertain, score, p = verdicts
    n = sequences.n_tokens
    # The index of each token's sequence.
    owner = pa.array(np.repeat(np.arange(len(sequences)), sequences.length.numpy()))
    label = sequences.labels
    if p is None:
        probabilities = [pa.nulls(n, pa.float32())] * 3
    else:
        probabilities = [pa.array(np.ascontiguousarray(column)) for column in p.T]
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
        *probabilities,
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS["detections"])


# Training-free baselines: one threshold on a statistic of a token's largest logits, or of its probability

WINDOW = 8
"""Tokens, the judged one and those before it in its answer, whose lowest and mean probability are baselines; as many as
Lookback Lens takes at a time."""


def entropy(sequences: Sequences) -> np.ndarray:
    """Entropy [n] in nats of the distribution that each token was taken from; all but its ten best tokens count as one.

    Trajectories keep only the ten largest logits, so this is at most the entropy over the whole vocabulary.
    """
    top10 = sequences.top10.astype(np.float64)
    # Trajectories are decoded greedily: the token is the first of the ten, and its log-probability is known.
    log_p = top10 - top10[:, :1] + sequences.logprob[:, None]
    p = np.exp(log_p)
    rest = np.clip(1 - p.sum(axis=1), 0.0, 1.0)
    log_rest = np.log(np.where(rest > 0, rest, 1.0))
    return -(p * log_p).sum(axis=1) - rest * log_rest


def recent_logprobs(sequences: Sequences) -> np.ndarray:
    """Log-probabilities [n, WINDOW] of each token and those before it in its answer; NaN before the answer's first."""
    n = sequences.n_tokens
    length = sequences.length.numpy()
    first = np.repeat(np.cumsum(length) - length, length)  # [n], the first token of each token's answer
    row = np.arange(n)[:, None] - np.arange(WINDOW)
    return np.where(row >= first[:, None], sequences.logprob[np.maximum(row, 0)], np.nan)


STATISTICS: dict[str, Callable[[Sequences], np.ndarray]] = {
    "top10_std": lambda sequences: sequences.top10.astype(np.float64).std(axis=1),
    "logit_margin": lambda sequences: (sequences.top10[:, 0] - sequences.top10[:, 1]).astype(np.float64),
    "entropy": lambda sequences: -entropy(sequences),
    "probability": lambda sequences: sequences.logprob.astype(np.float64),
    "lowest_probability": lambda sequences: np.nanmin(recent_logprobs(sequences), axis=1),
    "mean_probability": lambda sequences: np.nanmean(recent_logprobs(sequences), axis=1),
}
"""Statistics [n] of tokens that are low where a token is uncertain.

The first two are the paper's: the population standard deviation of the ten largest logits; the first minus the second.
The others are the negated :func:`entropy`, the token's log-probability, and the lowest and the mean log-probability
(that of the geometric mean) of the last :data:`WINDOW` tokens of its answer.
"""


def heuristics(validation: Sequences, sequences: Sequences) -> dict[str, Verdicts]:
    """Decide on all tokens of ``sequences`` by each of :data:`STATISTICS`: uncertain if the statistic is low.

    Thresholds have the best balanced accuracy on ``validation``; scores are the negated statistics. Raises
    :class:`UserError` if the validation split has no uncertain or no correct tokens, or if a statistic is constant.
    """
    decided = {}
    for name, statistic in STATISTICS.items():
        score = -statistic(sequences)
        threshold = youden(-statistic(validation), validation.labels)
        decided[name] = Verdicts(score > threshold, score.astype(np.float32), None)
    return decided
