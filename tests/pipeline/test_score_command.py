"""``utaca score``: marks, JSON lines and CSV files."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from serving import DOCUMENT, QUESTION

import utaca
from utaca.app import score as scoring
from utaca.app.choices import detector_of
from utaca.decoding.score import AnswerScores
from utaca.readers.load import Reader

RIGHT = "The birth date of Emma Thompson is May 3, 1959. The university of Emma Thompson is Harvard University."
WRONG = "The birth date of Emma Thompson is June 8, 1921. The university of Emma Thompson is Harvard University."


@pytest.fixture
def prepared(tiny: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document's file in the working directory, an empty cache, and a reader that is loaded already."""
    monkeypatch.setattr(utaca, "load_reader", lambda name: tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("document.txt").write_text(DOCUMENT, encoding="utf-8")
    return tmp_path


def score(*words: str) -> Any:
    return typed("score", "--reader", "tiny", *words)


def scores_of(tiny: Reader, answer: str) -> AnswerScores:
    memory = utaca.prefill(tiny, DOCUMENT)
    return utaca.score(memory, QUESTION, answer, budget=8, detector=detector_of(tiny))


def test_wrong_tokens_are_marked(prepared: Path, tiny: Reader) -> None:
    done = score("--document", "document.txt", QUESTION, WRONG)
    scores = scores_of(tiny, WRONG)
    assert done.stdout.replace("[[", "").replace("]]", "") == f"{WRONG}\n"
    texts = [scores.span_text(span) for span in scores.spans]
    assert texts
    assert all(f"[[{text}]]" in done.stdout for text in texts)
    assert any("June" in text or "8" in text or "1921" in text for text in texts)
    assert f"{len(scores.tokens)} tokens in {scores.passes} passes" in done.stderr
    assert f"{sum(scores.doubted)} marked." in done.stderr
    # The generated answer has fewer doubtful tokens, and is likelier.
    right = scores_of(tiny, RIGHT)
    assert sum(right.doubted) < sum(scores.doubted)
    assert right.logprob > scores.logprob
    coloured = scoring._marked(scores, coloured=True)
    assert coloured.count("\x1b[0m") == len(texts)
    assert "[[" not in coloured


def test_lines_of_json(prepared: Path, tiny: Reader) -> None:
    done = score("--document", "document.txt", "--json", "--no-cache", QUESTION, WRONG)
    *tokens, totals = map(json.loads, done.stdout.splitlines())
    scores = scores_of(tiny, WRONG)
    assert [token["id"] for token in tokens] == [token.token for token in scores.tokens]
    for shown, token, entropy in zip(tokens, scores.tokens, scores.entropies, strict=True):
        assert shown["margin"] == pytest.approx(token.margin, abs=1e-3)
        assert shown["logprob"] == pytest.approx(token.logprob, abs=1e-3)
        assert shown["entropy"] == pytest.approx(entropy, abs=1e-3)
        assert shown["p"] == pytest.approx(token.gdm, abs=1e-3)
    assert [token["doubted"] for token in tokens] == scores.doubted
    assert totals["text"] == "".join(token["text"] for token in tokens) == WRONG
    assert totals["doubted"] == sum(scores.doubted)
    assert totals["budget"] == 8
    assert [span["text"] for span in totals["spans"]] == [scores.span_text(span) for span in scores.spans]


def test_rows_of_a_csv_file(prepared: Path, tiny: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared / "rows"
    folder.mkdir()
    (folder / "document.txt").write_text(DOCUMENT, encoding="utf-8")
    other = "Ada Holm was born on May 3, 1959."
    rows = [("document.txt", WRONG), (other, RIGHT), ("document.txt", RIGHT)]
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "question", "answer", "document"])
        for number, (document, answer) in enumerate(rows):
            writer.writerow([number, QUESTION, answer, document])
    read = []
    remembered = scoring.remembered
    monkeypatch.setattr(scoring, "remembered", lambda *args: read.append(args[1]) or remembered(*args))
    done = score("--csv", "rows/rows.csv", "--out", "scores.csv", "--no-cache")
    assert done.stdout == ""
    assert "3 answers: scores.csv" in done.stderr
    assert read == [DOCUMENT, other]
    with Path("scores.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [(row["document"], row["answer"]) for row in table] == rows
    scores = scores_of(tiny, WRONG)
    assert float(table[0]["logprob"]) == pytest.approx(scores.logprob, abs=1e-3)
    assert int(table[0]["tokens"]) == len(scores.tokens)
    assert int(table[0]["doubted"]) == sum(scores.doubted)
    assert float(table[0]["max_hallucinated"]) == pytest.approx(max(t.gdm[0] for t in scores.tokens), abs=1e-3)
    assert [span["text"] for span in json.loads(table[0]["spans"])] == [scores.span_text(span) for span in scores.spans]
    again = score("--csv", "rows/rows.csv", "--no-cache")
    assert list(csv.DictReader(io.StringIO(again.stdout))) == table
    lines = [json.loads(line) for line in score("--csv", "rows/rows.csv", "--json").stdout.splitlines()]
    assert [line["row"] for line in lines if line["type"] == "score"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "rows", "sentence"),
    [
        (["--document", "document.txt", QUESTION], "", "give --document FILE, and a question and an answer"),
        ([QUESTION, RIGHT], "", "give --document FILE"),
        (["--document", "document.txt", QUESTION, ""], "", "the question or the answer is empty"),
        (["--document", "document.txt", "--out", "a.csv", QUESTION, RIGHT], "", "--out is for the rows of --csv"),
        (["--csv", "rows.csv", QUESTION, RIGHT], "", "leave out the others"),
        (["--csv", "none.csv"], "", "--csv none.csv cannot be read (No such file or directory)"),
        (["--csv", "rows.csv"], "question,answer\n", "rows.csv has no column document"),
        (["--csv", "rows.csv"], "document,question,answer\n", "rows.csv has no rows"),
        (["--csv", "rows.csv"], "document,question,answer\na,b\n", "rows.csv, row 2, has more or fewer cells"),
        (["--csv", "rows.csv"], "document,question,answer\na,b,\n", "rows.csv, row 2, has no answer"),
        (["--csv", "rows.csv"], "document,question,answer\nno.pdf,b,c\n", "row 2, names the document no.pdf"),
        (["--csv", "rows.csv", "--out", "no/a.csv"], "document,question,answer\na,b,c\n", "--out no/a.csv must be"),
        (["--document", "document.txt", "--detector", "margin", QUESTION, RIGHT], "", "margin is a trigger without"),
        (["--document", "document.txt", "--detector", "nobody", QUESTION, RIGHT], "", "there is no trigger 'nobody'"),
    ],
)
def test_what_cannot_be_scored_is_a_sentence(prepared: Path, words: list[str], rows: str, sentence: str) -> None:
    Path("rows.csv").write_text(rows, encoding="utf-8")
    done = score(*words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
