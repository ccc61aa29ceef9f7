"""Scores of an answer as the benchmarks' own code computes them, 0 to 100, not rounded.

Two metrics that both are called ROUGE-L differ by several points, so each keeps the package of its benchmark.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from threading import Thread
from typing import TYPE_CHECKING

from utaca.errors import UserError
from utaca.judging import strings

if TYPE_CHECKING:
    from rouge import Rouge

VERSIONS = {"nltk": "3.10.4", "rouge": "1.0.1", "rouge-score": "0.1.2", "wonderwords": "3.0.1"}
"""The packages that tasks need, by version: other versions score otherwise, or make other prompts (RULER)."""

_LIMIT = 1000
"""Python's default limit of recursion, at which LongBench's ROUGE-L gives up on long sentences."""
_CONTROL = re.compile(r"[\x00-\x1f]")


def require(*packages: str) -> None:
    """Raise :class:`UserError` if a package of :data:`VERSIONS` is missing or of another version."""
    for package in packages:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "not installed"
        if version != VERSIONS[package]:
            raise UserError(
                f"the task needs {package} {VERSIONS[package]}, which is {version} here; run: pip install "
                '"utaca[benchmarks]"'
            )


def token_f1(prediction: str, references: Sequence[str]) -> float:
    """F1 of the words that prediction and reference share; the best over ``references``.

    This is the score of InfiniteBench's En.QA and LongBench's NarrativeQA. Texts are normalised as for SQuAD, but a
    text that is empty after normalisation always scores 0.
    """
    return 100 * max(strings.token_f1(prediction, reference) for reference in _several(references))


def rouge_lsum(prediction: str, references: Sequence[str]) -> float:
    """F-measure of ROUGE-Lsum, as the package ``rouge-score`` computes it without a stemmer; the best over references.

    This is the score of InfiniteBench's En.Sum. Each line of a reference is compared with the lines of the answer, so
    line breaks change the score.
    """
    require("rouge-score")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeLsum"], use_stemmer=False)
    return 100 * scorer.score_multi(_several(references), prediction)["rougeLsum"].fmeasure


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """F-measure of summary-level ROUGE-L on distinct words, as the package ``rouge`` computes it; best over references.

    This is the score of LongBench's QMSum. As in LongBench, the score is 0 if the package fails: on a text without a
    sentence, and on sentences of about 1,000 words, at which its recursion meets Python's limit. The package runs in a
    thread, so that its recursion starts at the same stack depth as in LongBench's script, whatever calls this function.
    """
    require("rouge")
    from rouge import Rouge

    scorer = Rouge(metrics=["rouge-l"], stats=["f"])
    return 100 * max(_rouge_l(scorer, prediction, reference) for reference in _several(references))


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """100 if the prediction contains any reference, letter case aside ("Norway" contains "No"); else 0.

    This is RULER's score of its two tasks of questions.
    """
    return 100 * max(_contained(prediction, references))


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """The percentage of the references that the prediction contains, letter case aside: RULER's other score."""
    found = _contained(prediction, references)
    return 100 * sum(found) / len(found)


METRICS = {"F1": token_f1, "rougeLsum": rouge_lsum, "ROUGE-L (rouge)": rouge_l}
"""Metrics by their names in results."""


def _several(references: Sequence[str]) -> Sequence[str]:
    """Return the references; raise :class:`TypeError` if they are one text, which would be read letter by letter."""
    if isinstance(references, str):
        raise TypeError("references are a sequence of texts, not a text")
    return references


def _contained(prediction: str, references: Sequence[str]) -> list[float]:
    """For each reference, 1 if a prediction contains it and 0 if not, as RULER compares them."""
    prediction = _CONTROL.sub("\n", prediction.strip()).strip().lower()
    return [float(reference.lower() in prediction) for reference in _several(references)]


def _rouge_l(scorer: Rouge, prediction: str, reference: str) -> float:
    """LongBench's ROUGE-L of an answer and a reference, 0 to 1, computed in a thread (:func:`rouge_l` says why)."""
    value = 0.0

    def score() -> None:
        nonlocal value
        limit = sys.getrecursionlimit()
        # This is the fourth function of its thread, and LongBench's own the third of its script.
        sys.setrecursionlimit(_LIMIT + 1)
        with suppress(RecursionError, ValueError):
            value = scorer.get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
        sys.setrecursionlimit(limit)

    thread = Thread(target=score)
    thread.start()
    thread.join()
    return value
