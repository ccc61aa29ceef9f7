"""People in the loop: what the review pages show, the sheets they export, and what the pipeline makes of these."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from browser import CHROMIUM, Browser
from commands import snakemake
from configs import planned, reference_config
from conftest import ROOT, copy_checkout

from utaca.biographies.evidence import sentence
from utaca.errors import UserError
from utaca.judging import review, sheets
from utaca.records import SCHEMAS, read, write
from utaca.reporting.table import Table, save
from utaca.reporting.tables import people
from utaca.settings import schema

PERSON = "Ada Lopez"
BIOGRAPHY = "Ada Lopez was quiet. At weekends she loved rock climbing with Dr. Smith. Then it rained."
PIECES = ["The", " hobby", " of", " Ada", " Lopez", " is"]


def document(name: str, value: str = "Rock climbing", person: str = PERSON) -> dict:
    """A document whose biography is ``BIOGRAPHY``."""
    text = f"Some padding. {BIOGRAPHY} More padding."
    start = text.index(BIOGRAPHY)
    told = {"kind": "biography", "source": name, "start": start, "end": start + len(BIOGRAPHY)}
    padding = {"kind": "article", "source": "Golf", "start": 0, "end": start}
    return {
        "id": name, "person": person, "facts": [{"attribute": "hobby", "value": value}],
        "text": text, "spans": [padding, told],
    }  # fmt: skip


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


def doubts(value: list[str], given: list[int | None]) -> list[str]:
    return review.doubts(answer("d0", value, given), document("d0"))


def test_labels_that_disagree_with_a_comparison_of_letters_are_doubted():
    for value, given in (([" Rock", " climbing"], [1, 1]), ([" rock", " Climb", "ing"], [1] * 3), ([" Golf"], [0])):
        assert doubts(value, given) == []
    assert doubts([" Golf", " club"], [None, 0]) == ["the labeller failed: 1 without a label"]
    assert doubts([" Golf"], [1]) == ["labelled correct, but not in the hobby: “Golf”"]
    assert doubts([" Rock", " climbing"], [0, 0]) == [
        "the hobby is the reference, but is not labelled correct throughout"
    ]
    assert doubts([" Rock", " garden"], [1, 0]) == ["labels differ within the hobby"]


def many(number: int, start: int = 0) -> tuple[pa.Table, list[dict]]:
    """Answers of which every third is in doubt, every ninth because a label is missing."""
    names = [f"d{n}" for n in range(start, start + number)]
    given = [None if n % 9 == 0 else 1 if n % 3 == 0 else 0 for n in range(number)]
    return table(*(answer(n, [" Golf"], [g]) for n, g in zip(names, given, strict=True))), [document(n) for n in names]


def test_doubtful_answers_come_first_and_the_sample_is_bounded():
    labels, documents = many(400)
    more, others = many(6, start=400)
    page = content(review.label_page({"train": labels, "test": more}, {"train": documents, "test": others}, "A run."))
    items = page["items"]
    sections = [item["section"] for item in items]
    assert sections == sorted(sections, key=["In doubt", "Drawn at random"].index)
    assert sections.count("Drawn at random") == review.N_RANDOM + 3
    doubtful = [item for item in items if item["section"] == "In doubt"]
    assert review.N_DOUBTFUL <= len(doubtful) <= review.N_DOUBTFUL + 3
    assert any("failed" in item["doubts"][0] for item in doubtful)
    names = [item["place"] for item in items]
    assert len(set(names)) == len(names)
    assert f"{len(items)} of 406 answers" in page["about"]
    # those drawn at random have reasons to doubt or none, and the page tells of none
    random = [item for item in items if item["section"] == "Drawn at random"]
    assert not any(item["doubts"] for item in random)
    assert 0.1 < sum(item["units"][6]["given"] != 0 for item in random) / len(random) < 0.6


def test_the_same_run_gives_the_same_page_whatever_the_order_of_its_answers():
    labels, documents = many(30)
    first = review.label_page({"train": labels}, {"train": documents}, "A run.")
    backwards = pa.Table.from_pylist(labels.to_pylist()[::-1], schema=labels.schema)
    assert review.label_page({"train": backwards}, {"train": documents[::-1]}, "A run.") == first
    changed = pa.Table.from_pylist([row | {"label": 0} for row in labels.to_pylist()], schema=labels.schema)
    assert (
        content(review.label_page({"train": changed}, {"train": documents}, "A run."))["key"] != content(first)["key"]
    )
    with pytest.raises(UserError, match="'d0' has labels but"):
        review.label_page({"train": labels}, {"train": documents[1:]}, "A run.")


def judged(name: str, point: str, prediction: str, cas: float | None = 1.0, **columns: object) -> dict:
    return {
        "document": name, "split": "test", "point": point, "attribute": "hobby", "prediction": prediction,
        "reference": "Rock climbing", "cas": cas, "string_match": 0.5, "reason": "SECRET", "failure": None,
    } | columns  # fmt: skip


def test_what_points_predict_alike_is_asked_once_and_nothing_tells_the_judges_score():
    scores = [judged("d0", "p1", "Golf"), judged("d0", "p2", "Golf"), judged("d0", "p3", "Climbing", 0.123)]
    html = review.score_page(scores, [document("d0")], "A run.")
    (item,) = content(html)["items"]
    assert item["heading"] == "What is the hobby of Ada Lopez?"
    assert item["facts"] == [["hobby", "Rock climbing", "At weekends she loved rock climbing with Dr. Smith."]]
    assert {unit["text"]: [row[2] for row in unit["rows"]] for unit in item["units"]} == {
        "Golf": ["p1", "p2"],
        "Climbing": ["p3"],
    }
    assert "SECRET" not in html
    assert "0.123" not in html
    assert all(unit["given"] is None for unit in item["units"])


def test_scores_are_sampled_by_document_under_all_points():
    names = [f"d{n}" for n in range(review.N_DOCUMENTS + 10)]
    scores = [judged(name, point, point) for point in ("p1", "p2") for name in names]
    items = content(review.score_page(scores, map(document, names), "A run."))["items"]
    assert len(items) == review.N_DOCUMENTS
    assert all({row[2] for unit in item["units"] for row in unit["rows"]} == {"p1", "p2"} for item in items)
    with pytest.raises(UserError, match="has scores but"):
        review.score_page(scores, [], "A run.")


# The sentence beside the answer


def test_the_source_is_the_sentence_of_the_biography_with_the_value():
    source = "At weekends she loved rock climbing with Dr. Smith."
    for value in ("rock  Climbing", "Dr. Smith", "climbing weekends"):
        assert sentence(document("d0"), value) == source
    assert sentence(document("d0"), "quiet") == "Ada Lopez was quiet."
    for value in ("Golf", "padding", "climbing hard and far", "?"):
        assert sentence(document("d0"), value) == ""


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
        (label_row("d7"), "row 2: document 'd7', budget 1, step 6 is not in this run"),
        (label_row(step=99), "step 99 is not in this run"),
        (label_row(text=" Polo"), r"has the text ' Golf' in this run, not ' Polo'; the sheet was made for another run"),
        (label_row(label=2), "has the label 1 in this run, not 2; the sheet was made for another run"),
        (label_row(human=3), r"sheet.csv, row 2 has '3' in column human .*less than or equal to 2"),
        (label_row(split="dev"), "has 'dev' in column split .*'train', 'validation' or 'test'"),
        (label_row(sample=""), "sample .*'doubtful' or 'random'"),
        (label_row(annotator=" "), "row 2 has ' ' in column annotator"),
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
    with pytest.raises(UserError, match="is not UTF-8 text"):
        sheets.read_corrections(tmp_path / "c.csv")
    for name in ("none.csv", ""):
        with pytest.raises(UserError, match=r"cannot be read .*; export it from the review page again"):
            sheets.read_corrections(tmp_path / name)


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
    return sheets.matched([judged("d0", "p1", "Golf", 0.4)], sheet)


def test_scores_find_what_they_score_and_those_of_another_run_are_refused(tmp_path):
    ((score, row),) = human_scores(tmp_path, score_row())
    assert (score.human, row["cas"]) == (0.7, 0.4)
    for wrong, fault in (
        (score_row(point="p9"), "row 2: document 'd0', split 'test', point 'p9', attribute 'hobby' is not in this run"),
        (score_row(prediction="Polo"), "has the prediction 'Golf' in this run, not 'Polo'"),
        (score_row(human="1.1"), "has '1.1' in column human .*less than or equal to 1"),
    ):
        with pytest.raises(UserError, match=fault):
            human_scores(tmp_path, wrong)


# Tables


@pytest.fixture
def config() -> schema.Config:
    return reference_config()


def labels_of(
    folder: Path, before: dict[str, pa.Table], after: dict[str, pa.Table], sheet: Path | None, config: schema.Config
) -> pd.DataFrame:
    """The table of labels by split, as they were and as corrected; a split that is not named has none."""
    files: dict[str, list[Path]] = {"labels": [], "label_sheet": [sheet] if sheet else []}
    for split in sheets.SPLITS:
        paths = [folder / f"{split}-{when}.parquet" for when in ("before", "after")]
        for path, tables in zip(paths, (before, after), strict=True):
            write(path, "labels", tables.get(split, LABELS.slice(0, 0)).to_pylist())
        files[f"{split}_uncorrected"], files["labels"] = paths[:1], [*files["labels"], paths[1]]
    return people.labels(files, config)


def labels_table(folder: Path, path: Path | None, config: schema.Config) -> pd.DataFrame:
    sheet = sheets.read_corrections(path) if path else []
    splits = {
        "train": LABELS,
        "validation": LABELS.slice(0, 0),
        "test": table(answer("d2", [" Golf", " club"], [0, 2])),
    }
    after = {split: sheets.correct(labels, split, sheet) for split, labels in splits.items()}
    return labels_of(folder, splits, after, path, config)


def test_labels_table_without_a_sheet(config, tmp_path):
    made = Table.of("labels", labels_table(tmp_path, None, config), config)
    assert made.frame["split"].to_list() == ["train", "validation", "test", "all"]
    assert made.frame["n_reviewed"].to_list() == [0] * 4
    assert "no corrections yet" in made.caption
    assert "Cohen's kappa" not in made.cells()[0], "a column of dashes is left out"
    train = made.frame.iloc[0]
    assert (train["n_tokens"], train["n_template"], train["n_endpoint"], train["n_failed"]) == (19, 16, 2, 1)
    assert train["hallucinated_pct"] == pytest.approx(100 / 18)
    assert train["value_hallucinated_pct"] == pytest.approx(100 / 2), "of those labelled, and not by the template"


def test_labels_table_has_a_row_for_each_condition_of_evidence(config, tmp_path):
    splits = {
        "train": LABELS,
        "test": table(
            answer("d2", [" Golf", " club"], [0, 1]),
            answer("d2/partial", [" Golf", " club"], [0, 2]),
            answer("d3/missing", [" Golf", " club"], [2, 2]),
        ),
    }
    frame = labels_of(tmp_path, splits, splits, None, config).set_index("split")
    conditions = [f"test, {condition} evidence" for condition in ("complete", "partial", "missing")]
    assert frame.index.tolist() == ["train", "validation", "test", *conditions, "all"]
    assert frame.loc["test", "n_tokens"] == sum(frame.loc[name, "n_tokens"] for name in conditions)
    unknown = frame["unknown_pct"] * frame["n_tokens"] / 100
    assert unknown[conditions].tolist() == pytest.approx([0, 1, 2])


def test_labels_table_counts_changes_and_compares_what_chance_drew(config, tmp_path):
    value = {"document": "d2", "split": "test", "text": " Golf", "label": 0}
    path = label_sheet(
        tmp_path / "sheet.csv",
        [
            label_row(human=1),
            label_row(step=5, text=" is", human=0),  # by the template: not the labeller's
            label_row("d1", 6, text=" Chess", label=0, human=1, sample="doubtful"),
            label_row("d1", 7, text=" club", label="", human=2),  # the labeller said nothing
            label_row(**value, human=0),
            label_row(**value | {"step": 7, "text": " club", "label": 2}, human=0),
        ],
    )
    frame = labels_table(tmp_path, path, config).set_index("split")
    assert frame["n_reviewed"].to_list() == [4, 0, 2, 6]
    assert frame["n_changed"].to_list() == [3, 0, 1, 4]
    assert frame["n_person"].to_list() == [3, 0, 1, 4]
    assert frame["n_failed"].to_list() == [0, 0, 0, 0]
    assert frame["n_compared"].to_list() == [1, 0, 2, 3]
    # labeller 1 0 2, person 1 0 0: alike 2/3, by chance 1/3 * 2/3 + 1/3 * 1/3 + 0 = 1/3
    assert frame.loc["all", "kappa"] == pytest.approx(0.5)
    assert frame.loc["all", "agreement_pct"] == pytest.approx(200 / 3)
    assert frame.loc["all", "agreement_pct_low"] < 200 / 3 < frame.loc["all", "agreement_pct_high"]
    assert np.isnan(frame.loc["validation", "kappa"])


def human_table(tmp_path: Path, config: schema.Config, scored: list[dict] | None) -> Table:
    predictions = [("d0", "Golf", 0.0), ("d1", "Climbing", 0.5), ("d2", "Rock climbing", 1.0), ("d3", "Polo", None)]
    for point in ("infllm-K8", "utaca-K96-sub16"):
        rows = [judged(name, point, text, cas) for name, text, cas in predictions]
        write(tmp_path / f"{point}.parquet", "scores", rows)
    sheet = [] if scored is None else [label_sheet(tmp_path / "sheet.csv", scored, sheets.SCORE_COLUMNS)]
    answers = [tmp_path / "infllm-K8.parquet", tmp_path / "utaca-K96-sub16.parquet"]
    return Table.of("human", people.human({"judged": answers, "score_sheet": sheet}, config), config)


def test_human_table_compares_the_same_answers(config, tmp_path):
    def row(name: str, text: str, human: float) -> dict:
        return judged(name, "infllm-K8", text) | {"human": human, "annotator": "eve"}

    made = human_table(tmp_path, config, None)
    assert (len(made.frame), made.frame["n_scored"][0]) == (1, 0)
    assert "no human scores yet" in made.caption
    scored = [row("d0", "Golf", 0.2), row("d1", "Climbing", 0.4), row("d2", "Rock climbing", 0.9), row("d3", "Polo", 0)]
    made = human_table(tmp_path, config, scored)
    frame = made.frame.set_index("point")
    point = frame.loc["infllm-K8"]
    assert (point["n_scored"], point["n_failed_judgements"], point["n_documents"]) == (3, 1, 3)
    assert (point["cas_pct"], point["human_pct"], point["string_match_pct"]) == pytest.approx((50, 50, 50))
    assert (point["difference_pct"], point["distance_pct"]) == pytest.approx((0, 40 / 3))
    assert point["correlation"] == pytest.approx(np.corrcoef([0, 0.5, 1], [0.2, 0.4, 0.9])[0, 1])
    assert point["human_pct_low"] < 50 < point["human_pct_high"]
    assert frame.loc["all", "cas_pct"] == point["cas_pct"]
    other = frame.loc["utaca-K96-sub16"]
    assert other["n_scored"] == 0
    assert np.isnan(other["cas_pct"])
    assert np.isnan(other["correlation"])
    assert (other["paper_cas_pct"], other["paper_human_pct"]) == (74.6, 76.6)
    assert np.isnan(point["paper_cas_pct"])
    save(made, tmp_path)
    assert (tmp_path / "human.tex").read_text(encoding="utf-8").isascii()


# In a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium; on Debian: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


HOSTILE = [
    "</script><script>window.ran = 2</script>",
    '"><img src=x onerror="window.ran = 3">',
    "<!--<script>",
    "=HYPERLINK(1)",
    'comma, "quote" and\nnew line',
]


def test_labels_are_reviewed_by_keyboard_and_come_back(chromium, tmp_path, config):
    labels = table(
        *(answer(f"d{n}", [" Golf", " club"], [1, 0]) for n in range(8)),
        answer("failed", [" Golf"], [None]),
    )
    documents = [document(name) for name in dict.fromkeys(labels["document"].to_pylist())]
    page = tmp_path / "review.html"
    page.write_text(review.label_page({"train": labels}, {"train": documents}, "A run."), encoding="ascii")
    items = content(page.read_text())["items"]
    chromium.open(page)
    assert chromium.text("#progress") == "0 of 9 answers reviewed"
    assert chromium.text("#answer").startswith("The hobby of Ada Lopez is Golf")
    assert chromium.text("dl").split("\n") == [
        "hobby",
        "Rock climbing",
        "At weekends she loved rock climbing with Dr. Smith.",
    ]
    assert chromium.text("dl mark") == "rock climbing"

    def labels_shown() -> list[str]:
        return chromium.run("[...document.querySelectorAll('.token')].map((token) => token.dataset.label)")

    before = labels_shown()
    chromium.press("2")  # the first value token, then the selection is on the second
    chromium.press("2", "ArrowLeft", "ArrowLeft", "ArrowLeft", "0")  # the second, then the template's "is"
    assert labels_shown() == [*before[:5], "0", "2", "2", *before[8:]]
    chromium.press("u")
    assert labels_shown() == [*before[:5], "1", "2", "2", *before[8:]]
    chromium.press("Enter")
    assert chromium.text("#progress") == "1 of 9 answers reviewed"
    chromium.press("k")
    assert "reviewed" in chromium.text(".place")
    chromium.press("ArrowDown", " ", "n", "Enter")
    assert chromium.text("#progress") == "3 of 9 answers reviewed"

    # an answer is not accepted while a token has no label
    failed = next(index for index, item in enumerate(items) if "failed" in item["place"])
    chromium.run(f"document.querySelectorAll('#list button')[{failed}].click()")
    if "reviewed" not in chromium.text(".place"):
        chromium.press("Enter")
        assert "no label yet" in chromium.text("#said")
    chromium.press("2", "Enter")

    # progress is kept, the export asks for a name and holds reviewed answers alone
    shown = chromium.text("#progress")
    chromium.open(page)
    assert chromium.text("#progress") == shown
    chromium.press("e")
    assert "Write your name first" in chromium.text("#said")
    chromium.press(*"eve", "Enter", "e")
    path = chromium.downloaded("label_corrections.csv")
    sheet = sheets.read_corrections(path)
    assert {c.annotator for c in sheet} == {"eve"}
    assert len({c.document for c in sheet}) == int(shown.split()[0])
    first = items[0]["units"][6]["rows"][0][1]
    assert [c.human for c in sheet if c.document == first][:8] == [1] * 6 + [2, 2]

    # the pipeline takes the sheet as it is
    after = sheets.correct(labels, "train", sheet)
    rows = {(row["document"], row["step"]): row for row in after.to_pylist()}
    assert (rows[first, 6]["label"], rows[first, 6]["source"]) == (2, "person")
    assert (rows["failed", 6]["label"], rows["failed", 6]["source"]) == (2, "person")
    assert sum(row["source"] == "person" for row in rows.values()) == 2 + (first != "failed")
    n_changed = labels_of(tmp_path, {"train": labels}, {"train": after}, path, config)["n_changed"][0]
    assert n_changed == 2 + (first != "failed")


def test_scores_are_given_by_keyboard_and_come_back(chromium, tmp_path):
    scores = [judged(name, point, point) for name in ("d0", "d1") for point in ("p1", "p2")]
    page = tmp_path / "review.html"
    page.write_text(review.score_page(scores, [document("d0"), document("d1")], "A run."), encoding="ascii")
    (units, others) = (
        [row for unit in item["units"] for row in unit["rows"]] for item in content(page.read_text())["items"]
    )
    chromium.open(page)
    assert chromium.text(".card h2") == "What is the hobby of Ada Lopez?"
    chromium.press("7", "f")
    assert chromium.text("#progress") == "1 of 2 questions reviewed"
    chromium.press(
        "3", "ArrowRight", "ArrowRight", "ArrowLeft"
    )  # 0.3, then from nothing to 0.5 and to a tenth more and less
    assert chromium.text("#progress") == "2 of 2 questions reviewed"
    chromium.press("ArrowUp", "ArrowLeft", "1")
    assert "Press 1 again for 1.0, the point for 0.1" in chromium.text("#said")
    chromium.press("ArrowDown", "ArrowUp")  # another key takes it back
    chromium.open(page)
    assert chromium.text("#progress") == "2 of 2 questions reviewed"
    chromium.press("e", *"eve", "Enter", "e")
    sheet = sheets.read_scores(chromium.downloaded("cas_scores.csv"))
    given = [0.7, 1.0, 0.2, 0.5]
    assert {(s.document, s.point): s.human for s in sheet} == {
        (row[0], row[2]): score for row, score in zip([*units, *others], given, strict=True)
    }
    assert len(sheets.matched(scores, sheet)) == 4


def test_nothing_that_a_model_wrote_is_run(chromium, tmp_path):
    """Script and markup in names, tokens, references, reasons and predictions are shown as they are written."""
    tokens = [
        {
            "document": "<b>d0", "budget": 1, "step": step, "token": 7, "text": text, "label": 0,
            "source": "endpoint", "reason": text,
        } for step, text in enumerate(HOSTILE)
    ]  # fmt: skip
    person = document("<b>d0", HOSTILE[1], person=HOSTILE[2])
    page = tmp_path / "labels.html"
    page.write_text(review.label_page({"train": table(tokens)}, {"train": [person]}, HOSTILE[0]), encoding="ascii")
    chromium.open(page)
    for text in HOSTILE:
        assert text.replace("\n", "↵\n") in chromium.run("document.getElementById('answer').textContent")
        assert text in chromium.run("document.getElementById('detail').textContent")
        chromium.press("1")
    chromium.press("Enter", "e", *"<b>", "Enter", "e")
    assert "<b>d0" in chromium.text(".place")
    assert chromium.text(".card h2") == HOSTILE[2]
    assert chromium.text("dd").startswith(HOSTILE[1])
    sheet = chromium.downloaded("label_corrections.csv")
    assert [c.text for c in sheets.read_corrections(sheet)] == HOSTILE
    assert "\"'=HYPERLINK" in sheet.read_text() or "'=HYPERLINK" in sheet.read_text()
    sheets.correct(table(tokens), "train", sheets.read_corrections(sheet))

    rows = [judged("d0", f"p{n}", text, reference=HOSTILE[1]) for n, text in enumerate(HOSTILE)]
    page = tmp_path / "scores.html"
    page.write_text(review.score_page(rows, [document("d0", person=HOSTILE[2])], HOSTILE[0]), encoding="ascii")
    chromium.open(page)
    shown = chromium.run("[...document.querySelectorAll('.unit p span')].map((span) => span.textContent)")
    assert sorted(shown) == sorted(HOSTILE)
    chromium.press(*"f" * len(HOSTILE))
    assert chromium.text("#progress") == "1 of 1 questions reviewed"
    for path in (tmp_path / "labels.html", tmp_path / "scores.html"):
        chromium.open(path)
        assert chromium.run(
            "window.ran === undefined && !document.querySelector('main img, main svg, main script, nav b')"
        )
        # markup put there by force would not run either
        chromium.run("""document.body.insertAdjacentHTML("beforeend", '<img src=x onerror="window.ran = 5">')""")
        assert chromium.run("new Promise((done) => setTimeout(() => done(window.ran), 200))") is None


# In the workflow

RULES = ["correct_labels", "review_labels", "review_scores", "table"]
PLAN = planned(ROOT)


def run(folder: Path, *targets: str, dry: bool = False) -> str:
    """Output of a run in which the stages before are not made again; ends in the exit status."""
    done = snakemake(folder, "--cores", "1", "--allowed-rules", *RULES, *["-n"] * dry, "--", *targets)
    return f"{done.stdout}\nstatus {done.returncode}"


def test_sheets_are_applied_once_they_are_there(tmp_path):
    folder = copy_checkout(tmp_path / "utaca")
    for own in (folder / "data/annotations").glob("*.csv"):
        own.unlink()
    for split, labels in (("train", LABELS), ("validation", LABELS.slice(0, 0)), ("test", LABELS.slice(0, 9))):
        for number, path in enumerate(PLAN.shards(PLAN.UNCORRECTED, split)):
            write(folder / path, "labels", labels if number == 0 else labels.slice(0, 0))
        write(folder / f"{PLAN.OUT}/documents/{split}.parquet", "documents", [document("d0"), document("d1")])
    (judged_test,) = PLAN.judged("test")
    labels = [point.label for point in PLAN.POINTS["test", "blocks"]]
    write(folder / judged_test, "scores", [judged("d0", label, "Golf", 0.5) for label in labels])
    pages = [f"{PLAN.LABELS}/review.html", f"{PLAN.SCORES}/review.html"]
    tables = [f"{PLAN.OUT}/tables/labels.md", f"{PLAN.OUT}/tables/human.md"]

    output = run(folder, *pages, *tables)
    assert output.endswith("status 0"), output
    assert all("<!doctype html>" in (folder / page).read_text(encoding="ascii") for page in pages)
    assert "no corrections" in (folder / tables[0]).read_text(encoding="utf-8")
    assert "no human scores" in (folder / tables[1]).read_text(encoding="utf-8")
    train = folder / PLAN.LABELS / "train.parquet"
    assert read(train, "labels").equals(LABELS)

    sheet = label_sheet(folder / "data/annotations/label_corrections.csv", [label_row()])
    scored = judged("d0", labels[0], "Golf") | {"human": 0.4, "annotator": "eve"}
    label_sheet(folder / "data/annotations/cas_scores.csv", [scored], sheets.SCORE_COLUMNS)
    output = run(folder, *pages, *tables)
    assert output.endswith("status 0"), output
    assert "rule review_" not in output, "a sheet changes no page"
    assert read(train, "labels")["source"].to_pylist().count("person") == 1
    assert "| train | 19 |" in (folder / tables[0]).read_text(encoding="utf-8")
    assert "no corrections" not in (folder / tables[0]).read_text(encoding="utf-8")
    assert "| all | 1 | 1 | 50.00 | 40.00 |" in (folder / tables[1]).read_text(encoding="utf-8")
    assert "Nothing to be done" in run(folder, *pages, *tables, dry=True)

    label_sheet(sheet, [label_row(text=" Polo")])
    output = run(folder, str(train.relative_to(folder)))
    assert output.endswith("status 1")
    assert "label_corrections.csv, row 2: document 'd0'" in output
    assert "Traceback" not in output
    sheet.unlink()
    assert run(folder, str(train.relative_to(folder))).endswith("status 0")
    assert read(train, "labels").equals(LABELS)
