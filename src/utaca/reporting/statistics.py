"""Intervals by resampling whole documents and detector seeds, and what is left of them after several comparisons.

Tokens and attributes of one document depend on each other, so documents are what is drawn, and where a detector was
trained under several seeds, seeds too. A resample is a row of counts, how often each was drawn: every ratio of sums
then is a pair of matrix products, and comparing two methods under the same counts keeps their documents paired.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from utaca.settings import schema

LEVEL = 0.95
Row = dict[str, Any]
"""A row of a table, by column."""


@dataclass(frozen=True)
class Estimate:
    """A figure and the limits of its 95 % interval; NaN where undefined."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def spread(row: Row, column: str, estimate: Estimate, factor: float = 1) -> None:
    """Put a figure and the limits of its interval into a row, times ``factor``."""
    row[column] = factor * estimate.value
    row[f"{column}_low"], row[f"{column}_high"] = factor * estimate.low, factor * estimate.high


def resamples(n_documents: int, count: int, seed: int, purpose: str) -> np.ndarray:
    """Draws with replacement of ``n_documents`` from as many: counts [count, n_documents], each row summing to it.

    Fewer than two tell nothing of how documents differ: the counts, and all that is made of them, are then NaN.
    """
    if n_documents < 2:
        return np.full((count, n_documents), np.nan)
    generator = np.random.default_rng(random.Random(f"{seed}:bootstrap:{purpose}").getrandbits(64))
    drawn = generator.integers(0, n_documents, size=(count, n_documents))
    drawn += np.arange(count)[:, None] * n_documents
    return np.bincount(drawn.ravel(), minlength=count * n_documents).reshape(count, n_documents).astype(np.float64)


@dataclass(frozen=True)
class Draws:
    """What the resamples of a bootstrap drew: documents [count, n], and the seeds of each detector.

    Both are drawn with replacement, each by itself (the pigeonhole bootstrap; Owen 2007, doi:10.1214/07-AOAS122), so
    that an interval holds the variance over documents and that over seeds. Figures under the same draws are paired by
    document, and those of one detector by seed.
    """

    documents: np.ndarray
    seed: int
    purpose: str

    @classmethod
    def of(cls, n_documents: int, config: schema.Config, purpose: str) -> Draws:
        """As many draws as the config says (``scale.bootstrap``)."""
        documents = resamples(n_documents, config.scale.bootstrap, config.seed, purpose)
        return cls(documents, config.seed, purpose)

    def __len__(self) -> int:
        return len(self.documents)

    def seeds(self, detector: str, number: int) -> np.ndarray:
        """How often each of a detector's seeds was drawn [count, number], each row summing to ``number``."""
        if number == 1:
            return np.ones((len(self), 1))
        return resamples(number, len(self), self.seed, f"{self.purpose}:seeds:{detector}")

    def cells(self, detector: str, number: int) -> np.ndarray:
        """How often each document was drawn with each seed [count, number x n], a seed's documents side by side."""
        both = self.seeds(detector, number)[:, :, None] * self.documents[:, None, :]
        return both.reshape(len(self), -1)

    def mean(self, detector: str, each: Sequence[np.ndarray]) -> np.ndarray:
        """The mean over the seeds drawn [count] of a figure of each seed, itself under every resample [count]."""
        return (self.seeds(detector, len(each)).T * np.stack(each)).sum(0) / len(each)


def interval(value: float, resampled: np.ndarray) -> Estimate:
    """``value`` with the percentile interval of its resampled versions [count]; undefined ones (NaN) are left out.

    There is none where they are all the same but for rounding, as where every answer is right: resampling cannot tell
    how far another document may lie.
    """
    resampled = resampled[~np.isnan(resampled)]
    if not len(resampled) or np.ptp(resampled) <= 1e-9 * max(1.0, abs(value)):
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


@dataclass(frozen=True)
class ByDocument:
    """Where values belong: ``document`` [n] are their documents as columns of ``counts`` [resamples, documents]."""

    document: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, names: Sequence[Any], documents: Sequence[Any], counts: np.ndarray) -> ByDocument:
        """``names`` [n] are the values' documents, ``documents`` those of the columns."""
        place = {name: number for number, name in enumerate(documents)}
        return cls(np.array([place[name] for name in names], dtype=np.int64), counts)

    def put(
        self, row: Row, column: str, values: np.ndarray, factor: float = 1, weights: np.ndarray | None = None
    ) -> None:
        """Put the mean of ``values`` [n] into a row, with its interval; ``weights`` [n] may be booleans that choose."""
        each = np.ones(len(values)) if weights is None else weights.astype(np.float64)
        weighed = np.where(each > 0, values * each, 0.0)
        above, below = (np.bincount(self.document, x, self.counts.shape[1]) for x in (weighed, each))
        spread(row, column, ratio_interval(above, below, self.counts), factor)

    def correlation(self, x: np.ndarray, y: np.ndarray) -> Estimate:
        """Pearson's r of values [n] with its interval."""
        resampled = [correlation(x, y, weights[self.document]) for weights in self.counts]
        return interval(correlation(x, y, np.ones(len(x))), np.array(resampled))


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's r of values [n] that occur ``weights`` [n] times each; NaN where either does not vary."""
    total = max(weights.sum(), 1.0)
    x, y = x - weights @ x / total, y - weights @ y / total
    variances = np.sqrt((weights @ x**2) * (weights @ y**2))
    # Sums of equal numbers leave a rounding error, no variance.
    return float(weights @ (x * y) / variances) if variances > 1e-9 * total else float("nan")


def p_value(resampled: np.ndarray) -> float:
    """Two-sided p of a difference whose resampled versions [count] these are: how far they lie on both sides of zero.

    One is counted in (Davison and Hinkley 1997, 4.2), so that it is never 0. NaN where all are undefined.
    """
    resampled = resampled[~np.isnan(resampled)]
    if not len(resampled):
        return float("nan")
    tail = min((resampled <= 0).sum(), (resampled >= 0).sum())
    return min(1.0, 2 * float(1 + tail) / (len(resampled) + 1))


def holm(p: Sequence[float]) -> list[float]:
    """p adjusted by Holm's step-down for a family of comparisons; undefined ones (NaN) are none of it."""
    order = sorted((place for place, value in enumerate(p) if not np.isnan(value)), key=lambda place: p[place])
    adjusted, reached = [float("nan")] * len(p), 0.0
    for rank, place in enumerate(order):
        reached = max(reached, min(1.0, (len(order) - rank) * p[place]))
        adjusted[place] = reached
    return adjusted


def adjust(rows: Sequence[Row], column: str) -> None:
    """Put ``{column}_holm`` into the rows: the p of ``column`` after Holm over all of them."""
    p = holm([row.get(column, float("nan")) for row in rows])
    for row, adjusted in zip(rows, p, strict=True):
        row[f"{column}_holm"] = adjusted


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


def kappa(confusion: np.ndarray) -> np.ndarray:
    """Cohen's kappa of ``confusion`` [..., classes, classes]; NaN where chance alone agrees always, or nothing is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        joint = confusion / confusion.sum((-2, -1), keepdims=True)
        agreed = np.trace(joint, axis1=-2, axis2=-1)
        expected = (joint.sum(-1) * joint.sum(-2)).sum(-1)
        return np.where(expected == 1, np.nan, (agreed - expected) / (1 - expected))


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; the deviation is NaN for a single one."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else float("nan")
