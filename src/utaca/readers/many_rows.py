"""Products of many rows on a CPU, in the type that the processor multiplies fastest.

Some processors have bfloat16 instructions that are slower than float32 for many rows. There a bfloat16 matrix is
converted first, into memory that all layers share, and the product is rounded at its end.
"""

import threading

import torch
from torch import Tensor, nn
from torch.nn import functional

from utaca.machine import multiplies_float32_faster

CONVERTS = multiplies_float32_faster()
"""Whether this machine converts a bfloat16 matrix before it multiplies many rows by it."""
MANY = torch.float32 if CONVERTS else torch.bfloat16
"""The type in which this machine multiplies many rows."""
FEW = 64
"""Most rows that a plain bfloat16 matrix is multiplied by without being converted."""
_scratch = threading.local()


def shared(size: int, dtype: torch.dtype) -> Tensor:
    """Memory for ``size`` numbers of a type that all calls of a thread share, and overwrite."""
    memory = getattr(_scratch, "memory", None)
    if memory is None or memory.dtype != dtype or len(memory) < size:
        # A tensor that is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            _scratch.memory = torch.empty(size, dtype=dtype)
    return _scratch.memory[:size]


def linear(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Forward of a bfloat16 linear layer [..., K] to [..., N] on a CPU."""
    weight = layer.weight
    if weight.dtype == MANY or hidden[..., 0].numel() <= FEW:
        return functional.linear(hidden, weight, layer.bias)
    converted = shared(weight.numel(), MANY).view_as(weight)
    converted.copy_(weight)
    bias = None if layer.bias is None else layer.bias.to(MANY)
    return functional.linear(hidden.to(MANY), converted, bias).to(hidden.dtype)
