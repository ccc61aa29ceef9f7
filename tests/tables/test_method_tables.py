"""Tables of context-management methods: against plain restatements; and methods at operating points."""

from unittest.mock import Mock

import numpy as np
import pytest
from configs import decoding, point, reference_config
from small import make_reader
from test_generation_tables import ADAPTIVE, FIXED, brute, made
from test_trajectories import asked, decoded

from utaca.generation.points import Decoded
from utaca.records import read, write
from utaca.records.journal import Journal
from utaca.reporting import statistics
from utaca.reporting.results import points
from utaca.reporting.table import Table
from utaca.reporting.tables import methods
from utaca.settings import schema

OWN = [("snapkv", 128, "", -1, 128.0, 0.4), ("snapkv", 512, "", -1, 512.0, 0.6), ("window", 512, "", -1, 512.0, 0.1)]

DOCUMENT = {"id": "d", "text": "the cat sat " * 30, "person": "Ann Lee", "facts": [{"attribute": "major"}]}


@pytest.fixture
def config() -> schema.Config:
    return reference_config(scale={"bootstrap": 300}, detectors={"utaca": schema.DetectorSettings()})


def decoded_by_methods(reader, documents, points, settings, journal) -> Decoded:
    return decoded(reader, asked(reader, documents), points, journal, settings=settings)


def both(folder, own=OWN):
    """Files of methods' points and of those decoded from block memory, and both as points."""
    (folder / "own").mkdir()
    files, blocks = made(folder / "own", own), made(folder, FIXED + ADAPTIVE)
    return files, blocks, points(*files), points(*blocks)


def shown(name, own, decoded, config, monkeypatch) -> Table:
    """The table ``name`` of points of methods and of points decoded from block memory."""
    with monkeypatch.context() as patch:
        patch.setattr(methods, "others_and_blocks", lambda *_: (own, decoded))
        return Table.of(name, getattr(methods, name)({}, config), config)


def edited(files, name, **columns):
    """One point's answers written again with other values in some columns."""
    answers, scores = files
    path = next(path for path in answers if path.name.startswith(name))
    rows = read(path, "answers").to_pylist()
    for row, *values in zip(rows, *columns.values(), strict=True):
        row |= dict(zip(columns, values, strict=True))
    write(path, "answers", rows)
    judged = next(path for path in scores if path.name.startswith(name))
    write(judged, "scores", read(judged, "scores").to_pylist(), made_from=[path])


def test_a_method_is_held_against_the_nearest_adaptive_point(tmp_path, config, monkeypatch) -> None:
    files, blocks, own, decoded = both(tmp_path)
    frame = shown("methods", own, decoded, config, monkeypatch).frame
    rows = frame.set_index(["method", "setting"])
    assert list(frame["method"]) == ["SnapKV"] * 2 + ["Window only"] + ["InfLLM"] * 3 + ["UT-ACA"] * 2
    row = rows.loc["SnapKV", "512 tokens"]
    assert (row["prefill"], rows.loc["Window only", "512 tokens"]["prefill"]) == ("quadratic", "linear")
    assert row["nearest_utaca"] == "K_max=64, Sub.16"

    def difference(drawn) -> float:
        mine, other = brute(*files, "snapkv-512", drawn)[1], brute(*blocks, "utaca-K64-sub16-seed0", drawn)[1]
        return 100 * (mine - other)

    assert row["difference_pct"] == pytest.approx(difference(range(7)))
    counts = statistics.resample_counts(7, 300, 0, "test").astype(int)
    resampled = [difference([d for d in range(7) for _ in range(one[d])]) for one in counts]
    low, high = np.quantile(resampled, [0.025, 0.975])
    assert [row["difference_pct_low"], row["difference_pct_high"]] == pytest.approx([low, high])
    assert row["read_pct"] == pytest.approx(90), "100 of 1,000 tokens were cut"
    assert np.isnan(rows.loc["UT-ACA", "K_max=64, Sub.16"]["difference_pct"])
    # The paper's figures beside are those of the same reader.
    for reader, snapkv, infllm in [("tiny", 23.43, 25.81), ("qwen2_7b", np.nan, 37.77)]:
        config.reader.name = reader
        table = shown("methods", own, decoded, config, monkeypatch)
        beside = table.frame.set_index(["method", "setting"])["paper_cas_pct"]
        assert beside["InfLLM", "K=8"] == infllm
        assert beside["SnapKV", "512 tokens"] == pytest.approx(snapkv, nan_ok=True)
        assert f"the paper's figures with {'Qwen2-7B' if reader == 'qwen2_7b' else 'Llama-3.1-8B'}" in table.caption


def test_a_trigger_on_a_method_failures_and_what_did_not_run_have_their_rows(tmp_path, config, monkeypatch) -> None:
    name = "utaca-retrieval_attention"
    own = [*OWN, (name, 512, "sub.128", 0, 300.0, 0.5), ("llmlingua2", 0, "", -1, 100.0, 0.4)]
    files, _, _, decoded = both(tmp_path, own)
    edited(files, "snapkv-512", finish=["memory", "incoherent", *["eos"] * 5])
    edited(files, "llmlingua2", finish=["not run: needs model X"] * 7, n_generated=[0] * 7)
    whole = shown("methods", points(*files), decoded, config, monkeypatch)
    rows = whole.frame.set_index("method")
    row = rows.loc["UT-ACA on RetrievalAttention"]
    assert (row["setting"], row["prefill"]) == ("K_max=512 tokens, Sub.128", "quadratic")
    assert row["cas_pct"] == pytest.approx(100 * brute(*files, f"{name}-512-sub128-seed0", range(7))[1])
    assert row["nearest_utaca"] == "K_max=64, Sub.16", "it is held against UT-ACA as the others are"
    assert np.isnan(row["paper_cas_pct"])
    row = rows[rows["setting"] == "512 tokens"].loc["SnapKV"]
    assert (row["n_memory"], row["n_incoherent"]) == (1, 1)
    assert row["cas_pct"] == pytest.approx(100 * brute(*files, "snapkv-512", range(7))[1])
    assert row["cas_whole_pct"] == pytest.approx(100 * brute(*files, "snapkv-512", range(2, 7))[1])
    assert rows.loc["LLMLingua-2", ["cas_pct", "mtokens", "attended", "peak_gib"]].isna().all()
    assert "LLMLingua-2 was not run: needs model X." in whole.caption
    alone = shown("methods", points(*files)[-1:], [], config, monkeypatch)
    assert alone.cells()[1][0][:2] == ["LLMLingua-2", "not run"]


