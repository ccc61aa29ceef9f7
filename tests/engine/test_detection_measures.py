"""Measures of detection that other projects report: theirs on the same arrays, and by their definitions."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utaca.detection.training.metrics import (
    detection_metrics,
    labelled_spans,
    recall_at,
    rejection_ratio,
    risk_coverage_area,
    spans,
)

REFERENCE = json.loads((Path(__file__).parent.parent / "data" / "detection_measures.json").read_text("utf-8"))
"""What lm-polygraph and scikit-learn made of some arrays (tests/measures_oracle.py)."""


@pytest.mark.parametrize("case", REFERENCE["cases"])
def test_measures_are_those_of_lm_polygraph_and_scikit_learn(case: dict) -> None:
    score, uncertain, expected = np.array(case["score"]), np.array(case["uncertain"], bool), case["measures"]
    areas = detection_metrics(score > 0, np.where(uncertain, 0, 1), score)
    assert areas["auroc"] == pytest.approx(expected["roc_auc"])
    assert areas["auprc"] == pytest.approx(expected["average_precision"])
    assert recall_at(0.1, score, uncertain) == pytest.approx(expected["recall_at_0.1_fpr"])
    if "prr" not in expected:
        assert len({*case["score"]}) < len(score)
        return
    area = risk_coverage_area(score, uncertain)
    assert area == pytest.approx(expected["rcc-auc"])
    assert 1 - area == pytest.approx(expected["prr"])
    assert 1 - risk_coverage_area(uncertain.astype(float), uncertain) == pytest.approx(expected["prr_best"])
    # Its random area is the mean of 1,000 orders, which varies by about this much.
    assert 1 - uncertain.mean() == pytest.approx(expected["prr_random"], abs=0.01)
    ratio = rejection_ratio(score, uncertain)
    gap = expected["prr_best"] - expected["prr_random"]
    assert ratio == pytest.approx(expected["prr_normalized"], abs=0.02 / gap)
    exact = (expected["prr"] - (1 - uncertain.mean())) / (expected["prr_best"] - (1 - uncertain.mean()))
    assert ratio == pytest.approx(exact)


def test_the_reference_has_cases_with_and_without_equal_scores() -> None:
    assert [("prr" in case["measures"]) for case in REFERENCE["cases"]] == [True] * 4 + [False] * 2
    assert {*REFERENCE["made_by"]} == {"lm-polygraph", "scikit-learn"}


few = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)


@given(few)
@settings(max_examples=60, deadline=None)
def test_equal_scores_are_accepted_in_every_order(rows: list[tuple[int, bool]]) -> None:
    """The area is the mean over all orders of the tokens in which scores do not fall."""
    areas = []
    for order in itertools.permutations(rows):
        if all(first[0] <= second[0] for first, second in itertools.pairwise(order)):
            wrong = list(itertools.accumulate(int(uncertain) for _, uncertain in order))
            areas.append(np.mean([errors / (place + 1) for place, errors in enumerate(wrong)]))
    score, uncertain = np.array([s for s, _ in rows]), np.array([u for _, u in rows])
    assert risk_coverage_area(score, uncertain) == pytest.approx(np.mean(areas))


@given(few)
@settings(max_examples=60, deadline=None)
def test_rejection_goes_from_chance_to_the_best_order(rows: list[tuple[int, bool]]) -> None:
    score, uncertain = np.array([float(s) for s, _ in rows]), np.array([u for _, u in rows])
    if uncertain.all() or not uncertain.any():
        assert math.isnan(rejection_ratio(score, uncertain))
        assert math.isnan(recall_at(0.1, score, uncertain))
        return
    assert rejection_ratio(uncertain.astype(float), uncertain) == pytest.approx(1)
    assert rejection_ratio(np.ones(len(rows)), uncertain) == pytest.approx(0)
    assert rejection_ratio(score, uncertain) <= 1 + 1e-9
    for rate in (0.0, 0.1, 0.5, 1.0):
        recalls = [0.0]
        for threshold in {*score.tolist()}:
            flagged = score >= threshold
            if flagged[~uncertain].mean() <= rate:
                recalls.append(flagged[uncertain].mean())
        assert recall_at(rate, score, uncertain) == pytest.approx(max(recalls))


def test_no_token_has_no_measure() -> None:
    nothing = np.zeros(0), np.zeros(0, bool)
    assert all(map(math.isnan, (risk_coverage_area(*nothing), rejection_ratio(*nothing), recall_at(0.1, *nothing))))
    found = labelled_spans(spans(np.zeros(0, bool), np.zeros(0, bool)), np.zeros(0, int))
    assert [len(part) for part in found] == [0] * 4


answers = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(-1, 2), st.integers(0, 5)), min_size=1, max_size=8),
    min_size=1,
    max_size=4,
)


@given(answers)
@settings(max_examples=100, deadline=None)
def test_a_span_is_a_value_of_one_answer(rows: list[list[tuple[bool, int, int]]]) -> None:
    """Against a loop over answers, as obalcells/hallucination_probes loops over annotated spans."""
    values, labels, scores = (np.array(column) for column in zip(*itertools.chain.from_iterable(rows), strict=True))
    begins = np.array([place == 0 for answer in rows for place in range(len(answer))])
    expected = []  # (place of the first token, is uncertain, places, largest score)
    start = 0
    for answer in rows:
        places = range(start, start + len(answer))
        for is_value, run in itertools.groupby(places, key=lambda place: values[place]):
            span = list(run)
            uncertain = any(labels[place] in (0, 2) for place in span)
            if is_value and (uncertain or all(labels[place] == 1 for place in span)):
                expected.append((span[0], uncertain, span, max(scores[place] for place in span)))
        start += len(answer)
    found = labelled_spans(spans(values, begins), labels)
    assert found.first.tolist() == [first for first, *_ in expected]
    assert found.is_uncertain.tolist() == [uncertain for _, uncertain, *_ in expected]
    assert found.largest(scores.astype(float)).tolist() == [largest for *_, largest in expected]
    of_tokens = [(place, number) for number, (*_, places, _) in enumerate(expected) for place in places]
    assert list(zip(found.token.tolist(), found.owner.tolist(), strict=True)) == of_tokens
