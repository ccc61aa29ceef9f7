"""Replays of single decisions, and what expansions put right: against plain restatements."""

from dataclasses import asdict
from pathlib import Path

import factories
import numpy as np
import pytest
import torch
from configs import decoding, point, reference_config
from small import SETTINGS, make_reader

from utaca.decoding.loop import generate
from utaca.decoding.policies import parse
from utaca.decoding.triggers import Detected, Replayed
from utaca.detection.detector import Detector
from utaca.generation.answers import Asked
from utaca.generation.replays import Decision, drawn, replays, wrong_decisions
from utaca.memory import prefill
from utaca.methods import method_of
from utaca.records import write
from utaca.records.journal import Journal
from utaca.reporting.tables.decisions import corrections, failures, probabilities
from utaca.settings import schema

POINT = point("utaca", 6, "sub.2", name="ours")
TEXT = "Ann was born in Lyon. " + "".join(f"Canal {n} was dug in {1600 + 7 * n}. " for n in range(12))


def verdict(document: str, step: int, uncertain: bool, label: int | None, **columns) -> dict:
    """A row of schema "trace_labels"."""
    answer = factories.answer(document, POINT)
    row = {name: answer[name] for name in ("document", "split", "point", "budget", "policy", "detector", "seed")}
    row |= {"step": step, "token": 10, "text": f"t{step}", "k": 1, "uncertain": uncertain, "replaced": False}
    row |= {"label": label, "source": "endpoint", "reason": "", "accepted_label": 1}
    return row | dict.fromkeys(("p_hallucinated", "p_correct", "p_unknown"), 0.3) | columns


def test_wrong_decisions_are_those_that_the_labels_contradict_and_chance_draws_them() -> None:
    labels = [
        verdict("d0", 1, True, 1), verdict("d0", 2, True, 0), verdict("d0", 3, True, 2), verdict("d0", 4, True, None),
        verdict("d0", 5, False, 1), verdict("d1", 6, False, 0), verdict("d1", 7, False, 2),
        verdict("d1", 8, False, None),
    ]  # fmt: skip
    found = wrong_decisions(labels)
    assert [(x.document, x.step, x.kind, x.text) for x in found] == [
        ("d0", 1, "FP", "t1"), ("d1", 6, "FN", "t6"), ("d1", 7, "FN", "t7"),
    ]  # fmt: skip
    many = [Decision(f"d{n}", n, kind, "") for n in range(40) for kind in ("FP", "FN")]
    few, more = drawn(many, 5, 0), drawn(many, 9, 0)
    assert sorted(x.kind for x in few) == ["FN"] * 5 + ["FP"] * 5
    assert set(few) < set(more)
    assert set(few) != set(drawn(many, 5, 1))
    assert drawn(many[:2], 5, 0) == many[:2]


@pytest.mark.parametrize("together", [False, True])
def test_a_replay_turns_one_decision_and_lets_all_else_run_on(tmp_path: Path, together: bool) -> None:
    reader = make_reader(memory=SETTINGS)
    torch.manual_seed(6)
    detector = Detector(schema.DetectorSettings(), 64).eval()
    detector.thresholds["argmax"] = -0.037
    memory = prefill(reader, TEXT)
    options = {"budget": 6, "policy": parse("sub.2"), "max_new_tokens": 14}
    own = generate(memory, "Where?", trigger=Detected(detector), **options)
    steps = {token.rolled_back: n for n, token in enumerate(own.trace) if token.rolled_back or token.k < 6}
    assert set(steps) == {False, True}
    wrong = [Decision("d0", steps[True], "FP", "a"), Decision("d0", steps[False], "FN", "b")]
    asked = [Asked("d0", TEXT, "Where?", 14), Asked("d1", TEXT, "When?", 14)]
    how = (reader, asked, "ours", method_of(POINT, {}), detector)
    table = replays(*how, wrong, Journal(tmp_path, "x"), together=together).to_pylist()
    assert [(row["document"], row["kind"], row["step"], row["token"]) for row in table] == [
        ("d0", "as decided", None, None), ("d0", "FP", steps[True], "a"), ("d0", "FN", steps[False], "b"),
    ]  # fmt: skip
    turned = [{}, {steps[True]: False}, {steps[False]: True}]
    for row, decisions in zip(table, turned, strict=True):
        expected = generate(memory, "Where?", trigger=Replayed(Detected(detector), decisions), **options)
        assert row["text"] == expected.text
        assert row["rollbacks"] == expected.rollbacks
        assert row["selected"] == pytest.approx(expected.mean_selected_tokens)
        assert row["selected_with_tentative"] == pytest.approx(expected.mean_selected_with_tentative)
    assert table[0]["text"] == own.text
    assert len({row["rollbacks"] for row in table}) > 1
    again = replays(*how, wrong, Journal(tmp_path, "x"), together=together)
    assert again.to_pylist() == table


