"""The verdict in words, from answers made for each case; names and colours of what is compared."""

import itertools
from pathlib import Path

import factories
import numpy as np
import pandas as pd
import pytest
from configs import decoding, point, reference_config
from factories import inputs

from utaca.errors import UserError
from utaca.reporting import statistics
from utaca.reporting.results import label_in_words, name_in_words, points
from utaca.reporting.table import Table, read_frame, save
from utaca.reporting.tables import figures, generation, verdict
from utaca.settings import schema

ATTRIBUTES = ("major", "company", "city", "hobby")
INFLLM = [("infllm", 8, "", "", 128, 0.3), ("infllm", 16, "", "", 256, 0.5), ("infllm", 32, "", "", 512, 0.7)]


@pytest.fixture
def config() -> schema.Config:
    return reference_config(
        scale={"name": "quick"},
        detectors={"utaca": schema.DetectorSettings(), "chained": schema.DetectorSettings()},
    )


def made(
    folder: Path, given: list[tuple[str, int, str, str, float, float]], n: int = 20, failed: int = 0, passes: float = 1
):
    """Files of answers and scores. A point is (method, K, policy, trigger, tokens, mean CAS of its documents).

    All passes of an adaptive point select ``passes`` times as many tokens as the accepted ones.

    An attribute counts where its own share, spread evenly over all, is below the mean: CAS is the mean to a rounding.
    """
    answers, scores = [], []
    shares = (np.random.default_rng(1).permutation(n * len(ATTRIBUTES)) + 0.5) / (n * len(ATTRIBUTES))
    for *settings, tokens, mean in given:
        of = point(*settings)
        about = {"selected": float(tokens), "rollbacks": 1, "n_generated": 10 if tokens else 0}
        if of.policy:
            about["selected_with_tentative"] = passes * tokens
        answered = [factories.answer(f"d{d:02}", of, **about) for d in range(n)]
        judged = [
            factories.score(f"d{d:02}", of.label, attribute, None if place < failed else float(shares[place] < mean))
            for place, (d, attribute) in enumerate(itertools.product(range(n), ATTRIBUTES))
        ]
        files = factories.saved(folder, answered, judged, f"{of.label}-")
        answers, scores = answers + files[0], scores + files[1]
    return answers, scores


def judged(files, config: schema.Config) -> Table:
    """The table of the verdict as people see it."""
    return Table.of("verdict", verdict.verdict(inputs(*files), config), config)


def utaca(*points: tuple[int, float, float], trigger: str = "") -> list[tuple[str, int, str, str, float, float]]:
    """Points of UT-ACA: K_max, tokens, CAS."""
    return [("utaca", k, "sub.16", trigger, tokens, cas) for k, tokens, cas in points]


def resampled(files, terms: list[tuple[str, float]], n: int = 20) -> tuple[float, float]:
    """The interval of a weighted sum of the CAS of points, from the files as they are."""
    cas = {path.name: pd.read_parquet(path).groupby("document")["cas"].mean().to_numpy() for path in files[1]}
    counts = statistics.resample_counts(n, 200, 0, "test")
    drawn = [100 * sum(weight * float(w @ cas[f"{name}-scores.parquet"]) / n for name, weight in terms) for w in counts]
    return tuple(np.quantile(drawn, [0.025, 0.975]))


