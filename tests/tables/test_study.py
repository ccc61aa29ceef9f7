"""The study of CAS: which answers, their scores by judge and person, and the two cases among them."""

from itertools import chain
from pathlib import Path
from typing import Any

import factories
import numpy as np
import pandas as pd
import pytest
from browser import content
from configs import decoding, point, reference_config
from test_review import document, sheet_of

from utaca.errors import UserError
from utaca.judging import review
from utaca.judging.sheets import HumanScore
from utaca.records import write
from utaca.reporting.registry import ENTRIES
from utaca.reporting.table import Table
from utaca.reporting.tables import study
from utaca.settings import schema

DETECTORS = {"utaca": schema.DetectorSettings(), "chained": schema.DetectorSettings(chain=6)}
POINTS = [point("infllm", 8), point("utaca", 64, "sub.16"), point("utaca", 96, "sub.32", "chained")]
CONFIG = reference_config(detectors=DETECTORS, **decoding(test=POINTS))
STUDIED = "utaca-K64-sub16"


def studied(*points: schema.OperatingPoint, detector: str = "utaca") -> str:
    return study.point_of(reference_config(detectors=DETECTORS, detector=detector, **decoding(test=points)))


def test_the_papers_point_is_studied_else_that_of_the_largest_budget() -> None:
    papers = point("utaca", 96, "sub.16")
    assert studied(*POINTS, point("utaca", 128, "sub.16"), papers) == "utaca-K96-sub16"
    assert studied(*POINTS) == STUDIED, "of the config's detector"
    assert studied(*POINTS, papers, detector="chained") == "utaca-K96-sub32-chained", (
        "the paper's is of its own detector"
    )
    assert studied(point("utaca", 96, "sub.8", seeds=2), point("utaca", 8, "sub.2")) == "utaca-K96-sub8-seed0"
    shares = [point("utaca", "25%", "sub.16"), point("utaca", "9%", "sub.16")]
    assert studied(*shares) == "utaca-K25pct-sub16"
    assert studied(*shares, point("utaca", 8, "sub.2")) == "utaca-K8-sub2", "a number goes before a share"
    assert ENTRIES["human"].holds(CONFIG)
    for others in ([point("infllm", 8)], [point("utaca", 8, "sub.2", "never")]):
        assert not ENTRIES["human"].holds(reference_config(detectors=DETECTORS, **decoding(test=others)))


def scored(name: str, values: dict[str, tuple[str, float | None, float]], of: str = STUDIED) -> list[dict[str, Any]]:
    """Scores of an answer: prediction, CAS and string match of each attribute."""
    return [
        factories.score(name, of, attribute, cas, prediction=text, reference="Rock climbing", string_match=match)
        for attribute, (text, cas, match) in values.items()
    ]


def inputs(folder: Path, *answers: list[dict[str, Any]], human: dict[tuple[str, str], float] | None = None) -> Any:
    """Files of the study, with a sheet of ``human`` scores by document and attribute."""
    rows = [row for answer in answers for row in answer]
    names = sorted({row["document"] for row in rows})
    write(folder / "scores.parquet", "scores", rows)
    write(folder / "documents.parquet", "documents", [document(name, person=f"Ada {name}") for name in names])
    files = {"judged": [folder / "scores.parquet"], "test_documents": [folder / "documents.parquet"], "score_sheet": []}
    if human is not None:
        by_key = {(row["document"], row["attribute"]): row for row in rows if row["point"] == STUDIED}
        sheet = [by_key[key] | {"human": score, "annotator": "eve"} for key, score in human.items()]
        files["score_sheet"] = [sheet_of(folder / "sheet.csv", HumanScore, *sheet)]
    return files


