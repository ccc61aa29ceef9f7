"""The uncertainty detector, its training data, the logit baselines and the metrics."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from small import make_reader, some_tokens

from utaca.decoding.loop import generate
from utaca.decoding.policies import Sub
from utaca.decoding.triggers import Detected
from utaca.detection.detector import BLOCKS, SIGNAL_WIDTH, WIDTH, Detector, distrust, load
from utaca.detection.training.data import Sequences, columns, joined
from utaca.detection.training.data import sequences as shown
from utaca.detection.training.losses import cross_entropy, evidential
from utaca.detection.training.metrics import calibration_error, detection_metrics, youden
from utaca.detection.training.network import Noise, lstm
from utaca.detection.training.training import class_weights, train
from utaca.detection.training.verdicts import detections, entropy, heuristics, token_logits, vacuity, verdicts
from utaca.errors import UserError
from utaca.memory import prefill
from utaca.readers.load import Reader
from utaca.records import SCHEMAS, Origin, read, reader_of, trajectory_schema, write
from utaca.settings import schema

SMALL, HERE = schema.DetectorSettings(), Origin("a", "1")
TRAINING = "utaca.detection.training.training"


@pytest.fixture(autouse=True, scope="module")
def small_and_soon_trained() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("detector", "training.network"):
            for name, value in (("WIDTH", 16), ("SIGNAL_WIDTH", 8), ("BLOCKS", 1)):
                patch.setattr(f"utaca.detection.{module}.{name}", value)
        patch.setattr(f"{TRAINING}.LEARNING_RATE", 1e-2)
        patch.setattr(f"{TRAINING}.EVALUATE_EVERY", 50)
        yield


DIRECTIONS = np.eye(8)[:3] * 2


def tables(
    count: int, seed: int, failed: float = 0.0, shares: tuple[float, float, float] = (0.2, 0.6, 0.2)
) -> tuple[pa.Table, pa.Table]:
    """Trajectories whose embedding points, noisily, at the token's label; labels have these ``shares``."""
    rng = np.random.default_rng(seed)
    trajectories, labels = [], []
    for n in range(count):
        for step in range(rng.integers(3, 9)):
            label = int(rng.choice(3, p=shares))
            key = {"document": f"d{n // 2:03}", "budget": 2 + 6 * (n % 2), "step": step, "token": 7 * n + step}
            key |= {"text": ""}
            top10 = np.sort(rng.normal(2.0 * (label == 1), 1.0, 10))[::-1]
            row = key | {"margin": top10[0] - top10[1], "retrieval": rng.random(), "top10": top10.tolist()}
            # The other tokens of the vocabulary weigh a fifth of the ten.
            row["logprob"] = -np.log(1.2 * np.exp(top10 - top10[0]).sum())
            for site, sign in (("attention", 1), ("mlp", -1)):
                embedding = sign * DIRECTIONS[label] + rng.normal(0, 0.5, 8)
                row[f"embedding_{site}"] = embedding.astype(np.float16)
            expanded = key["token"] + int(label == 0)
            trajectories.append(row | {"expanded_token": expanded, "selected": [], "finish": ""})
            lost = rng.random() < failed
            source = "failed" if lost else "endpoint"
            labels.append(key | {"label": None if lost else label, "source": source, "reason": ""})
    return (
        pa.Table.from_pylist(trajectories, schema=trajectory_schema(8, ["attention", "mlp"])),
        pa.Table.from_pylist(labels, schema=SCHEMAS["labels"]),
    )


def sequences(trajectories: pa.Table, labels: pa.Table, **changes) -> Sequences:
    return shown(trajectories, labels, replace(SMALL, **changes))


def alone(settings: schema.DetectorSettings, splits, *, steps: int, seed: int):
    return train(settings, *splits, steps=steps, seeds=[seed], reader=HERE)[0]


@pytest.fixture(scope="module")
def splits():
    return sequences(*tables(60, 0, failed=0.05)), sequences(*tables(20, 1, failed=0.05))


# Architecture

EVIDENTIAL = {"kind": "evidential", "classes": 2, "decision": "youden"}
LINEAR = {"kind": "linear", "signals": [], "lstm": False, "classes": 2}
VARIANTS = [{}, {"lstm": False}, {"signals": []}, {"embedding": False}, {"classes": 2}]


def test_parameter_count_is_the_papers(monkeypatch):
    for name, value in (("WIDTH", WIDTH), ("SIGNAL_WIDTH", SIGNAL_WIDTH), ("BLOCKS", BLOCKS)):
        monkeypatch.setattr(f"utaca.detection.detector.{name}", value)
    d, w, inner = 4096, 64, 32
    encoders, lstm = (d * w + w) + (inner + inner + inner * w + w), 4 * w * (w + w) + 2 * 4 * w
    expected = encoders + lstm + 3 * ((w * 2 * w + 2 * w) + (2 * w * w + w)) + w * 3 + 3
    assert sum(p.numel() for p in Detector(schema.DetectorSettings(), d).parameters()) == expected


