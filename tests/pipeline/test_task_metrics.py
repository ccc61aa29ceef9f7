"""Metrics of the benchmarks, held against their published corner cases and against brute force."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utaca.errors import UserError
from utaca.tasks import metrics
from utaca.tasks.metrics import rouge_l, rouge_lsum, token_f1

texts = st.lists(st.sampled_from(["the", "cat", "dog", "sat", "a", "ran", "on"]), max_size=9).map(" ".join)


def lcs(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of a longest common subsequence, by its definition."""

    @cache
    def behind(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return 0
        return behind(i + 1, j + 1) + 1 if first[i] == second[j] else max(behind(i + 1, j), behind(i, j + 1))

    return behind(0, 0)


def f(common: int, predicted: int, wanted: int) -> float:
    return 200 * common / (predicted + wanted) if common else 0.0


@settings(deadline=None)
@given(texts, texts)
def test_rouge_lsum_of_lines_is_that_of_their_common_subsequence(prediction: str, reference: str) -> None:
    ours, theirs = prediction.split(), reference.split()
    wanted = f(lcs(ours, theirs), len(ours), len(theirs))
    assert rouge_lsum(prediction.upper(), [reference]) == pytest.approx(wanted)
    assert rouge_lsum(prediction, ["nothing else", reference]) == pytest.approx(wanted)


WORDS = st.permutations(["The", "cat", "sat,", "the", "dog", "ran"])


@settings(deadline=None)
@given(WORDS, WORDS, st.integers(1, 6))
def test_rouge_l_of_distinct_words_is_that_of_their_common_subsequence(
    prediction: list[str], reference: list[str], length: int
) -> None:
    del prediction[length:]
    wanted = f(lcs(prediction, reference), length, len(reference))
    assert rouge_l(" ".join(prediction), [" ".join(reference)]) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("score", "prediction", "reference", "wanted"),
    [
        (token_f1, "A", "the", 0),
        (token_f1, "", "", 0),
        (token_f1, "$3,677", "3677", 100),
        (token_f1, "well-known", "well known", 0),
        (token_f1, "cat cat dog", "cat dog dog", 200 / 3),
        (token_f1, "“Paris”", "Paris", 0),
        (token_f1, "rock'n'roll", "ROCKNROLL.", 100),
        (token_f1, "An  apple\nand\tthe\u00a0pear", "apple and pear", 100),
        # Line breaks count, and nothing is stemmed.
        (rouge_lsum, "c d\na b", "a b\nc d", 100),
        (rouge_lsum, "c d a b", "a b c d", 50),
        (rouge_lsum, "c d. a b.", "a b. c d.", 50),
        (rouge_lsum, "dogs", "dog", 0),
        (rouge_lsum, "", "dog", 0),
        (rouge_l, "Cat", "cat", 0),
        (rouge_l, "cat,", "cat", 0),
        (rouge_l, "", "cat", 0),
        (rouge_l, "...", "cat", 0),
        # Words count once, and what one sentence has in common with another's counts for both.
        (rouge_l, "cat cat dog", "cat dog dog", 100),
        (rouge_l, "c d. a b", "a b. c d", 100),
        (rouge_l, "c d a b", "a b c d", 50),
        # Nothing in common but the empty word behind the last full stop.
        (rouge_l, "one two three four five. ", "six seven eight. ", 20),
        (rouge_l, "one two three. ", "six seven. ", 200 / 7),
    ],
)
def test_scores_to_the_digit(
    score: Callable[[str, Sequence[str]], float], prediction: str, reference: str, wanted: float
) -> None:
    assert score(prediction, [reference]) == pytest.approx(wanted, abs=1e-6)


def at_depth(depth: int, call: Callable[[], float]) -> float:
    return call() if depth == 0 else at_depth(depth - 1, call)


OFFICIAL = """
from rouge import Rouge

def rouge_score(prediction, ground_truth):
    rouge = Rouge()
    try:
        scores = rouge.get_scores([prediction], [ground_truth], avg=True)
    except:
        return 0.0
    return scores["rouge-l"]["f"]

def scorer():
    for count in range(970, 1010):
        if rouge_score("cat " + "dog " * count, "cat") == 0:
            print(count - 1)
            break

scorer()
"""


def test_rouge_l_fails_on_long_sentences_where_the_official_code_does() -> None:
    done = subprocess.run([sys.executable, "-c", OFFICIAL], capture_output=True, text=True, check=True)
    longest = int(done.stdout)
    assert 985 < longest < 1000

    def score(count: int) -> float:
        return rouge_l("cat " + "dog " * count, ["cat"])

    limit = sys.getrecursionlimit()
    for depth, limited in ((0, limit), (400, limit), (0, 5000)):
        try:
            sys.setrecursionlimit(limited)
            assert at_depth(depth, lambda: score(longest)) == pytest.approx(200 / 3, abs=1e-4)
            assert at_depth(depth, lambda: score(longest + 1)) == 0
        finally:
            sys.setrecursionlimit(limit)


@pytest.mark.parametrize("score", [token_f1, rouge_lsum, rouge_l])
def test_references_are_several_and_the_best_counts(score: Callable[[str, Sequence[str]], float]) -> None:
    assert score("cat sat", ("dog", "cat sat", "cat")) == score("cat sat", ["cat sat"]) == pytest.approx(100)
    with pytest.raises(TypeError, match="sequence of texts"):
        score("cat", "cat")


def test_packages_of_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics.require(*metrics.VERSIONS)
    monkeypatch.setattr(metrics, "VERSIONS", {"rouge": "1.0.0", "rouge-score": "0.1.2"})
    said = r'rouge 1\.0\.0, which is 1\.0\.1 here; run: pip install "utaca\[benchmarks\]"'
    with pytest.raises(UserError, match=said):
        rouge_l("cat", ["cat"])

    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UserError, match=r"rouge-score 0\.1\.2, which is not installed here"):
        rouge_lsum("cat", ["cat"])
