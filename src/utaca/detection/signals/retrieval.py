"""Normalised entropy of the retrieval scores over far blocks: 0 if all mass is on one block, 1 if it is uniform.

In each layer, scores are averaged over heads, and the entropy of their softmax over blocks is divided by the entropy of
a uniform distribution. The signal is the mean over layers; it is 0 if fewer than two blocks are far.
"""

import torch
from torch import Tensor

from utaca.detection.signal import Signal, mean_of_layers


def diffuseness(scores: Tensor, n_far: int | Tensor, scale: float) -> Tensor:
    """Normalised entropy [R] of one layer's ``scores`` [R, blocks] of ``n_far`` far blocks."""
    logs = (scores / scale).log_softmax(-1)
    entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1)
    # A number becomes a tensor by a kernel: a copy from the host would make it wait.
    count = n_far.to(logs.dtype) if isinstance(n_far, Tensor) else logs.new_full((), n_far)
    return torch.where(count > 1, entropy / count.clamp(min=2).log(), 0.0)


SIGNAL = Signal(value=mean_of_layers, capture=diffuseness)
