"""Uncertainty detector: computes the probabilities of each token's label from the token's signals and embedding.

The architecture follows the paper's appendix "Architecture of Uncertainty Detector", the decision its section 3.1. A
detector of kind "linear" is a baseline instead, a linear probe.
Decoding runs the network of this module; dropout and training are in :mod:`utaca.detection.training`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from utaca.detection.about import KEY, UNREADABLE, about, built, check_alike, no_detector
from utaca.errors import UserError
from utaca.records import Origin, atomic_path
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.settings import schema
from utaca.settings.checks import build, check_detector

if TYPE_CHECKING:
    from utaca.readers.load import Reader

WIDTH = 64
"""Width of the hidden vector, d_model (this number and the next ones: paper, table of hyperparameters)."""
SIGNAL_WIDTH = 32
"""Width of a signal's encoder."""
BLOCKS = 3
"""Number of residual blocks of the head."""
EXPANSION = 2
"""Ratio of a residual block's inner to outer width."""


class DetectorState(NamedTuple):
    """State of the LSTM after the tokens so far of ``B`` answers."""

    hidden: Tensor  # [B, WIDTH]
    cell: Tensor  # [B, WIDTH]


class ResidualBlock(nn.Module):
    """Residual block: h + W2 GELU(W1 h + b1) + b2."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, EXPANSION * WIDTH)
        self.back = nn.Linear(EXPANSION * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.back(functional.gelu(self.wide(hidden)))


class Detector(nn.Module):
    """Encoders of the embedding and of each signal, an LSTM over the sums of their outputs, and a residual head.

    With ``settings.kind`` "linear" it has only the head's last layer, on the embedding itself: logistic regression.
    Classes are (hallucinated, correct, unknown), or (uncertain, correct) if ``settings.classes`` is 2.
    ``input_width`` is D, the width of the reader's embedding. ``reader`` is the reader whose tokens the detector was
    trained on, the only reader that :meth:`check` accepts; None for a detector built by hand. ``thresholds`` has a
    threshold for each decision rule; ``facts`` describe the training. Raises :class:`UserError` if the settings
    contradict each other.
    """

    def __init__(self, settings: schema.DetectorSettings, input_width: int, reader: Origin | None = None) -> None:
        super().__init__()
        check_detector(settings, "the detector")
        self.settings = settings
        self.input_width = input_width
        self.reader = reader
        self.thresholds = {"argmax": 0.0}
        self.facts: dict[str, Any] = {}
        is_linear = settings.kind == "linear"
        width = input_width if is_linear else WIDTH
        inner = SIGNAL_WIDTH
        if settings.embedding and not is_linear:
            self.embedding_encoder = nn.Sequential(nn.Linear(input_width, width), nn.GELU())
        self.signal_encoders = nn.ModuleDict()
        for name in settings.signals:
            self.signal_encoders[name] = nn.Sequential(nn.Linear(1, inner), nn.GELU(), nn.Linear(inner, width))
        if settings.lstm:
            self.lstm = nn.LSTM(width, width, batch_first=True)
        self.blocks = nn.Sequential(*(ResidualBlock() for _ in range(0 if is_linear else BLOCKS)))
        self.head = nn.Linear(width, settings.classes)

    def check(self, reader: Reader) -> None:
        """Raise :class:`UserError` if this detector cannot judge the tokens of ``reader``.

        It cannot if it was trained for another reader, or if the embeddings that it reads have another width or site.
        """
        embedding = self.settings.embedding
        site = self.settings.site
        # A reader holds no embeddings before its first pass.
        sites = list(reader.embeddings()) or list(schema.SITES)
        if embedding and reader.width != self.input_width:
            why = f"its embeddings are {reader.width} wide, not {self.input_width}"
        elif embedding and site not in sites:
            why = f"it has no embedding at site {site}, but at {', '.join(sites)}"
        elif self.reader is not None and self.reader.identity != reader.identity:
            why = "it has other weights"
        else:
            return
        other = Origin(reader.settings.name, reader.identity)
        trained_for = self.reader or "unknown"
        raise UserError(
            f"this detector was trained for reader {trained_for} and cannot judge reader {other}: {why}; train a "
            f"detector on trajectories of {other.name}"
        )

    def check_taken(self, settings: schema.DetectorSettings, reader: Origin, path: str | Path) -> None:
        """Raise :class:`UserError` if a run cannot take this detector, which was trained elsewhere, from ``path``.

        It must have the ``settings`` of the run's config. If it reads embeddings, it must have been trained for the
        run's ``reader``; a detector that reads only signals may judge recorded tokens of any reader, and keeps the
        thresholds of the reader that it was trained for.
        """
        check_alike(path, self.settings, settings)
        if self.settings.embedding and self.reader != reader:
            raise UserError(
                f"{path} needs the embeddings of reader {self.reader or 'unknown'}, which reader {reader} does not "
                "have; use a detector without embeddings (embedding: false)"
            )

    def encode(self, signals: Tensor, embedding: Tensor) -> Tensor:
        """Encode the ``embedding`` [..., D] and each of the ``signals`` [..., n], and return the sum z [..., WIDTH].

        Both are converted to the detector's device and precision; embeddings are normalised to length 1. A linear
        detector has the embedding itself as z [..., D], normalised to :func:`linear_length`.
        """
        if self.settings.kind == "linear":
            direction = functional.normalize(embedding.to(self.head.weight), dim=-1)
            return linear_length(self.input_width) * direction
        signals = signals.to(self.head.weight)
        parts = []
        if self.settings.embedding:
            direction = functional.normalize(embedding.to(self.head.weight), dim=-1)
            parts.append(self.embedding_encoder(direction))
        for place, encoder in enumerate(self.signal_encoders.values()):
            parts.append(encoder(signals[..., place : place + 1]))
        return sum(parts[1:], parts[0])

    def forward(self, signals: Tensor, embedding: Tensor) -> Tensor:
        """Class logits [B, T, C] of whole answers: ``signals`` [B, T, n], ``embedding`` [B, T, D].

        Shorter answers are padded at their end with arbitrary values; the logits of padding are meaningless.
        """
        hidden = self.encode(signals, embedding)
        if self.settings.lstm:
            hidden, _ = self.lstm(hidden)
        return self.head(self.blocks(hidden))

    def initial_state(self, batch: int) -> DetectorState:
        """State before the first token of ``batch`` answers."""
        zeros = self.head.weight.new_zeros(batch, WIDTH)
        return DetectorState(zeros, zeros)

    @torch.no_grad()
    def step(self, signals: Tensor, embedding: Tensor, state: DetectorState) -> tuple[Tensor, DetectorState]:
        """Judge the next token of B answers: ``signals`` [B, n], ``embedding`` [B, D] -> ``p`` [B, 3], state after it.

        ``state`` is not modified: to undo a rejected token, a caller reuses the state before that token. ``p`` is
        (hallucinated, correct, unknown) for any number of classes. Results stay on the detector's device.
        """
        hidden = self.encode(signals, embedding)
        if self.settings.lstm:
            # To call the LSTM module takes a quarter longer for one token.
            state = DetectorState(*torch.lstm_cell(hidden, state, *self.lstm.all_weights[0]))
            hidden = state.hidden
        return self.probabilities(self.head(self.blocks(hidden))), state

    def probabilities(self, logits: Tensor) -> Tensor:
        """Convert ``logits`` [..., C] to probabilities [..., 3]; of two classes, "uncertain" counts as hallucinated.

        The probability of unknown is then 0. The probabilities of an evidential detector are the means of its Dirichlet
        distribution.
        """
        if self.settings.kind == "evidential":
            alpha = concentration(logits)
            p = alpha / alpha.sum(-1, keepdim=True)
        else:
            p = logits.softmax(dim=-1)
        return p if self.settings.classes == 3 else functional.pad(p, (0, 1))

    def distrusts(self, p: Tensor) -> Tensor:
        """Whether each token with probabilities ``p`` [..., 3] is distrusted: boolean [...], on the device of ``p``."""
        return distrust(p, self.settings.decision) > self.thresholds[self.settings.decision]

    def save(self, path: str | Path) -> None:
        """Write the detector to a safetensors file: weights, settings, reader, thresholds and facts.

        Equal detectors give equal bytes.
        """
        # One metadata entry, because safetensors does not fix the order of several entries.
        stored = {
            "settings": asdict(self.settings),
            "input_width": self.input_width,
            "reader": asdict(self.reader) if self.reader else None,
            "thresholds": self.thresholds,
            "facts": self.facts,
        }
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        with atomic_path(path) as scratch:
            save_file(tensors, scratch, metadata={KEY: json.dumps(stored, sort_keys=True)})


def distrust(p: Tensor, decision: str) -> Tensor:
    """Log odds [...] of failure against "correct" under ``p`` [..., 3]: the score that a decision thresholds.

    Under the paper's decision (argmax), failure is the likelier of hallucinated and unknown, so that a score above 0
    means max(p_hal, p_unk) > p_cor. Under other decisions, the probability of failure is p_hal + p_unk.
    """
    hallucinated = p[..., HALLUCINATED]
    unknown = p[..., UNKNOWN]
    least = torch.finfo(p.dtype).tiny
    failed = torch.maximum(hallucinated, unknown) if decision == "argmax" else hallucinated + unknown
    return failed.clamp_min(least).log() - p[..., CORRECT].clamp_min(least).log()


def linear_length(width: int) -> float:
    """The length of the embeddings [width] that a linear detector sees, whose elements are then about 1.

    So its weights are learned equally fast for all widths.
    """
    return width**0.5


def concentration(logits: Tensor) -> Tensor:
    """Dirichlet concentrations alpha = e + 1 of ``logits`` [..., C], with evidence e = softplus(logit).

    Sensoy et al. (2018) use e = ReLU(logit), whose gradient is zero for every negative logit.
    """
    return functional.softplus(logits) + 1


def load(path: str | Path) -> Detector:
    """Read a detector that :meth:`Detector.save` wrote, on the CPU.

    Raises :class:`UserError` if the file is missing or is not a detector of this version.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a detector is loaded from a file, not from {path!r}; give its path")
    if os.path.isdir(path):
        raise UserError(f"{path} is a folder; name the detector in it, such as seed0/model.safetensors")
    if not os.path.isfile(path):
        raise UserError(
            f"{path} does not exist; correct the path, or train the detector first (snakemake --cores all detectors)"
        )
    try:
        stored = about(path)
        tensors = load_file(path)
        reader = Origin(**stored["reader"]) if stored["reader"] else None
        detector = Detector(built(stored), stored["input_width"], reader)
        detector.thresholds = stored["thresholds"]
        detector.facts = stored["facts"]
        # A file without the threshold of its rule, or with one that is not a number, is refused too.
        float(detector.thresholds[detector.settings.decision])
        detector.load_state_dict(tensors)
    except (UserError, RuntimeError, *UNREADABLE) as error:
        raise no_detector(path, error) from error
    return detector


def load_for(reader: Origin, path: str | Path, taken: Mapping[str, Any] | None) -> Detector:
    """Read a detector that will judge the tokens of ``reader``.

    ``taken``: the config's settings of a detector that another run trained. The file is checked against them and
    against the reader (:meth:`Detector.check_taken`). None for a detector that this run trained, which is not checked.
    Raises :class:`UserError` as :func:`load` and :meth:`Detector.check_taken` do.
    """
    detector = load(path)
    if taken is not None:
        detector.check_taken(build(schema.DetectorSettings, taken), reader, path)
    return detector
