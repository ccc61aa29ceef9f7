"""Signals: one number per token that a detector may read in addition to the embedding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from utaca.errors import check_takes


class Seen(NamedTuple):
    """Inputs of a signal at one token.

    ``logits`` [10] are the ten largest logits, descending; ``hidden`` [D] is the reader's last hidden state;
    ``captured`` [layers] is the number that the signal captured in each layer, None if no layer retrieved blocks.
    """

    logits: Tensor
    hidden: Tensor
    captured: Tensor | None


@dataclass(frozen=True)
class Signal:
    """The two functions that measure a signal; they run on the device and must not wait for it.

    ``value`` returns the signal [] of a token. ``capture``, if not None, is called in every layer that retrieves
    blocks: ``capture(scores [R, blocks], n_far, scale)`` returns a number for each of R tokens [R], computed from the
    token's retrieval scores of the ``n_far`` blocks that are far. :class:`Seen` then has these numbers as ``captured``.
    ``scale`` is the number of query heads times the square root of their width: a score divided by it is the mean over
    heads, scaled as in attention.
    """

    value: Callable[[Seen], Tensor]
    capture: Callable[[Tensor, int, float], Tensor] | None = None

    def __post_init__(self) -> None:
        check_takes(self.value, "the value of a signal", "seen")
        if self.capture is not None:
            check_takes(self.capture, "the capture of a signal", "scores", "n_far", "scale")


def mean_of_layers(seen: Seen) -> Tensor:
    """A signal's ``value`` []: the mean over layers of what its ``capture`` gave; 0 if no layer retrieved blocks."""
    if seen.captured is None:
        return seen.hidden.new_zeros(())
    return seen.captured.mean()