def reference(detector: Detector, signals: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """Logits [T, C] of one answer, ``signals`` [T, n], ``embedding`` [T, D], as the paper has them, by torch's LSTM."""
    weights, settings, gelu = detector.state_dict(), detector.settings, torch.nn.functional.gelu
    if settings.kind == "linear":
        direction = embedding / embedding.norm(dim=-1, keepdim=True)
        return (8**0.5 * direction @ weights["head.weight"].T + weights["head.bias"]).detach()

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    fused = torch.zeros(len(signals), detector.head.in_features)
    if settings.embedding:
        fused = fused + gelu(linear("embedding_encoder.0", embedding / embedding.norm(dim=-1, keepdim=True)))
    for place, name in enumerate(settings.signals):
        fused = fused + linear(
            f"signal_encoders.{name}.2", gelu(linear(f"signal_encoders.{name}.0", signals[:, [place]]))
        )
    if settings.lstm:
        recurrent = torch.nn.LSTM(*[detector.head.in_features] * 2)
        recurrent.load_state_dict({name: weights[f"lstm.{name}"] for name in recurrent.state_dict()})
        fused = recurrent(fused)[0]
    for block in range(len(detector.blocks)):
        fused = fused + linear(f"blocks.{block}.back", gelu(linear(f"blocks.{block}.wide", fused)))
    return linear("head", fused).detach()


@pytest.mark.parametrize("changes", [*VARIANTS, LINEAR, {"signals": ["retrieval", "margin"]}])
def test_steps_and_whole_sequences_equal_the_reference(changes):
    torch.manual_seed(0)
    settings = replace(schema.DetectorSettings(), **changes)
    detector, data = Detector(settings, 8), shown(*tables(6, 2), settings)
    logits = token_logits(detector, data)
    for n in range(len(data)):
        ours = data.position[n, : data.length[n]]
        expected = reference(detector, data.signals[ours], data.embedding[ours].float())
        torch.testing.assert_close(logits[ours], expected, atol=1e-5, rtol=1e-5)
        state = detector.initial_state(1)
        for t, row in enumerate(ours):
            before = [value.clone() for value in state]
            p, after = detector.step(data.signals[row][None], data.embedding[row][None].float(), state)
            assert all(torch.equal(value, kept) for value, kept in zip(state, before, strict=True))
            torch.testing.assert_close(p[0], detector.probabilities(expected)[t], atol=1e-5, rtol=0)
            state = after


def test_lstm_gradients_are_those_of_torch():
    torch.manual_seed(0)
    theirs, sizes = [torch.nn.LSTM(5, 5).double() for _ in range(2)], [4, 4, 3, 1]
    by_name = zip(*(module.parameters() for module in theirs), strict=True)
    weights = [torch.stack(ours).detach().requires_grad_() for ours in by_name]
    x, weight = (torch.randn(2, 12, 5, dtype=torch.double) for _ in range(2))
    ours = x.clone().requires_grad_()
    result = lstm(ours, sizes, *weights)
    (result * weight).sum().backward()
    for seed, module in enumerate(theirs):
        inputs = x[seed].clone().requires_grad_()
        expected = module(torch.nn.utils.rnn.PackedSequence(inputs, torch.tensor(sizes)))[0].data
        (expected * weight[seed]).sum().backward()
        torch.testing.assert_close(result[seed], expected)
        torch.testing.assert_close(ours.grad[seed], inputs.grad)
        for value, other in zip(weights, module.parameters(), strict=True):
            torch.testing.assert_close(value.grad[seed], other.grad)


def test_decision_is_the_larger_failure_against_correct():
    p = torch.tensor([[0.3, 0.4, 0.3], [0.5, 0.4, 0.1], [0.1, 0.4, 0.5], [0.4, 0.4, 0.2]])
    assert Detector(SMALL, 8).distrusts(p).tolist() == [False, True, True, False]
    detector = Detector(replace(SMALL, classes=2), 8)
    two, _ = detector.step(torch.rand(1, 1), torch.randn(1, 8), detector.initial_state(1))
    assert (two[0, 2].item(), two.sum().item()) == (0, pytest.approx(1)), "uncertain counts as hallucinated"
    with pytest.raises(UserError, match="at least one input"):
        Detector(replace(SMALL, signals=[], embedding=False), 8)
    together = Detector(replace(SMALL, decision="youden"), 8)
    together.thresholds["youden"] = math.log(0.6 / 0.4) - 1e-4
    assert together.distrusts(p).tolist() == [True, True, True, True]
    together.thresholds["youden"] += 2e-4
    assert together.distrusts(p).tolist() == [False, False, False, False]


# The reader of a detector


@pytest.fixture(scope="module")
def reader():
    reader = make_reader()
    prefill(reader, some_tokens(60))
    return reader


def of(reader: Reader) -> Origin:
    return Origin(reader.settings.name, reader.identity)


def test_a_detector_of_another_reader_is_refused_before_any_pass_and_a_name_is_no_matter(reader):
    memory, passes, other = prefill(reader, some_tokens(60)), [], make_reader(seed=1)
    unknown_site = replace(SMALL)
    unknown_site.site = "head"
    hook = reader.model.register_forward_pre_hook(lambda *_: passes.append(1))
    for detector, why in [
        (Detector(SMALL, 96), "its embeddings are 64 wide, not 96"),
        (Detector(replace(SMALL, embedding=False), 0, of(other)), "it has other weights"),
        (Detector(unknown_site, 64, of(reader)), "it has no embedding at site head, but at attention, mlp, residual"),
    ]:
        whose = f"trained for reader {detector.reader or 'unknown'} and cannot judge reader {of(reader)}: {why};"
        with pytest.raises(UserError, match=re.escape(whose)):
            generate(memory, "Who?", budget=4, policy=Sub(1), trigger=Detected(detector), max_new_tokens=3)
    hook.remove()
    assert not passes
    for reader_of_it in (Origin("renamed", reader.identity), None):
        detected = Detected(Detector(SMALL, 64, reader_of_it))
        assert generate(memory, "Who?", budget=4, policy=Sub(1), trigger=detected, max_new_tokens=3).trace[0].gdm


def test_a_taken_detector_is_what_the_config_says_and_reads_nothing_that_another_reader_lacks(reader):
    ours, other = of(reader), Origin("other", "0123")
    blind = replace(SMALL, embedding=False)
    Detector(SMALL, 64, ours).check_taken(SMALL, ours, "a")
    Detector(blind, 0, other).check_taken(replace(blind, chain=3), ours, "a")
    with pytest.raises(
        UserError, match=r"^a needs the embeddings of reader other \(0123\), which reader .* \(embedding: f"
    ):
        Detector(SMALL, 64, other).check_taken(SMALL, ours, "a")
    refusal = "a has lstm=True, but the config has lstm=False; set detectors.*.lstm to True"
    with pytest.raises(UserError, match=f"^{re.escape(refusal)}$"):
        Detector(blind, 0, other).check_taken(replace(blind, lstm=False), ours, "a")


def test_parts_of_two_readers_are_refused(tmp_path):
    trajectories, _ = tables(2, 0)

    def part(name: str, reader: Origin | None) -> Path:
        path, shown = tmp_path / f"{name}.parquet", trajectories.drop_columns(["retrieval"] * (name == "c"))
        write(path, "trajectories", shown, schema=shown.schema, config="same", reader=reader)
        return path

    one, same, two, none = map(part, "abcd", (Origin("a", "1"), Origin("b", "1"), Origin("a", "2"), None))
    reading = partial(read, kind="trajectories")
    assert reading([one, same]).num_rows == 2 * len(trajectories)
    assert [reader_of(paths).name for paths in ([one], [one, same], [same, one])] == ["a", "a", "b"]
    for other, its, refusing in ((two, "a (2)", reading), (two, "a (2)", reader_of), (none, "unknown", reading)):
        refusal = f"{one} was made with reader a (1), but {other} with reader {its}, so they must not be combined;"
        with pytest.raises(UserError, match=re.escape(refusal)):
            refusing([one, same, other])
    table = pq.read_table(one)
    kept = {key: value for key, value in table.schema.metadata.items() if key != b"utaca.reader_identity"}
    pq.write_table(table.replace_schema_metadata(kept), one)
    for path in (none, one):
        with pytest.raises(UserError, match="does not say which reader made it"):
            reader_of([path])


# Data


@pytest.mark.parametrize("changes", [{}, {"site": "mlp", "signals": ["retrieval", "margin"]}, {"embedding": False}])
def test_a_sequence_holds_the_tokens_of_an_answer_step_by_step(changes):
    trajectories, labels = tables(9, 5, failed=0.3)
    mixed = trajectories.take(np.random.default_rng(0).permutation(trajectories.num_rows))
    settings = replace(SMALL, **changes)
    data = shown(pa.concat_tables([mixed.slice(0, 11), mixed.slice(11)]).select(columns(settings)), labels, settings)
    rows: dict[tuple[str, int], list[dict]] = {}
    for token, label in zip(trajectories.to_pylist(), labels.to_pylist(), strict=True):
        rows.setdefault((token["document"], token["budget"]), []).append(token | label)
    assert data.n_failed == labels["label"].null_count > 0
    for n in range(len(data)):
        batch, answer = data.batch(torch.tensor([n])), rows[data.document[n], data.budget[n]]
        assert batch.label.tolist() == [-1 if row["label"] is None else row["label"] for row in answer]
        assert batch.signals.tolist() == [[np.float32(row[name]) for name in settings.signals] for row in answer]
        if settings.embedding:
            embeddings = [row[f"embedding_{settings.site}"] for row in answer]
            assert batch.embedding.tolist() == [[float(x) for x in embedding] for embedding in embeddings]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_chain_is_its_sequences_end_to_end(chosen, chain):
    data = shown(*tables(9, 5), SMALL)
    batch = data.batch(torch.tensor(chosen), chain)
    ours = [data.position[n, : data.length[n]].tolist() for n in chosen]
    chains = [[*itertools.chain.from_iterable(ours[at : at + chain])] for at in range(0, len(ours), chain)]
    chains.sort(key=lambda positions: -len(positions))
    expected = [positions[t] for t in range(len(chains[0])) for positions in chains if t < len(positions)]
    assert batch.position.tolist() == expected
    torch.testing.assert_close(batch.signals, data.signals[expected])
    beside = data.batch(torch.tensor([chosen, [0] * len(chosen)]), chain)
    real = beside.position[0] < data.n_tokens
    assert beside.position[0][real].tolist() == expected
    assert (beside.label[0][~real] == -1).all()
    assert beside.signals[0][~real].abs().sum() == beside.embedding[0][~real].abs().sum() == 0


def test_chains_of_validation_hold_every_token_once_and_part_neighbours():
    data = shown(*tables(40, 6), SMALL)
    chained = [data.batch(indices, 3).position for indices in data.split(16, 3)]
    assert sorted(torch.cat(chained).tolist()) == list(range(data.n_tokens))
    assert chained[0].tolist() != data.batch(torch.arange(16), 3).position.tolist()


def test_needed_label_is_where_the_expanded_token_differs():
    trajectories, labels = tables(6, 5)
    settings = replace(SMALL, label="needed", classes=2)
    data = shown(trajectories, None, settings)
    rows = trajectories.sort_by([(key, "ascending") for key in ("document", "budget", "step")]).to_pylist()
    assert data.needed.tolist() == [row["token"] != row["expanded_token"] for row in rows]
    assert data.labels.tolist() == [0 if row["token"] != row["expanded_token"] else 1 for row in rows]
    untried = filled(trajectories, "expanded_token", None)
    with pytest.raises(UserError, match=r"set trajectories\.expanded"):
        shown(untried, labels, settings)
    assert (shown(untried, labels, SMALL).needed == -1).all()
    with pytest.raises(UserError, match="label the split first"):
        shown(trajectories, None, SMALL)
    with pytest.raises(UserError, match=r"no embedding_residual; add its site to trajectories\.sites"):
        sequences(trajectories, labels, site="residual")


def without(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def filled(table: pa.Table, name: str, value: float | int | None) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, name, pa.array([value] * len(table), table.schema.field(name).type))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t, y: (t, without(y, 1)), "in the trajectories but not in the labels, first step 1 of document d000"),
        (lambda t, y: (without(t, 1), y), "in the labels but not in the trajectories"),
        (lambda t, y: (without(t, 1), without(y, 1)), "not consecutive at"),
        (lambda t, y: (t, pa.concat_tables([y, y.slice(0, 1)])), "the labels have step 0 of document d000 .* twice"),
        (lambda t, y: (t, filled(y, "token", 0)), "another token"),
        (lambda t, y: (t, filled(y, "label", 3)), "has label 3"),
        (lambda t, y: (filled(t, "margin", math.nan), y), "not finite"),
        (lambda t, y: (filled(t, "margin", None), y), "not finite"),
        (lambda t, y: (filled(t, "logprob", None), y), "not finite"),
        (lambda t, y: (t.slice(0, 0), y), "no token"),
        (
            lambda t, y: (filled(t, "top10", None), y),
            "column top10 .* must have a list of the same length for every token",
        ),
    ],
)
def test_trajectories_and_labels_must_match(spoil, message):
    with pytest.raises(UserError, match=message):
        sequences(*spoil(*tables(3, 0)))


