"""Intervals, tables from a few synthetic rows, Markdown and LaTeX, the figure."""

import random
import re
from dataclasses import replace

import factories
import numpy as np
import pandas as pd
import pytest
from configs import decoding, point, reference_config
from factories import inputs

from utaca.detection.detector import Detector
from utaca.detection.training import metrics
from utaca.detection.training.metrics import detection_metrics
from utaca.errors import UserError
from utaca.records import write
from utaca.records.tables import provenance
from utaca.reporting import render, statistics, words
from utaca.reporting.measures import CAS, MTOKENS
from utaca.reporting.registry import ENTRIES
from utaca.reporting.results import points
from utaca.reporting.statistics import Resampled
from utaca.reporting.table import Table, make, read_frame, save
from utaca.reporting.tables import detection, distrust, endpoints, generation
from utaca.reporting.tables import points as point_tables
from utaca.settings import schema

N_DOCUMENTS = 6
POINTS = [point("infllm", 2), point("infllm", 4), point("utaca", 4, "sub.1"), point("utaca", 32, "sub.16")]


@pytest.fixture
def config() -> schema.Config:
    return reference_config(
        detectors={
            "utaca": schema.DetectorSettings(),
            "margin_only": schema.DetectorSettings(embedding=False, lstm=False),
            "other": schema.DetectorSettings(embedding=False, lstm=False, classes=2),
        },
        judge=schema.EndpointSettings(name="gpt_oss_120b", model="openai/gpt-oss-120b"),
    )


@pytest.fixture
def results(tmp_path):
    """Answers in two shards and scores of four points; one judgement failed; one document generated nothing."""
    rng = random.Random("reporting")
    answers, scores = {0: [], 1: []}, []
    for place, of in enumerate(POINTS):
        for d in range(N_DOCUMENTS):
            n = 0 if (place, d) == (0, 5) else 10 + d
            selected = 16.0 * of.budget / (1 if of.method == "infllm" else 1.5)
            row = factories.answer(
                f"d{d}", of, point=f"p{place}", n_generated=n, selected=selected, rollbacks=n // 5,
                prefill_seconds=2.0 + d, decode_seconds=0.1 * n,
                peak_bytes=None if of.method == "infllm" else 2**30 * (d + 1),
            )  # fmt: skip
            answers[d % 2].append(row | {"selected": selected if n else None})
            for attribute in ("major", "company"):
                failed = (place, d, attribute) == (1, 0, "major")
                cas = None if failed else float(rng.random() < 0.4 + 0.1 * place)
                scores.append(factories.score(f"d{d}", f"p{place}", attribute, cas))
    paths = [tmp_path / f"answers-{shard}.parquet" for shard in answers], [tmp_path / "scores.parquet"]
    for path, shard in zip(paths[0], answers.values(), strict=True):
        write(path, "answers", shard)
    write(paths[1][0], "scores", scores, made_from=paths[0])
    return paths


def seen(path, results=((), ())):
    """The same of verdicts, of which the files say nothing, beside answers."""
    return {"detections": [path], "detected_from": [], **inputs(*results)}


@pytest.fixture
def detections(tmp_path):
    rng = np.random.default_rng(3)
    rows = []
    labels = {(d, step): rng.integers(0, 3) for d in range(N_DOCUMENTS) for step in range(8)}
    for name, seeds in (("top10_std", 1), ("logit_margin", 1), ("utaca", 3), ("margin_only", 2)):
        for seed in range(seeds):
            for (d, step), label in labels.items():
                score = float(np.round(rng.normal() + (label != 1), 1))
                p = 1 / (3 + 3 * np.exp(-score)) if seeds > 1 else None
                failed = (d, step) == (2, 2)
                rows.append(
                    {
                        "detector": name, "seed": seed, "document": f"d{d}", "budget": 1 + 3 * (d > 3), "step": step,
                        "label": None if failed else int(label), "value": step < 5,
                        "uncertain": score > 0.5, "score": -abs(score) if name == "logit_margin" else score,
                        "p_hallucinated": p, "p_correct": None if p is None else 1 - 2 * p, "p_unknown": p,
                    }
                )  # fmt: skip
    path = tmp_path / "detections.parquet"
    write(path, "detections", rows)
    return path


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("seeds", [1, 3])
def test_fewer_than_two_documents_have_neither_interval_nor_p(n: int, seeds: int) -> None:
    draws = statistics.Draws(statistics.resample_counts(n, 200, 0, "x"), 0, "x")
    hits, total = np.arange(seeds * n, dtype=np.float64) + 1, np.full(seeds * n, 6.0)
    counts = draws.cells("utaca", seeds)
    share = statistics.resampled_ratio(hits, total, counts)
    one = Resampled(0.5, share.resamples).share_of(statistics.resampled_ratio(total, total, counts))
    assert np.isnan([*share.interval, share.p, *one.interval, one.p, statistics.mean_sd([1.0])[1]]).all()
    assert np.isnan(share.value) == (n == 0)


