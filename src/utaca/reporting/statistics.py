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
    """A figure of a table: its ``value``, and its values under the bootstrap's ``resamples`` [count].

    NaN stands for a value that is undefined. A figure without an interval has no resamples. The difference and the
    share of two figures are taken resample by resample, so both figures must come from the same draws.
    """

    value: float = NAN
    resamples: np.ndarray = field(default_factory=lambda: np.empty(0))

    def __sub__(self, other: Resampled) -> Resampled:
        return Resampled(self.value - other.value, self.resamples - other.resamples)

    @cached_property
    def _defined(self) -> np.ndarray:
        """The resamples in which the figure is defined."""
        return self.resamples[~np.isnan(self.resamples)]

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Limits of the percentile interval at :data:`LEVEL`, over the resamples in which the figure is defined.

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
        smaller_side = min((self._defined <= 0).sum(), (self._defined >= 0).sum())
        if not smaller_side and np.isnan(self.interval[0]):
            return NAN
        return min(1.0, 2 * float(1 + smaller_side) / (len(self._defined) + 1))

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
""":meth:`Resampled.share_of` has no interval if the whole is not positive in a larger share of the resamples."""


def mean(figures: Sequence[Resampled]) -> Resampled:
    """Mean of figures, resample by resample; all have the same number of resamples, which may be of other documents."""
    value = float(np.mean([figure.value for figure in figures]))
    return Resampled(value, np.mean([figure.resamples for figure in figures], axis=0))


def resample_counts(n_documents: int, count: int, seed: int, purpose: str) -> np.ndarray:
    """Draw ``n_documents`` documents with replacement, ``count`` times; return how often each was drawn.

    The result is [count, n_documents], and each row sums to ``n_documents``. ``seed`` and ``purpose`` decide the draws.
    Fewer than two documents have no variance; all counts are then NaN, and so are all figures made from them.
    """
    if n_documents < 2:
        return np.full((count, n_documents), np.nan)
    generator = np.random.default_rng(random.Random(f"{seed}:bootstrap:{purpose}").getrandbits(64))
    drawn = generator.integers(0, n_documents, size=(count, n_documents))
    # One bincount for all rows: each row's documents get indices of their own.
    drawn += np.arange(count)[:, None] * n_documents
    counts = np.bincount(drawn.ravel(), minlength=count * n_documents)
    return counts.reshape(count, n_documents).astype(np.float64)


@dataclass(frozen=True)
class Draws:
    """The draws of a bootstrap: how often each document, and each seed of a detector, is drawn in each resample.

    ``documents`` are the counts of documents [count, n]; ``seed`` (the config's) and ``purpose`` decide the draws.
    Documents and seeds are drawn independently, with replacement (the pigeonhole bootstrap; Owen 2007,
    doi:10.1214/07-AOAS122), so that an interval includes the variance over both. Figures under the same draws are
    paired by document, and figures of one detector also by seed. Seeds are drawn alike for all purposes that agree up
    to their first slash, as the sets of "tasks/SET" do.
    """

    documents: np.ndarray
    seed: int
    purpose: str

    @classmethod
    def of(cls, n_documents: int, config: schema.Config, purpose: str) -> Draws:
        """Draw from ``n_documents`` documents as often as the config says (``scale.bootstrap``)."""
        return cls(resample_counts(n_documents, config.scale.bootstrap, config.seed, purpose), config.seed, purpose)

    def seeds(self, detector: str, number: int) -> np.ndarray:
        """How often each of a detector's ``number`` seeds is drawn [count, number]; each row sums to ``number``."""
        # With one seed there is nothing to draw: `resample_counts` would give NaN, and so no interval at all.
        if number == 1:
            return np.ones((len(self.documents), 1))
        purpose = f"{self.purpose.partition('/')[0]}:seeds:{detector}"
        return resample_counts(number, len(self.documents), self.seed, purpose)

    def cells(self, detector: str, number: int) -> np.ndarray:
        """How often each pair of a seed and a document is drawn [count, number x n].

        The pairs of the first seed come first, then those of the next, as in the sums of a
        :class:`~utaca.reporting.results.PointResult`.
        """
        # [count, number, 1] times [count, 1, n]: seeds and documents are drawn independently.
        counts = self.seeds(detector, number)[:, :, None] * self.documents[:, None, :]
        return counts.reshape(len(self.documents), -1)

    def mean(self, detector: str, by_seed: Sequence[np.ndarray]) -> np.ndarray:
        """Mean of a figure over the drawn seeds, in each resample [count].

        ``by_seed`` has, for each seed of the detector, the figure's values in the resamples [count].
        """
        return (self.seeds(detector, len(by_seed)).T * np.stack(by_seed)).sum(0) / len(by_seed)

    def mean_of(self, values: np.ndarray, document: np.ndarray, selected: np.ndarray | None = None) -> Resampled:
        """Mean of ``values`` [n], resampled by document.

        ``document`` [n] is the index of each value's document. Boolean ``selected`` [n] says which values count; None
        means all. The other values may be NaN.
        """
        counted = np.ones(len(values), dtype=bool) if selected is None else selected
        n_documents = self.documents.shape[1]
        above = np.bincount(document, np.where(counted, values, 0.0), n_documents)
        below = np.bincount(document, counted, n_documents)
        return resampled_ratio(above, below, self.documents)

    def correlation(self, x: np.ndarray, y: np.ndarray, document: np.ndarray) -> Resampled:
        """Pearson's r of the values ``x`` and ``y`` [n], resampled by document.

        ``document`` [n] is the index of the document that a pair of values belongs to.
        """
        resamples = [correlation(x, y, counts[document]) for counts in self.documents]
        return Resampled(correlation(x, y, np.ones(len(x))), np.array(resamples))


