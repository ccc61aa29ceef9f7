"""Metrics and thresholds of uncertainty detection.

N is the uncertain class (hallucinated or unknown), P the correct class.
"""

import numpy as np

from utaca.errors import UserError
from utaca.records.schemas import CORRECT

BINS = 10
"""Number of bins of the calibration error."""
MOST_DISTRUSTED = 1 / 3
"""Largest share of the validation tokens that a detector should distrust; the paper's figures imply less than a tenth
with Llama-3.1-8B (docs/paper.md)."""
TOO_MUCH_DISTRUST = (
    "Above a third, decoding expands so often that little is saved. Trajectories that are mostly correct teach less "
    "distrust: raise the budgets of scale.train and scale.validation, or leave missing and partial out of their "
    "evidence; a detector that learns from sets of tasks can learn from biographies too (detectors.*.mixed)."
)
"""What it means if a detector distrusts more than :data:`MOST_DISTRUSTED`, and what helps; a part of the warning."""


def detection_metrics(
    uncertain_pred: np.ndarray, label: np.ndarray, score: np.ndarray | None = None
) -> dict[str, float | int]:
    """Compare the decisions on ``n`` tokens with their labels; returns the metrics by name.

    ``uncertain_pred`` [n] are the decisions, ``label`` [n] the integers 0 hallucinated, 1 correct, 2 unknown
    (negative: the labeller failed; such tokens only count in ``n_failed``), ``score`` [n] grows with distrust.

    ``macc`` is micro accuracy over tokens, as in the paper's table, so ``macc = share_uncertain * recall_n + (1 -
    share_uncertain) * recall_p``; ``share_uncertain`` is the share of N among the labels, ``share_distrusted`` that of
    the tokens decided to be N. ``auroc`` counts ties as half, ``auprc`` is average precision of N over the distinct
    scores. All but counts (``n_...``) are fractions, NaN if undefined (no token of a class, no score).
    """
    label = np.asarray(label)
    labelled = label >= 0
    flagged = np.asarray(uncertain_pred, dtype=bool)[labelled]
    is_uncertain = label[labelled] != CORRECT
    n_tokens = len(is_uncertain)
    n_uncertain = int(is_uncertain.sum())
    n_correct = n_tokens - n_uncertain
    hits = int((flagged & is_uncertain).sum())
    false_alarms = int((flagged & ~is_uncertain).sum())
    recall_n = _ratio(hits, n_uncertain)
    recall_p = _ratio(n_correct - false_alarms, n_correct)
    auroc = auprc = np.nan
    if score is not None:
        auroc, auprc = _areas(np.asarray(score)[labelled], is_uncertain)
    return {
        "macc": _ratio(hits + n_correct - false_alarms, n_tokens),
        "recall_n": recall_n,
        "recall_p": recall_p,
        "balanced_accuracy": (recall_n + recall_p) / 2,
        "f1_n": _ratio(2 * hits, hits + false_alarms + n_uncertain),
        "auroc": auroc,
        "auprc": auprc,
        "share_uncertain": _ratio(n_uncertain, n_tokens),
        "share_distrusted": _ratio(hits + false_alarms, n_tokens),
        "n_tokens": n_tokens,
        "n_failed": int((~labelled).sum()),
    }


def calibration_error(p: np.ndarray, label: np.ndarray) -> float:
    """Expected calibration error: the mean over tokens of |share of uncertain tokens - mean p_N| in the token's bin.

    ``p`` [n] is p_N, the probability of the uncertain class; ``label`` as in :func:`detection_metrics`. The ten bins
    have equal width and are (low, high]; the first bin also contains its lower end.
    """
    n_tokens, mean_p, share_uncertain = calibration_bins(p, label)
    # An empty bin has the gap NaN, which nansum leaves out.
    gaps = np.abs(share_uncertain - mean_p)
    return _ratio(float(np.nansum(gaps * n_tokens)), int(n_tokens.sum()))