def test_documents_that_are_all_alike_have_no_interval_of_no_width() -> None:
    got = statistics.resampled_ratio(np.full(20, 0.3), np.full(20, 3.0), statistics.resample_counts(20, 200, 0, "x"))
    assert (got.value, (got - got).p) == pytest.approx((0.1, 1))
    assert np.isnan([*got.interval, got.p]).all()


def test_documents_and_seeds_are_drawn_together():
    """Against loops over what was drawn: the ratio of sums of points, and the mean of a figure of each seed."""
    rng = np.random.default_rng(1)
    n, seeds = 6, 4
    above, below = rng.random((seeds, n)), rng.integers(1, 5, (seeds, n)).astype(float)
    draws = statistics.Draws(statistics.resample_counts(n, 50, 0, "x"), 0, "x")
    times = draws.seeds("utaca", seeds).astype(int)
    assert (times.sum(1) == seeds).all()
    assert (draws.documents.sum(1) == n).all(), "whole documents"
    for other in (statistics.resample_counts(n, 50, 1, "x"), statistics.resample_counts(n, 50, 0, "y")):
        assert (draws.documents != other).any()
    assert (times != draws.seeds("chained", seeds)).any()
    one, other = (statistics.Draws(draws.documents, 0, f"tasks/{name}").seeds("utaca", seeds) for name in "ab")
    assert (one == other).all(), "a mean over sets has as much variance over seeds as either"
    got = statistics.resampled_ratio(above.ravel(), below.ravel(), draws.cells("utaca", seeds))
    assert got.value == pytest.approx(above.sum() / below.sum())
    assert got.interval == pytest.approx(tuple(np.percentile(got.resamples, [2.5, 97.5])))
    each = [statistics.ratio(above[s], below[s], draws.documents) for s in range(seeds)]
    mean = draws.mean("utaca", each)
    for place, (of_seeds, of_documents) in enumerate(zip(times, draws.documents.astype(int), strict=True)):
        cells = [(s, d) for s in np.repeat(range(seeds), of_seeds) for d in np.repeat(range(n), of_documents)]
        assert got.resamples[place] == pytest.approx(sum(above[c] for c in cells) / sum(below[c] for c in cells))
        assert mean[place] == pytest.approx(np.mean([each[s][place] for s in np.repeat(range(seeds), of_seeds)]))
    # One seed, or seeds that answer alike, are documents alone.
    alone = statistics.ratio(above[0], below[0], draws.documents)
    assert statistics.ratio(above[0], below[0], draws.cells("utaca", 1)) == pytest.approx(alone)
    same = np.tile(above[0], seeds), np.tile(below[0], seeds)
    assert statistics.ratio(*same, draws.cells("utaca", seeds)) == pytest.approx(alone)


def test_p_and_holm():
    # Statsmodels' multipletests(p, method="holm") on these p.
    for p, expected in (
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.2, np.nan, 0.6], [0.4, np.nan, 0.6]),
    ):
        rows = [{"p": one} for one in p]
        statistics.adjust(rows, "p")
        assert [row["p_holm"] for row in rows] == pytest.approx(expected, nan_ok=True)
    drawn = np.arange(-2.0, 97.0)
    for resamples, p in ((drawn, 2 * 4 / 100), (-drawn, 2 * 4 / 100), (drawn + 3, 2 / 100), ([np.nan], np.nan)):
        assert Resampled(0.0, np.array(resamples)).p == pytest.approx(p, nan_ok=True)


def test_detection_table(detections, config):
    table = detection.detection(seen(detections), config)
    frame = table.set_index("detector")
    assert list(frame.index) == [*detection.DETECTORS.values(), "margin_only"]
    ran = frame[frame["run"]]
    for column, count in {"n_documents": N_DOCUMENTS, "n_failed_labels": 1, "n_tokens": N_DOCUMENTS * 8 - 1}.items():
        assert (ran[column] == count).all()
    ours, baseline = frame.loc["UT-ACA"], frame.loc["Top-10 Std"]
    assert ours["seeds"] == 3
    assert ours["macc_pct_low"] < ours["macc_pct"] < ours["macc_pct_high"]
    assert np.isnan(baseline["ece"])
    assert 0 < ours["ece"] < 1
    assert ours["paper_macc_pct"] == 83.43
    # Values are told apart from the template.
    raw = pd.read_parquet(detections).query("detector == 'utaca' and value").dropna(subset="label")
    assert ours["n_value_tokens"] == len(raw) // 3 < ours["n_tokens"]
    parts = [[one[name].to_numpy() for name in ("uncertain", "label", "score")] for _, one in raw.groupby("seed")]
    for column, name, scale in (("auroc", "auroc", 1), ("balanced_accuracy_pct", "balanced_accuracy", 100)):
        assert ours[f"value_{column}"] == pytest.approx(scale * np.mean([detection_metrics(*x)[name] for x in parts]))
    assert ours["value_auroc_low"] < ours["value_auroc"] < ours["value_auroc_high"]
    shown = Table.of("detection", table, config)
    header, rows = shown.cells()
    assert rows[2][:2] == ["Evidential Mass (not run)", render.MISSING]
    assert rows[2][header.index("paper Recall P %")] == "60.04"
    assert all("[" in rows[place][1] for place in (0, 4))
    assert "synthetic prose" in shown.run


