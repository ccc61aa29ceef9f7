"""Generation held against InfLLM and the agreement oracle, and curves: against plain restatements."""

from contextlib import nullcontext
from functools import cache

import factories
import numpy as np
import pandas as pd
import pytest
from configs import decoding, point, reference_config
from factories import inputs

from utaca.reporting import statistics
from utaca.reporting.results import Curve, points
from utaca.reporting.statistics import Resampled
from utaca.reporting.tables import figures, generation
from utaca.reporting.tables import points as point_tables
from utaca.settings import schema

N = 7
ATTRIBUTES = ("major", "company", "city")


@pytest.fixture
def config() -> schema.Config:
    return reference_config(scale={"bootstrap": 300}, detectors={"utaca": schema.DetectorSettings()})


def made(folder, given_points):
    """Files of answers and scores, a file a point; points are (method, budget, policy, seed, tokens, chance of 1).

    What else than a detector expands a budget follows its method, as in "utaca by every.4"; a seed of -1 is none.
    """
    rng = np.random.default_rng(5)
    answers, scores = [], []
    for method, budget, policy, seed, tokens, chance in given_points:
        method, _, trigger = method.partition(" by ")
        method, _, base = method.partition("-")
        of = point(method, budget, policy, trigger, base=base, seed=max(seed, 0), seeds=1 if seed < 0 else 8)
        rows = [
            factories.answer(
                f"d{d}", of, seed=seed if seed >= 0 else None, detector="utaca" if of.detected else "",
                n_generated=10 + d, selected=tokens * (1 + 0.02 * d), attended=tokens + 288,
                selected_with_tentative=2.0 * tokens, effective_rollbacks=d // 2,
                rollbacks=d if of.family != "no_detector" else (10 + d) // of.trigger.value if of.trigger.value else 0,
            )
            for d in range(N)
        ]  # fmt: skip
        judged = [
            factories.score(f"d{d}", of.label, attribute, float(rng.random() < chance))
            for d in range(N)
            for attribute in ATTRIBUTES
        ]
        for paths, path in zip((answers, scores), factories.saved(folder, rows, judged, f"{of.label}-"), strict=True):
            paths += path
    return answers, scores


FIXED = [("infllm", 8, "", -1, 128.0, 0.3), ("infllm", 16, "", -1, 256.0, 0.5), ("infllm", 32, "", -1, 512.0, 0.6)]
ADAPTIVE = [("utaca", 32, "sub.16", 0, 150.0, 0.5), ("utaca", 64, "sub.16", 0, 340.0, 0.7)]
AGREEING = [("utaca by agreement", 32, "sub.16", -1, 140.0, 0.9), ("utaca by agreement", 64, "sub.16", -1, 300.0, 0.95)]


def brute(answers, scores, name, drawn):
    """mTokens and CAS of a point over drawn documents (with repeats), from the files as they are."""
    selected, generated, scored = by_document(tuple(answers), tuple(scores), name)
    tokens = sum(selected[f"d{d}"] * generated[f"d{d}"] for d in drawn)
    cas = [c for d in drawn for c in scored[f"d{d}"]]
    return tokens / sum(generated[f"d{d}"] for d in drawn), sum(cas) / len(cas)


@cache
def by_document(answers, scores, name):
    """Selected tokens, generated tokens and scores of a point, by document; files are read once."""
    a = pd.concat([pd.read_parquet(p) for p in answers]).query("point == @name").set_index("document")
    s = pd.concat([pd.read_parquet(p) for p in scores]).query("point == @name")
    return a["selected"].to_dict(), a["n_generated"].to_dict(), s.groupby("document")["cas"].apply(list).to_dict()