@pytest.mark.parametrize(
    ("given", "n", "start"),
    [
        ([*INFLLM, *utaca((32, 128, 0.7)), *utaca((32, 256, 0.9), trigger="agreement")], 20, "UT-ACA does better than "
         "InfLLM on 20 documents: at equal tokens, the difference in CAS is +40.0 percentage points ["),
        ([*INFLLM, *utaca((32, 128, 0.1), (64, 512, 0.4))], 20, "UT-ACA does worse than InfLLM on 20 documents: at "
         "equal tokens, on average over 2 settings, the difference in CAS is -25.0 percentage points [-2"),
        ([*INFLLM, *utaca((32, 256, 0.51)), *utaca((32, 256, 0.2), trigger="chained")], 20, "UT-ACA shows no clear "
         "difference from InfLLM on 20 documents: at equal tokens, the difference in CAS is +1.2 percentage points "
         "[0.0, 3.8]; with all passes counted, it is +1.2 percentage points [0.0, 3.8].**"),
        ([*INFLLM, *utaca((32, 256, 0.0))], 3,
         "UT-ACA does worse than InfLLM on 3 documents, too few for a firm result: at equal tokens"),
        ([*INFLLM, *utaca((32, 256, 0.0), (64, 512, 0.0))], 1,
         "UT-ACA shows no clear difference from InfLLM on 1 document, too few for a firm result: at equal tokens"),
        (utaca((32, 256, 0.9)), 20, "There is no verdict: this run decodes no point of InfLLM.**"),
        ([*INFLLM, *utaca((32, 256, 0.9), trigger="chained")], 20,
         "There is no verdict: this run decodes no point of UT-ACA with the config's detector.**"),
    ],
)  # fmt: skip
def test_the_verdict_is_a_sentence(tmp_path, config, given, n: int, start: str) -> None:
    files = made(tmp_path, given, n=n)
    table = judged(files, config)
    (sentence,) = table.lead.splitlines()
    assert sentence.startswith(f"**{start}")
    # Without a plan all is exploratory.
    assert set(table.frame["claim"]) <= {"exploratory"}
    assert table.frame["gain_p"].isna().all()
    assert len(figures.differences(table.frame, tmp_path, config)) == 2
    assert save(table, tmp_path)
    if n == 1:
        cells = [cell for row in table.cells()[1] for cell in row]
        assert not any(mark in text for text in (*cells, sentence) for mark in ("nan", "["))
        assert figures.curves(generation.generation(inputs(*files), config, "test"), tmp_path, config)


def test_a_mean_is_resampled_as_a_mean(tmp_path, config) -> None:
    files = made(tmp_path, [*INFLLM, *utaca((32, 128, 0.2), (64, 512, 0.75))])
    mean = verdict.verdict(inputs(*files), config).iloc[0]
    terms = [("utaca-K32-sub16", 0.5), ("infllm-K8", -0.5), ("utaca-K64-sub16", 0.5), ("infllm-K32", -0.5)]
    assert (mean["gain_pct_low"], mean["gain_pct_high"]) == pytest.approx(resampled(files, terms))


def test_a_gain_is_claimed_if_all_passes_have_it_too(tmp_path, config) -> None:
    given = [*INFLLM, *utaca((32, 128, 0.6))]
    both = judged(made(tmp_path, given, passes=2), config)
    said = "**UT-ACA does better than InfLLM on 20 documents: at equal tokens, the difference in CAS is +30.0 percent"
    assert both.lead.startswith(said)
    assert "]; with all passes counted, it is +10.0 percentage points [" in both.lead
    one = judged(made(tmp_path, given, passes=4), config)
    said = (
        "**UT-ACA does better than InfLLM, if only accepted passes count, on 20 documents: at equal tokens, the "
        "difference in CAS"
    )
    assert one.lead.startswith(said)
    assert "]; with all passes counted, it is -10.0 percentage points [" in one.lead
    assert one.frame["gain_all_pct"].tolist() == pytest.approx([-10])


def test_the_verdict_names_the_difference_to_the_control(tmp_path, config) -> None:
    given = [
        *INFLLM,
        *utaca((32, 128, 0.6), (64, 512, 0.75)),
        *utaca((32, 128, 0.2), (64, 512, 0.6), trigger="every.4"),
    ]
    files = made(tmp_path, given)
    table = judged(files, config)
    assert table.lead.startswith("**UT-ACA does better than InfLLM on 20 documents: at equal tokens, on average over 2")
    control = f"UT-ACA does better than {verdict.CONTROL} on 20 documents: at equal tokens, on "
    gained = "average over 2 settings, the difference in gain over InfLLM is +27.5 percentage points ["
    assert f".** {control}{gained}" in table.lead
    row = table.frame[table.frame["over"] == verdict.CONTROL].iloc[0]
    terms = [("utaca-K32-sub16", 0.5), ("utaca-K64-sub16", 0.5)]
    terms += [("no_detector-K32-sub16-every4", -0.5), ("no_detector-K64-sub16-every4", -0.5)]
    assert (row["gain_pct_low"], row["gain_pct_high"]) == pytest.approx(resampled(files, terms))
    assert row["note"] == "expands 10.0 and 10.0 % of the tokens"
    beyond = made(tmp_path, [*INFLLM, *utaca((32, 128, 0.6)), *utaca((32, 5000, 0.2), trigger="every.4")])
    assert verdict.CONTROL not in judged(beyond, config).lead, "InfLLM has no point at the control's tokens"