def test_baselines_of_others_are_the_last_rows_and_change_no_other(detections, config, tmp_path):
    before = detection.detection(seen(detections), config)
    rows, more = rows_of([detections]), []
    for row in rows:
        if (row["detector"], row["seed"]) == ("utaca", 0):
            score = row["score"] - 0.1 * (row["step"] % 3)
            more += [row | {"detector": name, "score": score} for name in ("entropy", "linear_probe")]
    # They stand first in the file.
    more.sort(key=lambda row: row["detector"])
    write(tmp_path / "more.parquet", "detections", more + rows)
    table = detection.detection(seen(tmp_path / "more.parquet"), config)
    assert list(table["detector"][-2:]) == ["Entropy", "Linear probe"]
    pd.testing.assert_frame_equal(table[:-2], before)
    baselines = table[-2:]
    assert list(baselines["auroc_p_holm"]) == pytest.approx(list(np.minimum(2 * baselines["auroc_p"], 1)))


def test_measures_of_others_are_means_over_seeds(detections, config, tmp_path):
    """Each document has two values, of two tokens and of three; most first ones, and no second one, are right."""
    rows = rows_of([detections])
    for row in rows:
        row["value"] = row["step"] in (0, 1, 3, 4, 5)
        if row["step"] < 2 and row["document"] != "d5":
            row["label"] = 1
        if row["step"] == 4:
            row["label"] = 0
    write(tmp_path / "values.parquet", "detections", rows)
    row = detection.detection(seen(tmp_path / "values.parquet"), config).set_index("detector").loc["UT-ACA"]
    raw = pd.read_parquet(tmp_path / "values.parquet").query("detector == 'utaca'")
    raw["wrong"] = raw["label"].isin([0, 2])
    found, areas = [], []
    for _, own in raw.groupby("seed"):
        kept = own.dropna(subset="label")
        score, wrong = kept["score"].to_numpy(), kept["wrong"].to_numpy()
        recall = 100 * metrics.recall_at(0.1, score, wrong)
        found.append([metrics.risk_coverage_area(score, wrong), metrics.rejection_ratio(score, wrong), recall])
        values = own[own["value"]]
        by_value = values.groupby([values["document"], values["step"] < 2])
        of_value = by_value["wrong"].transform("any")
        largest = by_value.agg({"score": "max", "wrong": "any"})
        levels = [(values["score"], of_value), (largest["score"], largest["wrong"])]
        for s, w in levels:
            areas.append(detection_metrics((s > 0).to_numpy(), np.where(w, 0, 1), s.to_numpy())["auroc"])
    assert list(row[["aurc", "prr", "recall_at_10_pct"]]) == pytest.approx(list(np.mean(found, axis=0)))
    assert row["aurc_sd"] == pytest.approx(np.std([one[0] for one in found], ddof=1))
    assert row["n_spans"] == 2 * N_DOCUMENTS == len(largest)
    expected = np.mean(np.reshape(areas, (-1, 2)), axis=0)
    assert list(row[["span_auroc", "span_max_auroc"]]) == pytest.approx(list(expected))
    assert row["span_max_auroc_low"] < row["span_max_auroc"] < row["span_max_auroc_high"]