def test_settings_that_are_not_the_sources_are_named(tmp_path, config, monkeypatch) -> None:
    own = [("snapkv", 128, "", -1, 128.0, 0.4), ("freqkv", 0, "", -1, 9.0, 0.1), ("llmlingua2", 0, "", -1, 9.0, 0.1)]
    *_, found, decoded = both(tmp_path, own)
    config.run = "tiny"
    config.methods = {
        "snapkv": {"budget": 64, "window": 16, "kernel": 7},
        "freqkv": {"budget": 640, "sink": 4},
        "llmlingua2": {"model": "results/training/llmlingua_classifier", "force_tokens": ["\n", "?", "!", "."]},
    }
    table = shown("methods", found, decoded, config, monkeypatch)
    settings = dict(zip(table.frame["method"], table.frame["setting"], strict=True))
    assert settings["SnapKV"] == "128 tokens, window=16"
    assert settings["FreqKV"] == "budget=640"
    assert settings["LLMLingua-2"] == "model=results/training/llmlingua_classifier"
    assert "a small classifier that this project trains" in table.caption
    config.methods["llmlingua2"]["model"] = "microsoft/llmlingua-2-xlm-roberta-large-meetingbank"
    assert "a small classifier" not in shown("methods", found, decoded, config, monkeypatch).caption


def test_a_point_of_every_detector_seed_is_one_row(tmp_path, config) -> None:
    (tmp_path / "own").mkdir()
    adaptive = [("utaca", 32, "sub.16", seed, 150.0, chance) for seed, chance in ((0, 0.2), (1, 0.9))]
    own, blocks = made(tmp_path / "own", OWN[:1]), made(tmp_path, FIXED + adaptive)
    config.scale.detector_seeds = 2
    shown = [*(point("infllm", budget) for _, budget, *_ in FIXED), point("utaca", 32, "sub.16", seeds=schema.ALL)]
    vars(config).update(decoding(test=shown, methods=[point("snapkv", 128)]))
    names = ("method_answers", "method_scores", "test_answers", "test_scores")
    files = dict(zip(names, (*own, *blocks), strict=True))
    both_seeds = np.mean([brute(*blocks, f"utaca-K32-sub16-seed{seed}", range(7))[1] for seed in (0, 1)])
    frame = methods.methods(files, config).set_index("method")
    row = frame.loc["UT-ACA"]
    assert (row["cas_pct"], row["n_documents"]) == (pytest.approx(100 * both_seeds), 7)
    # Points of block memory alone, which the section may name too.
    config.decode["methods"] = config.decode["test"]
    alone = methods.methods(files | {"method_answers": [], "method_scores": []}, config)
    assert list(alone["method"]) == [name for name in frame.index if name != "SnapKV"]


def test_a_model_that_a_method_brings_is_part_of_what_its_answers_are_journaled_under(tmp_path, monkeypatch) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"one")
    monkeypatch.setattr("utaca.methods.window.WindowOnly.files", lambda self: [model])
    points = [point("window"), point("full"), point("window", 40)]  # the last one is the first under another name
    settings = {"window": {"budget": 40, "n_init": 4}, "full": {}}

    def journaled() -> int:
        decoded_by_methods(make_reader(), [DOCUMENT], points, settings, Journal(tmp_path / "j", "x"))
        return len(list((tmp_path / "j").rglob("*.parquet")))

    assert journaled() == 2
    model.write_bytes(b"two")
    assert journaled() == 3, "asked again, and the other method's answer found"
    model.write_bytes(b"three")
    monkeypatch.setattr("utaca.generation.answers.generate", Mock(side_effect=MemoryError))
    assert journaled() == 3, "what lacked memory is decoded again"


@pytest.mark.parametrize(
    ("refused", "settings", "finish"),
    [
        (point("llmlingua2"), {"llmlingua2": {"model": "nowhere"}}, "not run: needs"),
        (point("freqkv", 512), {"freqkv": {"chunk": 64}},
         "not run: method freqkv: budget=512 means a cache of 1020, which exceeds the 700"),
    ],
)  # fmt: skip
def test_a_point_that_cannot_be_run_gives_a_row_that_says_why(tmp_path, refused, settings, finish) -> None:
    reader, other = make_reader(), point("freqkv", 128)
    reader.settings.positions = 700
    settings = {"freqkv": {"chunk": 64}} | settings
    found = decoded_by_methods(reader, [DOCUMENT], [refused, other], settings, Journal(tmp_path / "j", "x"))
    (row,) = found.answers[refused.label].to_pylist()
    assert row["finish"].startswith(finish)
    assert row["n_generated"] == len(found.traces[refused.label]) == 0
    assert found.answers[other.label]["n_generated"][0].as_py() > 0, "it stops no other"
