"""The one attention function through which utaca drives a Hugging Face model.

transformers calls the registered function with queries, keys and values; ours hands them to the object that the
caller passed to the model as ``attending=...`` (prefill, decoding or training each bring their own). The model is
called with ``position_ids`` all zero, for which rotary embedding is the identity, so that queries and keys arrive
unrotated and every caller places them where it wants (InfLLM's clipped positions).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION = "utaca"


class Attending(Protocol):
    """What a forward pass attends to."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention output of one layer.

        ``query`` is [B, H, T, D], ``key`` and ``value`` are [B, G, T, D] (G key-value heads), all unrotated;
        returns [B, H, T, D].
        """


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attending: Attending,
    **_: Any,
) -> tuple[Tensor, None]:
    return attending.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _attention)


class Rotary:
    """Rotary tables of a model, for positions of our choosing.

    The model scales queries and keys by its ``attention_scaling`` (yarn) even at position zero, so the tables are
    kept free of it. They hold the positions that were reserved: looking at those of a call would make a pass wait for
    the device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._embedding = model.model.rotary_emb
        self._device = next(model.parameters()).device
        self._tables = self._compute(1024)

    def reserve(self, length: int) -> None:
        """Make sure of the positions below ``length``; whoever starts a pass knows its largest one."""
        if length > len(self._tables[0]):
            self._tables = self._compute(length)

    def _compute(self, length: int) -> tuple[Tensor, Tensor]:
        x = torch.zeros(1, dtype=torch.float32, device=self._device)
        cos, sin = self._embedding(x, torch.arange(length, device=self._device)[None])
        scale = self._embedding.attention_scaling
        return cos[0] / scale, sin[0] / scale

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``x`` [..., T, D] to ``positions`` (integers, broadcastable to [..., T]).

        Raises :class:`IndexError` for positions that were not reserved (a GPU reports them by a failed assertion).
        """
        try:
            cos, sin = (table[positions].to(x.dtype) for table in self._tables)
        except IndexError as error:
            raise IndexError(f"a position is beyond the {len(self._tables[0])} reserved; call reserve first") from error
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
