"""The uncertainty detector, its training data, the logit baselines and the metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utaca.detection.data import detect, sequences
from utaca.detection.detector import Detector, load, uncertain
from utaca.detection.heuristics import best_threshold, fit_heuristics, load_heuristics, save_heuristics
from utaca.detection.metrics import detection_metrics
from utaca.detection.training import train, weighted_loss
from utaca.errors import UserError
from utaca.records import SCHEMAS, trajectory_schema
from utaca.settings import schema

SMALL = schema.Detector(width=16, margin_width=8, blocks=1, learning_rate=1e-2, evaluate_every=50)
DIRECTIONS = np.eye(8)[:3] * 2


def tables(count: int, seed: int, failed: float = 0.0) -> tuple[pa.Table, pa.Table]:
    """Trajectories whose embedding points, noisily, at the token's label."""
    rng = np.random.default_rng(seed)
    trajectories, labels = [], []
    for n in range(count):
        for step in range(rng.integers(3, 9)):
            label = int(rng.choice(3, p=[0.2, 0.6, 0.2]))
            key = {
                "document": f"d{n // 2:03}",
                "budget": 2 + 6 * (n % 2),
                "step": step,
                "token": 7 * n + step,
                "text": "",
            }
            top10 = np.sort(rng.normal(2.0 * (label == 1), 1.0, 10))[::-1]
            trajectories.append(
                key
                | {
                    "margin": top10[0] - top10[1],
                    "top10": top10.tolist(),
                    "embedding": (DIRECTIONS[label] + rng.normal(0, 0.5, 8)).astype(np.float16),
                    "selected": [],
                    "finish": "",
                }
            )
            lost = rng.random() < failed
            labels.append(
                key | {"label": None if lost else label, "source": "failed" if lost else "endpoint", "reason": ""}
            )
    return (
        pa.Table.from_pylist(trajectories, schema=trajectory_schema(8)),
        pa.Table.from_pylist(labels, schema=SCHEMAS["labels"]),
    )


@pytest.fixture(scope="module")
def splits():
    return sequences(*tables(60, 0, failed=0.05)), sequences(*tables(20, 1, failed=0.05))


@pytest.fixture(scope="module")
def trained(splits):
    return train(SMALL, *splits, steps=150, seed=3)


# Architecture


@pytest.mark.parametrize("changes", [{}, {"lstm": False}, {"margin": False}, {"embedding": False}, {"classes": 2}])
def test_parameter_count_is_the_papers(changes):
    shape = replace(schema.Detector(), **changes)
    d, w, inner, c = 4096, 64, 32, shape.classes
    expected = 3 * ((w * 2 * w + 2 * w) + (2 * w * w + w)) + w * c + c
    expected += (d * w + w) * shape.embedding + (inner + inner + inner * w + w) * shape.margin
    expected += (4 * w * (w + w) + 2 * 4 * w) * shape.lstm
    assert sum(p.numel() for p in Detector(shape, d).parameters()) == expected


@pytest.mark.parametrize(
    "changes", [{}, {"lstm": False}, {"margin": False}, {"embedding": False}, {"classes": 2}, {"blocks": 0}]
)
def test_step_by_step_equals_whole_sequences(changes):
    torch.manual_seed(0)
    detector = Detector(replace(schema.Detector(), **changes), 8).eval()
    margin, embedding = torch.rand(3, 7) * 5, torch.randn(3, 7, 8)
    expected = detector.probabilities(detector(margin, embedding))
    state = detector.initial_state(3)
    for t in range(7):
        before = [value.clone() for value in state]
        _, after = detector.step(margin[:, t], embedding[:, t].half(), state)
        assert all(torch.equal(value, kept) for value, kept in zip(state, before, strict=True))
        p, again = detector.step(margin[:, t], embedding[:, t], state)
        torch.testing.assert_close(p, expected[:, t], atol=1e-5, rtol=0)
        assert p.shape == (3, 3)
        assert [value.shape for value in again] == [value.shape for value in after]
        state = again


def test_embedding_is_normalised_inside():
    detector = Detector(schema.Detector(), 8).eval()
    margin, embedding = torch.rand(2, 3), torch.randn(2, 3, 8)
    torch.testing.assert_close(detector(margin, embedding), detector(margin, embedding * 100))
    assert torch.isfinite(detector(margin, embedding * 0)).all()