def test_a_row_is_an_answer_and_the_last_one_their_means(tmp_path: Path) -> None:
    first = scored("d1", {"hobby": ("Golf", 0.0, 0.0), "major": ("Climbing", 0.5, 0.8), "city": ("x", 1.0, 1.0)})
    other = scored("d2", {"hobby": ("Rock climbing", 1.0, 1.0), "major": ("Polo", None, 0.2), "city": ("y", 0.6, 0.6)})
    more = scored("d1", {"hobby": ("Elsewhere", 1.0, 1.0)}, "infllm-K8")
    human = {("d1", "hobby"): 0.2, ("d1", "major"): 0.5, ("d1", "city"): 0.9, ("d2", "major"): 0.3}
    frame = study.human(inputs(tmp_path, first, more, other), CONFIG)
    made = Table.of("human", frame, CONFIG)
    assert "No person has scored the answers yet" in made.caption
    assert "UT-ACA K_max=64, Sub.16" in made.caption
    assert not {"human_pct", "n_right"} & set(made.columns)
    assert {"string_match_pct", "cas_pct", "paper_human_pct"} <= set(made.columns)
    frame = study.human(inputs(tmp_path, first, more, other, human=human), CONFIG)
    table = frame.set_index("document")
    assert list(frame["document"]) == [*review.sample(["d1", "d2"]), ""]
    assert frame["number"].tolist()[:2] == [1, 2]
    assert list(table["person"]) == [f"Ada {name}" if name else "mean" for name in table.index]
    one, two, mean = (table.loc[name] for name in ("d1", "d2", ""))
    assert one[["string_match_pct", "cas_pct", "human_pct"]].tolist() == pytest.approx([60, 50, 160 / 3])
    assert (two["cas_pct"], two["n_failed_judgements"]) == (pytest.approx(80), 1)
    assert (one["n_right"], one["n_scored"], two["n_right"], two["n_scored"]) == (2, 3, 0, 1)
    assert mean["cas_pct"] == pytest.approx((one["cas_pct"] + two["cas_pct"]) / 2)
    assert mean["human_pct"] == pytest.approx((160 / 3 + 30) / 2)
    assert mean["correlation"] == pytest.approx(np.corrcoef([0, 0.5, 1], [0.2, 0.5, 0.9])[0, 1]), "over attributes"
    columns = ["paper_string_match_pct", "paper_cas_pct", "paper_human_pct", "paper_n_right"]
    assert mean[columns].tolist() == [27.9, 74.6, 76.6, 4.5]
    assert table.loc[["d1", "d2"], columns].isna().all(axis=None)
    header, cells = Table.of("human", frame, CONFIG).cells(folded=False)
    by_person = {row[1]: row[header.index("Correct")] for row in cells}
    assert by_person == {"Ada d1": "2/3", "Ada d2": "0/1", "mean": "1/2"}
    assert next(row for row in cells if row[1] == "mean")[0] == "–"


def test_the_sample_is_that_of_the_review_page(tmp_path: Path) -> None:
    names = [f"d{n}" for n in range(review.N_DOCUMENTS + 5)]
    answers = [scored(name, {"hobby": ("Golf", 0.0, 0.0)}) for name in names]
    files = inputs(tmp_path, *answers)
    shown = study.human(files, CONFIG)["document"].tolist()[:-1]
    assert len(shown) == review.N_DOCUMENTS
    documents = [document(name, person=f"Ada {name}") for name in names]
    page = content(review.score_page(chain.from_iterable(answers), documents, "A run."))
    assert [item["section"] for item in page["items"]] == [f"Ada {name}" for name in shown]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    files = inputs(tmp_path, scored("d1", {"hobby": ("Golf", 0.0, 0.0)}, "infllm-K8"))
    with pytest.raises(UserError, match=rf"has no scores of {STUDIED} for document d1; score it again"):
        study.human(files, CONFIG)
    files = inputs(tmp_path, scored("d1", {"hobby": ("Golf", 0.0, 0.0)}))
    write(tmp_path / "documents.parquet", "documents", [document("d7")])
    with pytest.raises(UserError, match="document 'd1' has scores, but the documents file does not have it"):
        study.cas_cases(files, CONFIG)


