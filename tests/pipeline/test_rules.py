"""How far the rules agree with scores by hand and with the second reading of readers' answers, and what ships of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bench import rules


def test_kappa_of_the_textbook() -> None:
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    assert rules.kappa(pairs) == pytest.approx(0.4)
    assert rules.kappa([(0, 1), (1, 0)]) == pytest.approx(-1)


def test_the_shipped_reading_is_whole() -> None:
    rows = rules.read_answers()
    assert len(rows) == len({row["id"] for row in rows}) == 447
    assert Counter(row["set"] for row in rows) == {"hard": 137, "calibration": 100, "tiny": 63, "public": 147}
    assert {value for row in rows for value in row["labels"]} == {0, 1, 2, None}
    for row in rows:
        assert row["prediction"] in "".join(row["tokens"])
        silent = [re.search(r"[^\W_]", token) is None for token in row["tokens"]]
        assert silent == [value is None for value in row["labels"]]
        if row["score"] == 1:
            assert 0 not in row["labels"] or any(one in row["prediction"] for one in row["references"])


def test_the_page_tells_what_the_command_prints() -> None:
    printed = rules.table_of_reading(rules.read_answers())
    page = rules.READING.with_name("README.md").read_text("utf-8")
    line = r"^\| (labels, \w+|CAS|string match)[^|]*\| (\d+) \w+ \| ([\d.]+)% \| ([\d.]+)"
    found = re.findall(line, printed, re.MULTILINE)
    assert len(found) == 7
    for name, number, agreed, kappa in found:
        assert f"| {name} | {int(number):,} | {agreed} % | {float(kappa):.2f} |" in page


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


def test_score_of_a_pair_does_not_depend_on_its_score_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = tmp_path / "pairs.csv"
    lines = ["kind,part,attribute,prediction,reference,score,note", "x,later,company,Google LLC,Google,0,"]
    turned.write_text("\n".join(lines), encoding="utf-8")
    assert rules.read_pairs(turned)[0].scored == 1
    nothing = tmp_path / "reading.jsonl"
    nothing.touch()
    monkeypatch.setattr("sys.argv", ["rules.py", "--pairs", str(turned), "--reading", str(nothing)])
    rules.main()
    assert "| **all** | 1 | 0.0% |" in capsys.readouterr().out