def test_decision_is_the_larger_failure_against_correct():
    p = torch.tensor([[0.3, 0.4, 0.3], [0.5, 0.4, 0.1], [0.1, 0.4, 0.5], [0.4, 0.4, 0.2]])
    assert uncertain(p).tolist() == [False, True, True, False]


def test_two_classes_report_uncertain_as_hallucinated():
    p, _ = (detector := Detector(replace(SMALL, classes=2), 8).eval()).step(
        torch.rand(4), torch.randn(4, 8), detector.initial_state(4)
    )
    assert (p[:, 2] == 0).all()
    torch.testing.assert_close(p.sum(dim=1), torch.ones(4))


def test_a_detector_needs_an_input():
    with pytest.raises(UserError, match=r"detector\.margin"):
        Detector(replace(SMALL, margin=False, embedding=False), 8)


# Data


def test_sequences_keep_every_token_in_its_place():
    trajectories, labels = tables(9, 5, failed=0.3)
    mixed = trajectories.take(np.random.default_rng(0).permutation(trajectories.num_rows))
    cut = pa.concat_tables([mixed.slice(0, 11), mixed.slice(11)])
    data = sequences(cut, labels)
    pairs = zip(trajectories.to_pylist(), labels.to_pylist(), strict=True)
    rows = sorted((t | y for t, y in pairs), key=lambda row: (row["document"], row["budget"], row["step"]))
    margin, embedding, label, _ = data.batch(torch.arange(len(data)))
    assert embedding.dtype == torch.float32
    assert data.n_failed == sum(row["label"] is None for row in rows) > 0
    for n in range(len(data)):
        own = [row for row in rows if (row["document"], row["budget"]) == (data.document[n], data.budget[n])]
        assert len(own) == data.length[n]
        for t in range(label.shape[1]):
            if t >= len(own):
                assert label[n, t] == -1
                assert embedding[n, t].abs().sum() == margin[n, t] == 0
            else:
                assert label[n, t] == (-1 if own[t]["label"] is None else own[t]["label"])
                assert margin[n, t] == np.float32(own[t]["margin"])
                assert embedding[n, t].tolist() == [float(x) for x in own[t]["embedding"]]


def without(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t, y: (t, without(y, 1)), "in the trajectories but not in the labels, first step 1 of document d000"),
        (lambda t, y: (without(t, 1), y), "in the labels but not in the trajectories"),
        (lambda t, y: (without(t, 1), without(y, 1)), "does not follow"),
        (lambda t, y: (t, pa.concat_tables([y, y.slice(0, 1)])), "the labels hold step 0 of document d000 .* twice"),
        (lambda t, y: (t, y.set_column(3, "token", pa.array([0] * len(y), pa.int32()))), "another token"),
        (lambda t, y: (t, y.set_column(5, "label", pa.array([3] * len(y), pa.int8()))), "has label 3"),
        (lambda t, y: (t.set_column(5, "margin", pa.array([math.nan] * len(t), pa.float32())), y), "not finite"),
        (lambda t, y: (t.slice(0, 0), y), "no token"),
    ],
)
def test_trajectories_and_labels_must_match(spoil, message):
    with pytest.raises(UserError, match=message):
        sequences(*spoil(*tables(3, 0)))


# Training


@pytest.mark.parametrize("classes", [2, 3])
def test_loss_equals_a_loop_over_tokens(classes):
    rng = np.random.default_rng(0)
    logits, label = rng.normal(size=(3, 5, classes)), rng.integers(-1, 3, (3, 5))
    weights = [1.0, 0.05, 0.7]
    total = mass = 0.0
    for b in range(3):
        for t in range(5):
            if label[b, t] >= 0:
                target = label[b, t] if classes == 3 else int(label[b, t] == 1)
                nll = np.log(np.exp(logits[b, t]).sum()) - logits[b, t, target]
                total, mass = total + weights[label[b, t]] * nll, mass + weights[label[b, t]]
    found = weighted_loss(torch.tensor(logits), torch.tensor(label), torch.tensor(weights, dtype=torch.float64))
    assert found.item() == pytest.approx(total / mass)
    nothing = weighted_loss(torch.zeros(1, 2, classes), torch.full((1, 2), -1), torch.tensor(weights))
    assert nothing.item() == 0