def test_the_share_of_the_gap_is_gain_over_gain(tmp_path, config) -> None:
    answers, scores = made(tmp_path, FIXED + ADAPTIVE + AGREEING)
    frame = generation.generation(inputs(answers, scores), config, "test").set_index(["method", "setting"])
    names = [f"infllm-K{k}" for k in (8, 16, 32)]

    def closed(drawn) -> float:
        fixed = [brute(answers, scores, name, drawn) for name in names]
        x, y = [np.log2(t) for t, _ in fixed], [c for _, c in fixed]

        def gain(name: str) -> float:
            tokens, cas = brute(answers, scores, name, drawn)
            return cas - float(np.interp(np.log2(tokens), x, y))

        agreement = gain("agreement-K64-sub16")
        return 100 * gain("utaca-K64-sub16-seed0") / agreement if agreement > 0 else np.nan

    row = frame.loc["UT-ACA", "K_max=64, Sub.16"]
    assert row["gap_closed_pct"] == pytest.approx(closed(range(N)))
    draws = statistics.Draws(statistics.resample_counts(N, 300, 0, "test")[:40], 0, "test")
    drawn = draws.documents.astype(int)
    resampled = [closed([d for d in range(N) for _ in range(one[d])]) for one in drawn]
    assert np.isfinite(resampled).all()
    found = points(answers, scores)
    curve = Curve.of(found[:3], draws)
    share = [curve.gain(found[i]).resamples for i in (4, 6)]
    assert 100 * share[0] / share[1] == pytest.approx(resampled)
    assert row["gap_closed_pct_low"] < row["gap_closed_pct"] < row["gap_closed_pct_high"]
    rows = [{"p": p} for p in frame["gain_p"]]
    statistics.adjust(rows, "p")
    assert list(frame["gain_p_holm"]) == pytest.approx([row["p_holm"] for row in rows], nan_ok=True)
    assert frame["gain_p"].notna().sum() == 4, "it is over the gains of the table"
    assert np.isnan(frame.loc["Agreement oracle (both passes)", "K_max=64, Sub.16"]["gap_closed_pct"])
    assert frame.loc["Agreement oracle (both passes)", "K_max=64, Sub.16"]["mtokens_with_tentative"] == 600


def test_beyond_no_detector_is_held_against_the_point_that_expands_as_often(tmp_path, config) -> None:
    blind = [
        ("utaca by never", 64, "sub.16", -1, 150.0, 0.4), ("utaca by every.4", 64, "sub.16", -1, 330.0, 0.6),
        ("utaca by every.2", 64, "sub.16", -1, 400.0, 0.6), ("utaca by every.4", 32, "sub.16", -1, 200.0, 0.6),
    ]  # fmt: skip
    answers, scores = made(tmp_path, FIXED + ADAPTIVE + blind)
    frame = generation.generation(inputs(answers, scores), config, "test")
    frame = frame.assign(name=frame["setting"] + " " + frame["method"]).set_index("name")
    row = frame.loc["K_max=64, Sub.16 UT-ACA"]
    assert row["no_detector"] == "K_max=64, Sub.16, every 4", "21 of 91 tokens are expanded"
    other = frame.loc["K_max=64, Sub.16 (every 4) No detector"]
    assert row["beyond_pct"] == pytest.approx(row["gain_pct"] - other["gain_pct"])
    found = points(answers, scores)
    draws = statistics.Draws.of(N, config, "test")
    curve = Curve.of(found[:3], draws)
    own, without = (curve.gain(found[place]).resamples for place in (4, 6))
    low, high = np.quantile(own - without, [0.025, 0.975])
    assert (row["beyond_pct_low"], row["beyond_pct_high"]) == (pytest.approx(100 * low), pytest.approx(100 * high))
    assert frame.loc["K_max=32, Sub.16 UT-ACA"]["no_detector"] == "K_max=32, Sub.16, every 4"
    assert set(frame[frame["decoder"].isin(["infllm", "no_detector"])]["no_detector"]) == {""}


def test_a_share_of_nothing_is_undefined() -> None:
    one = Resampled(1.0, np.linspace(0.8, 1.2, 100))
    assert np.isnan(one.share_of(Resampled(0.0, np.ones(100))).value)
    share = one.share_of(Resampled(2.0, np.where(np.arange(100) < 10, -1.0, 2.0)))
    assert share.value == 0.5
    assert np.isnan(share.interval).all()
    low, high = one.share_of(Resampled(2.0, np.where(np.arange(100) < 3, -1.0, 2.0))).interval
    assert 0.4 <= low < 0.5 < high <= 0.6


def test_points_of_another_policy_are_another_curve(tmp_path, config, monkeypatch) -> None:
    many = [("infllm", k, "", -1, 16.0 * k, 0.9) for k in (8, 16)]
    many += [("utaca", k, policy, 0, 3.75 * k, 0.8) for policy in ("sub.16", "set.8") for k in (16, 64)]
    frame = generation.generation(inputs(*made(tmp_path, many)), config, "test")
    assert list(frame["note"]) == ["", "", *["below InfLLM's range, clipped to K=8", ""] * 2]
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, *_, **__: drawn.extend(self.axes))
    monkeypatch.setattr(figures, "atomic_path", nullcontext)
    figures.curves(frame, tmp_path, config)
    assert drawn[0].get_legend_handles_labels()[1] == [
        "InfLLM K=8, 16", "UT-ACA K_max=16, 64; Sub.16", "UT-ACA K_max=16, 64; Set.8"
    ]  # fmt: skip