def config_of(**scale: int) -> schema.Config:
    scale = {"bootstrap": 200, "replays": 5} | scale
    return reference_config(scale=scale, detectors={"utaca": schema.DetectorSettings()}, **decoding(test=[POINT]))


def test_failures_tell_what_each_turned_decision_changed(tmp_path: Path) -> None:
    # Of each document: quality, mTokens and rollbacks as decided, and with decisions turned.
    own = {"d0": (1.0, 300.0, 9), "d1": (0.5, 200.0, 3), "d2": (1.0, 100.0, 4)}
    turned = [
        ("d0", "FP", 3, 1.0, 280.0, 7), ("d0", "FP", 5, 1.0, 250.0, 8), ("d1", "FP", 2, 0.0, 10.0, 1),
        ("d2", "FP", 1, 1.0, 90.0, 4), ("d1", "FN", 7, 1.0, 260.0, 6), ("d2", "FN", 9, 1.0, 120.0, 5),
        ("d0", "FN", 8, None, 300.0, 9),
    ]  # fmt: skip
    answers, scores = [], []

    def put(document: str, kind: str, step: int | None, quality: float | None, mtokens: float, rollbacks: int) -> None:
        row = {"document": document, "point": "ours", "kind": kind, "step": step, "token": step and " a", "text": ""}
        row |= {"n_generated": 10, "selected": mtokens, "selected_with_tentative": 2 * mtokens, "rollbacks": rollbacks}
        answers.append(row)
        name = kind if step is None else f"step {step}"
        # Two attributes, whose mean is the quality.
        halves = [None, 1.0] if quality is None else [min(1.0, 2 * quality), max(0.0, 2 * quality - 1)]
        scores.extend(
            factories.score(document, name, attribute, cas)
            for attribute, cas in zip(("major", "hobby"), halves, strict=True)
        )

    for document, figures in own.items():
        put(document, "as decided", None, *figures)
    for row in turned:
        put(*row)
    paths = [tmp_path / "replays.parquet", tmp_path / "scores.parquet"]
    write(paths[0], "replays", answers)
    write(paths[1], "scores", scores, made_from=[paths[0]])
    frame = failures({"replays": paths[:1], "replay_scores": paths[1:]}, config_of()).set_index("case")
    assert list(frame.index) == ["FP-1", "FP-2", "FP, mean of all", "FN-1", "FN-2", "FN, mean of all"]
    first, second = frame.loc["FP-1"], frame.loc["FP-2"]
    assert (first["document"], first["step"], first["mtokens_before"], first["mtokens_after"]) == ("d0", 5, 300, 250)
    assert (second["document"], second["rollbacks_before"], second["rollbacks_after"]) == ("d2", 4, 4), "one a document"
    assert (first["quality_pct_before"], first["quality_pct_after"]) == (100, 100)
    assert (first["mtokens_all_before"], first["mtokens_all_after"]) == (600, 500)
    assert (frame.loc["FN-1", "document"], frame.loc["FN-1", "quality_pct_change"]) == ("d1", 50)
    assert frame.loc["FN-2", "document"] == "none in this run", "the other raised no quality"
    mean = frame.loc["FP, mean of all"]
    assert mean["n_replayed"] == 4
    assert mean["quality_pct_change"] == pytest.approx(-50 / 4)
    assert mean["mtokens_change"] == pytest.approx(np.mean([-20, -50, -190, -10]))
    assert mean["mtokens_change_low"] < mean["mtokens_change"] < mean["mtokens_change_high"]
    assert frame.loc["FN, mean of all", "n_replayed"] == 2, "a failed judgement is left out"
    assert frame.attrs["failed"] == 1
    assert first["paper_mtokens_before"] == 379.36
    assert np.isnan(mean["paper_mtokens_before"])