def test_detection_by_budget(detections, config):
    config.scale.test.paths = [schema.PathSettings(budget=4, policy="sub.1", every=3)]
    table = detection.detection_budgets(seen(detections), config)
    assert list(table["budget"]) == ["K=1", "K_max=4, Sub.1, every 3", "all"]
    raw = pd.read_parquet(detections).query("detector == 'utaca'")
    for row, own in zip(
        table.to_dict("records"), (raw.query("budget == 1"), raw.query("budget == 4"), raw), strict=True
    ):
        found = [
            detection_metrics(seed["uncertain"].to_numpy(), seed["label"].to_numpy(), seed["score"].to_numpy())
            for _, seed in own.dropna(subset="label").groupby("seed")
        ]
        for name in ("macc", "recall_n", "recall_p", "balanced_accuracy", "share_uncertain", "share_distrusted"):
            assert row[f"{name}_pct"] == pytest.approx(100 * np.mean([one[name] for one in found]))
        assert row["auroc"] == pytest.approx(np.mean([one["auroc"] for one in found]))
        assert row["macc_pct_low"] < row["macc_pct"] < row["macc_pct_high"]
        assert (row["n_tokens"], row["seeds"]) == (found[0]["n_tokens"], 3)
        assert row["n_failed_labels"] == own["label"].isna().sum() // 3
    shown = Table.of("detection_budgets", table, config)
    header, rows = shown.cells(folded=False)
    assert header == [
        "Budget", "mAcc %", "Recall N %", "Recall P %", "Balanced acc. %", "AUROC", "Uncertain %", "Tokens",
    ]  # fmt: skip
    assert rows[2][-1] == str(8 * N_DOCUMENTS - 1)
    assert "The detector is UT-ACA." in shown.caption


def test_distrust_of_every_variant_and_split(detections, config, tmp_path):
    files, shares = [], {"utaca": [0.2, 0.5, 0.5], "margin_only": [0.1, 0.1, 0.4], "other": [None] * 3}
    for name, told in shares.items():
        for seed, share in enumerate(told):
            detector = Detector(config.detectors[name], 8)
            if share is not None:
                detector.facts = {"train_distrusted": share / 2, "train_uncertain": 0.05}
                detector.facts |= {"validation_distrusted": share, "validation_uncertain": 0.3}
            files.append(tmp_path / name / f"seed{seed}.safetensors")
            detector.save(files[-1])
    table = distrust.distrust(seen(detections) | {"detectors": files}, config)
    frame = table.set_index(["detector", "split"])
    for name, title in (("utaca", "UT-ACA"), ("margin_only", "margin_only")):
        for split, factor, uncertain in (("train", 50, 5), ("validation", 100, 30)):
            row = frame.loc[title, split]
            assert row["share_distrusted_pct"] == pytest.approx(factor * np.mean(shares[name]))
            assert row["share_distrusted_pct_sd"] == pytest.approx(factor * np.std(shares[name], ddof=1))
            assert (row["share_uncertain_pct"], row["seeds"]) == (pytest.approx(uncertain), 3)
        raw = pd.read_parquet(detections).query(f"detector == '{name}'").dropna(subset="label")
        row = frame.loc[title, "test"]
        assert row["share_distrusted_pct"] == pytest.approx(100 * raw.groupby("seed")["uncertain"].mean().mean())
        assert row["share_uncertain_pct"] == pytest.approx(100 * (raw["label"] != 1).mean())
    assert frame.loc["other"]["share_distrusted_pct"].isna().all(), "of an earlier version, and not measured"
    assert list(frame["note"] != "") == [False, True, *[False] * 7]
    caption = Table.of("distrust", table, config).caption
    assert "UT-ACA distrusts 40 % of the validation tokens. Above a third" in caption
    assert caption.count("distrusts") == 2, "no other variant"


def test_differences_are_paired_by_document(detections, config):
    frame = detection.detection(seen(detections), config).set_index("detector")
    raw = pd.read_parquet(detections).dropna(subset="label")
    draws = statistics.Draws.of(N_DOCUMENTS, config, "detection")

    def auroc(name, weights, seeds):
        areas = []
        for _, own in raw[raw["detector"] == name].groupby("seed"):
            drawn = own.loc[own.index.repeat([int(weights[int(d[1:])]) for d in own["document"]])]
            label, score = drawn["label"].to_numpy(), drawn["score"].to_numpy()
            areas.append(detection_metrics(score > 0, label, score)["auroc"])
        return np.average(areas, weights=seeds)

    once, equally = np.ones(N_DOCUMENTS), {"utaca": np.ones((1, 3)), "margin_only": np.ones((1, 2))}
    other = frame.loc["margin_only"]
    first, second = (auroc(name, once, seeds[0]) for name, seeds in equally.items())
    assert other["auroc_difference"] == pytest.approx(first - second)
    seeds = {name: draws.seeds(name, one.shape[1]) for name, one in equally.items()}
    drawn = [
        auroc("utaca", weights, seeds["utaca"][place]) - auroc("margin_only", weights, seeds["margin_only"][place])
        for place, weights in enumerate(draws.documents)
    ]
    expected = np.quantile(drawn, [0.025, 0.975])
    assert (other["auroc_difference_low"], other["auroc_difference_high"]) == pytest.approx(tuple(expected))
    assert np.isnan(frame.loc["UT-ACA", "auroc_difference"])


