"""Figures of single tokens and of costs: what they draw is what the tables of the same files say."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import factories
import numpy as np
import pandas as pd
import pytest
from configs import decoding, point, reference_config
from factories import inputs

from utaca.records import write
from utaca.reporting.table import make, read_frame
from utaca.reporting.tables import detection, figures, generation, places, tokens
from utaca.reporting.tables import points as point_tables
from utaca.settings import schema

N = 5
ORACLE = point("utaca", 8, "sub.2", "agreement")
POINTS = [
    point("infllm", 2), point("infllm", 8), point("utaca", 8, "sub.2"), point("utaca", 8, "sub.2", "never"), ORACLE,
]  # fmt: skip


@pytest.fixture
def config() -> schema.Config:
    detectors = {"utaca": schema.DetectorSettings(), "two_way": schema.DetectorSettings(classes=2)}
    return reference_config(scale={"bootstrap": 100}, detectors=detectors, **decoding(test=POINTS))


@pytest.fixture
def judged(tmp_path: Path) -> dict[str, Any]:
    """Verdicts of a baseline and of two detectors with three seeds each; one token has no label."""
    rng = np.random.default_rng(7)
    tokens_of = [(f"d{d}", budget, step) for d in range(N) for budget in (1, 4) for step in range(40)]
    labels = {token: int(rng.choice(3, p=[0.2, 0.7, 0.1])) for token in tokens_of}
    rows = []
    for name, seeds in (("logit_margin", 1), ("utaca", 3), ("two_way", 3)):
        for seed in range(seeds):
            for (document, budget, step), label in labels.items():
                score = float(np.round(rng.normal() + 1.2 * (label != 1), 1))
                p = None if name == "logit_margin" else 1 / (1 + np.exp(-score))
                rows.append(
                    {
                        "detector": name, "seed": seed, "document": document, "budget": budget, "step": step,
                        "label": None if (document, step) == ("d0", 3) else label, "value": step > 20,
                        "uncertain": score > 0.5, "score": score, "p_hallucinated": None if p is None else p / 2,
                        "p_correct": None if p is None else 1 - p, "p_unknown": None if p is None else p / 2,
                    }
                )  # fmt: skip
    path = tmp_path / "detections.parquet"
    write(path, "detections", rows)
    return {"detections": [path], "detected_from": []}


@pytest.fixture
def answered(tmp_path: Path) -> dict[str, Any]:
    """Answers, scores and traces of all points; adaptive ones roll some tokens back."""
    rng = np.random.default_rng(3)
    answers, scores, traces = [], [], []
    for of in POINTS:
        rate = {"infllm": 0.0, "no_detector": 0.0, "agreement": 0.4}.get(of.family, 0.2)
        for d in range(N):
            length = 20 + 7 * d
            rolled = rng.random(length) < rate
            traces += [factories.step(f"d{d}", of.label, s, rolled_back=bool(rolled[s])) for s in range(length)]
            answers.append(
                factories.answer(
                    f"d{d}", of, n_generated=length, rollbacks=int(rolled.sum()), selected=16.0 * of.budget / 2,
                    selected_with_tentative=16.0 * of.budget, decode_seconds=0.1 * length + 0.01 * d,
                )
            )  # fmt: skip
            scores += [factories.score(f"d{d}", of.label, name, float(rng.random() < 0.7)) for name in ("a", "b")]
    paths = factories.saved(tmp_path, answers, scores)
    write(tmp_path / "traces.parquet", "traces", traces)
    return inputs(*paths) | {"test_traces": [tmp_path / "traces.parquet"]}


def test_roc_curves_are_those_of_the_table(judged, config) -> None:
    frame = tokens.detector_curves(judged, config)
    table = detection.detection(judged, config).set_index("detector")
    curves = frame[frame["panel"] == "roc"]
    assert list(curves["detector"].unique()) == ["UT-ACA", "Logit Margin", "UT-ACA, two-way"], (
        "the config's comes first"
    )
    for name, curve in curves.groupby("detector"):
        row = table.loc[name]
        assert curve["area"].unique() == pytest.approx([row["auroc"]])
        assert np.trapezoid(curve["y"], curve["x"]) == pytest.approx(row["auroc"], abs=0.01)
        assert curve["x"].is_monotonic_increasing
        assert curve["y"].is_monotonic_increasing
        assert (curve["x"].iloc[0], curve["y"].iloc[0]) == (0, 0)
        assert (curve["x"].iloc[-1], curve["y"].iloc[-1]) == (1, 1)
        (decision,) = frame[(frame["panel"] == "decision") & (frame["detector"] == name)].to_dict("records")
        assert 100 * decision["y"] == pytest.approx(row["recall_n_pct"])
        assert 100 * (1 - decision["x"]) == pytest.approx(row["recall_p_pct"])


def test_the_reliability_diagram_has_the_tables_calibration_error(judged, config) -> None:
    frame = tokens.detector_curves(judged, config)
    row = detection.detection(judged, config).set_index("detector").loc["UT-ACA"]
    bins = frame[frame["panel"] == "reliability"]
    assert bins.groupby("seed").size().tolist() == [10, 10, 10]
    assert bins.groupby("seed")["n"].sum().tolist() == [row["n_tokens"]] * 3
    gaps = (bins["n"] * (bins["y"] - bins["x"]).abs()).groupby(bins["seed"]).sum() / row["n_tokens"]
    assert gaps.mean() == pytest.approx(row["ece"])
    assert bins.drop_duplicates("seed")["area"].mean() == pytest.approx(row["ece"])


def test_shares_of_classes_add_up_to_the_tables(judged, config) -> None:
    frame = tokens.class_shares(judged, config)
    table = detection.detection_budgets(judged, config)
    assert list(frame["budget"]) == list(table["budget"]) == ["K=1", "K=4", "all"]
    assert list(frame["n_tokens"]) == list(table["n_tokens"])
    uncertain = frame["hallucinated_pct"] + frame["unknown_pct"]
    assert list(uncertain) == pytest.approx(list(table["share_uncertain_pct"]))
    assert list(uncertain + frame["correct_pct"]) == pytest.approx([100] * 3)


def test_expansions_add_up_to_the_tables_rollbacks(answered, config) -> None:
    frame = tokens.expansions(answered, config)
    table = generation.generation(answered, config, "test").set_index("point")["rollbacks_pct"]
    assert list(frame["name"].unique()) == [
        "UT-ACA K_max=8, Sub.2", "Agreement oracle (both passes) K_max=8, Sub.2",
    ], "a point that expands nothing is left out"  # fmt: skip
    for name, rows in frame.groupby("name"):
        assert list(rows["position"]) == list(range(1, 11))
        assert 100 * rows["n_expanded"].sum() / rows["n_tokens"].sum() == pytest.approx(table[name])
        assert list(rows["share_pct"]) == pytest.approx(list(100 * rows["n_expanded"] / rows["n_tokens"]))
    raw = pd.read_parquet(answered["test_traces"][0])
    last = raw[(raw["point"] == "utaca-K8-sub2") & raw["rolled_back"]]
    length = last["document"].str[1:].astype(int) * 7 + 20
    of_last_tenth = ((last["step"] * 10 // length) == 9).sum()
    assert frame[frame["name"] == "UT-ACA K_max=8, Sub.2"]["n_expanded"].iloc[-1] == of_last_tenth


def test_seeds_of_a_detector_are_one_line(answered, config, tmp_path) -> None:
    twice = point("utaca", 8, "sub.2", seeds=2, name="both")
    config = reference_config(detectors=config.detectors, scale={"detector_seeds": 2}, **decoding(test=[twice]))
    assert list(config.operating) == ["both-seed0", "both-seed1"]
    rows = [
        factories.step("d0", label, step, rolled_back=step < expanded)
        for label, expanded in (("both-seed0", 2), ("both-seed1", 4))
        for step in range(10)
    ]
    write(tmp_path / "seeds.parquet", "traces", rows)
    frame = tokens.expansions({"test_traces": [tmp_path / "seeds.parquet"]}, config)
    assert list(frame["name"].unique()) == ["UT-ACA K_max=8, Sub.2"]
    assert list(frame["share_pct"]) == [100, 100, 50, 50, *[0] * 6]


PERSON = "Ann Lee"
SAID = [
    "The", " birth", " date", " of", " Ann", " Lee", " is", " 2", " May", " 1950", ".",
    "\nThe", " hobby", " of", " Ann", " Lee", " is", "", " ch", "ess", ".", "",
]  # fmt: skip
"""An answer's tokens; the first bytes of "chess" have no text, nor has the end token."""
FIRST_TOKENS, FURTHER_TOKENS = {7, 17}, {8, 9, 18, 19}


