"""What a trained detector says of every token of some sequences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from utaca.detection.detector import Detector, concentration, distrust
from utaca.detection.training.data import Sequences
from utaca.records import SCHEMAS


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
    found = torch.empty(sequences.n_tokens + 1, detector.settings.classes)
    for indices in sequences.split(chain=chain):
        # A few at a time: padded embeddings are large.
        for position in sequences.padded(indices, chain).split(32):
            found[position] = detector(sequences.signals[position], sequences.embedding[position]).cpu()
    return found[:-1]


def verdicts(detector: Detector, sequences: Sequences) -> dict[str, Verdicts]:
    """Decisions on all tokens under several rules, by name: "" is the detector's own rule.

    Where that is the paper's, "youden" is the same score with the threshold of the best balanced accuracy; for an
    evidential detector, "mass" is such a threshold on its lack of evidence, :func:`vacuity`.
    """
    found = token_logits(detector, sequences)
    p, rules = detector.probabilities(found), {"": detector.settings.decision}
    if detector.settings.decision == "argmax":
        rules["youden"] = "youden"
    said = {name: _decided(detector, distrust(p, rule), rule, p) for name, rule in rules.items()}
    if detector.settings.kind == "evidential":
        said["mass"] = _decided(detector, vacuity(found), "mass", None)
    return said


def _decided(detector: Detector, score: Tensor, rule: str, p: Tensor | None) -> Verdicts:
    uncertain = score > detector.thresholds[rule]
    return Verdicts(uncertain.numpy(), score.numpy(), None if p is None else p.numpy())


def vacuity(logits: Tensor) -> Tensor:
    """u = C / (sum of the concentrations), in (0, 1], of ``logits`` [..., C]: 1 where there is no evidence at all."""
    return logits.shape[-1] / concentration(logits).sum(-1)


def detections(verdicts: Verdicts, sequences: Sequences, name: str, seed: int) -> pa.Table:
    """The verdicts of a detector or heuristic as a table of schema "detections", one row a token of ``sequences``.

    The label is null where the labeller failed, the probabilities where there are none. ``name`` and ``seed`` fill the
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
        pa.array(sequences.needed == 1, mask=sequences.needed < 0),
        pa.array(uncertain),
        pa.array(score),
        *((pa.array(np.ascontiguousarray(column)) for column in p.T) if p is not None else [nothing] * 3),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS["detections"])