def planned(config: schema.Config, given, primary: str, secondary: list[str]) -> schema.Config:
    vars(config).update(decoding(test=[point(*settings[:4]) for settings in given]))
    config.plan = schema.PlanSettings(primary, secondary)
    return config


def test_the_plan_decides_what_is_claimed(tmp_path, config) -> None:
    given = [*INFLLM, *utaca((32, 128, 0.7), (64, 512, 0.1)), *utaca((32, 256, 0.2), trigger="chained")]
    given += utaca((32, 256, 0.52), trigger="agreement")
    config = planned(
        config, given, "utaca-K64-sub16", ["utaca-K32-sub16", "utaca-K32-sub16-chained", "agreement-K32-sub16"]
    )
    table = judged(made(tmp_path, given), config)
    rows = table.frame.set_index("name")
    assert dict(rows["claim"]) == {
        "UT-ACA, mean of 2": "exploratory",
        "UT-ACA K_max=32, Sub.16": "secondary",
        "UT-ACA K_max=64, Sub.16": "primary",
        "UT-ACA K_max=32, Sub.16 (chained)": "secondary",
        "Agreement oracle (both passes) K_max=32, Sub.16": "secondary",
    }
    p = rows["gain_p"]
    least = 2 / 201  # of 200 resamples, none on the other side of zero
    assert p["UT-ACA K_max=64, Sub.16"] == pytest.approx(least), "the primary one is not adjusted"
    assert p["UT-ACA K_max=32, Sub.16"] == pytest.approx(3 * least)
    assert p["Agreement oracle (both passes) K_max=32, Sub.16"] > 0.1
    said = table.lead.splitlines()
    assert said[0].startswith(
        "**UT-ACA K_max=64, Sub.16 does worse than InfLLM on 20 documents: at equal tokens, the difference in CAS is "
        "-60.0"
    )
    assert said[0].endswith("** It is the primary comparison of the plan.")


def test_a_plan_compares_two_points(tmp_path, config) -> None:
    every = point("utaca", 32, "sub.16", "every.40").label
    given = [*INFLLM, *utaca((32, 128, 0.55)), *utaca((32, 256, 0.6), trigger="never")]
    given += utaca((32, 256, 0.61), trigger="agreement")
    files = made(tmp_path, given)
    config = planned(
        config, given, "utaca-K32-sub16 over no_detector-K32-sub16",
        ["agreement-K32-sub16 over no_detector-K32-sub16", "no_detector-K32-sub16"],
    )  # fmt: skip
    table = judged(files, config)
    rows = table.frame.set_index("name")
    pair = rows.loc["UT-ACA K_max=32, Sub.16 over No detector K_max=32, Sub.16"]
    # UT-ACA gains 25 points at 128 tokens, the other 10 at 256.
    assert pair["gain_pct"] == pytest.approx(15)
    assert (pair["claim"], pair["over"]) == ("primary", "No detector K_max=32, Sub.16")
    assert pair["note"] == "expands 10.0 and 10.0 % of the tokens"
    terms = [("utaca-K32-sub16", 1), ("infllm-K8", -1), ("no_detector-K32-sub16", -1), ("infllm-K16", 1)]
    assert (pair["gain_pct_low"], pair["gain_pct_high"]) == pytest.approx(resampled(files, terms))
    assert list(rows["claim"]) == ["primary", *["secondary"] * 2, *["exploratory"] * 2]
    said = table.lead.splitlines()
    assert said[0].startswith(
        "**UT-ACA K_max=32, Sub.16 does better than No detector K_max=32, Sub.16 on 20 documents: at equal tokens, "
        "the difference in gain over InfLLM is +15.0 percentage points ["
    )
    config.plan.secondary.append(f"{every} over utaca-K32-sub16")
    with pytest.raises(UserError, match=f"the plan compares {every}, which has no answers"):
        judged(files, config)


