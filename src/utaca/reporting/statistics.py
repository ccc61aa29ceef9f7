"""Intervals by resampling whole documents, and the spread over seeds.

Tokens and attributes of one document depend on each other, so documents are what is drawn. A resample is a row of
counts, how often each document was drawn: every ratio of sums then is a pair of matrix products, and comparing two
methods under the same counts keeps their documents paired.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and the limits of its 95 % interval; NaN where undefined."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def resamples(n_documents: int, count: int, seed: int, purpose: str) -> np.ndarray:
    """Draws with replacement of ``n_documents`` from as many: counts [count, n_documents], each row summing to it."""
    generator = np.random.default_rng(random.Random(f"{seed}:bootstrap:{purpose}").getrandbits(64))
    drawn = generator.integers(0, n_documents, size=(count, n_documents))
    drawn += np.arange(count)[:, None] * n_documents
    return np.bincount(drawn.ravel(), minlength=count * n_documents).reshape(count, n_documents).astype(np.float64)


def interval(value: float, resampled: np.ndarray) -> Estimate:
    """``value`` with the percentile interval of its resampled versions [count]; undefined ones (NaN) are left out."""
    resampled = resampled[~np.isnan(resampled)]
    if not len(resampled):
        return Estimate(value)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def ratio(numerator: np.ndarray, denominator: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Sum of ``numerator`` [n] over the sum of ``denominator`` [n]: a scalar array, or [count] under ``counts``.

    A mean over documents is a ratio with a denominator of ones. NaN where the denominators sum to zero.
    """
    weights = np.ones(len(numerator)) if counts is None else counts
    above, below = weights @ numerator, weights @ denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below == 0, np.nan, above / below)


def ratio_interval(numerator: np.ndarray, denominator: np.ndarray, counts: np.ndarray) -> Estimate:
    """A ratio of sums over documents with its interval."""
    return interval(float(ratio(numerator, denominator)), ratio(numerator, denominator, counts))


def paired_difference(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray], counts: np.ndarray
) -> Estimate:
    """Ratio of ``first`` minus that of ``second``, (numerator [n], denominator [n]) of the same documents each."""
    return interval(float(ratio(*first) - ratio(*second)), ratio(*first, counts) - ratio(*second, counts))


UNDEFINED = 0.05
"""Share of resamples without a positive whole above which a share of it has no interval."""


def share(part: tuple[float, np.ndarray], whole: tuple[float, np.ndarray]) -> Estimate:
    """``part`` over ``whole``, each a value and its resampled versions [count]; undefined where the whole is not > 0.

    Where it is not in more than :data:`UNDEFINED` of the resamples, the share has no interval: those that are left
    would tell of a narrower one than there is.
    """
    positive = whole[1] > 0
    if not whole[0] > 0:
        return Estimate(float("nan"))
    if positive.mean() < 1 - UNDEFINED:
        return Estimate(part[0] / whole[0])
    return interval(part[0] / whole[0], part[1][positive] / whole[1][positive])


def auroc(score: np.ndarray, negative: np.ndarray, document: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of class N under every resample [count]; ties in the score count as half.

    ``score`` [t] grows with distrust, ``negative`` [t] marks N, ``document`` [t] is the token's column in ``counts``.
    """
    n_documents = counts.shape[1]
    above, of = score[negative], document[negative]
    # won[d, e]: pairs of a token N of document d and a token P of document e whose scores are in the right order.
    won = np.empty((n_documents, n_documents))
    for other in range(n_documents):
        below = np.sort(score[~negative & (document == other)])
        ranks = np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")
        won[:, other] = np.bincount(of, ranks / 2, minlength=n_documents)
    n, p = (counts @ np.bincount(document[chosen], minlength=n_documents) for chosen in (negative, ~negative))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n * p == 0, np.nan, ((counts @ won) * counts).sum(1) / (n * p))


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; the deviation is NaN for a single one."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")