def test_ablation_has_the_cas_of_the_point_that_most_variants_answer(detections, config, results, monkeypatch):
    found = points(*results)
    by_key = {point.key: point for point in found}
    one = by_key["utaca", 32, "sub.16"]
    found.append(replace(one, detector="margin_only", sums={**one.sums, "cas": one.sums["cas"] / 2}))
    found.append(replace(by_key["utaca", 4, "sub.1"], detector="chained"))  # no row of this table
    monkeypatch.setattr(detection, "points_shown", lambda *_: found)
    vars(config).update(decoding(test=POINTS))
    for name, variant in config.detectors.items():
        variant.taken, variant.chain = f"results/other/detectors/{name}", 6 if variant.lstm else 1
    table = detection.ablation(seen(detections, results), config)
    variants = {(row.margin, row.embedding, row.lstm): row.detector for row in table.itertuples() if row.run}
    assert variants == {(True, True, True): "UT-ACA", (True, False, False): "margin_only"}
    assert list(table["paper_macc_pct"]) == [26.82, 78.95, 53.71, 80.06, 80.19, 83.43]
    rows = table.set_index("detector")
    cas = 100 * one.sums["cas"].sum() / one.sums["judged"].sum()
    assert rows.loc["UT-ACA", "cas_pct"] == pytest.approx(cas)
    assert rows.loc["margin_only", "cas_pct"] == pytest.approx(cas / 2)
    assert rows.loc["margin_only", "mtokens"] == pytest.approx(one.ratio(MTOKENS))
    assert rows.loc["UT-ACA", "cas_pct_low"] < cas < rows.loc["UT-ACA", "cas_pct_high"]
    assert "K_max=32, Sub.16" in Table.of("ablation", table, config).caption
    vars(config).update(decoding(methods=[point("infllm", 2)]))
    assert detection.ablation(seen(detections, results), config)["cas_pct"].isna().all(), "of no section that counts"


def test_two_classes_stand_beside_three_with_the_answers_that_both_trigger(detections, config, results, tmp_path):
    rows = pd.read_parquet(detections)
    both = rows.replace({"detector": {"margin_only": "two_way"}}).astype(object)
    write(tmp_path / "both.parquet", "detections", both.where(both.notna(), None).to_dict("records"))
    config.detectors = {"utaca": schema.DetectorSettings(), "two_way": schema.DetectorSettings(classes=2)}
    assert ENTRIES["two_way"].holds(config)
    assert not ENTRIES["two_way"].holds(replace(config, detector="two_way")), "it has two classes itself"
    of_two = {"p0": "p9", "p3": "p8"}
    decoded = [replace(of, name=f"p{place}") for place, of in enumerate(POINTS)]
    decoded += [point("utaca", 32, "sub.16", "two_way", name="p8")]
    vars(config).update(decoding(test=decoded[:4], ablation=decoded[4:]))
    answers, scores = map(rows_of, results)
    answers += [x | {"point": of_two["p3"], "detector": "two_way"} for x in answers if x["point"] == "p3"]
    scores += [x | {"point": of_two["p3"], "cas": 0.25} for x in scores if x["point"] == "p3"]
    files = seen(tmp_path / "both.parquet", factories.saved(tmp_path, answers, scores, "more-"))
    table = detection.two_way(files, config)
    assert table[["detector", "classes", "seeds"]].to_numpy().tolist() == [["UT-ACA", 3, 3], ["UT-ACA, two-way", 2, 2]]
    three, two = (row for _, row in table.iterrows())
    assert two["macc_pct_low"] < two["macc_pct"] < two["macc_pct_high"]
    assert (two["cas_pct"], two["generation_seeds"]) == (25, 1)
    (one,) = points(*results, ["p3"])
    assert three["cas_pct"] == pytest.approx(100 * one.ratio(CAS))
    assert three["mtokens"] == two["mtokens"] == pytest.approx(one.ratio(MTOKENS))
    columns = [f"paper_{name}" for name in ("macc_pct", "recall_n_pct", "recall_p_pct", "mtokens", "cas_pct")]
    assert three[columns].tolist() == [83.43, 89.71, 81.27, 344, 70.48]
    assert two[columns].tolist() == [82.74, 88.04, 80.60, 348, 67.99]
    assert "K_max=32, Sub.16" in Table.of("two_way", table, config).caption
    shown = generation.generation(files, config, "test")
    assert len(shown) == len(POINTS), "a point of the ablation is in no other table"


def rows_of(paths) -> list[dict]:
    frame = pd.concat([pd.read_parquet(path) for path in paths])
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def test_conditions_of_a_document_are_resampled_together(detections, tmp_path):
    rows = rows_of([detections])
    more = [row | {"document": f"{row['document']}/missing"} for row in rows]
    write(tmp_path / "both.parquet", "detections", [*rows, *more])
    once, both = detection.load(detections), detection.load(tmp_path / "both.parquet")
    assert both.documents == once.documents
    assert np.bincount(both.document).tolist() == (2 * np.bincount(once.document)).tolist()


