"""The tables of benchmarks of other domains, held against figures by hand."""

from itertools import product

import factories
import numpy as np
import pytest
import yaml
from configs import decoding, point, reference_config
from conftest import ROOT

from utaca.errors import UserError
from utaca.records import write
from utaca.reporting.table import Table
from utaca.reporting.tables import detection, tasks
from utaca.runs.compose import compose
from utaca.settings import schema
from utaca.settings.checks import load
from utaca.settings.schema import NOT_RUN, OperatingPoint, TaskSetSettings
from utaca.tasks import questions as asking

SETS = {
    "qa_1-8k": TaskSetSettings(task="qa_1", length=8192),
    "qa_2-8k": TaskSetSettings(task="qa_2", length=8192),
    "meetings": TaskSetSettings(task="meetings"),
}
POINTS = [point("full"), point("closed_book"), point("infllm", 8)]
POINTS += [point("utaca", 8, "sub.4"), *(point("utaca", 8, "sub.4", "calibrated", seeds=2, seed=s) for s in (0, 1))]
ROWS, SHARED = 12, 3
"""Rows of a set, and how many of them share a document."""


def config() -> schema.Config:
    detectors = {
        "utaca": schema.DetectorSettings(),
        "calibrated": schema.DetectorSettings(start="utaca", sets=["qa_1-8k"]),
    }
    return reference_config(
        scale={"bootstrap": 400},
        tasks=schema.TasksSettings(sets=SETS),
        detectors=detectors,
        **decoding(**dict.fromkeys(SETS, POINTS)),
    )


def score_of(name: str, point: OperatingPoint, row: int) -> float:
    """A score that tells where it comes from."""
    place = list(SETS).index(name) + [one.name for one in POINTS].index(point.name)
    return 100.0 * ((row + place) % 4 == 0) if point.method != "full" else 100.0


def files(folder, lacks: str = "", official: bool = False, by: str = "infllm") -> tasks.Files:
    made: tuple[list[str], list[str], list[str]] = [], [], []
    for name in SETS:
        paths = [folder / name / f"{kind}.parquet" for kind in ("examples", "answers", "scores")]
        ids = [f"{name}/{row}" for row in range(ROWS)]
        example = {"text": "t", "question": "q", "references": ["r"], "query": "q", "official": official}
        documents = [f"doc{row // SHARED}" for row in range(ROWS)]
        answers, scores = [], []
        for of, row in product(POINTS, range(ROWS)):
            finish = NOT_RUN + lacks if lacks and of.method == by else "memory" if row == 0 else "eos"
            answers.append(factories.answer(
                ids[row], of, split=name, n_context=600, dropped=200, n_generated=1 + row, finish=finish,
                selected=16.0 * row, attended=99.0, rollbacks=row // 2, decode_seconds=2.0,
            ))  # fmt: skip
            about = {"split": name, "point": of.label, "example": ids[row], "document": documents[row]}
            scores.append(about | {"score": score_of(name, of, row)})
        write(paths[0], "examples", [example | {"id": i, "document": d} for i, d in zip(ids, documents, strict=True)])
        write(paths[1], "answers", answers)
        write(paths[2], "task_scores", scores, made_from=[paths[1]])
        for path, kind in zip(paths, made, strict=True):
            kind.append(str(path))
    return dict(zip(("task_examples", "task_answers", "task_scores"), made, strict=True))