def calibration_bins(p: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ten bins of :func:`calibration_error`: their tokens, their mean p_N and their share of uncertain tokens.

    All three are [10]; an empty bin has the mean and the share NaN. The arguments are those of the error.
    """
    labelled = label >= 0
    p = p[labelled].astype(np.float64)
    is_uncertain = label[labelled] != CORRECT
    bin_of_token = np.clip(np.ceil(p * BINS).astype(int) - 1, 0, BINS - 1)
    n_tokens = np.bincount(bin_of_token, minlength=BINS)
    with np.errstate(invalid="ignore"):
        mean_p = np.bincount(bin_of_token, p, minlength=BINS) / n_tokens
        share_uncertain = np.bincount(bin_of_token, is_uncertain, minlength=BINS) / n_tokens
    return n_tokens, mean_p, share_uncertain


def youden(score: np.ndarray, label: np.ndarray) -> float:
    """Choose the threshold on ``score`` [n] with the best balanced accuracy for ``label`` [n].

    Tokens with a negative label are left out. Candidates are the midpoints of adjacent distinct scores; in a tie the
    smallest is chosen, which distrusts the most tokens. Raises :class:`UserError` if no token is uncertain, none is
    correct, or all scores are equal.
    """
    labelled = label >= 0
    is_uncertain = label[labelled] != CORRECT
    n_uncertain = int(is_uncertain.sum())
    n_correct = len(is_uncertain) - n_uncertain
    if not n_uncertain or not n_correct:
        lack = "uncertain" if not n_uncertain else "correct"
        raise UserError(f"the validation labels have no {lack} token to fit a threshold on; enlarge scale.validation")
    value, hits, false_alarms = threshold_curve(score[labelled].astype(np.float64), is_uncertain)
    if len(value) == 1:
        raise UserError("a score is the same for all validation tokens, so no threshold splits them; check the reader")
    # Youden's J (recall of N minus false alarm rate) times both class counts: integers, so that ties are exact. The
    # last score is not a candidate, because no distinct score is below it.
    gain = (hits * n_correct - false_alarms * n_uncertain)[:-1]
    # Scores descend, so the last of the best has the smallest threshold.
    best = len(gain) - 1 - int(gain[::-1].argmax())
    return float((value[best] + value[best + 1]) / 2)


def _ratio(part: float, whole: int) -> float:
    """``part`` / ``whole``, or NaN if ``whole`` is 0."""
    return part / whole if whole else float("nan")


def threshold_curve(score: np.ndarray, is_uncertain: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct values [m] of ``score`` [n], descending, and what each would flag as a threshold.

    That is the number of uncertain tokens (hits) and of correct ones (false alarms), int64 [m], with a score at least
    as high.
    """
    order = np.argsort(-score, kind="stable")
    ranked = score[order]
    # The last place of each distinct score.
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    hits = np.cumsum(is_uncertain[order], dtype=np.int64)[ends]
    return ranked[ends], hits, ends + 1 - hits


def _areas(score: np.ndarray, is_uncertain: np.ndarray) -> tuple[float, float]:
    """AUROC and AUPRC of detecting uncertain tokens (``is_uncertain`` [n]) by a high ``score`` [n].

    Each distinct score gives a point of the curves. AUROC is NaN without tokens of both classes, AUPRC without
    uncertain ones.
    """
    n_uncertain = int(is_uncertain.sum())
    n_correct = len(is_uncertain) - n_uncertain
    if not n_uncertain:
        return float("nan"), float("nan")
    _, hits, false_alarms = threshold_curve(score, is_uncertain)
    new_hits = np.diff(hits, prepend=0)
    auprc = float((new_hits * hits / (hits + false_alarms)).sum() / n_uncertain)
    if not n_correct:
        return float("nan"), auprc
    # AUROC is the share of pairs of an uncertain and a correct token that the score puts in order. Each correct token
    # at a score is below ``hits - new_hits`` uncertain tokens, and ties with ``new_hits``, which count half.
    new_false_alarms = np.diff(false_alarms, prepend=0)
    ordered_pairs = float((new_false_alarms * (hits - new_hits / 2)).sum())
    return ordered_pairs / (n_uncertain * n_correct), auprc