def of_another_set(data: Sequences) -> Sequences:
    return replace(data, document=tuple(f"q{name}" for name in data.document))


def test_joined_sets_keep_every_trajectory():
    first, second = shown(*tables(9, 5, failed=0.3), SMALL), of_another_set(shown(*tables(20, 6, failed=0.3), SMALL))
    data = joined(first, second)
    assert data.n_failed == first.n_failed + second.n_failed > 0
    for n in range(29):
        source, place = (first, n) if n < 9 else (second, n - 9)
        assert (data.document[n], data.budget[n]) == (source.document[place], source.budget[place])
        batch, expected = data.batch(torch.tensor([n])), source.batch(torch.tensor([place]))
        assert all(torch.equal(getattr(batch, x), getattr(expected, x)) for x in ("signals", "embedding", "label"))
        for name in ("step", "top10", "logprob", "needed"):
            assert getattr(data, name)[batch.position].tolist() == getattr(source, name)[expected.position].tolist()
    with pytest.raises(UserError, match="document d000 is in both sets"):
        joined(first, first)
    with pytest.raises(UserError, match="width 8 in one set of trajectories and 5 in another"):
        joined(first, replace(second, embedding=second.embedding[:, :5]))


# Losses


@pytest.mark.parametrize("classes", [2, 3])
def test_loss_equals_a_loop_over_tokens(classes):
    rng = np.random.default_rng(0)
    logits, label = rng.normal(size=(2, 15, classes)), rng.integers(-1, 3, (2, 15))
    weights = [1.0, 0.05, 0.7]
    result = cross_entropy(torch.tensor(logits), torch.tensor(label), torch.tensor(weights, dtype=torch.float64))
    for s in range(2):
        total = mass = 0.0
        for t in range(15):
            if label[s, t] >= 0:
                target = label[s, t] if classes == 3 else int(label[s, t] == 1)
                nll = np.log(np.exp(logits[s, t]).sum()) - logits[s, t, target]
                total, mass = total + weights[label[s, t]] * nll, mass + weights[label[s, t]]
        assert result[s].item() == pytest.approx(total / mass)
    nothing = cross_entropy(torch.zeros(10, classes), torch.full((10,), -1), torch.tensor(weights))
    assert nothing.item() == 0