@pytest.mark.parametrize("changes", [{}, {"classes": 2, "lstm": False}])
def test_learns_a_separable_problem(splits, changes):
    detector, curve = train(replace(SMALL, **changes), *splits, steps=150, seed=0)
    verdicts, labels = detector.verdicts(splits[1]), splits[1].labels
    metrics = detection_metrics(verdicts.uncertain, labels, verdicts.score)
    majority = max(metrics["share_uncertain"], 1 - metrics["share_uncertain"])
    assert metrics["macc"] > majority + 0.15
    assert metrics["auroc"] > 0.95
    assert metrics["f1_n"] == max(row["f1"] for row in curve) == detector.facts["validation_f1"]


def test_curve_keeps_the_earliest_best(trained):
    detector, curve = trained
    assert [row["step"] for row in curve] == [50, 100, 150]
    best = max(row["f1"] for row in curve)
    assert detector.facts["kept_step"] == next(row["step"] for row in curve if row["f1"] == best)
    assert [row["step"] for row in curve if row["kept"]][-1] == detector.facts["kept_step"]
    assert curve[-1]["learning_rate"] == pytest.approx(SMALL.learning_rate * (1 + math.cos(math.pi * 149 / 150)) / 2)


def test_last_step_is_evaluated(splits):
    assert [row["step"] for row in train(SMALL, *splits, steps=60, seed=0)[1]] == [50, 60]


def test_the_same_seed_gives_the_same_bytes(splits, tmp_path):
    before = torch.random.get_rng_state()
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        train(SMALL, *splits, steps=12, seed=seed)[0].save(tmp_path / name)
    assert torch.equal(torch.random.get_rng_state(), before)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


def test_failed_labels_never_touch_training(splits):
    data = splits[0]
    failed = torch.cat([data.label[:-1] < 0, torch.tensor([False])])
    assert failed.any()
    batch, label = data.batch(torch.arange(len(data))), data.label.clone()
    detector = Detector(SMALL, data.width).eval()
    weights = torch.tensor(SMALL.class_weights)
    logits = detector(batch.margin, batch.embedding).detach().requires_grad_()
    weighted_loss(logits, label[batch.position], weights).backward()
    assert (logits.grad[batch.label < 0] == 0).all()
    assert (logits.grad[batch.label >= 0].abs().sum(dim=-1) > 0).all()


@pytest.mark.parametrize(("only", "message"), [(0, "labelled correct"), (1, "labelled uncertain")])
def test_one_sided_data_is_refused(splits, only, message):
    trajectories, labels = tables(4, 0)
    labels = labels.set_column(5, "label", pa.array([only] * len(labels), pa.int8()))
    one_sided = sequences(trajectories, labels)
    with pytest.raises(UserError, match=f"the train split has no token {message}"):
        train(SMALL, one_sided, splits[1], steps=1, seed=0)
    with pytest.raises(UserError, match=f"the validation split has no token {message}"):
        train(SMALL, splits[0], one_sided, steps=1, seed=0)
    with pytest.raises(UserError, match=r"scale\.validation"):
        fit_heuristics(one_sided)


def test_impossible_weights_are_refused(splits):
    with pytest.raises(UserError, match=r"detector\.class_weights"):
        train(replace(SMALL, class_weights=[1.0, 0.05]), *splits, steps=1, seed=0)


# Files and verdicts


def test_save_and_load(trained, splits, tmp_path):
    detector = trained[0]
    detector.save(tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert (found.settings, found.input_width, found.facts) == (detector.settings, 8, detector.facts)
    assert not found.training
    np.testing.assert_array_equal(found.verdicts(splits[1]).score, detector.verdicts(splits[1]).score)
    found.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_foreign_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "none")
    with pytest.raises(UserError, match="does not exist"):
        load_heuristics(tmp_path / "none")
    (tmp_path / "text").write_text("[1]")
    with pytest.raises(UserError, match="not a detector"):
        load(tmp_path / "text")
    with pytest.raises(UserError, match="no thresholds"):
        load_heuristics(tmp_path / "text")
    (tmp_path / "text").write_text('{"x": {"signal": "x", "threshold": 1, "validation": {}}}')
    with pytest.raises(UserError, match="unknown signal x"):
        load_heuristics(tmp_path / "text")


def test_detections_follow_the_online_decisions(trained, splits):
    detector, data = trained[0], splits[1]
    table = detect(detector, data, "utaca", 3)
    assert table.schema == SCHEMAS["detections"]
    assert table.num_rows == data.n_tokens
    assert table["label"].null_count == data.n_failed
    rows = [row for row in table.to_pylist() if (row["document"], row["budget"]) == (data.document[4], data.budget[4])]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    margin, embedding, _, _ = data.batch(torch.tensor([4]))
    state = detector.initial_state(1)
    for t, row in enumerate(rows):
        p, state = detector.step(margin[:, t], embedding[:, t], state)
        found = [row["p_hallucinated"], row["p_correct"], row["p_unknown"]]
        np.testing.assert_allclose(found, p[0], atol=1e-5)
        assert row["uncertain"] == bool(uncertain(p)[0]) == (row["score"] > 0)


