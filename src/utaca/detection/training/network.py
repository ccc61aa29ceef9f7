"""The network that is trained: the detectors of several seeds side by side, with dropout."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn.functional import gelu

from utaca.detection.detector import BLOCKS, EXPANSION, SIGNAL_WIDTH, WIDTH, Detector
from utaca.detection.training.data import Batch, Sequences
from utaca.detection.training.layers import Noise, linear, lstm

EMBEDDING_DROPOUT, DROPOUT = 0.5, 0.1
"""Dropout of the embedding's encoder, and of signal encoders and residual blocks."""


class Network:
    """S detectors of one shape, each weight stacked over them into one tensor with a first dimension S.

    A training step of all of them is then a few large products in the place of many small ones. ``weights`` have the
    names that they have in :class:`Detector`, and the same outputs are computed from them; ``detectors`` stay as they
    are.
    """

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.settings, self._detectors = detectors[0].settings, detectors
        self.weights = {
            name: torch.stack([detector.get_parameter(name).detach() for detector in detectors]).requires_grad_()
            for name, _ in detectors[0].named_parameters()
        }

    def detector(self, place: int) -> Detector:
        """The detector at ``place`` with its present weights, as a copy."""
        copy = deepcopy(self._detectors[place])
        copy.load_state_dict({name: weight[place].detach() for name, weight in self.weights.items()})
        return copy

    @property
    def dropped_width(self) -> int:
        """Elements of a token that dropout is drawn for, in all layers together."""
        embedding = WIDTH if self.settings.embedding else 0
        return embedding + len(self.settings.signals) * SIGNAL_WIDTH + BLOCKS * (EXPANSION + 1) * WIDTH

    def __call__(self, batch: Batch, noise: Noise | None = None) -> Tensor:
        """Class logits [S, M, C] of S batches side by side, with dropout if there is ``noise``."""

        def drop(x: Tensor, rate: float) -> Tensor:
            return x if noise is None else noise(x, rate)

        settings, parts = self.settings, []
        if settings.embedding:
            # To normalise the embedding, its product is divided by its length: a normalised copy would be large.
            length = torch.linalg.vector_norm(batch.embedding, dim=-1, keepdim=True).clamp_min(1e-12)
            weight, bias = (self.weights[f"embedding_encoder.0.{kind}"] for kind in ("weight", "bias"))
            encoded = (batch.embedding @ weight.mT) * (1 / length) + bias[:, None]
            parts.append(drop(gelu(encoded), EMBEDDING_DROPOUT))
        for place, name in enumerate(settings.signals):
            inner = gelu(self._linear(f"signal_encoders.{name}.0", batch.signals[..., place : place + 1]))
            parts.append(self._linear(f"signal_encoders.{name}.2", drop(inner, DROPOUT)))
        hidden = sum(parts[1:], parts[0])
        if settings.lstm:
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            hidden = lstm(hidden, batch.sizes, *(self.weights[f"lstm.{name}_l0"] for name in names))
        for block in range(BLOCKS):
            inner = drop(gelu(self._linear(f"blocks.{block}.wide", hidden)), DROPOUT)
            hidden = hidden + drop(self._linear(f"blocks.{block}.back", inner), DROPOUT)
        return self._linear("head", hidden)

    @torch.no_grad()
    def logits(self, sequences: Sequences, chain: int = 1) -> Tensor:
        """Class logits [S, n, C] of all tokens, in the order of the flat tensors; see :meth:`Sequences.batches`."""
        seeds = len(self._detectors)
        all_logits = torch.empty(seeds, sequences.n_tokens + 1, self.settings.classes)
        for batch in sequences.batches(chain=chain):
            signals, embedding = (x.expand(seeds, *x.shape) for x in (batch.signals, batch.embedding))
            all_logits[:, batch.position] = self(batch._replace(signals=signals, embedding=embedding))
        return all_logits[:, :-1]

    def probabilities(self, logits: Tensor) -> Tensor:
        """As :meth:`Detector.probabilities`."""
        return self._detectors[0].probabilities(logits)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])