ANSWERS = {
    "plain": {"hobby": ("Rock climbing", 1.0, 1.0), "major": ("Rock climbing", 1.0, 0.5)},
    "form": {"hobby": ("Climbing of rocks", 0.9, 0.4), "major": ("Rock climbing", 1.0, 1.0)},
    "less": {"hobby": ("Free climbing", 0.9, 0.3), "major": ("Rock climbing", 0.8, 0.0)},
    "more": {"hobby": ("1 2", 1.0, 0.2), "major": ("Rock climbing", 1.0, 1.0)},
    "failed": {"hobby": ("1 2", 1.0, 0.0), "major": ("Rock climbing", None, 0.0)},
    "silent": {"hobby": ("not mentioned", 0.0, 0.0), "major": ("", 0.0, 0.0)},
    "wrong": {"hobby": ("Golf", 0.1, 0.0), "major": ("Polo", 0.3, 0.1)},
    "none": {"hobby": ("Golf", 0.0, 0.0), "major": ("Polo", 0.0, 0.0)},
    "other": {"hobby": ("Golf", 0.0, 0.0), "major": ("Rock climbing", 0.5, 1.0)},
}


def cases(folder: Path, *names: str, **about: Any) -> pd.DataFrame:
    return study.cas_cases(inputs(folder, *(scored(name, ANSWERS[name]) for name in names), **about), CONFIG)


@pytest.mark.parametrize(
    ("names", "form", "wrong"),
    [
        ([*ANSWERS], "more", "wrong"),
        (["plain", "form", "less", "none"], "form", "none"),
        (["form", "other", "none"], "form", "other"),
        (["plain", "failed", "silent"], "", ""),
    ],
)
def test_cases_are_chosen_by_the_rule(tmp_path: Path, names: list[str], form: str, wrong: str) -> None:
    frame = cases(tmp_path, *names)
    found = frame.groupby("case")["document"].unique().map(list)
    assert found.to_dict() == {study.CASES["form"]: [form], study.CASES["wrong"]: [wrong]}
    assert len(frame) == sum(3 if name else 1 for name in (form, wrong))
    assert (frame["person"] == "none of these answers").sum() == [form, wrong].count("")


def test_equals_go_to_the_first_document_and_a_case_is_shown_by_attribute(tmp_path: Path) -> None:
    twice = [scored(name, ANSWERS["more"]) for name in ("d2", "d1", "d3")]
    files = inputs(tmp_path, *twice, scored("wrong", ANSWERS["wrong"]), human={("wrong", "hobby"): 0.1})
    frame = study.cas_cases(files, CONFIG)
    assert set(frame["document"]) == {"d1", "wrong"}
    assert frame["attribute"].tolist() == ["hobby", "major", "mean"] * 2
    numbers = {name: number for number, name in enumerate(review.sample(["d1", "d2", "d3", "wrong"]), start=1)}
    assert [numbers[name] for name in frame["document"]] == frame["number"].tolist(), "as in table human"
    golf, polo, mean = (row for _, row in frame.iloc[3:].iterrows())
    assert (golf["prediction"], golf["reference"], golf["human_pct"]) == ("Golf", "Rock climbing", pytest.approx(10))
    assert np.isnan(polo["human_pct"])
    assert mean[["string_match_pct", "cas_pct", "human_pct"]].tolist() == pytest.approx([5, 20, 10])
    columns = ["paper_string_match_pct", "paper_cas_pct", "paper_human_pct"]
    assert frame[columns].dropna().to_numpy().tolist() == [[23.0, 100, 100], [11.4, 16.7, 16.7]]
    made = Table.of("cas_cases", frame, CONFIG)
    assert "No person" not in made.caption
    header, rows = made.cells(folded=False)
    assert rows[3][header.index("Prediction")] == "Golf"