def test_places_of_tokens() -> None:
    facts = [{"attribute": "birth date", "value": "2 May 1950"}, {"attribute": "hobby", "value": "chess"}]
    found = places.of_tokens(SAID, {"person": PERSON, "facts": facts})
    assert {step for step, place in enumerate(found) if place == "first"} == FIRST_TOKENS
    assert {step for step, place in enumerate(found) if place == "rest"} == FURTHER_TOKENS
    assert places.of_tokens([], {"person": PERSON, "facts": facts}) == []


def test_expansions_are_counted_by_their_place(config, tmp_path) -> None:
    """Of ten expansions in two answers, each place has as many as by hand; the sum is the table's rollbacks."""
    label = "utaca-K8-sub2"
    rolled = {"d0": {0, 7, 8, 9, 17}, "d1": {7, 12, 13, 17, 19}}
    steps = [
        factories.step(document, label, step, text=text, rolled_back=step in rolled[document])
        for document in rolled
        for step, text in enumerate(SAID)
    ]
    # The order of the rows does not matter.
    write(tmp_path / "traces.parquet", "traces", steps[::-1])
    facts = {"birth date": "2 May 1950", "hobby": "chess"}
    text = " ".join(facts.values())
    documents = [factories.long_document(document, text, facts, person=PERSON) for document in rolled]
    write(tmp_path / "documents.parquet", "documents", documents)
    files = {"test_traces": [tmp_path / "traces.parquet"], "test_documents": [tmp_path / "documents.parquet"]}
    (row, *others) = places.places(files, config).to_dict("records")
    assert row["name"] == "UT-ACA K_max=8, Sub.2"
    assert (row["n_expanded"], row["n_tokens"]) == (10, 2 * len(SAID))
    assert [row[f"{place}_share_pct"] for place in places.PLACES] == pytest.approx([30, 40, 30])
    in_template = 2 * (len(SAID) - len(FIRST_TOKENS) - len(FURTHER_TOKENS))
    expected = [100 * 3 / in_template, 100 * 4 / 4, 100 * 3 / 8]
    assert [row[f"{place}_expanded_pct"] for place in places.PLACES] == pytest.approx(expected)
    assert not others, "a point that expands nothing has no row"


