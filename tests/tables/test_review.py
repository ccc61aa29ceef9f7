"""People in the loop: what the review pages show, the sheets they export, and what the pipeline makes of these."""

import csv
from pathlib import Path

import factories
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from browser import HOSTILE, content
from commands import snakemake
from configs import decoding, planned, point, reference_config
from conftest import ROOT, copy_checkout

from utaca.biographies.evidence import sentence
from utaca.errors import UserError
from utaca.judging import review
from utaca.judging.sheets import SPLITS, Correction, HumanScore, columns, correct, matched, read_sheet
from utaca.records import SCHEMAS, read, write
from utaca.reporting.table import Table
from utaca.reporting.tables import people

PERSON = "Ada Lopez"
BIOGRAPHY = "Ada Lopez was quiet. At weekends she loved rock climbing with Dr. Smith. वह शतरंज खेलती है। उसे नींद आई।"
PIECES = ["The", " hobby", " of", " Ada", " Lopez", " is"]
CONFIG = reference_config()


def document(name: str, value: str = "Rock climbing", person: str = PERSON) -> dict:
    """A document whose biography is ``BIOGRAPHY``."""
    text = f"Some padding. {BIOGRAPHY} More padding."
    start = text.index(BIOGRAPHY)
    spans = [
        {"kind": "article", "source": "Golf", "start": 0, "end": start},
        {"kind": "biography", "source": name, "start": start, "end": start + len(BIOGRAPHY)},
    ]
    return factories.long_document(name, text, {"hobby": value}, person=person, spans=spans)


def answer(name: str, value: list[str], given: list[int | None], budget: int = 1) -> list[dict]:
    """Tokens of a one-sentence answer whose value tokens have the labels ``given``."""
    pieces = [*PIECES, *value, ".", ""]
    labels = [1] * len(PIECES) + given + [1, 1]
    return [
        {
            "document": name, "budget": budget, "step": step, "token": 7, "text": text, "label": label,
            "source": "template" if not 6 <= step < 6 + len(value) else "failed" if label is None else "endpoint",
            "reason": "table",
        }
        for step, (text, label) in enumerate(zip(pieces, labels, strict=True))
    ]  # fmt: skip


