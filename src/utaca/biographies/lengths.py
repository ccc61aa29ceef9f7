"""Draw the lengths of documents, and compute which share of their facts a reader sees only by retrieval."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from utaca.layout import Layout

TOLERANCE = 0.01
"""Largest deviation of a document's length from the requested length."""


def counter(tokenizer: Any) -> Callable[[str], int]:
    """A function that counts the tokens of a text, without special tokens.

    ``tokenizer`` is a ``tokenizers.Tokenizer`` or a fast tokenizer of transformers.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return lambda text: len(backend.encode(text, add_special_tokens=False))


def mode(shortest: int, longest: int, mean: float) -> float:
    """The likeliest length of the triangular distribution from ``shortest`` to ``longest`` that has this mean.

    If it is outside of these limits, there is no such distribution.
    """
    return 3 * mean - shortest - longest


def draw_length(shortest: int, longest: int, mean: float, rng: random.Random) -> int:
    """Draw a length from ``shortest`` to ``longest``, both included.

    It is drawn from the triangular distribution that has this ``mean``; 0: all lengths are equally likely.
    """
    if not mean:
        return rng.randint(shortest, longest)
    return round(rng.triangular(shortest, longest, mode(shortest, longest, mean)))


@cache
def share_outside(shortest: int, longest: int, mean: float, layout: Layout) -> float:
    """The expected share, 0 to 1, of facts in far blocks, which a reader sees only by retrieval.

    Lengths are those of :func:`draw_length`; a fact's place is any token of its document, all equally likely. The
    window is that of the document's last token. Question and answer move it on, so that a little more than this share
    lies outside when the answer is decoded.
    """
    total_weight = 0.0
    weighted_share = 0.0
    peak = mode(shortest, longest, mean)

    def weight_of(length: int) -> float:
        """How likely a length is, up to a common factor."""
        if not mean or shortest == longest:
            return 1.0
        if length < peak:
            return (length - shortest) / (peak - shortest)
        # ``or 1``: if the peak is the longest length, only that comes here, and 0 / 0 would raise an error.
        return (longest - length) / (longest - peak or 1)

    for length in range(shortest, longest + 1):
        weight = weight_of(length)
        total_weight += weight
        # The last token is at position length - 1.
        weighted_share += weight * layout.n_far(length - 1) * layout.block_size / length
    return weighted_share / total_weight