def ratio(numerator: np.ndarray, denominator: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The sum of ``numerator`` [n] divided by the sum of ``denominator`` [n], as a scalar array.

    With ``counts`` [count, n], which say how often each item occurs in a resample, the ratio in each resample [count].
    A mean over documents is a ratio with a denominator of ones. NaN if the denominators sum to zero.
    """
    weights = np.ones(len(numerator)) if counts is None else counts
    above = weights @ numerator
    below = weights @ denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below == 0, np.nan, above / below)


def resampled_ratio(numerator: np.ndarray, denominator: np.ndarray, counts: np.ndarray) -> Resampled:
    """The ratio of two sums over documents [n] (:func:`ratio`), and in the resamples of ``counts`` [count, n]."""
    return Resampled(float(ratio(numerator, denominator)), ratio(numerator, denominator, counts))


def correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's r of values [n] that occur ``weights`` [n] times each; NaN if either is constant."""
    total = max(weights.sum(), 1.0)
    x = x - weights @ x / total
    y = y - weights @ y / total
    norm = np.sqrt((weights @ x**2) * (weights @ y**2))
    # For constant values, rounding leaves a norm that is not exactly zero.
    return float(weights @ (x * y) / norm) if norm > 1e-9 * total else NAN


def adjust(rows: Sequence[Row], column: str) -> None:
    """Adjust the p-values in ``column`` over all rows by Holm's step-down, and set ``{column}_holm`` to the results.

    Undefined p-values (NaN) are not part of the family, and stay undefined.
    """
    for row in rows:
        row[f"{column}_holm"] = NAN
    family = [row for row in rows if not np.isnan(row.get(column, NAN))]
    family.sort(key=lambda row: row[column])
    # An adjusted p-value is at least that of every smaller p-value.
    largest = 0.0
    for rank, row in enumerate(family):
        largest = max(largest, min(1.0, (len(family) - rank) * row[column]))
        row[f"{column}_holm"] = largest


def auroc(score: np.ndarray, negative: np.ndarray, document: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of the uncertain tokens (the paper's N) in each resample [count].

    It is the share of pairs of an uncertain and a certain token in which the uncertain one has the higher score; equal
    scores count as half. ``score`` [t] grows with uncertainty, ``negative`` [t] marks the uncertain tokens, and
    ``document`` [t] is the token's column in ``counts`` [count, documents]. NaN without tokens of both classes.
    """
    n_documents = counts.shape[1]
    uncertain_scores = score[negative]
    uncertain_documents = document[negative]
    # won[d, e]: how many pairs of an uncertain token of document d and a certain token of document e have the right
    # order. Equal scores are in one of the two counts below, so they count as half.
    won = np.empty((n_documents, n_documents))
    for other in range(n_documents):
        certain_scores = np.sort(score[~negative & (document == other)])
        below = np.searchsorted(certain_scores, uncertain_scores, "left")
        below_or_equal = np.searchsorted(certain_scores, uncertain_scores, "right")
        won[:, other] = np.bincount(uncertain_documents, (below + below_or_equal) / 2, minlength=n_documents)
    n_uncertain = counts @ np.bincount(document[negative], minlength=n_documents)
    n_certain = counts @ np.bincount(document[~negative], minlength=n_documents)
    pairs = n_uncertain * n_certain
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(pairs == 0, np.nan, ((counts @ won) * counts).sum(1) / pairs)


def kappa(confusion: np.ndarray) -> np.ndarray:
    """Cohen's kappa of confusion matrices of counts [..., classes, classes].

    Rows of a matrix are one rater's classes, columns the other's. NaN if two raters would always agree by chance, or
    if all counts are 0.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        joint = confusion / confusion.sum((-2, -1), keepdims=True)
        agreed = np.trace(joint, axis1=-2, axis2=-1)
        expected = (joint.sum(-1) * joint.sum(-2)).sum(-1)
        return np.where(expected == 1, np.nan, (agreed - expected) / (1 - expected))


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation of a figure's values, one for each seed; with one seed, the latter is NaN."""
    array = np.asarray(values, dtype=np.float64)
    deviation = float(array.std(ddof=1)) if len(array) > 1 else NAN
    return float(array.mean()), deviation