def test_evidential_identities():
    # Evidence (9, 0) for a token of class 0; the inverse of softplus gives its logits, near enough for none.
    logits = torch.tensor([9.0, 1e-12]).double().expm1().log()
    assert vacuity(logits).item() == pytest.approx(2 / 11)
    detector = Detector(replace(SMALL, kind="evidential", classes=2), 8)
    assert detector.probabilities(logits).tolist() == pytest.approx([10 / 11, 1 / 11, 0])


@pytest.mark.parametrize(("passes", "share"), [(0, 0), (5, 0.5), (10, 1), (40, 1)])
def test_evidential_loss_is_by_the_moments_of_the_distribution(passes, share):
    """E[(y - p)^2] = (y - E p)^2 + Var p, plus the divergence of the evidence for the wrong class from none."""
    logits, label, weights = torch.randn(30, 2).double() * 4, torch.randint(-1, 3, (30,)), [1.0, 0.05, 0.7]
    alphas, total, mass = torch.nn.functional.softplus(logits) + 1, 0.0, 0.0
    for (hallucinated, correct), y in zip(alphas.tolist(), label.tolist(), strict=True):
        if y >= 0:
            dirichlet = torch.distributions.Dirichlet(torch.tensor([hallucinated, correct]))
            risk = ((torch.tensor([y != 1, y == 1]).float() - dirichlet.mean) ** 2 + dirichlet.variance).sum().item()
            n = hallucinated if y == 1 else correct
            # The closed form of KL(Beta(1, n) || Beta(1, 1)).
            total += weights[y] * (risk + share * (math.log(n) + 1 / n - 1))
            mass += weights[y]
    assert evidential(logits, label, torch.tensor(weights), passes).item() == pytest.approx(total / mass, rel=1e-5)


