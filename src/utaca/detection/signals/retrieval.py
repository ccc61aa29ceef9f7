"""Normalised entropy of the retrieval scores over far blocks: 0 if all mass is on one block, 1 if it is uniform.

In each layer, scores are averaged over heads, and the entropy of their softmax over blocks is divided by the entropy of
a uniform distribution. The signal is the mean over layers; it is 0 if fewer than two blocks are far.
"""

import torch
from torch import Tensor

from utaca.detection.signal import Signal, mean_of_layers


def diffuseness(scores: Tensor, n_far: int | Tensor, scale: float) -> Tensor:
    """Normalised entropy [R] of one layer's retrieval ``scores`` [R, blocks] of R tokens.

    ``n_far`` is the number of far blocks. There may be more columns than that: their scores are -inf.
    ``scale`` is that of :class:`utaca.detection.signal.Signal`.
    """
    logs = (scores / scale).log_softmax(-1)
    # The clamp makes 0 * -inf of a block that is not far 0, and not NaN.
    entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1)
    # A kernel makes a tensor of a number: a copy from the host would make the host wait for the device.
    count = n_far.to(logs.dtype) if isinstance(n_far, Tensor) else logs.new_full((), n_far)
    return torch.where(count > 1, entropy / count.clamp(min=2).log(), 0.0)


SIGNAL = Signal(value=mean_of_layers, capture=diffuseness)
