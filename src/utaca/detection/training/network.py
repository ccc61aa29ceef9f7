"""The detector's network in training: detectors of several seeds side by side, with their LSTM and dropout.

Weights, inputs and outputs have a first dimension S; row s of an output is the output of network s, up to rounding.
Tokens are packed: the tokens of step 0 of all sequences, then the tokens of step 1 and so on (:class:`.data.Packed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from utaca.detection.detector import BLOCKS, EXPANSION, SIGNAL_WIDTH, WIDTH, Detector
from utaca.detection.training.data import Packed, Sequences

EMBEDDING_DROPOUT = 0.5
"""Dropout rate of the embedding's encoder."""
DROPOUT = 0.1
"""Dropout rate of signal encoders and residual blocks."""


class Network:
    """S detectors of one shape; each weight is stacked over the detectors into one tensor with a first dimension S.

    A training step of all detectors is then a few large products instead of many small ones. ``weights`` have the same
    names as in :class:`Detector` and give the same outputs; ``detectors`` stay unchanged.
    """

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.settings = detectors[0].settings
        self.detectors = detectors
        self.weights = {}
        for name, _ in detectors[0].named_parameters():
            of_detectors = [detector.get_parameter(name).detach() for detector in detectors]
            self.weights[name] = torch.stack(of_detectors).requires_grad_()

    def detector(self, place: int) -> Detector:
        """Copy the detector at ``place``, with its present weights."""
        copy = deepcopy(self.detectors[place])
        copy.load_state_dict({name: weight[place].detach() for name, weight in self.weights.items()})
        return copy

    @property
    def dropped_width(self) -> int:
        """Number of elements per token that dropout applies to, summed over all layers."""
        embedding = WIDTH if self.settings.embedding else 0
        return embedding + len(self.settings.signals) * SIGNAL_WIDTH + BLOCKS * (EXPANSION + 1) * WIDTH

    def __call__(self, batch: Packed, noise: Noise | None = None) -> Tensor:
        """Class logits [S, M, C] of S batches side by side, with dropout if ``noise`` is given."""

        def drop(x: Tensor, rate: float) -> Tensor:
            return x if noise is None else noise(x, rate)

        settings = self.settings
        parts = []
        if settings.embedding:
            # The product is divided by the embedding's length: a normalised copy of the embedding would be large.
            length = torch.linalg.vector_norm(batch.embedding, dim=-1, keepdim=True).clamp_min(1e-12)
            weight = self.weights["embedding_encoder.0.weight"]
            bias = self.weights["embedding_encoder.0.bias"]
            encoded = (batch.embedding @ weight.mT) * (1 / length) + bias[:, None]
            parts.append(drop(gelu(encoded), EMBEDDING_DROPOUT))
        for place, name in enumerate(settings.signals):
            inner = gelu(self._linear(f"signal_encoders.{name}.0", batch.signals[..., place : place + 1]))
            parts.append(self._linear(f"signal_encoders.{name}.2", drop(inner, DROPOUT)))
        hidden = sum(parts[1:], parts[0])
        if settings.lstm:
            hidden = lstm(
                hidden,
                batch.sizes,
                self.weights["lstm.weight_ih_l0"],
                self.weights["lstm.weight_hh_l0"],
                self.weights["lstm.bias_ih_l0"],
                self.weights["lstm.bias_hh_l0"],
            )
        for block in range(BLOCKS):
            inner = drop(gelu(self._linear(f"blocks.{block}.wide", hidden)), DROPOUT)
            hidden = hidden + drop(self._linear(f"blocks.{block}.back", inner), DROPOUT)
        return self._linear("head", hidden)

    @torch.no_grad()
    def logits(self, sequences: Sequences, chain: int = 1) -> Tensor:
        """Class logits [S, n, C] of all tokens in flat order; ``chain`` as in :meth:`Sequences.padded`."""
        seeds = len(self.detectors)
        all_logits = torch.empty(seeds, sequences.n_tokens + 1, self.settings.classes)
        for indices in sequences.split(chain=chain):
            batch = sequences.batch(indices, chain)
            signals = batch.signals.expand(seeds, *batch.signals.shape)
            embedding = batch.embedding.expand(seeds, *batch.embedding.shape)
            all_logits[:, batch.position] = self(batch._replace(signals=signals, embedding=embedding))
        return all_logits[:, :-1]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        """Output ``x`` W^T + b [S, M, O] of the named linear layers for ``x`` [S, M, I]."""
        return torch.baddbmm(self.weights[f"{name}.bias"][:, None], x, self.weights[f"{name}.weight"].mT)