# Training


@pytest.fixture(scope="module", params=[{}, {"classes": 2, "lstm": False}, EVIDENTIAL])
def trained(splits, request):
    """A detector and its curve."""
    return alone(replace(SMALL, **request.param), splits, steps=150, seed=0)


def test_learns_a_separable_problem_and_keeps_the_earliest_best(trained, splits):
    detector, curve = trained
    result, labels = verdicts(detector, splits[1])[""], splits[1].labels
    metrics = detection_metrics(result.uncertain, labels, result.score)
    assert metrics["macc"] > max(metrics["share_uncertain"], 1 - metrics["share_uncertain"]) + 0.15
    assert metrics["auroc"] > 0.95
    best = max(row["f1"] for row in curve)
    assert metrics["f1_n"] == best == detector.facts["validation_f1"]
    assert [row["step"] for row in curve] == [50, 100, 150]
    kept = next(row["step"] for row in curve if row["f1"] == best)
    assert [row["step"] for row in curve if row["kept"]][-1] == detector.facts["kept_step"] == kept
    assert curve[-1]["learning_rate"] == pytest.approx(1e-2 * (1 + math.cos(math.pi * 149 / 150)) / 2)


def test_the_same_seed_gives_the_same_bytes(splits, tmp_path):
    before = torch.random.get_rng_state()
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        alone(SMALL, splits, steps=12, seed=seed)[0].save(tmp_path / name)
    assert torch.equal(torch.random.get_rng_state(), before)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("changes", [*VARIANTS, EVIDENTIAL, LINEAR])
def test_side_by_side_each_seed_is_what_it_is_alone(splits, changes):
    """Order and dropout too, whatever the company."""
    settings, seeds = replace(SMALL, **changes), [4, 0, 7]
    for (detector, curve), seed in zip(train(settings, *splits, steps=12, seeds=seeds), seeds, strict=True):
        expected, expected_curve = alone(settings, splits, steps=12, seed=seed)
        for name, value in detector.state_dict().items():
            torch.testing.assert_close(value, expected.state_dict()[name], atol=1e-4, rtol=1e-3)
        assert curve[0]["loss"] == pytest.approx(expected_curve[0]["loss"], rel=1e-4)
        assert detector.thresholds == pytest.approx(expected.thresholds, abs=1e-3)


def test_dropout_drops_at_its_rate_and_differently_in_every_layer_and_network():
    noise = Noise([torch.Generator().manual_seed(seed) for seed in (0, 1)], torch.ones(2, 5000, dtype=torch.bool), 24)
    often, seldom = (noise(torch.full((2, 5000, 12), 3.0), rate) for rate in (0.5, 0.1))
    assert seldom.unique().tolist() == pytest.approx([0, 3 / 0.9])
    first, second, other = often[0] == 0, often[1] == 0, seldom[0] == 0
    for dropped, rate in ((first, 0.5), (other, 0.1), (first & other, 0.05), (first & second, 0.25)):
        assert dropped.float().mean().item() == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize(("only", "message"), [(0, "labelled correct"), (1, "labelled uncertain")])
def test_one_sided_data_is_refused(splits, only, message):
    trajectories, labels = tables(4, 0)
    one_sided = sequences(trajectories, filled(labels, "label", only))
    with pytest.raises(UserError, match=f"the train split has no token {message}"):
        alone(SMALL, (one_sided, splits[1]), steps=1, seed=0)
    with pytest.raises(UserError, match=f"the validation split has no token {message}"):
        alone(SMALL, (splits[0], one_sided), steps=1, seed=0)
    with pytest.raises(UserError, match=r"scale\.validation"):
        heuristics(one_sided, one_sided)
    with pytest.raises(
        UserError, match="width 8 in the training split and 5 in the validation split; decode both with"
    ):
        alone(SMALL, (splits[0], replace(one_sided, embedding=one_sided.embedding[:, :5])), steps=1, seed=0)


def test_a_loss_that_is_no_number_is_a_sentence(splits, monkeypatch):
    monkeypatch.setattr(f"{TRAINING}.LEARNING_RATE", 1e30)
    with pytest.raises(UserError, match="the detector's loss is not finite by step 3; decode its trajectories again"):
        alone(SMALL, splits, steps=3, seed=0)


@pytest.mark.parametrize("changes", [{}, {"lstm": False, "classes": 2}])
def test_a_warm_start_goes_on_from_the_weights_of_a_detector(splits, changes, monkeypatch):
    settings = replace(SMALL, **changes)
    initial = [detector for detector, _ in train(settings, *splits, steps=20, seeds=[0, 1])]
    before = [{name: value.clone() for name, value in detector.state_dict().items()} for detector in initial]
    still = replace(settings, start="first", chain=1 + 2 * settings.lstm)
    with monkeypatch.context() as patch:
        patch.setattr(f"{TRAINING}.CALIBRATION_RATE", 1e-8)
        result = [detector for detector, _ in train(still, *splits, steps=5, seeds=[0, 1], initial=initial)]
    for ours, start, weights in zip(result, initial, before, strict=True):
        p, expected = (detector.probabilities(token_logits(detector, splits[1])) for detector in (ours, start))
        torch.testing.assert_close(p, expected, atol=1e-5, rtol=0)
        assert (ours.facts["warm_start"], ours.settings, "warm_start" in start.facts) == (True, still, False)
        assert all(torch.equal(value, weights[name]) for name, value in start.state_dict().items())


