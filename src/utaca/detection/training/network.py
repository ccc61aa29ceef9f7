"""The detector's network in training: the detectors of several seeds are computed side by side, with dropout.

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
        """A copy of the detector at ``place`` with the weights that the network has now."""
        copy = deepcopy(self.detectors[place])
        copy.load_state_dict({name: weight[place].detach() for name, weight in self.weights.items()})
        return copy

    @property
    def dropped_width(self) -> int:
        """Number of elements per token that dropout applies to, summed over all layers: the ``width`` of a Noise."""
        # Each residual block drops elements of its hidden layer and of its output.
        embedding = WIDTH if self.settings.embedding else 0
        return embedding + len(self.settings.signals) * SIGNAL_WIDTH + BLOCKS * (EXPANSION + 1) * WIDTH

    def __call__(self, batch: Packed, noise: Noise | None = None) -> Tensor:
        """Class logits [S, M, C] of S batches side by side, with dropout if ``noise`` is given."""

        def drop(x: Tensor, rate: float) -> Tensor:
            return x if noise is None else noise(x, rate)

        settings = self.settings
        # The layers are those of Detector, in the same order.
        encoded = []
        if settings.embedding:
            # The product is divided by the embedding's length: a normalised copy of the embedding would be large.
            length = torch.linalg.vector_norm(batch.embedding, dim=-1, keepdim=True).clamp_min(1e-12)
            weight = self.weights["embedding_encoder.0.weight"]
            bias = self.weights["embedding_encoder.0.bias"]
            of_direction = (batch.embedding @ weight.mT) * (1 / length) + bias[:, None]
            encoded.append(drop(gelu(of_direction), EMBEDDING_DROPOUT))
        for place, name in enumerate(settings.signals):
            inner = gelu(self._linear(f"signal_encoders.{name}.0", batch.signals[..., place : place + 1]))
            encoded.append(self._linear(f"signal_encoders.{name}.2", drop(inner, DROPOUT)))
        hidden = sum(encoded[1:], encoded[0])
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
        """Class logits [S, n, C] of all tokens, in the order of the flat tensors of :class:`Sequences`.

        ``chain`` as in :meth:`Sequences.padded`.
        """
        n_networks = len(self.detectors)
        # The extra last row takes the logits of padding.
        all_logits = torch.empty(n_networks, sequences.n_tokens + 1, self.settings.classes)
        for indices in sequences.split(chain=chain):
            batch = sequences.batch(indices, chain)
            # All networks read the same batch.
            signals = batch.signals.expand(n_networks, *batch.signals.shape)
            embedding = batch.embedding.expand(n_networks, *batch.embedding.shape)
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
    """The recurrent part of :func:`lstm`, with a gradient of its own.

    One product gives the gradient of the recurrent weights; automatic differentiation would add it up step by step. The
    gates are named as usual: i(nput), f(orget), g (cell), o(utput).
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
        """Hidden states [S, M, W]. ``inputs`` [S, M, 4 W] is the gates' input part, computed before for all steps.

        ``weight`` [S, 4 W, W] are the recurrent weights, which multiply the hidden state before a step; ``sizes`` as in
        :func:`lstm`.
        """
        hidden = cell = inputs.new_zeros(len(inputs), sizes[0], weight.shape[-1])
        recurrent = weight.mT
        steps = []
        for gates, size in zip(inputs.split(sizes, 1), sizes, strict=True):
            # Sequences are sorted by length, the longest first, so the first ``size`` are still running.
            hidden_before = hidden[:, :size]
            cell_before = cell[:, :size]
            gates = gates + hidden_before @ recurrent
            i, f, _, o = gates.sigmoid().chunk(4, -1)  # g has tanh instead
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
        """Gradients of ``inputs`` and ``weight`` from the gradient [S, M, W] of the hidden states.

        Backpropagation through time, the last step first. A local name of the form ``a_by_b`` is the derivative of a
        with respect to b.
        """
        weight, hidden_before, cell_before, cell_tanh, i, f, g, o = ctx.saved_tensors
        loss_by_gates = grad.new_empty(*grad.shape[:-1], 4, grad.shape[-1])
        # The cell depends on the inputs of i, f and g, the hidden state on the input of o and on the cell.
        cell_by_gates = torch.stack((g * i * (1 - i), cell_before * f * (1 - f), i * (1 - g * g)), -2)
        hidden_by_gate = cell_tanh * o * (1 - o)
        hidden_by_cell = o * (1 - cell_tanh * cell_tanh)
        # What the step after contributes to the gradients of a step's hidden state and cell, for the sequences that go
        # on; None for the last step.
        from_hidden_after = None
        from_cell_after = None
        end = grad.shape[1]
        for size in reversed(ctx.sizes):
            step = (slice(None), slice(end - size, end))  # the step's packed tokens
            end = end - size
            loss_by_hidden = grad[step]
            if from_hidden_after is not None:
                loss_by_hidden = loss_by_hidden.clone()
                loss_by_hidden[:, : from_hidden_after.shape[1]] += from_hidden_after
            loss_by_cell = loss_by_hidden * hidden_by_cell[step]
            if from_cell_after is not None:
                loss_by_cell[:, : from_cell_after.shape[1]] += from_cell_after
            of_step = loss_by_gates[step]
            of_step[..., :3, :] = loss_by_cell[..., None, :] * cell_by_gates[step]
            of_step[..., 3, :] = loss_by_hidden * hidden_by_gate[step]
            from_hidden_after = of_step.flatten(-2) @ weight
            from_cell_after = loss_by_cell * f[step]
        loss_by_gates = loss_by_gates.flatten(-2)
        return loss_by_gates, loss_by_gates.mT @ hidden_before, None


_LEAST = -(2**15)
"""The least of the 16-bit integers that :class:`Noise` draws."""


class Noise:
    """Dropout in one training pass of S networks.

    Each network has a generator, which draws only for ``valid`` tokens [S, M] (not padding), so that a network drops
    the same elements whatever other networks are trained with it. ``width`` is the number of elements per token, over
    all layers with dropout; each call uses the next columns of the drawn numbers.
    """

    def __init__(self, generators: Sequence[torch.Generator], valid: Tensor, width: int) -> None:
        # Sixteen random bits per element, [S, M, width], so that a draw of 64 bits serves four elements. Padding keeps
        # the least number, which is dropped at every rate.
        self._drawn = torch.full((*valid.shape, width), _LEAST, dtype=torch.int16)
        for of_network, is_valid, generator in zip(self._drawn, valid, generators, strict=True):
            n_elements = int(is_valid.sum()) * width
            n_draws = -(-n_elements // 4)  # rounded up
            drawn = torch.empty(n_draws, dtype=torch.int64).random_(-(2**63), None, generator=generator)
            of_network[is_valid] = drawn.view(torch.int16)[:n_elements].view(-1, width)
        self._used = 0  # columns that earlier calls took

    def __call__(self, x: Tensor, rate: float) -> Tensor:
        """Drop elements of ``x`` [S, M, W] at ``rate`` and scale the kept elements by 1 / (1 - ``rate``)."""
        columns = slice(self._used, self._used + x.shape[-1])
        self._used = columns.stop
        # Numbers are uniform over the 16-bit integers: a share ``rate`` of them lies below the bound.
        keep = (self._drawn[..., columns] >= _LEAST + round(rate * 2**16)).to(x.dtype)
        return x * keep.mul_(1 / (1 - rate))