def test_generation_tables(results, config, tmp_path):
    frame = generation.generation(inputs(*results), config, "test")
    assert list(frame["setting"]) == ["K=2", "K=4", "K_max=4, Sub.1", "K_max=32, Sub.16"]
    for column, count in (("n_documents", 6), ("n_judgements", 12), ("n_failed_judgements", [0, 1, 0, 0])):
        assert (frame[column] == count).all()
    assert list(frame["mtokens"][:2]) == [32, 64]
    assert frame["seconds_per_token"][0] == pytest.approx(0.1)
    assert list(frame["nearest_infllm"]) == ["", "", "K=2", "K=4"]
    assert frame["difference_pct"][2] == pytest.approx(frame["cas_pct"][2] - frame["cas_pct"][0])
    assert frame["infllm_cas_pct"][3] == pytest.approx(frame["cas_pct"][1])
    assert list(frame["note"]) == ["", "", "", "above InfLLM's range, clipped to K=4"]
    assert "Llama-3.1-8B" in Table.of("test", frame, config).caption
    assert frame["paper_seconds_per_token"].isna().tolist() == [True, True, True, False]
    assert frame["paper_seconds_per_token"][3] == 0.069
    validation = generation.generation(inputs(*results, "validation"), config, "validation")
    assert (validation["paper_cas_pct"][0], frame["paper_cas_pct"][3]) == (91.37, 45.23)
    frame = point_tables.points(inputs(*results), config, "tradeoff")
    assert frame["prefill_s"][0] == pytest.approx(np.mean([2 + d for d in range(N_DOCUMENTS)]))
    assert frame["end_to_end_s"][2] == pytest.approx(frame["prefill_s"][2] + 0.1 * np.mean([10 + d for d in range(6)]))
    assert np.isnan(frame["peak_gib"][0])
    assert (frame["peak_gib"][2], frame["paper_end_to_end_s"][3]) == (6, 98.42)
    changed = {"p2": {"finish": "memory"}, "p3": {"detector": "other"}}
    rows = [row | changed.get(row["point"], {}) for row in rows_of(results[0])]
    other = inputs(*factories.saved(tmp_path, rows, rows_of(results[1]), "other-"))
    assert generation.generation(other, config, "test")["note"][2] == "6 answers ran out of memory, and count as 0"
    assert np.isnan(point_tables.points(other, config, "tradeoff")["paper_cas_pct"][3]), (
        "the paper's are of its own detector"
    )


def test_endpoints_table_counts_shared_answers_once(config, tmp_path):
    def item(name, *requests, failure=None):
        answers = [{"request": r, "prompt_tokens": 100, "completion_tokens": 10} for r in requests]
        return {"item": name, "failure": failure, "answers": answers}

    first = [item("0", "j1"), item("1", "j2", "j3", "j4", failure="shape")]
    more = [item("0", "j1"), item("1", failure="timeout"), item("2", "j5", "j6", failure="shape")]
    parts = {"writer": [[item("a", "w1"), item("b", "w2", "w3")]], "labeller": [], "judge": [first, more]}
    usage = {}
    for role, files in parts.items():
        paths = usage[f"{role}_usage"] = [tmp_path / f"{role}{number}.parquet" for number in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            write(path, "usage", rows)
    config.judge.prompt_price, config.judge.completion_price = 2000.0, 100.0
    table = endpoints.endpoints(usage, config)
    expected = {
        "n_items": [2, 0, 5], "n_failed": [0, 0, 3], "n_answers": [3, 0, 6], "n_asked_again": [1, 0, 3],
        "failures": ["", "", "2 shape, 1 timeout"], "prompt_tokens": [300, 0, 600],
    }  # fmt: skip
    assert table[[*expected]].to_dict("list") == expected
    assert table["cost_usd"].tolist() == pytest.approx([0, 0, (600 * 2000 + 60 * 100) / 1e6])
    _, rows = Table.of("endpoints", table, config).cells()
    assert all("built-in rules" in row[1] for row in rows[:2])


def test_lost_rows_are_noticed(results, detections, config, tmp_path):
    for rows, said in ((rows_of([detections])[:-1], "other tokens"), ([], "has no verdicts; make it again")):
        write(tmp_path / "short.parquet", "detections", rows)
        with pytest.raises(UserError, match=said):
            detection.load(tmp_path / "short.parquet")
    answers, scores = map(rows_of, results)
    fewer, judged = ([x for x in rows if (x["point"], x["document"]) != ("p2", "d3")] for rows in (answers, scores))
    for answered, scored, said in (
        (answers, judged, "the scores and the answers of operating point p2 are about different documents"),
        (rows_of(results[0][:1]), scores, "point p0 are about different documents"),
        (fewer, judged, "operating point p2 has answers about other documents than the first"),
        ([row for row in answers if row["point"] != "p2"], scores, "operating point p2 has scores but no answers"),
        ([], scores, "has no answers; make it again"),
    ):
        with pytest.raises(UserError, match=said):
            generation.generation(inputs(*factories.saved(tmp_path, answered, scored)), config, "test")


def test_runs_are_not_mixed(results, config, tmp_path):
    answers, scores = results
    other, moved = tmp_path / "other", tmp_path / "documents.parquet"
    write(moved, "documents", [], config="moved")
    # Other settings; the same rows of the same settings, but of other documents.
    for about, mixed in (({"config": "otherwise"}, other), ({"made_from": [moved]}, scores[0])):
        write(other, "answers", rows_of(answers[1:]), **about)
        with pytest.raises(UserError, match=f"(?s)(?=.*{answers[0]}).*{mixed}"):
            generation.generation(inputs([answers[0], other], scores), config, "test")


def test_a_table_is_saved_in_two_tiers(results, config, tmp_path):
    make("test", inputs(*results), config, tmp_path)
    files = [tmp_path / name for name in ("test.csv", "test.md", "test.tex")]
    make("curves", {"curve_table": files[:1]}, config, tmp_path / "figures")
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".csv", ".png", ".svg"}
    assert read_frame(files[0])["cas_pct"].dtype == np.float64
    brief, _, whole = files[1].read_text("utf-8").partition("<details>")
    assert "| Method | Setting | mTokens | mTokens with all passes | Attended | Seconds per token | CAS % |" in brief
    assert "| --- | --- | ---: | ---: | ---: | ---: | ---: |" in brief
    assert "Gap closed" in whole
    assert brief.count("\n| UT-ACA |") == whole.count("\n| UT-ACA |") == 2
    header, _ = Table.of("test", generation.generation(inputs(*results), config, "test"), config).cells(folded=False)
    assert len(header) == 13, "a clipped comparison shows its gain and note"
    latex = files[2].read_text("utf-8")
    assert "Gap closed" not in brief + latex
    assert "K_max" not in latex.replace(r"$K_{\max}", "").replace("K_{", "")