MISSING = (0.5, 0.2, 0.3)
"""Shares of labels where evidence is missing."""


@pytest.mark.parametrize("classes", [3, 2])
def test_a_calibration_is_a_few_small_steps_with_classes_weighed_alike(splits, classes, monkeypatch):
    """Against a loop over batches by torch's own modules, without dropout, that keeps the best of all validations."""
    own = sequences(*tables(30, 8, failed=0.1, shares=MISSING)), sequences(*tables(20, 9, shares=MISSING))
    settings = replace(SMALL, classes=classes)
    start = alone(settings, splits, steps=60, seed=0)[0]
    drawn, plain = [], Sequences.batch
    with monkeypatch.context() as patch:
        patch.setattr("utaca.detection.training.network.EMBEDDING_DROPOUT", 0.0)
        patch.setattr("utaca.detection.training.network.DROPOUT", 0.0)
        for name, value in (("STEPS", 11), ("RATE", 3e-3), ("EVALUATE_EVERY", 4)):
            patch.setattr(f"{TRAINING}.CALIBRATION_{name}", value)
        patch.setattr(Sequences, "batch", lambda data, i, chain=1: drawn.append(i) or plain(data, i, chain))
        ((result, curve),) = train(settings, *own, steps=10_000, seeds=[0], reader=HERE, initial=[start])
    batches = [indices[0] for indices in drawn if indices.ndim == 2]
    assert len(batches) == 11

    def target(labels):
        return labels if classes == 3 else (labels == 1).astype(int)

    tokens = target(own[0].labels[own[0].labels >= 0])
    weights = [len(tokens) / (classes * (tokens == one).sum()) for one in range(classes)]
    model = Detector(settings, 8, HERE)
    model.load_state_dict(start.state_dict())
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)

    def f1() -> float:
        found = verdicts(model, own[1])[""]
        return detection_metrics(found.uncertain, own[1].labels)["f1_n"]

    model.thresholds = dict(start.thresholds)
    kept = [(0, f1(), {name: value.clone() for name, value in model.state_dict().items()})]
    for number, batch in enumerate(batches, start=1):
        position = own[0].padded(batch)
        label = own[0].label[position]
        inside = label >= 0
        logits = model(own[0].signals[position], own[0].embedding[position])[inside]
        weight = torch.tensor(weights)[target(label[inside].numpy())]
        nll = torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(target(label[inside].numpy())), reduction="none"
        )
        adam.zero_grad()
        ((weight * nll).sum() / weight.sum()).backward()
        adam.step()
        if number in (4, 8, 11):
            kept.append((number, f1(), {name: value.clone() for name, value in model.state_dict().items()}))
    assert [row["step"] for row in curve] == [0, 4, 8, 11]
    assert [row["f1"] for row in curve] == pytest.approx([one[1] for one in kept], abs=1e-9)
    assert {row["learning_rate"] for row in curve[1:]} == {3e-3}
    step, best, expected = max(kept, key=lambda one: one[1])
    facts = result.facts
    assert (facts["kept_step"], facts["validation_f1"], facts["steps"]) == (step, pytest.approx(best), 11)
    by_label = weights if classes == 3 else [weights[0], weights[1], weights[0]]
    assert facts["class_weights"] == pytest.approx(by_label, abs=1e-5)
    for name, value in result.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4)


def test_a_calibration_that_makes_worse_keeps_the_weights_that_it_started_from(splits, monkeypatch):
    start = alone(SMALL, splits, steps=150, seed=0)[0]
    monkeypatch.setattr(f"{TRAINING}.CALIBRATION_RATE", 3.0)
    ((result, curve),) = train(SMALL, *splits, steps=6, seeds=[0], reader=HERE, initial=[start])
    assert [row["step"] for row in curve] == [0, 6], "never more steps than asked for"
    assert curve[1]["f1"] < curve[0]["f1"]
    assert [row["kept"] for row in curve] == [True, False]
    assert result.facts["kept_step"] == 0
    assert all(torch.equal(value, start.state_dict()[name]) for name, value in result.state_dict().items())


def test_classes_of_two_sets_weigh_as_batches_draw_them():
    first = of_another_set(sequences(*tables(7, 2, shares=MISSING)))
    second = sequences(*tables(60, 3, failed=0.2))
    share = np.zeros(3)
    for data in (first, second):
        counts = np.array([(data.labels == label).sum() for label in range(3)])
        share += counts / len(data)
    share /= share.sum()
    for classes, expected in (
        (3, 1 / (3 * share)),
        (2, 1 / (2 * np.array([share[0] + share[2], share[1], share[0] + share[2]]))),
    ):
        weights = class_weights(replace(SMALL, classes=classes), [first, second]).numpy()
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        assert (weights * share).sum() == pytest.approx(1)
    lacking = sequences(*tables(9, 4, shares=(0.4, 0.6, 0.0)))
    assert class_weights(SMALL, [lacking])[2] == 0


def test_a_detector_tells_what_it_distrusts(splits, trained):
    detector, _ = trained
    for name, data in zip(("train", "validation"), splits, strict=True):
        found, inside = verdicts(detector, data)[""], data.labels >= 0
        assert detector.facts[f"{name}_distrusted"] == pytest.approx(found.uncertain[inside].mean())
        assert detector.facts[f"{name}_uncertain"] == pytest.approx((data.labels[inside] != 1).mean())


