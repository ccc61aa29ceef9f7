"""How far the best block leads the second best: 1, all of the retrieval goes to one block; 0, to two alike.

The difference of their shares in the softmax over blocks of the mean head's score; the mean over layers, 0 where fewer
than two blocks are far.
"""

from __future__ import annotations

from torch import Tensor

from utaca.detection.signal import Signal, mean_of_layers


def lead(scores: Tensor, n_far: int, scale: float) -> Tensor:
    """Of a layer's scores [R, blocks] of ``n_far`` blocks: [R]."""
    if scores.shape[1] < 2:
        return scores.new_zeros(len(scores))
    first, second = (scores / scale).softmax(-1).topk(2).values.unbind(1)
    return (first - second) * (n_far > 1)


SIGNAL = Signal(value=mean_of_layers, capture=lead)