def test_costs_are_drawn_over_all_passes_and_over_seconds(answered, config, tmp_path, monkeypatch) -> None:
    frame = point_tables.points(answered, config, "tradeoff")
    drawn: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    monkeypatch.setattr(figures, "atomic_path", nullcontext)
    figures.cost(frame, tmp_path, config)
    left, right = drawn[0].axes
    for axes, column in ((left, "mtokens_with_tentative"), (right, "seconds_per_token")):
        found = sorted((x, y) for line in axes.containers for x, y in zip(*line.lines[0].get_data(), strict=True))
        expected = sorted(zip(frame[column], frame["cas_pct"], strict=True))
        assert np.array(found) == pytest.approx(np.array(expected))
    labels = left.get_legend_handles_labels()[1]
    assert "Agreement oracle (both passes) K_max=8; Sub.2\n128 tokens in all passes" in labels
    assert sum("in all passes" in label for label in labels) == 1
    drawn.clear()
    figures.cost(frame.assign(seconds_per_token=np.nan), tmp_path, config)
    assert [text.get_text() for text in drawn[0].axes[1].texts] == ["no seconds were measured"]


@pytest.mark.parametrize("name", ["detector", "class_shares", "expansions"])
def test_a_figure_is_saved_with_what_it_draws(judged, answered, config, tmp_path, name: str) -> None:
    make(name, answered if name == "expansions" else judged, config, tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{end}" for end in ("csv", "png", "svg")
    }
    made = {"detector": tokens.detector_curves, "class_shares": tokens.class_shares, "expansions": tokens.expansions}
    frame = made[name](answered if name == "expansions" else judged, config)
    saved = read_frame(tmp_path / "figures" / f"{name}.csv")
    assert list(saved) == list(frame)
    numbers = frame.select_dtypes("number")
    assert saved[list(numbers)].to_numpy(float) == pytest.approx(numbers.to_numpy(float), rel=1e-5, nan_ok=True)