@pytest.mark.parametrize(("shares", "much"), [(MISSING, True), ((0.02, 0.96, 0.02), False)])
def test_training_warns_of_much_distrust(splits, shares, much, caplog):
    data = sequences(*tables(40, 5, shares=shares))
    trained = train(SMALL, splits[0], data, steps=150, seeds=[0, 1])
    share = np.mean([detector.facts["validation_distrusted"] for detector, _ in trained])
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [f"distrusts {100 * share:.0f} % of the validation tokens" in one for one in said] == [True] * much


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (
            Detector(replace(SMALL, classes=2), 8, HERE),
            r"^classes is 3, but 2 in the detector that training starts from; set both",
        ),
        (Detector(SMALL, 9, HERE), "embeddings of width 8, but the detector that training starts from needs width 9"),
        (Detector(SMALL, 8, Origin("a", "2")), r"made with reader a \(1\), .* with reader a \(2\); use one reader"),
        (Detector(SMALL, 8, None), r"made with reader a \(1\), .* with reader unknown; use one reader"),
    ],
)
def test_a_warm_start_from_another_network_or_reader_is_refused(splits, start, sentence):
    with pytest.raises(UserError, match=sentence):
        train(SMALL, *splits, steps=1, seeds=[0], reader=HERE, initial=[start])


def test_half_of_every_batch_is_of_each_set(splits, monkeypatch):
    few, many = of_another_set(sequences(*tables(7, 2))), splits[0]
    drawn, plain = [], Sequences.batch

    def spy(data, indices, chain=1):
        if len(data) == 67 and indices.ndim == 2:
            drawn.append(indices)
        return plain(data, indices, chain)

    monkeypatch.setattr(Sequences, "batch", spy)
    train(SMALL, few, splits[1], steps=15, seeds=[0, 1], second=many)
    batches = torch.stack(drawn)
    assert batches.shape == (15, 2, 16)
    assert ((batches < 7).sum(-1) == 8).all()
    for seed in (0, 1):
        times = batches[:, seed].flatten().bincount(minlength=67)
        for ours in (times[:7], times[7:]):
            assert ours.max() - ours.min() <= 1, "a pass over a set has each of its trajectories once"
    assert not torch.equal(batches[:, 0], batches[:, 1])


# Files and verdicts


def test_save_and_load(trained, splits, tmp_path):
    detector = trained[0]
    detector.save(tmp_path / "model.safetensors")
    result = load(tmp_path / "model.safetensors")
    assert (result.settings, result.input_width, result.facts) == (detector.settings, 8, detector.facts)
    assert (result.thresholds, result.reader) == (detector.thresholds, HERE)
    np.testing.assert_array_equal(verdicts(result, splits[1])[""].score, verdicts(detector, splits[1])[""].score)
    result.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_files_of_earlier_versions(tmp_path):
    path, detector = tmp_path / "model.safetensors", Detector(SMALL, 8)
    detector.save(path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["utaca.detector"])
    weights = dict(detector.state_dict())
    older = {key: value for key, value in about["settings"].items() if key not in ("start", "sets", "mixed")}
    save_file(weights, path, metadata={"utaca.detector": json.dumps(about | {"settings": older})})
    assert load(path).settings == detector.settings
    unknown = about | {"settings": older | {"target": {"budget": 16}}}
    renamed = {name.removesuffix("_l0"): value for name, value in weights.items()}
    without_reader = {key: value for key, value in about.items() if key != "reader"}
    for keys, stored in ((without_reader, weights), (about, renamed), (unknown, weights)):
        save_file(stored, path, metadata={"utaca.detector": json.dumps(keys)})
        with pytest.raises(UserError, match=r"^.*model.safetensors is not a detector of this version of utaca; .*$"):
            load(path)


def test_foreign_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("[1]")
    for path, sentence in [
        (tmp_path / ("none" * 80), "does not exist"),
        (tmp_path, "is a folder; name the detector in it"),
        (None, "is loaded from a file, not from None; give its path"),
        (tmp_path / "text", "not a detector"),
    ]:
        with pytest.raises(UserError, match=sentence):
            load(path)


