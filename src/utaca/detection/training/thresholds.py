"""Thresholds of decision rules, chosen on the validation set: a token is distrusted where its score is above."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from utaca.errors import UserError
from utaca.records.schemas import CORRECT
from utaca.settings import schema

Update = Callable[[int, int], int]
"""An update policy: the budget that a token was accepted under, and K_max, give the budget of the next token."""


def youden(score: np.ndarray, label: np.ndarray) -> float:
    """The threshold on ``score`` [n] with the best balanced accuracy for ``label`` [n]; negative labels are left out.

    Candidates are the midpoints of adjacent distinct scores; of equally good ones it is the least, which distrusts the
    most tokens. Raises :class:`UserError` where there are no uncertain or no correct tokens, or all scores are equal.
    """
    known = label >= 0
    value, negative = score[known].astype(np.float64), label[known] != CORRECT
    n_negative = int(negative.sum())
    n_positive = len(negative) - n_negative
    if not n_negative or not n_positive:
        lack = "uncertain" if not n_negative else "correct"
        raise UserError(f"the validation labels have no {lack} token to fit a threshold on; enlarge scale.validation")
    order = np.argsort(-value, kind="stable")
    ranked = value[order]
    ends = np.flatnonzero(ranked[1:] != ranked[:-1])
    if not len(ends):
        raise UserError("a score is the same for all validation tokens, so no threshold splits them; check the reader")
    hits = np.cumsum(negative[order], dtype=np.int64)[ends]
    # Youden's J times both class counts: integers, so that ties are exact.
    gain = hits * n_positive - (ends + 1 - hits) * n_negative
    best = ends[len(gain) - 1 - int(gain[::-1].argmax())]
    return float((ranked[best] + ranked[best + 1]) / 2)


def for_budget(score: np.ndarray, position: np.ndarray, target: schema.Target, update: Update) -> float:
    """The least threshold on ``score`` [n] under which the mean budget of the sequences is at most ``target.budget``.

    ``position`` [N, T] are the tokens of each sequence in ``score``, n where padded; ``update`` is the policy that
    ``target.policy`` names. It is infinite where the target is met only if no token is expanded. Raises
    :class:`UserError` where it is not met even then.
    """
    ranked = np.unique(score.astype(np.float64))
    candidates = np.r_[(ranked[1:] + ranked[:-1]) / 2, np.inf]
    low, high = 0, len(candidates) - 1
    if (least := mean_budget(score > candidates[high], position, target.k_max, update)) > target.budget:
        raise UserError(
            f"a mean budget of {target.budget:g} blocks is out of reach: without any expansion it is {least:.3g} under "
            f"{target.policy} from K_max {target.k_max}; raise the detector's target.budget"
        )
    # The mean budget falls as the threshold rises: under set.N and sub.N, fewer expansions widen no later budget.
    while low < high:
        middle = (low + high) // 2
        if mean_budget(score > candidates[middle], position, target.k_max, update) <= target.budget:
            high = middle
        else:
            low = middle + 1
    return float(candidates[low])


def mean_budget(distrusted: np.ndarray, position: np.ndarray, k_max: int, update: Update) -> float:
    """Mean budget of the accepted tokens, in blocks, if algorithm 1 took the decisions ``distrusted`` [n].

    The tokens themselves stay those of the sequences. The first one of each is decoded under ``k_max``; shapes are
    those of :func:`for_budget`.
    """
    after = np.array([0] + [update(k, k_max, None) for k in range(1, k_max + 1)])
    padded = np.append(distrusted, False)
    k, total = np.full(len(position), k_max), 0
    for tokens in position.T:
        expanded = padded[tokens] & (k < k_max)
        used = np.where(expanded, k_max, k)
        total += int(used[tokens < len(distrusted)].sum())
        k = np.where(expanded, k_max, after[used])
    return total / len(distrusted)
