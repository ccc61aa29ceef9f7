"""Layers of one network, or of several of the same shape side by side.

The weights of S networks side by side have a first dimension S, as have their inputs and outputs: row s is what network
s alone gives, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_LEAST = -(2**15)


def _weights(*shape: int, bound: float) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


class Linear(nn.Module):
    """``x`` W^T + b, [M, inputs] -> [M, outputs], initialised as torch's own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight, self.bias = _weights(outputs, inputs, bound=bound), _weights(outputs, bound=bound)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """``scale`` [M, 1] multiplies the rows of ``x``, without a scaled copy of a wide one."""
        if scale is not None:
            return (x @ self.weight.mT) * scale + self.bias[..., None, :]
        if self.weight.dim() == 2:
            return functional.linear(x, self.weight, self.bias)
        return torch.baddbmm(self.bias[:, None], x, self.weight.mT)


class LSTM(nn.Module):
    """A standard LSTM layer over packed sequences; weights and gates (input, forget, cell, output) as torch's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight_ih, self.weight_hh = (_weights(4 * width, width, bound=bound) for _ in range(2))
        self.bias_ih, self.bias_hh = (_weights(4 * width, bound=bound) for _ in range(2))

    def forward(
        self, x: torch.Tensor, sizes: Sequence[int], hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All hidden states of ``x`` [M, W], and those and the cells after the last step.

        ``x`` holds the tokens of step 0 of all sequences, then of step 1 and so on, ``sizes`` of each, descending: the
        first so many sequences go on. ``hidden`` and ``cell`` [B, W] are the states before.
        """
        if len(sizes) == 1 and self.weight_hh.dim() == 2 and not torch.is_grad_enabled():
            # A decoding step: one fused operation in the place of twenty.
            weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
            hidden, cell = torch.lstm_cell(x, (hidden, cell), *weights)
            return hidden, hidden, cell
        given = x @ self.weight_ih.mT + (self.bias_ih + self.bias_hh)[..., None, :]
        return _Recurrence.apply(given, self.weight_hh, list(sizes), hidden, cell)


class _Recurrence(torch.autograd.Function):
    """The recurrent part of :class:`LSTM`, from the gates' inputs ``given`` [M, 4 W] on.

    Automatic differentiation would add up the recurrent weights' gradient step by step; here it is one product. No
    gradient goes to the states before the first step.
    """

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, weight: torch.Tensor, sizes: list[int], hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        recurrent, kept = weight.mT, []
        for gates, size in zip(given.split(sizes, -2), sizes, strict=True):
            before, cell_before = hidden[..., :size, :], cell[..., :size, :]
            gates = gates + before @ recurrent
            i, f, _, o = gates.sigmoid().chunk(4, -1)
            g = gates.chunk(4, -1)[2].tanh()
            cell = f * cell_before + i * g
            squashed = cell.tanh()
            hidden = o * squashed
            kept.append((hidden, before, cell_before, squashed, i, f, g, o))
        states, *rest = (torch.cat(column, -2) for column in zip(*kept, strict=True))
        ctx.sizes = sizes
        ctx.save_for_backward(weight, *rest)
        return states, hidden, cell

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, before, cell_before, squashed, i, f, g, o = ctx.saved_tensors
        given = grads[0].new_empty(*grads[0].shape[:-1], 4, grads[0].shape[-1])
        # What a gradient of the cell, or of the hidden state, gives to each gate, and the hidden state's to the cell.
        by_cell = torch.stack((g * i * (1 - i), cell_before * f * (1 - f), i * (1 - g * g)), -2)
        by_hidden, to_cell = squashed * o * (1 - o), o * (1 - squashed * squashed)
        end, hidden, cell = grads[0].shape[-2], None, None
        for size in reversed(ctx.sizes):
            step = (..., slice(end - size, end), slice(None))
            own, end = grads[0][step], end - size
            if hidden is not None:
                own = own.clone()
                own[..., : hidden.shape[-2], :] += hidden
            wide = own * to_cell[step]
            if cell is not None:
                wide[..., : cell.shape[-2], :] += cell
            gates = given[(*step, slice(None))]
            gates[..., :3, :] = wide[..., None, :] * by_cell[(*step, slice(None))]
            gates[..., 3, :] = own * by_hidden[step]
            hidden, cell = gates.flatten(-2) @ weight, wide * f[step]
        flat = given.flatten(-2)
        return flat, flat.mT @ before, None, None, None


class Noise:
    """Dropout of one pass of S networks side by side, each with random numbers of its own, in whatever company.

    ``own`` [S, M] marks the tokens that are each network's and no padding; ``width`` is the sum of the widths that are
    dropped from, which take their columns one after another.
    """

    def __init__(self, generators: Sequence[torch.Generator], own: torch.Tensor, width: int) -> None:
        # Sixteen random bits an element, four elements a draw.
        self._lots = torch.full((*own.shape, width), _LEAST, dtype=torch.int16)
        for lots, rows, generator in zip(self._lots, own, generators, strict=True):
            count = int(rows.sum()) * width
            drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
            lots[rows] = drawn.view(torch.int16)[:count].view(-1, width)
        self._used = 0

    def __call__(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        """Drop elements of ``x`` [S, M, W] at ``rate`` and scale the others by 1 / (1 - ``rate``)."""
        columns = slice(self._used, self._used + x.shape[-1])
        self._used = columns.stop
        keep = (self._lots[..., columns] >= _LEAST + round(rate * 2**16)).to(x.dtype)
        return x * keep.mul_(1 / (1 - rate))
