"""Bootstrap statistics: intervals and p-values by resampling whole documents and detector seeds.

Tokens and attributes of one document depend on each other, so a resample draws whole documents and, for a detector
trained under several seeds, seeds. A resample is a row of counts (how often each document was drawn), so a ratio of
sums is a pair of matrix products, and two methods under the same counts stay paired by document.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from utaca.settings import schema

LEVEL = 0.95
NAN = float("nan")
Row = dict[str, Any]
"""A row of a table, by column."""


@dataclass(frozen=True)
class Resampled:
    """A figure and its value in every resample [count], NaN if undefined; no resamples if the figure has no interval.

    Differences and shares of two figures under the same resamples are paired.
    """

    value: float = NAN
    resamples: np.ndarray = field(default_factory=lambda: np.empty(0))

    def __sub__(self, other: Resampled) -> Resampled:
        return Resampled(self.value - other.value, self.resamples - other.resamples)

    @cached_property
    def _defined(self) -> np.ndarray:
        return self.resamples[~np.isnan(self.resamples)]

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Limits of the percentile interval, over the resamples in which the figure is defined.

        NaN if all resamples agree up to rounding (for example, if every answer is correct): such resamples do not show
        how much another document may differ.
        """
        if not len(self._defined) or np.ptp(self._defined) <= 1e-9 * max(1.0, abs(self.value)):
            return NAN, NAN
        low, high = np.quantile(self._defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    @property
    def p(self) -> float:
        """Two-sided p-value of a difference, from the share of resamples on either side of zero.

        One resample is added (Davison and Hinkley 1997, 4.2), so that p is never 0. NaN if no resample is defined, or
        if all agree on a difference other than zero, which then has no :attr:`interval` either.
        """
        tail = min((self._defined <= 0).sum(), (self._defined >= 0).sum())
        if not tail and np.isnan(self.interval[0]):
            return NAN
        return min(1.0, 2 * float(1 + tail) / (len(self._defined) + 1))

    def share_of(self, whole: Resampled) -> Resampled:
        """This figure divided by ``whole``; NaN if the whole is not positive.

        There is no interval if ``whole`` is not positive in more than a share :data:`UNDEFINED` of the resamples,
        because the remaining resamples would give too narrow an interval.
        """
        if not whole.value > 0:
            return Resampled()
        positive = whole.resamples > 0
        if positive.mean() < 1 - UNDEFINED:
            return Resampled(self.value / whole.value)
        return Resampled(self.value / whole.value, self.resamples[positive] / whole.resamples[positive])

    def put(self, row: Row, column: str, factor: float = 1) -> None:
        """Set a column of a row and its ``_low`` and ``_high`` to the figure and its interval, times ``factor``."""
        row[column] = factor * self.value
        low, high = self.interval
        row[f"{column}_low"] = factor * low
        row[f"{column}_high"] = factor * high


UNDEFINED = 0.05
"""Largest share of resamples with a whole that is not positive at which :meth:`Resampled.share_of` has an interval."""


def mean(figures: Sequence[Resampled]) -> Resampled:
    """Mean of figures under the same resamples, or under the same number of resamples of other documents."""
    value = float(np.mean([figure.value for figure in figures]))
    return Resampled(value, np.mean([figure.resamples for figure in figures], axis=0))


def resample_counts(n_documents: int, count: int, seed: int, purpose: str) -> np.ndarray:
    """Draw ``n_documents`` with replacement: counts [count, n_documents], each row summing to ``n_documents``.

    Fewer than two documents have no variance; all counts are then NaN, and so are all figures made from them.
    """
    if n_documents < 2:
        return np.full((count, n_documents), np.nan)
    generator = np.random.default_rng(random.Random(f"{seed}:bootstrap:{purpose}").getrandbits(64))
    drawn = generator.integers(0, n_documents, size=(count, n_documents))
    drawn += np.arange(count)[:, None] * n_documents
    return np.bincount(drawn.ravel(), minlength=count * n_documents).reshape(count, n_documents).astype(np.float64)


@dataclass(frozen=True)
class Draws:
    """The draws of a bootstrap: counts of documents [count, n], and of the seeds of each detector.

    Documents and seeds are drawn independently, with replacement (the pigeonhole bootstrap; Owen 2007,
    doi:10.1214/07-AOAS122), so that an interval includes the variance over both. Figures under the same draws are
    paired by document, and figures of one detector also by seed, on all sets of a purpose ("tasks/SET") alike.
    """

    documents: np.ndarray
    seed: int
    purpose: str

    @classmethod
    def of(cls, n_documents: int, config: schema.Config, purpose: str) -> Draws:
        """Draw as often as the config says (``scale.bootstrap``)."""
        return cls(resample_counts(n_documents, config.scale.bootstrap, config.seed, purpose), config.seed, purpose)

    def seeds(self, detector: str, number: int) -> np.ndarray:
        """Counts of a detector's seeds [count, number], each row summing to ``number``."""
        if number == 1:
            return np.ones((len(self.documents), 1))
        purpose = f"{self.purpose.partition('/')[0]}:seeds:{detector}"
        return resample_counts(number, len(self.documents), self.seed, purpose)

    def cells(self, detector: str, number: int) -> np.ndarray:
        """Counts of documents under each seed [count, number x n]: those of the first seed, then those of the next."""
        both = self.seeds(detector, number)[:, :, None] * self.documents[:, None, :]
        return both.reshape(len(self.documents), -1)

    def mean(self, detector: str, by_seed: Sequence[np.ndarray]) -> np.ndarray:
        """Mean [count] over the drawn seeds; ``by_seed`` has the resamples [count] of the figure for every seed."""
        return (self.seeds(detector, len(by_seed)).T * np.stack(by_seed)).sum(0) / len(by_seed)

    def mean_of(self, values: np.ndarray, document: np.ndarray, weights: np.ndarray | None = None) -> Resampled:
        """Mean of ``values`` [n] of documents with indices ``document`` [n]; boolean ``weights`` [n] select values."""
        counted = np.ones(len(values)) if weights is None else weights.astype(np.float64)
        weighted = np.where(counted > 0, values * counted, 0.0)
        n_documents = self.documents.shape[1]
        above = np.bincount(document, weighted, n_documents)
        below = np.bincount(document, counted, n_documents)
        return resampled_ratio(above, below, self.documents)

    def correlation(self, x: np.ndarray, y: np.ndarray, document: np.ndarray) -> Resampled:
        """Pearson's r of values [n] of documents with indices ``document`` [n]."""
        resamples = [correlation(x, y, weights[document]) for weights in self.documents]
        return Resampled(correlation(x, y, np.ones(len(x))), np.array(resamples))


def ratio(numerator: np.ndarray, denominator: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Sum of ``numerator`` [n] over the sum of ``denominator`` [n]: a scalar array, or [count] under ``counts``.

    A mean over documents is a ratio with a denominator of ones. NaN if the denominators sum to zero.
    """
    weights = np.ones(len(numerator)) if counts is None else counts
    above = weights @ numerator
    below = weights @ denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below == 0, np.nan, above / below)


def resampled_ratio(numerator: np.ndarray, denominator: np.ndarray, counts: np.ndarray) -> Resampled:
    """Ratio of sums over documents [n], resampled by ``counts`` [count, n]."""
    return Resampled(float(ratio(numerator, denominator)), ratio(numerator, denominator, counts))


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's r of values [n] that occur ``weights`` [n] times each; NaN if either is constant."""
    total = max(weights.sum(), 1.0)
    x = x - weights @ x / total
    y = y - weights @ y / total
    variances = np.sqrt((weights @ x**2) * (weights @ y**2))
    # Sums of equal numbers leave a rounding error and not exactly zero.
    return float(weights @ (x * y) / variances) if variances > 1e-9 * total else NAN


def adjust(rows: Sequence[Row], column: str) -> None:
    """Set ``{column}_holm`` of the rows: the p-values of ``column``, adjusted over all rows by Holm's step-down.

    Undefined p-values (NaN) are not part of the family.
    """
    for row in rows:
        row[f"{column}_holm"] = NAN
    family = [row for row in rows if not np.isnan(row.get(column, NAN))]
    family.sort(key=lambda row: row[column])
    reached = 0.0
    for rank, row in enumerate(family):
        reached = max(reached, min(1.0, (len(family) - rank) * row[column]))
        row[f"{column}_holm"] = reached


def auroc(score: np.ndarray, negative: np.ndarray, document: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of class N in every resample [count]; ties in the score count as half.

    ``score`` [t] grows with uncertainty, ``negative`` [t] marks tokens of N, ``document`` [t] is the token's column in
    ``counts`` [count, documents].
    """
    n_documents = counts.shape[1]
    above = score[negative]
    document_above = document[negative]
    # won[d, e]: pairs of a token N of document d and a token P of document e whose scores are in the right order.
    won = np.empty((n_documents, n_documents))
    for other in range(n_documents):
        below = np.sort(score[~negative & (document == other)])
        ranks = np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")
        won[:, other] = np.bincount(document_above, ranks / 2, minlength=n_documents)
    n = counts @ np.bincount(document[negative], minlength=n_documents)
    p = counts @ np.bincount(document[~negative], minlength=n_documents)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(n * p == 0, np.nan, ((counts @ won) * counts).sum(1) / (n * p))


def kappa(confusion: np.ndarray) -> np.ndarray:
    """Cohen's kappa of ``confusion`` [..., classes, classes]; NaN if chance always agrees, or if all counts are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        joint = confusion / confusion.sum((-2, -1), keepdims=True)
        agreed = np.trace(joint, axis1=-2, axis2=-1)
        expected = (joint.sum(-1) * joint.sum(-2)).sum(-1)
        return np.where(expected == 1, np.nan, (agreed - expected) / (1 - expected))


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; the deviation is NaN for a single seed."""
    array = np.asarray(values, dtype=np.float64)
    deviation = float(array.std(ddof=1)) if len(array) > 1 else NAN
    return float(array.mean()), deviation