def table(*answers: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([token for tokens in answers for token in tokens], schema=SCHEMAS["labels"])


def sheet_of(path: Path, kind: type, *rows: dict) -> Path:
    """A sheet of rows, other columns left out."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns(kind), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def label_row(name: str = "d0", step: int = 6, **columns: object) -> dict:
    return {
        "split": "train", "document": name, "budget": 1, "step": step, "text": " Golf", "label": 1, "sample": "random",
        "human": 0, "annotator": "eve",
    } | columns  # fmt: skip


def judged(name: str, point: str, prediction: str, cas: float | None = 1.0, **columns: object) -> dict:
    kept = {"prediction": prediction, "reference": "Rock climbing", "reason": "SECRET"}
    return factories.score(name, point, cas=cas, **kept | columns)


# Doubts and samples


@pytest.mark.parametrize(
    ("value", "given", "doubts"),
    [
        ([" rock", " Climb", "ing"], [1, 1, 1], []),
        ([" Golf"], [0], []),
        ([" Golf", " club"], [None, 0], ["the labeller failed; tokens without a label: 1"]),
        ([" Golf"], [1], ["labelled correct, but not in the hobby: “Golf”"]),
        ([" Rock", " climbing"], [0, 0], ["the hobby is right, but not all of its tokens are labelled correct"]),
        ([" Rock", " garden"], [1, 0], ["the tokens of the hobby have different labels"]),
    ],
)
def test_labels_that_disagree_with_a_comparison_of_letters_are_doubted(value, given, doubts):
    assert review.doubts(answer("d0", value, given), document("d0")) == doubts


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
    n_drawn = review.N_RANDOM + 3
    doubtful, drawn = items[:-n_drawn], items[-n_drawn:]
    assert {item["section"] for item in doubtful} == {"In doubt"}
    assert {item["section"] for item in drawn} == {"Drawn at random"}
    assert review.N_DOUBTFUL <= len(doubtful) <= review.N_DOUBTFUL + 3
    assert any("failed" in item["doubts"][0] for item in doubtful)
    assert len({item["place"] for item in items}) == len(items)
    assert f"{len(items)} of 406 answers" in page["about"]
    # those drawn at random have reasons to doubt or none, and the page tells of none
    assert not any(item["doubts"] for item in drawn)
    assert 0.1 < sum(item["units"][6]["given"] != 0 for item in drawn) / len(drawn) < 0.6


def test_the_same_run_gives_the_same_page_whatever_the_order_of_its_answers():
    labels, documents = many(30)
    rows = labels.to_pylist()

    def page(rows: list[dict], documents: list[dict]) -> str:
        table = pa.Table.from_pylist(rows, schema=labels.schema)
        return review.label_page({"train": table}, {"train": documents}, "A run.")

    first = page(rows, documents)
    assert page(rows[::-1], documents[::-1]) == first
    assert content(page([row | {"label": 0} for row in rows], documents))["key"] != content(first)["key"]
    with pytest.raises(UserError, match="'d0' has labels, but"):
        page(rows, documents[1:])


def test_scores_are_asked_by_document_once_for_alike_predictions_and_nothing_tells_the_judges():
    names = [f"d{n}" for n in range(review.N_DOCUMENTS + 10)]
    predicted = (("p1", "Golf", 0.123), ("p2", "Golf", 0.123), ("p3", "Climbing", 1.0))
    scores = [judged(name, point, said, cas) for point, said, cas in predicted for name in names]
    html = review.score_page(scores, map(document, names), "A run.")
    items = content(html)["items"]
    assert len(items) == review.N_DOCUMENTS
    for item in items:
        assert item["heading"] == "What is the hobby of Ada Lopez?"
        assert item["facts"] == [["hobby", "Rock climbing", "At weekends she loved rock climbing with Dr. Smith."]]
        points = {unit["text"]: [row[2] for row in unit["rows"]] for unit in item["units"]}
        assert points == {"Golf": ["p1", "p2"], "Climbing": ["p3"]}
        assert all(unit["given"] is None for unit in item["units"])
    assert "SECRET" not in html
    assert "0.123" not in html
    with pytest.raises(UserError, match="has scores, but"):
        review.score_page(scores, [], "A run.")


def test_the_source_is_the_sentence_of_the_biography_with_half_of_the_words_of_the_value():
    source = "At weekends she loved rock climbing with Dr. Smith."
    for value, said in (("climbing weekends", source), ("climbing hard and far", ""), ("शतरंज", "वह शतरंज खेलती है।")):
        assert sentence(document("d0"), value) == said


# Sheets

LABELS = table(answer("d0", [" Golf"], [1]), answer("d1", [" Chess", " club"], [0, None]))
LABEL_ROW, SCORE_ROW = "train,d0,1,6, Golf,1,random,0,eve", "d0,test,p1,hobby,Golf,Rock climbing,0.7,eve"


@pytest.mark.parametrize(
    ("row", "old", "new", "said"),
    [
        (LABEL_ROW, "d0", "d7", "row 2: document 'd7', budget 1, step 6 is not in this run"),
        (
            LABEL_ROW,
            "Golf",
            "Polo",
            "the sheet has the text ' Polo', but this run has ' Golf'; the sheet belongs to another run",
        ),
        (LABEL_ROW, "0,eve", "3,eve", r"sheet.csv, row 2 has '3' in column human .*less than or equal to 2"),
        (LABEL_ROW, "train", "dev", "has 'dev' in column split .*'train', 'validation' or 'test'"),
        (LABEL_ROW, "eve", " ", "row 2 has ' ' in column annotator"),
        (LABEL_ROW, "human", "person", "no column human; it needs split, document"),
        (LABEL_ROW, "eve", f"eve\n{LABEL_ROW.replace('0,eve', '2,eve')}", "row 3 repeats the decision of row 2"),
        (LABEL_ROW, "eve", "eve\ntrain,d0", "row 3 has more or fewer cells than the header"),
        (LABEL_ROW, "eve", '"eve', r"is not a CSV file .*; export it from the review page again"),
        (SCORE_ROW, "p1", "p9", "row 2: document 'd0', split 'test', point 'p9', attribute 'hobby' is not in this run"),
        (SCORE_ROW, "Golf", "Polo", "the sheet has the prediction 'Polo', but this run has 'Golf'"),
        (SCORE_ROW, "0.7", "1.1", "has '1.1' in column human .*less than or equal to 1"),
    ],
)
def test_a_sheet_with_a_mistake_or_of_another_run_is_refused(tmp_path, row, old, new, said):
    kind, rows = (Correction, LABELS.to_pylist()) if row == LABEL_ROW else (HumanScore, [judged("d0", "p1", "Golf")])
    path = tmp_path / "sheet.csv"
    path.write_text(f"{','.join(columns(kind))}\n{row}\n", encoding="utf-8")
    assert len(matched(rows, read_sheet(path, kind))) == 1
    path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        matched(rows, read_sheet(path, kind))
    with pytest.raises(UserError, match=r"cannot be read .*; export it from the review page again"):
        read_sheet(tmp_path, kind)


# Tables


def labels_of(folder: Path, before: dict[str, pa.Table], sheet: Path | None) -> pd.DataFrame:
    """The table of labels by split, as they were and as corrected; a split that is not named has none."""
    files: dict[str, list[Path]] = {"labels": [], "label_sheet": [sheet] if sheet else []}
    corrections = read_sheet(sheet, Correction) if sheet else []
    for split in SPLITS:
        labels = before.get(split, LABELS.slice(0, 0))
        files[f"{split}_uncorrected"] = [folder / f"{split}-before.parquet"]
        files["labels"].append(folder / f"{split}-after.parquet")
        write(files[f"{split}_uncorrected"][0], "labels", labels)
        write(files["labels"][-1], "labels", correct(labels, split, corrections))
    return people.labels(files, CONFIG)


def test_labels_table_without_a_sheet_has_a_row_for_each_condition_of_evidence(tmp_path):
    given = {"d2": [0, 1], "d2/partial": [0, 2], "d3/missing": [2, 2]}
    test = table(*(answer(name, [" Golf", " club"], labels) for name, labels in given.items()))
    made = Table.of("labels", labels_of(tmp_path, {"train": LABELS, "test": test}, None), CONFIG)
    assert all(text in made.caption + made.run for text in ("No person has corrected labels yet.", "; 4 documents;"))
    assert "Cohen's kappa" not in made.cells()[0], "a column of dashes is left out"
    frame = made.frame.set_index("split")
    conditions = [f"test, {condition} evidence" for condition in ("complete", "partial", "missing")]
    assert frame.index.tolist() == ["train", "validation", "test", *conditions, "all"]
    assert frame.loc["train", ["n_tokens", "n_template", "n_endpoint", "n_failed"]].tolist() == [19, 16, 2, 1]
    # Of the value's tokens, those that are labelled, and not by the template.
    shares = frame.loc["train", ["hallucinated_pct", "value_hallucinated_pct"]].tolist()
    assert shares == pytest.approx([100 / 18, 100 / 2])
    assert frame.loc["test", "n_tokens"] == sum(frame.loc[name, "n_tokens"] for name in conditions)
    unknown = frame["unknown_pct"] * frame["n_tokens"] / 100
    assert unknown[conditions].tolist() == pytest.approx([0, 1, 2])


def test_corrections_change_what_they_name_and_the_labels_table_compares_what_chance_drew(tmp_path):
    value = {"document": "d2", "split": "test", "text": " Golf", "label": 0}
    path = sheet_of(
        tmp_path / "sheet.csv",
        Correction,
        label_row(human=1),
        label_row(step=5, text=" is", human=0),  # by the template: not the labeller's
        label_row("d1", 6, text=" Chess", label=0, human=1, sample="doubtful"),
        label_row("d1", 7, text=" club", label="", human=2),  # the labeller said nothing
        label_row(**value, human=0),
        label_row(**value | {"step": 7, "text": " club", "label": 2}, human=0),
    )
    # A spreadsheet may save the sheet with a mark at its start and a column more.
    text = path.read_text().replace("annotator", "annotator,remarks").replace("eve", "eve,x")
    path.write_text(f"\ufeff{text}", encoding="utf-8")
    expected = LABELS.to_pylist()
    for place, decided, before in ((5, 0, "1"), (15, 1, "0"), (16, 2, "unlabelled")):
        expected[place] |= {"label": decided, "source": "person", "reason": f"eve; was {before}"}
    assert correct(LABELS, "train", read_sheet(path, Correction)).to_pylist() == expected
    reviewed = {"train": LABELS, "test": table(answer("d2", [" Golf", " club"], [0, 2]))}
    frame = labels_of(tmp_path, reviewed, path).set_index("split")
    counts = {"n_reviewed": [4, 0, 2, 6], "n_person": [3, 0, 1, 4], "n_failed": [0] * 4, "n_compared": [1, 0, 2, 3]}
    assert frame[[*counts]].to_dict("list") == counts
    # labeller 1 0 2, person 1 0 0: alike 2/3, by chance 1/3 * 2/3 + 1/3 * 1/3 + 0 = 1/3
    assert frame.loc["all", "kappa"] == pytest.approx(0.5)
    assert frame.loc["all", "agreement_pct"] == pytest.approx(200 / 3)
    assert frame.loc["all", "agreement_pct_low"] < 200 / 3 < frame.loc["all", "agreement_pct_high"]
    assert np.isnan(frame.loc["validation", "kappa"])


def test_human_table_compares_the_same_answers(tmp_path):
    scores = {"Golf": (0.0, 0.2), "Climbing": (0.5, 0.4), "Rock climbing": (1.0, 0.9), "Polo": (None, 0.0)}
    config = reference_config(**decoding(test=[point("infllm", 8), point("utaca", 96, "sub.16")]))
    points, path = ["infllm-K8", "utaca-K96-sub16"], tmp_path / "scores.parquet"
    rows = [
        judged(f"d{number}", point, prediction, cas, human=human, annotator="eve")
        for point in points
        for number, (prediction, (cas, human)) in enumerate(scores.items())
    ]
    write(path, "scores", rows)
    sheet = sheet_of(tmp_path / "sheet.csv", HumanScore, *rows[: len(scores)])

    def human_table(sheets: list[Path]) -> Table:
        files = {"judged": [path], "score_sheet": sheets}
        return Table.of("human_points", people.human_points(files, config), config)

    made = human_table([])
    assert (len(made.frame), made.frame["n_scored"][0]) == (1, 0)
    assert "No person has scored the answers yet." in made.caption
    made = human_table([sheet])
    frame = made.frame.set_index("point")
    one, other = frame.loc[points[0]], frame.loc[points[1]]
    assert (one["n_scored"], one["n_failed_judgements"], one["n_documents"]) == (3, 1, 3)
    assert (one["cas_pct"], one["human_pct"], one["string_match_pct"]) == pytest.approx((50, 50, 50))
    assert (one["difference_pct"], one["distance_pct"]) == pytest.approx((0, 40 / 3))
    assert one["correlation"] == pytest.approx(np.corrcoef([0, 0.5, 1], [0.2, 0.4, 0.9])[0, 1])
    assert one["human_pct_low"] < 50 < one["human_pct_high"]
    assert frame.loc["all", "cas_pct"] == one["cas_pct"]
    assert other["n_scored"] == 0
    assert other[["cas_pct", "correlation"]].isna().all()
    assert (other["paper_cas_pct"], other["paper_human_pct"]) == (74.6, 76.6)
    assert np.isnan(one["paper_cas_pct"])


# In a browser

WRITTEN = [*HOSTILE[1:], "=HYPERLINK(1)", 'comma, "quote" and\nnew line']
MARKUP = "main img, main svg, main script, nav b"


def test_labels_are_reviewed_by_keyboard_and_come_back(chromium, tmp_path):
    hostile = [row | {"reason": row["text"]} for row in answer("<b>d0", WRITTEN, [1, 0, 0, 0, 0])]
    labels = table(hostile, answer("failed", [" Golf"], [None]))
    documents = [document("<b>d0", WRITTEN[1], person=WRITTEN[2]), document("failed")]
    page = tmp_path / "review.html"
    page.write_text(review.label_page({"train": labels}, {"train": documents}, WRITTEN[0]), encoding="ascii")

    def go(name: str) -> None:
        chromium.run(f"[...document.querySelectorAll('#list button')].find((b) => b.title.includes('{name}')).click()")

    def shown() -> list[str]:
        return chromium.run("[...document.querySelectorAll('.token')].map((token) => token.dataset.label)")

    chromium.open(page)
    go("<b>d0")
    assert "<b>d0" in chromium.text(".place")
    assert chromium.text(".card h2") == WRITTEN[2]
    assert chromium.text("dd").startswith(WRITTEN[1])
    before = shown()
    for text in WRITTEN:  # first the first value token is selected, then the next
        assert text.replace("\n", "↵\n") in chromium.run("document.getElementById('answer').textContent")
        assert text in chromium.run("document.getElementById('detail').textContent")
        chromium.press("2")
    chromium.press(*["ArrowLeft"] * 6, "0")  # the template's "is"
    assert shown() == [*before[:5], "0", *"22222", *before[11:]]
    chromium.press("u")
    assert shown() == [*before[:5], "1", *"22222", *before[11:]]
    assert chromium.text("#progress") == "0 of 2 answers reviewed"
    chromium.press("Enter")
    go("failed")
    assert chromium.text("#answer").startswith("The hobby of Ada Lopez is Golf")
    source = "At weekends she loved rock climbing with Dr. Smith."
    assert chromium.text("dl").split("\n") == ["hobby", "Rock climbing", source]
    assert chromium.text("dl mark") == "rock climbing"
    chromium.press("Enter")
    assert "no label yet" in chromium.text("#said")

    # progress is kept, the export asks for a name and holds reviewed answers alone
    chromium.open(page)
    assert chromium.text("#progress") == "1 of 2 answers reviewed"
    chromium.press("e")
    assert "Enter your name first" in chromium.text("#said")
    chromium.press(*"<b>", "Enter", "e")
    path = chromium.downloaded("label_corrections.csv")
    assert "'=HYPERLINK" in path.read_text()
    sheet = read_sheet(path, Correction)
    assert {(c.annotator, c.document) for c in sheet} == {("<b>", "<b>d0")}
    assert [c.human for c in sheet][:11] == [1] * 6 + [2] * 5
    chromium.harmless(MARKUP)

    # the pipeline takes the sheet as it is
    changed = [row for row in correct(labels, "train", sheet).to_pylist() if row["source"] == "person"]
    assert [(row["step"], row["text"], row["label"]) for row in changed] == [
        (step, text, 2) for step, text in enumerate(WRITTEN, start=6)
    ]
    assert labels_of(tmp_path, {"train": labels}, path)["n_person"][0] == 5


def test_scores_are_given_by_keyboard_and_come_back(chromium, tmp_path):
    texts = iter(WRITTEN)
    scores = [judged(name, point, next(texts), reference=WRITTEN[1]) for name in ("d0", "d1") for point in ("p1", "p2")]
    documents = [document(name, person=WRITTEN[2]) for name in ("d0", "d1")]
    page = tmp_path / "review.html"
    page.write_text(review.score_page(scores, documents, WRITTEN[0]), encoding="ascii")
    units, others = (item["units"] for item in content(page.read_text())["items"])
    chromium.open(page)
    assert chromium.text(".card h2") == f"What is the hobby of {WRITTEN[2]}?"
    shown = chromium.run("[...document.querySelectorAll('.unit p span')].map((span) => span.textContent)")
    assert shown == [unit["text"] for unit in units]
    chromium.press("7", "f")
    assert chromium.text("#progress") == "1 of 2 questions reviewed"
    # 0.3, then from nothing to 0.5 and to a tenth more and less
    chromium.press("3", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert chromium.text("#progress") == "2 of 2 questions reviewed"
    chromium.press("ArrowUp", "ArrowLeft", "1")
    assert "Press 1 again for 1.0, or . for 0.1" in chromium.text("#said")
    chromium.press("ArrowDown", "ArrowUp")  # another key takes it back
    chromium.open(page)
    assert chromium.text("#progress") == "2 of 2 questions reviewed"
    chromium.press("e", *"eve", "Enter", "e")
    sheet = read_sheet(chromium.downloaded("cas_scores.csv"), HumanScore)
    rows = [row for unit in (*units, *others) for row in unit["rows"]]
    assert {(s.document, s.point): s.human for s in sheet} == {
        (row[0], row[2]): score for row, score in zip(rows, [0.7, 1.0, 0.2, 0.5], strict=True)
    }
    assert len(matched(scores, sheet)) == 4
    chromium.harmless(MARKUP)


# In the workflow


def test_a_sheet_is_applied_while_it_is_there(tmp_path):
    folder, plan = copy_checkout(tmp_path / "utaca"), planned(ROOT)
    for number, path in enumerate(plan.shards(plan.uncorrected, "train")):
        write(folder / path, "labels", LABELS.slice(0, 0) if number else LABELS)
    target = f"{plan.labels}/train.parquet"

    def corrected() -> pa.Table:
        done = snakemake(folder, "--cores", "1", "--allowed-rules", "correct_labels", "--", target)
        assert done.returncode == 0, done.stdout
        return read(folder / target, "labels")

    assert corrected().equals(LABELS)
    sheet = sheet_of(folder / "data/annotations/label_corrections.csv", Correction, label_row())
    assert corrected()["source"].to_pylist().count("person") == 1
    sheet.unlink()
    assert corrected().equals(LABELS)
