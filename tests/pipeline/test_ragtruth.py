"""RAGTruth's answers and marks: read, found in tokens, and scored by a reader."""

import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from utaca.errors import UserError
from utaca.tasks import fetch
from utaca.tasks.ragtruth import QUESTION, Responses, given_answers, marked_tokens

PASSAGES = "passage 1:The birth date of Emma Thompson is June 8, 1921.\n\npassage 2:The major of Emma is Law.\n\n"
ANSWERS = {
    "right": ("The birth date of Emma Thompson is June 8, 1921.", []),
    "wrong": ("The birth date of Emma Thompson is May 2, 1944.", [(35, 46)]),
    "refused": ("Unable to answer based on given passages.", []),
}


def files(folder: Path, **changes: Any) -> Path:
    """The files in a folder: three answers to a question and one to a text; ``changes`` are the first answer's."""
    sources = [
        {"source_id": "7", "task_type": "QA", "source_info": {"question": "when born\n", "passages": PASSAGES}},
        {"source_id": "8", "task_type": "Summary", "source_info": "A text."},
    ]
    responses = []
    for number, (model, (answer, marks)) in enumerate(ANSWERS.items()):
        labels = [{"start": start, "end": end, "label_type": "Evident Conflict"} for start, end in marks]
        row = {"id": str(number), "source_id": "7", "model": model, "labels": labels, "split": "test"}
        responses.append(row | {"quality": "good", "response": answer} | (changes if not number else {}))
    responses.append(responses[1] | {"id": "3", "source_id": "8"})
    responses.append(responses[1] | {"id": "4", "quality": "truncated"})
    responses.append(responses[1] | {"id": "5", "split": "train"})
    (folder / "RAGTruth").mkdir(parents=True, exist_ok=True)
    for name, rows in (("source_info", sources), ("response", responses)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "RAGTruth" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def test_good_answers_to_questions_of_a_split_are_read(tmp_path: Path) -> None:
    found = given_answers(files(tmp_path))
    assert [(given.model, given.answer) for given in found] == [(model, text) for model, (text, _) in ANSWERS.items()]
    assert {(given.source, given.text) for given in found} == {("7", PASSAGES.strip())}
    assert found[0].question == QUESTION.format(question="when born")
    wrong = found[1]
    assert [wrong.answer[mark.start : mark.stop] for mark in wrong.marks] == ["May 2, 1944"]
    assert [given.id for given in given_answers(tmp_path, "train")] == ["5"]
    assert [given.id for given in given_answers(files(tmp_path, response=" "))] == ["1", "2"], "nothing to score"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"response": None}, "line 1, has no text under 'response'"),
        ({"labels": None}, "line 1, has no list of objects under 'labels'"),
        ({"labels": [{"start": 3}]}, "line 1, has a label without 'start' and 'end'"),
        ({"source_id": "9"}, "line 1, is about source 9, which .*source_info.jsonl lacks"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        given_answers(files(tmp_path, **changes))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"response\.jsonl is not there; utaca fetch-tasks ragtruth-responses"):
        given_answers(tmp_path)
    with pytest.raises(UserError, match="has no answers to questions in split 'dev'; its splits are train and test"):
        given_answers(files(tmp_path), "dev")


def test_marks_are_found_in_tokens() -> None:
    # The mark is "Gaza Strip" of "in the Gaza Strip now"; a token may begin with white space or complete a character.
    pieces = ["in", " the", " G", "aza", " ", "", "Strip", " now", ""]
    assert marked_tokens(pieces, [range(7, 17)]).tolist() == [False, False, *[True] * 5, False, False]
    assert not marked_tokens(pieces, []).any()
    assert marked_tokens(["a", " b"], [range(1, 2)]).tolist() == [False, False], "only white space is marked"


def test_the_files_are_gits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is let in if it has the number of rows, and is the one that git names."""
    official = fetch.OFFICIAL["ragtruth-responses"]
    assert "/c103204b9ce28d6bbad859304bf30de72b8ed8fe/" in official.source.address
    content = (files(tmp_path / "source") / "RAGTruth" / "response.jsonl").read_bytes()
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    monkeypatch.setattr(fetch, "_download", lambda _, path: path.write_bytes(content))
    monkeypatch.setattr(Responses, "rows", 6)
    for name, ends in ((blob, ""), ("0" * 40, f"is not git's file {'0' * 40}: it was changed or is damaged")):
        file = fetch.Official(Responses, fetch.Source("https://host/response.jsonl", blob=name))
        (outcome,) = fetch.fetch(["it"], tmp_path / name, {"it": file})
        assert outcome.now == (not ends)
        assert ends in outcome.fault
    monkeypatch.setattr(Responses, "rows", 7)
    file = fetch.Official(Responses, fetch.Source("https://host/response.jsonl", blob=blob))
    (outcome,) = fetch.fetch(["it"], tmp_path / "more", {"it": file})
    assert "does not have the 7 rows of the official file" in outcome.fault


def test_a_reader_scores_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    detector = ROOT / "data" / "detectors" / "tiny" / "utaca" / "seed0" / "model.safetensors"
    import_module("ragtruth").main(["--folder", str(files(tmp_path)), "--detector", str(detector), "--budget", "4"])
    out = capsys.readouterr().out
    assert out.startswith("tiny, 1 questions, 3 answers (0 left out")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["margin", "entropy", "probability", "detector"]
    for _, area, *others in rows[2:]:
        figures = [float(cell.split()[0]) for cell in (area, *others)]
        assert all(-1 <= figure <= 100 for figure in figures)
        assert 0 <= float(others[-1]) <= 1
