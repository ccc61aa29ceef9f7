"""Metrics and thresholds of uncertainty detection.

N is the uncertain class (hallucinated or unknown), P the correct class.
"""

from typing import NamedTuple

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
    """The ten bins of :func:`calibration_error`: their numbers of tokens, mean p_N and shares of uncertain tokens.

    All three are [10]; an empty bin has the mean and the share NaN. The arguments are those of that function.
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
        raise UserError(
            f"the validation labels have no {lack} token, so no threshold can be chosen; enlarge scale.validation"
        )
    value, hits, false_alarms = threshold_curve(score[labelled].astype(np.float64), is_uncertain)
    if len(value) == 1:
        raise UserError(
            "a score is the same for all validation tokens, so no threshold can separate them; check the reader"
        )
    # Youden's J (recall of N minus false alarm rate) times both class counts: integers, so that ties are exact. The
    # last score is not a candidate, because no distinct score is below it.
    gain = (hits * n_correct - false_alarms * n_uncertain)[:-1]
    # Scores descend, so the last of the best has the smallest threshold.
    best = len(gain) - 1 - int(gain[::-1].argmax())
    return float((value[best] + value[best + 1]) / 2)


# Measures of other projects. Tokens, or spans of tokens, have a score [n] that grows with distrust, and those that
# should be distrusted are marked by boolean ``is_uncertain`` [n].


def risk_coverage_area(score: np.ndarray, is_uncertain: np.ndarray) -> float:
    """Area under the risk-coverage curve (AURC), as ``RiskCoverageCurveAUC`` of lm-polygraph; small is good.

    The n tokens are accepted one after the other, the least distrusted first. The area is the mean, over the n numbers
    of accepted tokens, of the share of uncertain ones among these. Tokens of one score are accepted in random order:
    the area is then the expected one, where lm-polygraph takes the order of the input. NaN without tokens.
    """
    if not len(score):
        return float("nan")
    _, group, sizes = np.unique(score, return_inverse=True, return_counts=True)
    share_of_group = np.bincount(group, is_uncertain) / sizes
    # How many uncertain tokens are expected among the first 1, 2, ... accepted ones.
    n_uncertain = np.cumsum(np.repeat(share_of_group, sizes))
    return float((n_uncertain / np.arange(1, len(score) + 1)).mean())


def rejection_ratio(score: np.ndarray, is_uncertain: np.ndarray) -> float:
    """Prediction rejection ratio (PRR), as ``prr_normalized`` of lm-polygraph.

    It says how far the score's order of tokens goes from a random order (0) to the best one (1). It compares the areas
    under the curves of accuracy over rejected tokens. Such an area is 1 - :func:`risk_coverage_area`. The random order
    has its expected area here; lm-polygraph takes the mean of 1,000 random orders. NaN without tokens of both classes.
    """
    n_uncertain = int(np.sum(is_uncertain))
    if n_uncertain in (0, len(score)):
        return float("nan")
    of_random = n_uncertain / len(score)
    of_best = risk_coverage_area(np.asarray(is_uncertain, np.float64), is_uncertain)
    return (of_random - risk_coverage_area(score, is_uncertain)) / (of_random - of_best)


def recall_at(false_alarm_rate: float, score: np.ndarray, is_uncertain: np.ndarray) -> float:
    """Recall of uncertain tokens at the lowest threshold with at most this rate of false alarms among the others.

    With a rate of 0.1 it is ``recall_at_0.1_fpr`` of obalcells/hallucination_probes, but for all distinct scores as
    thresholds: scikit-learn's ``roc_curve`` leaves out those that lie on a line between others. 0 if no score may be
    flagged; NaN without tokens of both classes.
    """
    n_uncertain = int(np.sum(is_uncertain))
    n_correct = len(score) - n_uncertain
    if not n_uncertain or not n_correct:
        return float("nan")
    _, hits, false_alarms = threshold_curve(np.asarray(score, np.float64), is_uncertain)
    allowed = false_alarms / n_correct <= false_alarm_rate
    return float(hits[allowed].max(initial=0) / n_uncertain)


def spans(value: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Number the spans of tokens: the adjacent tokens of one value. int64 [n], -1 for tokens of no value.

    ``value`` [n] marks the tokens of values, ``begins`` [n] the first token of each answer. A span does not continue
    from one answer into the next.
    """
    is_first = value & (begins | ~np.append(False, value[:-1]))
    return np.where(value, np.cumsum(is_first) - 1, -1)


class Spans(NamedTuple):
    """The labelled ones of m spans, in the order of their numbers, and their tokens."""

    first: np.ndarray  # [m] int64, the place of each span's first token
    is_uncertain: np.ndarray  # [m] bool, whether a token of the span is uncertain
    token: np.ndarray  # [t] int64, the places of the spans' tokens
    owner: np.ndarray  # [t] int64, the span of each of these tokens, an index into ``first``

    def largest(self, score: np.ndarray) -> np.ndarray:
        """The largest score [m] in each span; ``score`` [n] has one for each token."""
        result = np.full(len(self.first), -np.inf)
        np.maximum.at(result, self.owner, score[self.token])
        return result


def labelled_spans(span: np.ndarray, label: np.ndarray) -> Spans:
    """Find the spans that have a label; ``span`` [n] are the numbers of :func:`spans`.

    ``label`` [n] as in :func:`detection_metrics`. A span is uncertain if one of its tokens is; a span without such a
    token, but with one that the labeller failed on, is left out.
    """
    token = np.flatnonzero(span >= 0)
    number, first, owner = np.unique(span[token], return_index=True, return_inverse=True)
    labels = label[token]
    has_uncertain = np.bincount(owner, (labels >= 0) & (labels != CORRECT), len(number)) > 0
    has_failed = np.bincount(owner, labels < 0, len(number)) > 0
    kept = has_uncertain | ~has_failed
    place = np.cumsum(kept) - 1  # of each kept span in the result
    of_kept = kept[owner]
    return Spans(token[first[kept]], has_uncertain[kept], token[of_kept], place[owner[of_kept]])


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
