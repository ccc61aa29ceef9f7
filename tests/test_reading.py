"""The second reading of readers' answers: what ships, and how far the rules agree with it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from utaca.errors import UserError
from utaca.reference import reading

SHIPPED = Path(__file__).parents[1] / "data" / "annotations" / "reading.jsonl"


def test_kappa_of_the_textbook() -> None:
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    assert reading.kappa(pairs) == pytest.approx(0.4)
    assert reading.kappa([(0, 1), (1, 0)]) == pytest.approx(-1)


def test_the_shipped_reading_is_whole() -> None:
    rows = reading.read(SHIPPED)
    assert len(rows) == len({row["id"] for row in rows}) == 300
    assert Counter(row["set"] for row in rows) == {"hard": 137, "calibration": 100, "tiny": 63}
    assert {value for row in rows for value in row["labels"]} == {0, 1, 2, None}
    for row in rows:
        assert row["prediction"] in "".join(row["tokens"])
        silent = [re.search(r"[^\W_]", token) is None for token in row["tokens"]]
        assert silent == [value is None for value in row["labels"]]
        if row["score"] == 1:
            assert 0 not in row["labels"] or row["prediction"].startswith(tuple(row["references"]))


def test_the_page_tells_what_the_command_prints() -> None:
    printed = reading.table(reading.read(SHIPPED))
    page = (SHIPPED.parent / "README.md").read_text("utf-8")
    line = r"^\| (labels, \w+|CAS|string match)[^|]*\| (\d+) \w+ \| ([\d.]+)% \| ([\d.]+)"
    found = re.findall(line, printed, re.MULTILINE)
    assert len(found) == 6
    for name, number, agreed, kappa in found:
        assert f"| {name} | {int(number):,} | {agreed} % | {float(kappa):.2f} |" in page


def test_agreement_by_hand(tmp_path) -> None:
    right = {"set": "own", "question": "Who?", "references": ["Ann Lee"], "prediction": "Ann Lee", "score": 1,
             "tokens": [" Ann", " Lee", "."], "labels": [1, 1, None]}  # fmt: skip
    wrong = right | {"prediction": "Bob Ray", "score": 1, "tokens": [" Bob", " Ray"], "labels": [0, 1]}
    path = tmp_path / "reading.jsonl"
    path.write_text("\n".join(map(json.dumps, (right, wrong))))
    rows = reading.read(path)
    assert [reading.labels(row) for row in rows] == [[(1, 1), (1, 1)], [(0, 0), (1, 0)]]
    assert [reading.scores(row) for row in rows] == [(1, 1, 1), (1, 0, 0)]
    assert "| labels, own | 4 tokens | 75.0% |" in reading.table(rows)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line that is no JSON"),
        ('{"set": "a", "question": "?"}', "line 1 has no references"),
        ('{"person": "A"}', "line 1 has no attribute"),
        (
            '{"set": "", "question": "", "references": [], "prediction": "", "score": 0, "tokens": [0], "labels": []}',
            "0 labels",
        ),
    ],
)
def test_a_faulty_reading_is_refused(tmp_path, line: str, said: str) -> None:
    path = tmp_path / "reading.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match=said):
        reading.read(path)
