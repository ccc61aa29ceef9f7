"""People in the loop: what the review pages show, the sheets they export, and what the pipeline makes of these."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pytest

from utaca.errors import UserError
from utaca.judging import sheets
from utaca.judging.review import labels as review_labels
from utaca.judging.review import scores as review_scores
from utaca.records import SCHEMAS

PERSON = "Ada Lopez"
PIECES = ["The", " hobby", " of", " Ada", " Lopez", " is"]


def document(name: str, value: str = "Rock climbing", person: str = PERSON) -> dict:
    return {"id": name, "person": person, "facts": [{"attribute": "hobby", "value": value}]}


def answer(name: str, value: list[str], given: list[int | None], budget: int = 1, **columns: str) -> list[dict]:
    """Tokens of a one-sentence answer whose value tokens have the labels ``given``."""
    pieces = [*PIECES, *value, ".", ""]
    labels = [1] * len(PIECES) + given + [1, 1]
    return [
        {
            "document": name, "budget": budget, "step": step, "token": 7, "text": text, "label": label,
            "source": "template" if not 6 <= step < 6 + len(value) else "failed" if label is None else "endpoint",
            "reason": "table",
        } | columns
        for step, (text, label) in enumerate(zip(pieces, labels, strict=True))
    ]  # fmt: skip


def table(*answers: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([token for tokens in answers for token in tokens], schema=SCHEMAS["labels"])


def content(html: str) -> dict:
    """What a page embeds."""
    return json.loads(html.split('id="data">')[1].split("</script>")[0])


def label_sheet(path: Path, rows: list[dict], columns: tuple[str, ...] = sheets.LABEL_COLUMNS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def label_row(name: str = "d0", step: int = 6, **columns: object) -> dict:
    return {
        "split": "train", "document": name, "budget": 1, "step": step, "text": " Golf", "label": 1, "sample": "random",
        "human": 0, "annotator": "eve",
    } | columns  # fmt: skip


# Doubts and samples


def doubts(value: list[str], given: list[int | None]) -> list[tuple[int, str]]:
    return [(d.rank, d.text) for d in review_labels.doubts(answer("d0", value, given), document("d0"))]


def test_labels_that_agree_with_the_check_raise_no_doubt():
    assert doubts([" Rock", " climbing"], [1, 1]) == []
    assert doubts([" rock", " Climb", "ing"], [1, 1, 1]) == []
    assert doubts([" Golf"], [0]) == []
    assert doubts([" unknown"], [2]) == []


def test_doubts_by_their_weight():
    assert doubts([" Golf", " club"], [None, 0]) == [(0, "the labeller failed: 1 without a label")]
    assert doubts([" Golf"], [1]) == [(1, "“Golf” is labelled correct but is not in the hobby")]
    assert doubts([" Rock", " climbing"], [0, 0]) == [
        (1, "the hobby is the reference, but is not labelled correct throughout")
    ]
    assert doubts([" Rock", " garden"], [1, 0]) == [(2, "labels differ within the hobby")]
    assert [rank for rank, _ in doubts([" Golf", " ball"], [1, None])] == [0, 1]


def many(number: int, start: int = 0) -> tuple[pa.Table, list[dict]]:
    """Answers of which every third is in doubt, every ninth because a label is missing."""
    names = [f"d{n}" for n in range(start, start + number)]
    given = [None if n % 9 == 0 else 1 if n % 3 == 0 else 0 for n in range(number)]
    return table(*(answer(n, [" Golf"], [g]) for n, g in zip(names, given, strict=True))), [document(n) for n in names]


def test_doubtful_answers_come_first_and_the_sample_is_bounded():
    labels, documents = many(400)
    more, others = many(6, start=400)
    page = content(review_labels.page({"train": labels, "test": more}, {"train": documents, "test": others}, "A run."))
    items = page["items"]
    sections = [item["section"] for item in items]
    assert sections == sorted(sections, key=["In doubt", "Drawn at random"].index)
    assert sections.count("Drawn at random") == review_labels.N_RANDOM + 3
    doubtful = [item for item in items if item["section"] == "In doubt"]
    assert review_labels.N_DOUBTFUL <= len(doubtful) <= review_labels.N_DOUBTFUL + 3
    failed = ["failed" in item["doubts"][0] for item in doubtful]
    assert failed == sorted(failed, reverse=True)
    assert 0 < sum(failed) < len(failed)
    names = [item["place"] for item in items]
    assert len(set(names)) == len(names)
    assert f"{len(items)} of 406 answers" in page["about"]
    # the random ones are shuffled, with and without doubts
    random = [bool(item["doubts"]) for item in items if item["section"] == "Drawn at random"]
    assert 0.1 < sum(random) / len(random) < 0.6
    assert random != sorted(random, reverse=True)


def test_the_same_run_gives_the_same_page_whatever_the_order_of_its_answers():
    labels, documents = many(30)
    first = review_labels.page({"train": labels}, {"train": documents}, "A run.")
    backwards = pa.Table.from_pylist(labels.to_pylist()[::-1], schema=labels.schema)
    assert review_labels.page({"train": backwards}, {"train": documents[::-1]}, "A run.") == first
    changed = pa.Table.from_pylist([row | {"label": 0} for row in labels.to_pylist()], schema=labels.schema)
    assert (
        content(review_labels.page({"train": changed}, {"train": documents}, "A run."))["key"] != content(first)["key"]
    )
    with pytest.raises(UserError, match="'d0' has labels but"):
        review_labels.page({"train": labels}, {"train": documents[1:]}, "A run.")


def judged(name: str, point: str, prediction: str, cas: float | None = 1.0, **columns: object) -> dict:
    return {
        "document": name, "suite": "test", "point": point, "attribute": "hobby", "prediction": prediction,
        "reference": "Rock climbing", "cas": cas, "string_match": 0.5, "reason": "SECRET", "failure": None,
    } | columns  # fmt: skip


def test_what_points_predict_alike_is_asked_once_and_nothing_tells_the_judges_score():
    scores = [judged("d0", "p1", "Golf"), judged("d0", "p2", "Golf"), judged("d0", "p3", "Climbing", 0.123)]
    html = review_scores.page(scores, [document("d0")], "A run.")
    (item,) = content(html)["items"]
    assert item["heading"] == "What is the hobby of Ada Lopez?"
    assert {unit["text"]: [row[2] for row in unit["rows"]] for unit in item["units"]} == {
        "Golf": ["p1", "p2"],
        "Climbing": ["p3"],
    }
    assert "SECRET" not in html
    assert "0.123" not in html
    assert all(unit["given"] is None for unit in item["units"])


def test_scores_are_sampled_by_document_under_all_points():
    names = [f"d{n}" for n in range(review_scores.N_DOCUMENTS + 10)]
    scores = [judged(name, point, point) for point in ("p1", "p2") for name in names]
    items = content(review_scores.page(scores, map(document, names), "A run."))["items"]
    assert len(items) == review_scores.N_DOCUMENTS
    assert all({row[2] for unit in item["units"] for row in unit["rows"]} == {"p1", "p2"} for item in items)
    with pytest.raises(UserError, match="has scores but"):
        review_scores.page(scores, [], "A run.")


# Sheets


LABELS = table(answer("d0", [" Golf"], [1]), answer("d1", [" Chess", " club"], [0, None]))


def corrected(tmp_path: Path, *rows: dict) -> list[dict]:
    sheet = sheets.read_corrections(label_sheet(tmp_path / "sheet.csv", list(rows)))
    return sheets.correct(LABELS, "train", sheet).to_pylist()


def test_corrections_change_what_they_name_and_say_who_decided(tmp_path):
    rows = corrected(
        tmp_path,
        label_row(),
        label_row(step=5, text=" is", human=1),
        label_row("d1", 7, text=" club", label="", human=2),
        label_row("d9", split="test"),
    )
    before = LABELS.to_pylist()
    changed = {(r["document"], r["step"]): r for r, was in zip(rows, before, strict=True) if r != was}
    assert changed == {
        ("d0", 6): before[6] | {"label": 0, "source": "person", "reason": "eve; was 1"},
        ("d1", 7): before[16] | {"label": 2, "source": "person", "reason": "eve; was unlabelled"},
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (label_row("d7"), "row 2: document 'd7', budget 1, step 6 of split train is not in this run"),
        (label_row(step=99), "step 99 of split train is not in this run"),
        (label_row(text=" Polo"), r"has the text ' Golf' in this run, not ' Polo'; the sheet was made for another run"),
        (label_row(label=2), "has the label 1 in this run, not 2; the sheet was made for another run"),
        (label_row(label=""), "has the label 1 in this run, not None"),
        (label_row(human=3), r"sheet.csv, row 2 has '3' in column human; give one of 0, 1, 2"),
        (label_row(human=""), "has '' in column human"),
        (label_row(split="dev"), "has 'dev' in column split; give one of train, validation, test"),
        (label_row(budget="x"), "has 'x' in column budget; give a whole number"),
        (label_row(sample=""), "give one of doubtful, random"),
        (label_row(annotator=" "), "row 2 names no annotator"),
    ],
)
def test_a_sheet_with_a_mistake_or_of_another_run_is_refused(tmp_path, row, said):
    with pytest.raises(UserError, match=said):
        corrected(tmp_path, row)


def test_a_sheet_must_be_a_whole_csv_file(tmp_path):
    with pytest.raises(UserError, match="row 3 decides again what row 2 decided"):
        corrected(tmp_path, label_row(), label_row(human=2))
    with pytest.raises(UserError, match="no column human; it needs split, document"):
        sheets.read_corrections(label_sheet(tmp_path / "a.csv", [label_row()], sheets.LABEL_COLUMNS[:-2]))
    short = label_sheet(tmp_path / "b.csv", [label_row()])
    short.write_text(short.read_text() + "train,d0\n")
    with pytest.raises(UserError, match="row 3 has not as many cells"):
        sheets.read_corrections(short)
    (tmp_path / "c.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="no CSV file in UTF-8"):
        sheets.read_corrections(tmp_path / "c.csv")
    with pytest.raises(UserError, match="does not exist"):
        sheets.read_corrections(tmp_path / "none.csv")


def test_a_spreadsheet_may_save_the_sheet(tmp_path):
    path = label_sheet(tmp_path / "sheet.csv", [label_row()])
    path.write_bytes(
        b"\xef\xbb\xbf" + path.read_bytes().replace(b"annotator", b"annotator,remarks").replace(b"eve", b"eve,x")
    )
    assert sheets.correct(LABELS, "train", sheets.read_corrections(path))["label"][6].as_py() == 0


def score_row(**columns: object) -> dict:
    return judged("d0", "p1", "Golf") | {"human": "0.7", "annotator": "eve"} | columns


def human_scores(tmp_path: Path, *rows: dict) -> list:
    sheet = sheets.read_scores(label_sheet(tmp_path / "scores.csv", list(rows), sheets.SCORE_COLUMNS))
    return sheets.matched_scores([judged("d0", "p1", "Golf", 0.4)], sheet)


def test_human_scores_find_what_they_score(tmp_path):
    ((score, row),) = human_scores(tmp_path, score_row())
    assert (score.human, row["cas"]) == (0.7, 0.4)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (score_row(point="p9"), "row 2: the hobby of document 'd0' under test/p9 is not in this run"),
        (score_row(prediction="Polo"), "has the prediction 'Golf' in this run, not 'Polo'"),
        (score_row(reference="Polo"), "has the reference 'Rock climbing' in this run"),
        (score_row(human="1.1"), "has '1.1' in column human; give a number from 0 to 1"),
        (score_row(human="nan"), "has 'nan' in column human"),
        (score_row(human=""), "has '' in column human"),
    ],
)
def test_scores_with_a_mistake_or_of_another_run_are_refused(tmp_path, row, said):
    with pytest.raises(UserError, match=said):
        human_scores(tmp_path, row)


def test_scores_decide_once(tmp_path):
    with pytest.raises(UserError, match="row 3 decides again what row 2 decided"):
        human_scores(tmp_path, score_row(), score_row(human=0))
