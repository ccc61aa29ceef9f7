"""How far the rules agree with scores by hand and with the second reading of readers' answers, and what ships of it."""

from __future__ import annotations

import json

import pytest

from bench import rules


def test_kappa_of_the_textbook() -> None:
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    assert rules.kappa(pairs) == pytest.approx(0.4)
    assert rules.kappa([(0, 1), (1, 0)]) == pytest.approx(-1)


def test_agreement_by_hand(tmp_path) -> None:
    right = {"set": "own", "question": "Who?", "references": ["Ann Lee"], "prediction": "Ann Lee", "score": 1,
             "tokens": [" Ann", " Lee", "."], "labels": [1, 1, None]}  # fmt: skip
    wrong = right | {"prediction": "Bob Ray", "score": 1, "tokens": [" Bob", " Ray"], "labels": [0, 1]}
    path = tmp_path / "reading.jsonl"
    path.write_text("\n".join(map(json.dumps, (right, wrong))))
    rows = rules.read_answers(path)
    assert [rules.labels(row) for row in rows] == [[(1, 1), (1, 1)], [(0, 0), (1, 0)]]
    assert [rules.scores(row) for row in rows] == [(1, 1, 1), (1, 0, 0)]
    assert "| labels, own | 4 tokens | 75.0% |" in rules.table_of_reading(rows)


def test_agreement_is_reported_by_kind_and_part() -> None:
    right = rules.Pair("date", "later", "birth date", "1985", "1985", "", wanted=1.0, scored=1.0, reason="")
    wrong = rules.Pair("date", "held out", "birth date", "1984", "1985", "", wanted=0.0, scored=0.5, reason="close")
    table = rules.table_of_pairs([right, wrong])
    assert "| date | 2 | 50.0% | 50.0% | 0.250 | 1 |" in table
    assert "| **held out** | 1 | 0.0% | 0.0% | 0.500 | 1 |" in table
    assert "| **later** | 1 | 100.0% | 100.0% | 0.000 | 0 |" in table
    assert "- date (held out): birth date, '1984' for '1985': 0.50 by rule (close), 0.00 by hand" in table
