"""Normalised entropy of the retrieval scores over far blocks: 0 if all mass is on one block, 1 if it is uniform.

In each layer, scores are averaged over heads, and the entropy of their softmax over blocks is divided by the entropy of
a uniform distribution. The signal is the mean over layers; it is 0 if fewer than two blocks are far.
"""

import torch
from torch import Tensor

from utaca.detection.signal import Signal, mean_of_layers


def diffuseness(scores: Tensor, n_far: int, scale: float) -> Tensor:
    """Normalised entropy [R] of one layer's ``scores`` [R, blocks] of ``n_far`` far blocks."""
    logs = (scores / scale).log_softmax(-1)
    entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1)
    count = torch.as_tensor(n_far, dtype=logs.dtype, device=logs.device)
    return torch.where(count > 1, entropy / count.clamp(min=2).log(), 0.0)


SIGNAL = Signal(value=mean_of_layers, capture=diffuseness)