def test_scores_are_means_over_rows_and_ruler_s_two_tasks_weigh_alike(tmp_path) -> None:
    frame = tasks.ood(files(tmp_path), config())
    assert list(frame["set"].unique()) == [*SETS, "QA-8k"]
    for name in SETS:
        for of in POINTS:
            (row,) = rows_of(frame, name, of)
            scores = [score_of(name, of, number) for number in range(ROWS)]
            assert row["score"] == pytest.approx(np.mean(scores))
            # Whole documents are drawn: of all scores alike, no draw differs.
            assert (row["score_low"] < row["score"]) == (of.method != "full")
            lengths = np.arange(1, ROWS + 1)
            assert row["mtokens"] == pytest.approx((16 * (lengths - 1) * lengths).sum() / lengths.sum())
            assert row["rollbacks_pct"] == pytest.approx(100 * sum(n // 2 for n in range(ROWS)) / lengths.sum())
            assert (row["n_rows"], row["n_documents"], row["n_failed"]) == (ROWS, ROWS // SHARED, of.seeds)
            assert (row["tokens"], row["read_pct"], row["source"]) == (800, 75, "protocol")
            if of.method != "full":
                assert row["difference"] == pytest.approx(np.mean(scores) - 100)
    for of in POINTS:
        (mean,), *halves = (rows_of(frame, name, of) for name in ("QA-8k", "qa_1-8k", "qa_2-8k"))
        assert mean["score"] == pytest.approx(np.mean([half[0]["score"] for half in halves]))
        assert mean["n_rows"] == 2 * ROWS
    (row,) = rows_of(frame, "QA-8k", POINTS[2])
    assert (row["paper_mtokens"], row["paper_score"]) == (128, 14.90)


def rows_of(frame, name: str, point: OperatingPoint) -> list[dict]:
    own = frame[(frame["set"] == name) & (frame["detector"] == (point.detector or "utaca") * (point.method == "utaca"))]
    called = {"full": "Full attention", "closed_book": "No document", "infllm": "InfLLM", "utaca": "UT-ACA"}
    return own[own["method"] == called[point.method]].to_dict("records")


def test_what_was_not_run_says_why(tmp_path) -> None:
    table = tasks.ood(files(tmp_path, lacks="no such thing", official=True), config())
    (row,) = rows_of(table, "meetings", POINTS[2])
    assert np.isnan(row["score"])
    assert set(table["source"]) == {"official"}
    assert "InfLLM was not run on meetings: no such thing." in Table.of("ood", table, config()).caption
    assert tasks.ood(files(tmp_path, lacks="layers", by="full"), config())["difference"].isna().all()


def test_calibration_stands_beside_what_it_started_from(tmp_path, monkeypatch) -> None:
    document = np.repeat(np.arange(4), 10)
    label = np.tile([0, 1], 20)
    span = np.where(label == 0, np.arange(40), -1)
    right, half = label == 0, np.tile([True, False, False, False], 10)
    runs = {
        name: [detection.Run(flagged, flagged.astype(float), None)]
        for name, flagged in (("utaca", right), ("calibrated", half))
    }
    verdicts = detection.Detections(tuple("abcd"), document, np.ones(40, int), label, span, runs)
    monkeypatch.setattr(tasks, "loaded", lambda _: verdicts)
    frame = tasks.calibration(files(tmp_path), config())
    assert list(frame["detector"]) == ["utaca", "calibrated"] * 4
    for name in (*SETS, "QA-8k"):
        before, after = (frame[(frame["set"] == name) & (frame["detector"] == d)].iloc[0] for d in runs)
        assert np.isnan(before["gain"])
        assert after["gain"] == pytest.approx(after["score"] - before["score"])
        assert (before["balanced_accuracy_pct"], after["balanced_accuracy_pct"]) == (100, 75)
        assert (before["learned_from"], after["learned_from"]) == ("biographies", "qa_1-8k")
    assert list(frame[frame["set"] == "QA-8k"]["paper_score"]) == [14.40, 23.10]


RULER = {
    ("QA-16k", "K_max=8, Sub.4"): [(105, 14.65), (101.77, 19.30)],
    ("QA-8k", "K_max=8, Sub.4"): [(108, 14.40), (102.68, 23.10)],
    ("QA-16k", "K_max=32, Sub.16"): [(385, 21.65), (364.15, 26.10)],
    ("QA-8k", "K_max=32, Sub.16"): [(352, 26.85), (367.24, 26.90)],
}
"""The paper's table of RULER's calibration: mean context tokens and score, before and after."""


def test_the_papers_run_has_the_papers_table_of_calibration(tmp_path, monkeypatch) -> None:
    overrides = yaml.safe_load((ROOT / "config" / "runs" / "paper_ood.yaml").read_text(encoding="utf-8"))
    composed = load(compose(overrides, ROOT))
    sets = [f"{task}-{length}" for length in ("16k", "8k") for task in ("qa_1", "qa_2")]
    monkeypatch.setattr(f"{__name__}.SETS", {name: composed.tasks.sets[name] for name in sets})
    monkeypatch.setattr(f"{__name__}.POINTS", composed.decoded(sets[0]))
    document, label = np.repeat(np.arange(4), 10), np.tile([0, 1], 20)
    span = np.where(label == 0, np.arange(40), -1)
    run = [detection.Run(label == 0, 1.0 - label, None)]
    runs = dict.fromkeys(("utaca", "calibrated"), run)
    verdicts = detection.Detections(tuple("abcd"), document, np.ones(40, int), label, span, runs)
    monkeypatch.setattr(tasks, "loaded", lambda _: verdicts)
    composed.decode = {name: composed.decode[name] for name in sets}
    composed.scale.bootstrap = 100
    frame = tasks.calibration(files(tmp_path), composed)
    assert composed.detectors["calibrated"].start == "utaca"
    for (name, setting), figures in RULER.items():
        own = frame[(frame["set"] == name) & frame["setting"].str.startswith(setting)]
        assert list(own["detector"]) == ["utaca", "calibrated"]
        assert list(zip(own["paper_mtokens"], own["paper_score"], strict=True)) == figures
        assert np.isfinite(own["score"]).all()


def test_rows_of_one_document_are_learned_from_or_held_out_together() -> None:
    rows = [{"id": f"{n}{kind}", "document": f"d{n // 2}"} for n in range(60) for kind in ("", "/missing")]
    learned, held = asking.learned(rows)
    assert learned | held == {row["id"] for row in rows}
    of = {row["id"]: row["document"] for row in rows}
    assert not {of[name] for name in learned} & {of[name] for name in held}
    assert len({of[name] for name in held}) == 4, "one document in eight, begun ones too"
    assert asking.learned(reversed(rows)) == (learned, held)
    with pytest.raises(UserError, match="row 0, of a set that detectors learn from, has only one document"):
        asking.learned(rows[:4])


# Bars


def test_scores_are_beside_the_readers_bars(tmp_path) -> None:
    bars = [
        schema.BarSettings("qa_1-8k", 100),
        schema.BarSettings("qa_1-8k", 25.01, point="infllm-K8"),
        schema.BarSettings("qa_1-8k", 30, point="infllm-K8"),
        schema.BarSettings("qa_1-8k", 70, minus="infllm-K8", most=True),
        schema.BarSettings("qa_1-8k", 50, point="infllm-K99"),
        schema.BarSettings("another set", 50),
    ]
    held = config()
    held.reader.bars = bars
    table = tasks.bars(files(tmp_path), held)
    assert table["score"].tolist()[:4] == [100, 25, 25, 75]
    assert table["verdict"].tolist() == ["met", "missed by 0.1", *["missed by 5.0"] * 2, "not measured"]
    assert table["bar"].tolist()[2:4] == [">= 30", "<= 70"]
    assert (table["score_low"][1:4] < table["score"][1:4]).all()