def test_the_best_value_of_a_column_is_bold_and_the_oracle_left_out(results, config, tmp_path):
    frame = generation.generation(inputs(*results), config, "test")
    frame["cas_pct"] = [50.04, 90.0, 50.0, 70.0]
    frame["family"] = ["infllm", "agreement", "utaca", "utaca"]
    table = Table.of("test", frame, config)
    assert table.best["cas_pct"] == [3]
    assert table.caption.endswith(
        "Bold: the best value of a column, without the agreement oracle. Columns 'paper' have the paper's figures with "
        "Llama-3.1-8B: a different model, other data."
    )
    (cas,) = (column for column in table.content().columns if column.title == "CAS %")
    assert cas.best == [3]
    for folded in (True, False):
        header, rows = table.cells(folded=folded)
        best = {(row, header[place]) for row, place in table.best_cells(folded=folded)}
        assert (3, "CAS %") in best
        assert not any("**" in cell for row in rows for cell in row)
    save(table, tmp_path)
    brief, _, whole = (tmp_path / "test.md").read_text("utf-8").partition("<details>")
    assert all("| **70" in text and "| **90" not in text for text in (brief, whole))
    assert r"\textbf{70" in (tmp_path / "test.tex").read_text("utf-8")
    frame["cas_pct"] = [70.0, 90.0, 50.0, 70.0]
    assert Table.of("test", frame, config).best["cas_pct"] == [0, 3], "equals are equally good"
    frame["cas_pct"] = [70.0, 90.0, np.nan, np.nan]
    assert "cas_pct" not in Table.of("test", frame, config).best, "one value has nothing to be better than"


def test_the_smallest_error_is_the_best(detections, config):
    table = Table.of("detection", detection.detection(seen(detections), config), config)
    errors = table.frame["ece"].dropna()
    assert len(errors) == 2
    assert table.best["ece"] == [errors.idxmin()]
    assert table.best["auroc"] == [table.frame["auroc"].idxmax()]


def test_decimals_follow_the_width_of_intervals(results, config):
    for widths, most, digits in (
        ([10.4, 11, 9.9], 2, 0), ([4.7], 2, 1), ([0.3, np.nan], 2, 2), ([0.015], 3, 3), ([0.015], 2, 2),
        ([np.nan], 2, 2), ([], 4, 4), ([0.0], 1, 1),
    ):  # fmt: skip
        assert render.digits_of(widths, most) == digits
    frame = generation.generation(inputs(*results), config, "test")
    half = (frame["cas_pct_high"] - frame["cas_pct_low"]) / 2
    assert half.median() > 10
    table = Table.of("test", frame, config)
    header, rows = table.cells()
    cells = [row[header.index("CAS %")] for row in rows]
    assert all("." not in cell and "[" in cell for cell in cells)
    assert cells[2].startswith(f"{frame['cas_pct'][2]:.0f} [")
    assert rows[0][header.index("mTokens")] == "32.0", "shown without its interval"