def test_detections_are_the_verdicts_of_every_rule(trained, splits):
    (detector, _), (train, data) = trained, splits
    result, p = verdicts(detector, data), detector.probabilities(token_logits(detector, data))
    assert list(result) == ["", "mass" if detector.settings.kind == "evidential" else "youden"]
    for rule, verdict in result.items():
        table = detections(verdict, data, "utaca", 3)
        assert (table.num_rows, table["label"].null_count) == (data.n_tokens, data.n_failed)
        key = (data.document[4], data.budget[4])
        rows = [row for row in table.to_pylist() if (row["document"], row["budget"]) == key]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        for ours, row in zip(data.position[4], rows, strict=False):
            assert row["uncertain"] == (row["score"] > detector.thresholds[rule or detector.settings.decision])
            if rule != "mass":
                assert [row["p_hallucinated"], row["p_correct"], row["p_unknown"]] == pytest.approx(p[ours].tolist())
                score = distrust(p[ours], rule or detector.settings.decision).item()
                assert row["score"] == pytest.approx(score, abs=1e-5)
    assert detector.settings.decision != "argmax" or detector.thresholds["argmax"] == 0
    found = heuristics(data, train)
    assert list(found) == [*statistics_of(train)]
    for name, verdict in found.items():
        threshold = youden(-statistics_of(data)[name], data.labels)
        np.testing.assert_allclose(verdict.score, -statistics_of(train)[name], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(verdict.uncertain, verdict.score > threshold)
        assert detections(verdict, train, name, 0)["p_correct"].null_count == train.n_tokens


def statistics_of(data: Sequences) -> dict[str, np.ndarray]:
    """The statistics of the baselines by loops over answers; of ten logits, the rest of the vocabulary one token."""
    top10, logprob = data.top10.astype(np.float64), data.logprob.astype(np.float64)
    entropies, lowest, mean = [], np.zeros(data.n_tokens), np.zeros(data.n_tokens)
    for logits, of_first in zip(top10, logprob, strict=True):
        p = np.exp(of_first) * np.exp(logits - logits[0])
        whole = np.append(p, 1 - p.sum())
        assert whole[-1] == pytest.approx(1 / 6, abs=1e-5)
        entropies.append(-(whole * np.log(whole)).sum())
    for n in range(len(data)):
        rows = data.position[n, : data.length[n]].tolist()
        for place, row in enumerate(rows):
            recent = logprob[rows[max(0, place - 7) : place + 1]]
            lowest[row], mean[row] = recent.min(), recent.mean()
    return {
        "top10_std": top10.std(1), "logit_margin": top10[:, 0] - top10[:, 1], "entropy": -np.array(entropies),
        "probability": logprob, "lowest_probability": lowest, "mean_probability": mean,
    }  # fmt: skip


def test_a_certain_token_has_no_entropy(splits):
    data = replace(splits[0], logprob=np.zeros_like(splits[0].logprob))
    top10 = np.full_like(data.top10, -200.0)
    top10[:, 0] = 0
    assert entropy(replace(data, top10=top10)) == pytest.approx(np.zeros(data.n_tokens), abs=1e-12)


def test_the_linear_probe_is_logistic_regression(splits):
    """Its scores are near those of the minimum of the weighted loss; of its steps, the one with the best F1 is kept."""
    train_set, data = splits
    probe, _ = alone(replace(SMALL, **LINEAR), splits, steps=400, seed=0)
    assert [name for name, _ in probe.named_parameters()] == ["head.weight", "head.bias"]

    def directions(of: Sequences) -> torch.Tensor:
        return torch.nn.functional.normalize(of.embedding[:-1].double(), dim=-1)

    weight, bias = (torch.zeros(size, dtype=torch.double, requires_grad=True) for size in (8, 1))
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")
    label = torch.tensor(train_set.labels)
    labelled = label >= 0
    is_uncertain, of_class = (label != 1).double(), torch.where(label == 1, 0.05, 1.0).double()

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        logits = directions(train_set) @ weight + bias
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits, is_uncertain, reduction="none")
        total = (of_class * each)[labelled].sum() / of_class[labelled].sum()
        total.backward()
        return total

    optimiser.step(loss)
    best = (directions(data) @ weight + bias).detach().numpy()
    found = verdicts(probe, data)[""]
    assert np.corrcoef(found.score, best)[0, 1] > 0.97
    areas = [detection_metrics(score > 0, data.labels, score)["auroc"] for score in (found.score, best)]
    assert areas[0] == pytest.approx(areas[1], abs=0.01)
    assert areas[0] > 0.9


# Thresholds

tokens = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=25)


@given(tokens)
@settings(max_examples=80, deadline=None)
def test_threshold_is_the_best_there_is(pairs):
    score, negative = np.array([v for v, _ in pairs], float), np.array([n for _, n in pairs])
    label = np.where(negative, 0, 1)
    if len(set(score)) < 2 or len(set(negative)) < 2:
        with pytest.raises(UserError):
            youden(score, label)
        return
    candidates = [(a + b) / 2 for a, b in itertools.pairwise(sorted(set(score)))]
    quality = [round(detection_metrics(score > tau, label)["balanced_accuracy"], 12) for tau in candidates]
    best = min(tau for tau, q in zip(candidates, quality, strict=True) if q == max(quality))
    assert youden(score, label) == best


# Metrics


def test_calibration_by_definition():
    rng = np.random.default_rng(0)
    p, label = np.r_[rng.random(500), 0.0, 1.0], np.r_[rng.integers(-1, 3, 500), 1, 0]
    error = 0.0
    for low in np.arange(10) / 10:
        inside = (label >= 0) & (p <= low + 0.1) & ((p > low) | ((p == 0) & (low == 0)))
        error += inside.sum() * abs((label[inside] != 1).mean() - p[inside].mean())
    assert calibration_error(p, label) == pytest.approx(error / (label >= 0).sum())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 2), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_metrics_by_definition(rows):
    score, label, flagged = (np.array(column) for column in zip(*rows, strict=True))
    result = detection_metrics(flagged, label, score)
    kept = [(s, y != 1, f) for s, y, f in rows if y >= 0]
    n, p = [r for r in kept if r[1]], [r for r in kept if not r[1]]
    assert (result["n_tokens"], result["n_failed"]) == (len(kept), len(rows) - len(kept))

    def mean(values):
        return sum(values) / len(values) if values else math.nan

    recall_n, recall_p = mean([f for _, _, f in n]), mean([not f for _, _, f in p])
    expected = {
        "macc": mean([f == y for _, y, f in kept]),
        "recall_n": recall_n,
        "recall_p": recall_p,
        "balanced_accuracy": (recall_n + recall_p) / 2,
        "share_uncertain": mean([y for _, y, _ in kept]),
        "share_distrusted": mean([f for _, _, f in kept]),
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
        assert result[name] == pytest.approx(value, nan_ok=True) or math.isnan(value), name