def test_points_whose_budget_is_a_share_are_named_by_it(tmp_path, config, monkeypatch) -> None:
    shares = [("infllm", "5%", "", -1, 80.0, 0.3), ("infllm", "25%", "", -1, 400.0, 0.5)]
    ours = [("utaca", "25%", "sub.4", 0, 150.0, 0.5), ("utaca by agreement", "25%", "sub.4", -1, 140.0, 0.9)]
    control = [("utaca by every.4", "25%", "sub.4", -1, 160.0, 0.4)]
    answers, scores = made(tmp_path, [*shares, FIXED[1], *ours, *control])
    rows = pd.concat([pd.read_parquet(path) for path in answers])
    # What the share means for a document of 100 blocks.
    assert set(rows[rows["point"] == "infllm-K25pct"]["budget"]) == {25}
    frame = generation.generation(inputs(answers, scores), config, "test")
    names = ["K=5%", "K=25%", "K=16", "K_max=25%, Sub.4", "K_max=25%, Sub.4", "K_max=25%, Sub.4 (every 4)"]
    assert list(frame["setting"]) == names
    assert list(frame["budget"]) == ["5%", "25%", 16, "25%", "25%", "25%"]
    # Comparisons find each other by the share, and InfLLM's curve by tokens.
    by_family = frame.set_index("family")
    row = by_family.loc["utaca"]
    assert row["nearest_infllm"] == "K=5%"
    assert row["no_detector"] == "K_max=25%, Sub.4, every 4"
    gains = [by_family.loc[family]["gain_pct"] for family in ("utaca", "agreement")]
    assert row["gap_closed_pct"] == pytest.approx(100 * gains[0] / gains[1])
    fixed = points(answers, scores)[:3]
    curve = Curve.of(fixed, statistics.Draws.of(N, config, "test"))
    assert [point.budget for point in curve.points] == [16, "5%", "25%"]
    tokens, _ = brute(answers, scores, "infllm-K5pct", range(N))
    assert curve.tokens[1, 0] == pytest.approx(tokens)
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, *_, **__: drawn.extend(self.axes))
    monkeypatch.setattr(figures, "atomic_path", nullcontext)
    figures.curves(frame, tmp_path, config)
    assert drawn[0].get_legend_handles_labels()[1][0] == "InfLLM K=5%, 16, 25%"


def test_seconds_and_memory_are_of_answers_that_were_decoded_by_themselves(tmp_path, config) -> None:
    fixed, adaptive = point("infllm", 8), point("utaca", 32, "sub.16")
    shared = {"decode_seconds": np.nan, "peak_bytes": None}
    rows = [factories.answer(f"d{d}", of, **shared) for of in (fixed, adaptive) for d in range(4)]
    answers, scores = factories.saved(tmp_path, rows, [factories.score(row["document"], row["point"]) for row in rows])
    alone = [
        factories.answer(f"d{d}", of, decode_seconds=2.0 + d + seconds, prefill_seconds=8.0, peak_bytes=(d + 1) << 30)
        for of, seconds in ((fixed, 0.0), (adaptive, 5.0))
        for d in range(2)
    ]
    factories.saved(tmp_path, alone, [], "timed-")
    files = inputs(answers, scores) | {"timed_answers": [tmp_path / "timed-answers.parquet"]}
    config = reference_config(
        scale={"bootstrap": 300}, detectors={"utaca": schema.DetectorSettings()}, **decoding(test=[fixed, adaptive])
    )
    frame = point_tables.points(files, config, "tradeoff")
    assert list(frame["end_to_end_s"]) == [8 + 2.5, 8 + 7.5]
    assert list(frame["seconds_per_token"]) == [0.25, 0.75]
    assert set(frame["peak_gib"]) == {2.0}
    assert set(frame["n_timed"]) == {2}
    assert frame.attrs["timed"] == "2 documents, decoded one at a time"
    assert list(generation.generation(files, config, "test")["seconds_per_token"]) == [0.25, 0.75]
    assert point_tables.points(inputs(answers, scores), config, "tradeoff")["seconds_per_token"].isna().all()