def test_the_right_token_has_the_log_probability_of_its_pass(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = np.sort(rng.normal(0, 3, 50))[::-1]
    logprobs = logits - np.log(np.exp(logits).sum())
    tokens = rng.permutation(50)

    def row(document: str, right: int) -> dict:
        """The best of the compact pass is rolled back for its token of rank ``right``, from 0."""
        step = factories.step(document, "ours", 4, "29", 6, token=int(tokens[right]), logprob=-0.25, rolled_back=True)
        return step | {
            "top_tokens": [int(tokens[right]), 99], "tentative_token": int(tokens[0]),
            "tentative_logprob": float(logprobs[0]), "tentative_top_tokens": [int(x) for x in tokens[:10]],
            "tentative_top_logits": [float(x) for x in logits[:10]],
        }  # fmt: skip

    traces = [row("d0", 2), row("d1", 12), row("d2", 1), row("d3", 5), row("d4", 3)]
    right = {"uncertain": True, "label": 0, "replaced": True, "text": "9"}
    labels = [verdict(f"d{n}", 4, **right) for n in range(5)]
    labels[3]["accepted_label"] = 0
    labels[4]["label"] = 1
    found = {case["document"]: case for case in corrections(labels, traces)}
    assert set(found) == {"d0", "d1", "d2"}, "another wrong token, and a right one, are no corrections"
    assert (found["d0"]["rank_before"], found["d0"]["rank_after"]) == (3, 1)
    assert found["d0"]["logprob_before"] == pytest.approx(logprobs[2])
    assert found["d0"]["logprob_change"] == pytest.approx(-0.25 - logprobs[2])
    assert np.isnan(found["d1"]["rank_before"]), "it was not among the ten best"
    paths = [tmp_path / "labels.parquet", tmp_path / "traces.parquet"]
    write(paths[0], "trace_labels", labels)
    write(paths[1], "traces", traces)
    frame = probabilities({"trace_labels": paths[:1], "test_traces": paths[1:]}, config_of()).set_index("case")
    assert list(frame.index) == ["largest rise", "median rise", "smallest rise", "mean of all"]
    assert frame.loc["largest rise", ["document", "top_before", "right_token"]].tolist() == ["d0", "9", "29"]
    assert frame.loc["smallest rise", "document"] == "d2"
    assert frame.loc["mean of all", "n_cases"] == 2
    assert frame.loc["mean of all", "logprob_before"] == pytest.approx(logprobs[1:3].mean())
    assert frame.attrs["beyond"] == 1
    assert frame.loc["largest rise", "paper_logprob_before"] == -5.13


def test_the_point_looked_at_is_the_detectors_nearest_to_the_papers() -> None:
    points = [point("utaca", k, "sub.16") for k in (32, 48, 96)]
    points += [point("utaca", 64, "sub.16", trigger) for trigger in ("never", "two_way")]
    detectors = {name: schema.DetectorSettings() for name in ("utaca", "two_way")}
    config = reference_config(detectors=detectors, **decoding(test=points))
    assert config.main_point.label == "utaca-K48-sub16"
    assert reference_config(**decoding(test=points[3:4])).main_point is None
    shares = [point("utaca", share, "sub.16") for share in ("9%", "60%")]
    config = reference_config(detectors=detectors, **decoding(test=[*shares, points[2]]))
    assert config.main_point.label == "utaca-K96-sub16", "a number goes before a share"
    config = reference_config(detectors=detectors, **decoding(test=shares))
    assert config.main_point.label == "utaca-K60pct-sub16"
    assert "replays" in asdict(config.scale)