# Baselines


def test_heuristics_end_to_end(splits, tmp_path):
    heuristics = fit_heuristics(splits[1])
    save_heuristics(tmp_path / "model.json", heuristics)
    assert load_heuristics(tmp_path / "model.json") == heuristics
    assert list(heuristics) == ["top10_std", "logit_margin"]
    data = splits[1]
    for name, value in [
        ("top10_std", np.array([np.std(row.astype(np.float64)) for row in data.top10])),
        ("logit_margin", data.margin[:-1].numpy()),
    ]:
        table = detect(heuristics[name], data, name, 0)
        assert table["p_correct"].null_count == table.num_rows
        np.testing.assert_array_equal(table["uncertain"].to_numpy(), value < heuristics[name].threshold)
        np.testing.assert_allclose(table["score"].to_numpy(), -value, rtol=1e-6)
        again = detection_metrics(table["uncertain"].to_numpy(), data.labels, -value)
        assert again == pytest.approx(heuristics[name].validation)


tokens = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=25)


@given(tokens)
@settings(max_examples=80, deadline=None)
def test_threshold_is_the_best_there_is(pairs):
    value, negative = np.array([v for v, _ in pairs], float), np.array([n for _, n in pairs])
    if len(set(value)) < 2 or len(set(negative)) < 2:
        with pytest.raises(UserError):
            best_threshold(value, negative)
        return
    distinct = sorted(set(value))
    candidates = [(a + b) / 2 for a, b in pairwise(distinct)]
    label = np.where(negative, 0, 1)
    quality = [round(detection_metrics(value < tau, label)["balanced_accuracy"], 12) for tau in candidates]
    best = max(tau for tau, q in zip(candidates, quality, strict=True) if q == max(quality))
    assert best_threshold(value, negative) == best


def test_threshold_of_a_million_tokens():
    rng = np.random.default_rng(0)
    negative = rng.random(1_000_000) < 0.4
    value = rng.normal(np.where(negative, 0.0, 2.0))
    assert best_threshold(value, negative) == pytest.approx(1.0, abs=0.05)


# Metrics


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 2), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_metrics_by_definition(rows):
    score, label, flagged = (np.array(column) for column in zip(*rows, strict=True))
    found = detection_metrics(flagged, label, score)
    kept = [(s, y != 1, f) for s, y, f in rows if y >= 0]
    n, p = [r for r in kept if r[1]], [r for r in kept if not r[1]]
    assert (found["n_tokens"], found["n_failed"]) == (len(kept), len(rows) - len(kept))

    def mean(values):
        return sum(values) / len(values) if values else math.nan

    recall_n, recall_p = mean([f for _, _, f in n]), mean([not f for _, _, f in p])
    expected = {
        "macc": mean([f == y for _, y, f in kept]),
        "recall_n": recall_n,
        "recall_p": recall_p,
        "balanced_accuracy": (recall_n + recall_p) / 2,
        "share_uncertain": mean([y for _, y, _ in kept]),
        "auroc": mean([(a > b) + (a == b) / 2 for a, _, _ in n for b, _, _ in p]),
    }
    precision = mean([y for _, y, f in kept if f])
    if n and p and precision:
        expected["f1_n"] = 2 * precision * recall_n / (precision + recall_n) if precision > 0 else 0.0
    if n:
        area, before = 0.0, 0.0
        for cut in sorted({s for s, _, _ in kept}, reverse=True):
            chosen = [y for s, y, _ in kept if s >= cut]
            area, before = area + (sum(chosen) / len(n) - before) * mean(chosen), sum(chosen) / len(n)
        expected["auprc"] = area
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, nan_ok=True) or math.isnan(value), name
    if n and p:
        share = found["share_uncertain"]
        assert found["macc"] == pytest.approx(share * found["recall_n"] + (1 - share) * found["recall_p"])


def test_metrics_undefined_without_a_class_or_a_score():
    found = detection_metrics(np.array([False]), np.array([1]))
    assert math.isnan(found["recall_n"])
    assert math.isnan(found["auroc"])
    assert found["recall_p"] == 1
