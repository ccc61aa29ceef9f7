"""Signals: one number a token that a detector may read in addition to the embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Seen(NamedTuple):
    """Inputs of a signal at one token.

    ``logits`` [10] are a token's ten best, best first, ``hidden`` [D] is the reader's last hidden state, and
    ``captured`` [layers] the numbers that the signal kept of each layer, None if no layer retrieved.
    """

    logits: Tensor
    hidden: Tensor
    captured: Tensor | None


@dataclass(frozen=True)
class Signal:
    """How a signal is measured; on the device, without waiting for it.

    ``value`` gives the number [] of a token. ``capture``, if there is one, is called in every layer that retrieves:
    ``capture(scores [R, blocks], n_far, scale)`` gives [R] numbers to keep of the ``n_far`` blocks that are far.
    ``scale`` is the number of query heads times the square root of their width: a score over it is the mean head's,
    scaled as attention scales it.
    """

    value: Callable[[Seen], Tensor]
    capture: Callable[[Tensor, int, float], Tensor] | None = None


def mean_of_layers(seen: Seen) -> Tensor:
    """The ``value`` of a signal that is the mean [] over the layers that it captured; 0 if no layer retrieved."""
    return seen.hidden.new_zeros(()) if seen.captured is None else seen.captured.mean()