def test_latex_has_the_form_of_a_table_and_says_what_it_is_over(results, config):
    table = Table.of("test", generation.generation(inputs(*results), config, "test"), config)
    header, rows = table.cells(folded=False)
    caption = f"{table.caption} {table.run}"
    text = render.latex("test", caption, header, rows, table.best_cells(folded=False))
    assert all(
        part in text for part in ("6 documents", "config seed 0", r"brackets: 95\% bootstrap", r"\label{tab:test}")
    )
    assert text.isascii(), "any engine reads it"
    assert len(re.findall(r"(?<!\\)\{", text)) == len(re.findall(r"(?<!\\)\}", text))
    begun, ended = (re.findall(rf"\\{word}{{(\w+\*?)}}", text) for word in ("begin", "end"))
    assert begun == ended[::-1] == ["table*", "tabular"]
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + len(rows)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {len(header) - 1}
    (formats,) = re.findall(r"begin{tabular}{(.*)}$", text, re.MULTILINE)
    assert len(re.sub(r"p{[^}]*}", "p", formats)) == len(header)
    for bare in "#%$_":
        outside = text.replace("$K_{", "{").replace(r"\max}$", "").replace(r"$\pm$", "").replace(r"$-$", "")
        outside = re.sub(r"\$\\\w+\$", "", outside)
        assert not re.search(rf"(?<!\\)\{bare}", outside), bare


def test_latex_is_escaped():
    assert render.escape("50 % & #1_a {x} $5 ~ \\ ± < K_max=64") == (
        r"50 \% \& \#1\_a \{x\} \$5 \textasciitilde{} \textbackslash{} $\pm$ \textless{} $K_{\max}$=64"
    )
    text = render.latex("t", "100 % of a_b", ["A", "B %"], [["x & y", "1"]])
    assert all(part in text for part in (r"x \& y & 1 \\", r"\caption{100 \% of a\_b}", r"\begin{tabular}{lr}"))
    assert r"\begin{tabular}{p{0.4\textwidth}r}" in render.latex("t", "c", ["A", "B"], [["word " * 20, "1"]])


def test_markdown_keeps_its_columns():
    text = render.markdown("T", "c", ["A", "B"], [["x|y\nz", "1"]])
    assert r"| x\|y z | 1 |" in text
    cells = [["a", "1.5 [1.0, 2.0]", "–", "128 tokens", "†23.4"], ["2", "–", "", "", "2.0 ± 0.1"]]
    assert render.numeric("abcde", cells) == [False, True, False, False, True]
    assert render.bracketed(1.0, float("nan"), None, 1) == "1.0"
    assert render.with_interval({"x": 1.0, "x_sd": 0.25}, "x", 2) == "1.00 ± 0.25"
    assert render.with_interval({"x": 1.0, "x_low": 0.5, "x_high": 2.0, "x_sd": 0.25}, "x", 1) == "1.0 [0.5, 2.0]"


def test_provenance_reaches_back_to_the_first_file(tmp_path):
    names = [tmp_path / f"{number}.parquet" for number in range(3)]

    def chain(seed: str) -> str:
        for number, path in enumerate(names):
            write(path, "usage", [], config=seed if number == 0 else "", made_from=names[number - 1 : number])
        return provenance(names[2:])

    assert chain("a") != chain("b")
    detector = tmp_path / "model.safetensors"
    detector.write_bytes(b"1")
    first = provenance([detector])
    detector.write_bytes(b"2")
    assert len({provenance([]), first, provenance([detector])}) == 3


def test_a_tables_run_names_the_settings_that_leave_infllms_rules(monkeypatch) -> None:
    memory = schema.MemorySettings(representatives="tokens", far_positions="packed")
    reader = schema.ReaderSettings(name="own", path="x", dtype="float32", memory=memory)
    assert words.reader_in_words(reader) == "own (not by InfLLM's rules: representatives=tokens, far_positions=packed)"
    assert words.reader_in_words(schema.ReaderSettings(name="own", path="x", dtype="bfloat16")) == "own"
    monkeypatch.setattr("utaca.machine.natural_dtype", {"cpu": "float32", "cuda": "bfloat16"}.get)
    assert words.reader_in_words(schema.ReaderSettings(name="own", path="x", device="cuda")) == "own in bfloat16"
    assert words.reader_in_words(schema.ReaderSettings(name="own", path="x", device="cpu")) == "own in float32"
