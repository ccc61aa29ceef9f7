"""The uncertainty detector: signals and embedding of each token in, probabilities of its label out.

Architecture of the paper's appendix "Architecture of Uncertainty Detector", decision of its section 3.1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from utaca.detection.layers import LSTM, Linear, Noise
from utaca.detection.training.data import Batch, Sequences, Verdicts
from utaca.errors import UserError
from utaca.records import atomic_path
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.settings import schema
from utaca.settings.checks import build, check_detector


class State(NamedTuple):
    """What the LSTM remembers of the tokens so far."""

    hidden: torch.Tensor  # [B, width]
    cell: torch.Tensor  # [B, width]


class ResidualBlock(nn.Module):
    """h + Dropout(W2 Dropout(GELU(W1 h)))."""

    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        self.wide, self.back = Linear(width, expansion * width), Linear(expansion * width, width)

    def forward(self, hidden: torch.Tensor, noise: Noise | None, rate: float) -> torch.Tensor:
        inner = _drop(functional.gelu(self.wide(hidden)), noise, rate)
        return hidden + _drop(self.back(inner), noise, rate)


class Detector(nn.Module):
    """Encoders of the embedding and of each signal, an LSTM over the answer's tokens, and a residual head.

    Classes are (hallucinated, correct, unknown), or (uncertain, correct) where ``settings.classes`` is 2.
    ``input_width`` is D, the width of the reader's embedding. ``facts`` tells of the training; ``thresholds`` are those
    of the decision rules, by rule, on their scores. Raises :class:`UserError` for settings without any input.

    Weights may be those of several seeds side by side (:func:`side_by_side`); tensors then have a first dimension S.
    """

    def __init__(self, settings: schema.Detector, input_width: int) -> None:
        super().__init__()
        check_detector(settings, "the detector")
        self.settings, self.input_width = settings, input_width
        self.facts: dict[str, Any] = {}
        self.thresholds = {"argmax": 0.0}
        width = settings.width
        if settings.embedding:
            self.embedding_encoder = Linear(input_width, width)
        self.signal_encoders = nn.ModuleDict(
            {
                name: nn.ModuleList([Linear(1, settings.signal_width), Linear(settings.signal_width, width)])
                for name in settings.signals
            }
        )
        if settings.lstm:
            self.lstm = LSTM(width)
        self.blocks = nn.ModuleList(ResidualBlock(width, settings.expansion) for _ in range(settings.blocks))
        self.head = Linear(width, settings.classes)

    def forward(self, batch: Batch, noise: Noise | None = None) -> torch.Tensor:
        """Class logits [M, C] of a batch of whole sequences. Dropout takes place where ``noise`` is given."""
        state = self.initial_state(batch.sizes[0])
        return self._run(batch.signals, batch.embedding, batch.sizes, state, noise)[0]

    @property
    def dropped_width(self) -> int:
        """Elements of a token that dropout is drawn for."""
        s = self.settings
        embedding = s.width if s.embedding and s.embedding_dropout else 0
        return embedding + (
            (len(s.signals) * s.signal_width + s.blocks * (s.expansion + 1) * s.width) if s.dropout else 0
        )

    def initial_state(self, batch: int) -> State:
        """The state before the first token of ``batch`` answers."""
        zeros = self.head.weight.new_zeros(*self.head.weight.shape[:-2], batch, self.settings.width)
        return State(zeros, zeros)

    @torch.no_grad()
    def step(self, signals: torch.Tensor, embedding: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """One token a row: ``signals`` [B, n], ``embedding`` [B, D] -> ``p`` [B, 3] and the state after the token.

        ``state`` is left as it was, so a rejected token is undone by not taking the new one. ``p`` is
        (hallucinated, correct, unknown) whatever the number of classes. What is given is brought to the detector's
        device, where its results stay.
        """
        device = self.head.weight.device
        logits, state = self._run(signals.to(device), embedding.to(device), [len(signals)], state, None)
        return self.probabilities(logits), state

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` [..., C] as probabilities [..., 3]; of two classes, "uncertain" counts as hallucinated.

        Those of an evidential detector are the means of its Dirichlet distribution.
        """
        if self.settings.kind == "evidential":
            alpha = concentration(logits)
            p = alpha / alpha.sum(-1, keepdim=True)
        else:
            p = logits.softmax(dim=-1)
        return p if self.settings.classes == 3 else functional.pad(p, (0, 1))

    def distrust(self, p: torch.Tensor) -> torch.Tensor:
        """What is held against the threshold, of ``p`` [..., 3]: the log odds of the two failures against "correct".

        The failures count together, but each alone where the decision is the paper's (argmax): then
        max(p_hal, p_unk) > p_cor is a score above 0.
        """
        return distrust(p, self.settings.decision)

    def distrusts(self, p: torch.Tensor) -> torch.Tensor:
        """The decision for ``p`` [..., 3]; boolean [...]."""
        return self.distrust(p) > self.thresholds[self.settings.decision]

    @torch.no_grad()
    def logits(self, sequences: Sequences, chain: int = 1) -> torch.Tensor:
        """Class logits [n, C] of all tokens, in their flat order, of sequences alone or in chains."""
        weight = self.head.weight
        stack = weight.shape[:-2]
        found = weight.new_empty(*stack, sequences.n_tokens + 1, self.settings.classes)
        for batch in sequences.batches(chain=chain):
            signals, embedding = (
                x.to(weight.device).expand(*stack, *x.shape) for x in (batch.signals, batch.embedding)
            )
            found[..., batch.position, :] = self(batch._replace(signals=signals, embedding=embedding))
        return found[..., :-1, :].cpu()

    def verdicts(self, sequences: Sequences) -> dict[str, Verdicts]:
        """Decisions on whole sequences, by read-out: "" is the detector's own.

        A detector with the paper's decision is read by the threshold with the best balanced accuracy too ("youden"), an
        evidential one by its lack of evidence, K over the sum of the concentrations ("mass").
        """
        logits = self.logits(sequences)
        p = self.probabilities(logits)
        found = {"": self._verdicts(self.distrust(p), self.settings.decision, p)}
        if self.settings.decision == "argmax":
            found["youden"] = self._verdicts(distrust(p, "youden"), "youden", p)
        if self.settings.kind == "evidential":
            found["mass"] = self._verdicts(vacuity(logits), "mass", None)
        return found

    def _verdicts(self, score: torch.Tensor, rule: str, p: torch.Tensor | None) -> Verdicts:
        decided = score > self.thresholds[rule]
        return Verdicts(decided.numpy(), score.numpy(), None if p is None else p.numpy())

    def alone(self, seed: int) -> Detector:
        """The detector at place ``seed`` of several side by side."""
        found = deepcopy(self)
        for own in found.parameters():
            own.data = own.data[seed].clone()
        return found

    def save(self, path: str | Path) -> None:
        """Write weights, settings, thresholds and facts as safetensors; the same detector gives the same bytes."""
        # One metadata entry: the order of several is not fixed.
        about = {
            "settings": asdict(self.settings),
            "input_width": self.input_width,
            "thresholds": self.thresholds,
            "facts": self.facts,
        }
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        with atomic_path(path) as scratch:
            save_file(tensors, scratch, metadata={"utaca.detector": json.dumps(about, sort_keys=True)})

    def _run(
        self, signals: torch.Tensor, embedding: torch.Tensor, sizes: list[int], state: State, noise: Noise | None
    ) -> tuple[torch.Tensor, State]:
        """``signals`` [M, n], ``embedding`` [M, D] -> logits [M, C] and the state after the last step."""
        settings, dtype, parts = self.settings, self.head.weight.dtype, []
        if settings.embedding:
            embedding = embedding.to(dtype)
            length = torch.linalg.vector_norm(embedding, dim=-1, keepdim=True).clamp_min(1e-12)
            encoded = self.embedding_encoder(embedding, 1 / length)
            parts.append(_drop(functional.gelu(encoded), noise, settings.embedding_dropout))
        for place, name in enumerate(settings.signals):
            narrow, wide = self.signal_encoders[name]
            inner = functional.gelu(narrow(signals[..., place : place + 1].to(dtype)))
            parts.append(wide(_drop(inner, noise, settings.dropout)))
        hidden = sum(parts[1:], parts[0])
        if settings.lstm:
            hidden, last, cell = self.lstm(hidden, sizes, *state)
            state = State(last, cell)
        for block in self.blocks:
            hidden = block(hidden, noise, settings.dropout)
        return self.head(hidden), state