def test_a_plan_compares_with_top_p(tmp_path, config) -> None:
    given = [*INFLLM, *utaca((32, 128, 0.55)), ("top_p", 32, "top_p.0.9", "", 256, 0.6)]
    files = made(tmp_path, given)
    top_p = point(*given[-1][:4]).label
    config = planned(config, given, "utaca-K32-sub16", [f"utaca-K32-sub16 over {top_p}"])
    rows = judged(files, config).frame.set_index("name")
    pair = rows.loc["UT-ACA K_max=32, Sub.16 over Top-p K_max=32, p=0.9"]
    # UT-ACA gains 25 points at 128 tokens, top-p 10 at 256.
    assert pair["gain_pct"] == pytest.approx(15)
    assert pair["claim"] == "secondary"
    terms = [("utaca-K32-sub16", 1), ("infllm-K8", -1), (top_p, -1), ("infllm-K16", 1)]
    assert (pair["gain_pct_low"], pair["gain_pct_high"]) == pytest.approx(resampled(files, terms))


def test_other_numbers_of_tokens_are_no_equal_tokens(tmp_path, config) -> None:
    few, many, near, *none = utaca((16, 30, 0.1), (96, 900, 0.1), (32, 123, 0.1), (64, 0, 0.0))
    table = judged(made(tmp_path, [*INFLLM, few, many], failed=2), config)
    assert " 10 judgements failed." in table.caption
    assert table.lead.startswith(
        "**UT-ACA does worse than InfLLM on 20 documents: at InfLLM's nearest number of tokens, as it has no equal "
        "one, on"
    )
    notes = dict(zip(table.frame["name"], table.frame["note"], strict=True))
    assert notes["UT-ACA K_max=16, Sub.16"] == "compared with InfLLM K=8, which selects more (128)"
    assert notes["UT-ACA K_max=96, Sub.16"] == "compared with InfLLM K=32, which selects fewer (512)"
    (tmp_path / "b").mkdir()
    table = judged(made(tmp_path / "b", [*INFLLM, ("infllm", 64, "", "", 0, 0.0), few, near, *none]), config)
    assert "at equal tokens, the difference in CAS is -20.0 percentage points" in table.lead, (
        "none beyond, or without a token"
    )


def test_the_figure_is_a_function_of_the_table_and_of_its_csv_file(tmp_path, config) -> None:
    given = [*INFLLM, *utaca((32, 140, 0.4), (64, 400, 0.4), (96, 4000, 0.4))]
    table = judged(made(tmp_path, given), config)
    paths = figures.differences(table.frame, tmp_path, config)
    assert [path.name for path in paths] == ["differences.png", "differences.svg"]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in figures.differences(table.frame, tmp_path, config)] == first
    save(table, tmp_path)
    figures.differences(read_frame(tmp_path / "verdict.csv"), tmp_path, config)
    assert paths[0].read_bytes() == first[0], "an SVG file has more digits than the CSV file"


# Names


def test_a_point_has_one_name(tmp_path, config) -> None:
    named = {
        ("infllm", 8, "", "", 128, 0.3): "InfLLM K=8",
        ("utaca", 64, "sub.16", "", 340, 0.5): "UT-ACA K_max=64, Sub.16",
        ("utaca", 64, "sub.16", "chained", 350, 0.5): "UT-ACA K_max=64, Sub.16 (chained)",
        ("utaca", 64, "set.1", "agreement", 300, 0.5): "Agreement oracle (both passes) K_max=64, Set.1",
        ("snapkv", 1024, "", "", 1024, 0.5): "SnapKV 1024 tokens",
        ("full", 0, "", "", 900, 0.5): "Full attention",
    }
    assert [name_in_words(one, config) for one in points(*made(tmp_path, [*named]))] == [*named.values()]
    decoded = [point(*settings[:4]) for settings in named]
    seeds = [point("utaca", 32, "sub.16", seeds=4), point("utaca", 32, "sub.16", "chained", seeds=4, name="mine")]
    vars(config).update(decoding(test=[*decoded, *seeds]))
    assert [label_in_words(one.label, config) for one in decoded] == [*named.values()]
    assert label_in_words("utaca-K32-sub16-seed3", config) == "UT-ACA K_max=32, Sub.16 seed 3"
    assert label_in_words("mine-seed3", config) == "UT-ACA K_max=32, Sub.16 (chained) seed 3"
    assert label_in_words("utaca-K9-sub16", config) == "utaca-K9-sub16"


def test_a_difference_that_all_documents_share_is_told_by_their_sign() -> None:
    for n, what in ((5, "shows no clear difference from"), (6, "does better than")):
        assert verdict.outcome(0.25, np.nan, np.nan, n) == what
    assert verdict.outcome(0.0, np.nan, np.nan, 50) == "shows no clear difference from"