def lstm(
    x: Tensor, sizes: Sequence[int], weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """Hidden states [S, M, W] of a standard LSTM layer over packed ``x`` [S, M, W], from a state of zeros.

    ``sizes`` are the numbers n of tokens at each step, descending: a step has a token of each of the first n sequences.
    Weights are [S, 4 W, W] and biases [S, 4 W], the gates in torch's order (input, forget, cell, output).
    """
    inputs = x @ weight_ih.mT + (bias_ih + bias_hh)[:, None]
    return _Recurrence.apply(inputs, weight_hh, list(sizes))


class _Recurrence(torch.autograd.Function):
    """Recurrent part of :func:`lstm`: contributions of the inputs to the gates [S, M, 4 W] -> hidden states [S, M, W].

    One product gives the gradient of the recurrent weights; automatic differentiation would add it up step by step.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
        hidden = cell = inputs.new_zeros(len(inputs), sizes[0], weight.shape[-1])
        recurrent = weight.mT
        steps = []
        for gates, size in zip(inputs.split(sizes, 1), sizes, strict=True):
            hidden_before = hidden[:, :size]
            cell_before = cell[:, :size]
            gates = gates + hidden_before @ recurrent
            i, f, _, o = gates.sigmoid().chunk(4, -1)
            g = gates.chunk(4, -1)[2].tanh()
            cell = f * cell_before + i * g
            cell_tanh = cell.tanh()
            hidden = o * cell_tanh
            steps.append((hidden, hidden_before, cell_before, cell_tanh, i, f, g, o))
        states, *rest = (torch.cat(column, 1) for column in zip(*steps, strict=True))
        ctx.sizes = sizes
        ctx.save_for_backward(weight, *rest)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, hidden_before, cell_before, cell_tanh, i, f, g, o = ctx.saved_tensors
        by_gates = grad.new_empty(*grad.shape[:-1], 4, grad.shape[-1])
        # Derivatives of the cell by the inputs of i, f and g; of the hidden state by the input of o, and by the cell.
        cell_by_gates = torch.stack((g * i * (1 - i), cell_before * f * (1 - f), i * (1 - g * g)), -2)
        hidden_by_gate = cell_tanh * o * (1 - o)
        hidden_by_cell = o * (1 - cell_tanh * cell_tanh)
        # Gradients of a step's hidden state and cell from the step after it, in the sequences that go on.
        end = grad.shape[1]
        to_hidden = None
        to_cell = None
        for size in reversed(ctx.sizes):
            step = (slice(None), slice(end - size, end))
            hidden = grad[step]
            end = end - size
            if to_hidden is not None:
                hidden = hidden.clone()
                hidden[:, : to_hidden.shape[1]] += to_hidden
            cell = hidden * hidden_by_cell[step]
            if to_cell is not None:
                cell[:, : to_cell.shape[1]] += to_cell
            gates = by_gates[step]
            gates[..., :3, :] = cell[..., None, :] * cell_by_gates[step]
            gates[..., 3, :] = hidden * hidden_by_gate[step]
            to_hidden = gates.flatten(-2) @ weight
            to_cell = cell * f[step]
        by_gates = by_gates.flatten(-2)
        return by_gates, by_gates.mT @ hidden_before, None


_LEAST = -(2**15)
"""The least of the 16-bit integers that :class:`Noise` draws."""


class Noise:
    """Dropout in one training pass of S networks.

    Each network has a generator, which draws only for ``valid`` tokens [S, M] (not padding), so that a network drops
    the same elements whatever other networks are trained with it. ``width`` is the number of elements per token, over
    all layers with dropout; each call uses the next columns of the drawn numbers.
    """

    def __init__(self, generators: Sequence[torch.Generator], valid: Tensor, width: int) -> None:
        # Sixteen random bits per element, so that a draw of 64 bits serves four elements.
        self._drawn = torch.full((*valid.shape, width), _LEAST, dtype=torch.int16)
        for bits, rows, generator in zip(self._drawn, valid, generators, strict=True):
            count = int(rows.sum()) * width
            drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
            bits[rows] = drawn.view(torch.int16)[:count].view(-1, width)
        self._used = 0

    def __call__(self, x: Tensor, rate: float) -> Tensor:
        """Drop elements of ``x`` [S, M, W] at ``rate`` and scale the kept elements by 1 / (1 - ``rate``)."""
        columns = slice(self._used, self._used + x.shape[-1])
        self._used = columns.stop
        keep = (self._drawn[..., columns] >= _LEAST + round(rate * 2**16)).to(x.dtype)
        return x * keep.mul_(1 / (1 - rate))