def _drop(x: torch.Tensor, noise: Noise | None, rate: float) -> torch.Tensor:
    return x if noise is None or rate == 0 else noise(x, rate)


def distrust(p: torch.Tensor, decision: str) -> torch.Tensor:
    """Log odds of failure of ``p`` [..., 3], see :meth:`Detector.distrust`."""
    hallucinated, unknown, least = p[..., HALLUCINATED], p[..., UNKNOWN], torch.finfo(p.dtype).tiny
    failed = torch.maximum(hallucinated, unknown) if decision == "argmax" else hallucinated + unknown
    return failed.clamp_min(least).log() - p[..., CORRECT].clamp_min(least).log()


def concentration(logits: torch.Tensor) -> torch.Tensor:
    """Dirichlet concentrations alpha = e + 1 of ``logits`` [..., K]; evidence e = softplus, which never goes dead as
    Sensoy et al.'s ReLU can."""
    return functional.softplus(logits) + 1


def vacuity(logits: torch.Tensor) -> torch.Tensor:
    """u = K / S in (0, 1] of ``logits`` [..., K]: how much evidence lacks for any class."""
    return logits.shape[-1] / concentration(logits).sum(-1)


def side_by_side(detectors: Sequence[Detector]) -> Detector:
    """Detectors of one shape as one with a first dimension; :meth:`Detector.alone` takes one out again."""
    found = deepcopy(detectors[0])
    for name, own in found.named_parameters():
        own.data = torch.stack([detector.get_parameter(name).data for detector in detectors])
    return found


def load(path: str | Path) -> Detector:
    """Read a detector that :meth:`Detector.save` wrote, on the CPU.

    Raises :class:`UserError` where the file is missing or is no detector of this version.
    """
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist; train the detector first")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["utaca.detector"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        detector = Detector(build(schema.Detector, about["settings"]), about["input_width"])
        detector.thresholds, detector.facts = about["thresholds"], about["facts"]
        detector.load_state_dict(tensors)
    except (UserError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a detector of this version of utaca; train it again ({error})") from error
    return detector
