"""The benchmark of the engine on tiny sizes: what its table says, not how fast it was."""

from __future__ import annotations

import math
import runpy
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from small import make_reader, some_tokens
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerBase

from utaca import load_reader
from utaca.benchmarks import detectors as training
from utaca.benchmarks import endpoints
from utaca.decoding.benchmark import measure, shape
from utaca.decoding.benchmark.answers import decode, decode_bare, engine_step, passes, schedule
from utaca.decoding.benchmark.floors import Costs, Machine
from utaca.decoding.benchmark.loop import BlockLoop
from utaca.decoding.benchmark.rows import RATIO, Bar, Part, Row
from utaca.decoding.policies import Sub
from utaca.errors import UserError
from utaca.memory import prefill
from utaca.settings.schema import Memory

PLAN = {
    "decode": [2048, 2560],
    "prefill": [2048, 3072],
    "dense": [2048, 2560],
    "resident": 4096,
    "budget": 32,
    "tokens": 12,
    "every": 4,
    "repeats": 2,
}
SHAPE = {"length": 600, "budgets": [4, 8], "tokens": 8, "every": 4, "repeats": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """What the script writes."""
    folder, reader = tmp_path_factory.mktemp("benchmarks"), asdict(load_reader("tiny").settings)
    job = SimpleNamespace(
        log=[str(folder / "engine.log")],
        output=[str(folder / "engine.csv")],
        threads=torch.get_num_threads(),
        config={"reader": {**reader, "device": "cpu"}},
        params=SimpleNamespace(plan=PLAN, shape=SHAPE),
    )
    runpy.run_path(str(root / "workflow" / "scripts" / "benchmark_engine.py"), init_globals={"snakemake": job})
    return folder


def test_every_figure_stands_beside_its_bar_parts_and_floor(folder: Path) -> None:
    table = pd.read_csv(folder / "engine.csv", keep_default_na=False, na_values=[""])
    ours = table[~table["what"].str.startswith("random 8B shape")]
    bars = ["<= 1.5", "<= 1.6", "<= 1.2", "<= 1.1", None, ">= 5", ">= 5", ">= 5", "<= 3.22123e+09"]
    assert [bar for bar, expected in zip(ours["bar"], bars, strict=True) if expected] == [bar for bar in bars if bar]
    assert set(ours["verdict"]) <= {"met", "missed"}
    ratios = ours[ours["unit"] == RATIO]
    assert len(ratios) == 7
    assert (ratios["repeats"] == PLAN["repeats"]).all()
    assert ((ratios["low"] <= ratios["value"]) & (ratios["value"] <= ratios["high"])).all()
    measured = ours[ours["unit"] != "passes"]
    assert (measured[["ours", "against", "floor", "distance"]] > 0).all(axis=None)
    assert measured[["ours_name", "against_name", "floor_work"]].notna().all(axis=None)
    assert (measured["distance"] - measured["ours"] / measured["floor"]).abs().max() < 1e-3 * measured["distance"].max()
    (memory,) = ours[ours["unit"] == "B"].to_dict("records")
    assert memory["value"] > memory["floor"]

    text = (folder / "engine.md").read_text(encoding="utf-8")
    assert text.count("\n| ") == 1 + len(table) + 1
    assert "synthetic" in text


def test_forward_passes_are_those_of_the_tokens_and_the_rollbacks(folder: Path) -> None:
    table = pd.read_csv(folder / "engine.csv")
    (row,) = table[table["unit"] == "passes"].to_dict("records")
    # Steps 3, 7 and 11 of 12 expand at each of four adaptive operating points, in two repeats.
    assert "24 rollbacks in 96 tokens" in row["what"]
    assert row["value"] == 1 + 24 / 96
    assert (row["bar"], row["verdict"]) == ("= 1.25", "met")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is at hand")
def test_without_a_gpu_its_rows_say_so(folder: Path) -> None:
    table = pd.read_csv(folder / "engine.csv")
    big = table[table["what"].str.startswith("random 8B shape")]
    assert len(big) == 2 * (1 + len(SHAPE["budgets"]) + 2) + 1
    assert big["what"].str.contains("blocks on device: time a token with CUDA graphs").sum() == 1
    assert set(big["verdict"]) == {"not measured (no CUDA device)"}
    assert big["value"].isna().all()
    assert "not measured (no CUDA device)" in (folder / "engine.md").read_text(encoding="utf-8")


def test_times_by_context_and_their_figure(folder: Path) -> None:
    table = pd.read_csv(folder / "engine_contexts.csv")
    assert list(zip(table["context"], table["reader"], strict=True)) == [
        (2048, "block memory"),
        (2048, "full attention"),
        (2560, "block memory"),
        (2560, "full attention"),
        (3072, "block memory"),
    ]
    own = table[table["reader"] == "block memory"]
    assert (own[[c for c in table if c.endswith("_floor")]] > 0).all(axis=None)
    assert (folder / "engine.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "engine.svg").read_text(encoding="utf-8")


@pytest.fixture
def big() -> tuple[LlamaConfig, torch.device, PreTrainedTokenizerBase, dict[str, Memory], shape.Plan]:
    """The code for GPUs, on the CPU with a small shape."""
    config = shape.llama31_8b()
    config.update(
        {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 5000}
    )
    small = {"n_init": 16, "n_local": 128, "prefill_chunk": 64, "prefill_budget": 2}
    memories = {storage: Memory(storage=storage, **small) for storage in shape.PEAKS}
    tokenizer, plan = load_reader("tiny").tokenizer, shape.Plan(**SHAPE)
    return config, torch.device("cpu"), tokenizer, memories, plan


def test_a_big_shape_is_measured_the_same_way_on_any_device(big: tuple) -> None:
    *_, memories, plan = big
    rows = shape.measure(*big)
    without = shape.not_measured(memories, plan, "no reason")
    assert [(row.what, row.unit, row.bar) for row in rows] == [(row.what, row.unit, row.bar) for row in without]
    assert {row.verdict for row in without} == {"not measured (no reason)"}
    assert all(len(row.values) == plan.repeats and row.distance > 0 for row in rows)
    assert all(row.against.name == "full attention" and row.against.amount > 0 for row in rows)


def test_what_does_not_fit_says_so(big: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr(shape.dense, "generate", no_room)
    assert {row.against.name for row in shape.measure(*big)} == {"full attention: out of memory on GPU"}
    monkeypatch.setattr(shape, "decode", lambda *_: None)
    monkeypatch.setattr(shape, "prefill", no_room)
    rows = shape.measure(*big)
    assert {row.verdict for row in rows} == {"not measured (out of memory on GPU)"}


def test_the_8b_shape_has_8b_weights() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape.llama31_8b())
    assert sum(weight.numel() for weight in model.parameters()) == 8_030_261_248


@pytest.mark.parametrize("kind", ["llama", "llama-wide", "qwen3"])
def test_the_block_loop_gives_what_the_engine_gives(kind: str) -> None:
    """So many tokens that blocks leave the window, so many blocks that they give way in the cache."""
    memory = prefill(make_reader(kind), some_tokens(400))
    ours, loop = engine_step(memory, 100), BlockLoop(memory, 100, 5)
    for number, token in enumerate(some_tokens(60, seed=2).split(1)):
        tokens, budget = (some_tokens(7), 2) if number == 0 else (token, 5)
        torch.testing.assert_close(loop.step(tokens, budget), ours(tokens, budget), rtol=1e-4, atol=1e-4)
    assert all(len(layer.used) == 10 and len(layer.units) > memory.layout.far(400) for layer in loop.layers)


def test_bare_passes_choose_the_tokens_of_an_answer() -> None:
    settings = Memory(n_init=4, n_local=64, block_size=8, prefill_chunk=16, prefill_budget=2)
    memory = prefill(make_reader(memory=settings), some_tokens(400))
    memory.reader.stop_tokens = frozenset()
    with passes(memory.reader) as seen:
        answer = decode(memory, 5, 12, policy=Sub(2), interventions=schedule(12, 4))
    budgets = [token.k for token in answer.trace]
    chosen: list[int] = []
    step = engine_step(memory, 200)

    def note(tokens: torch.Tensor, budget: int) -> torch.Tensor:
        chosen.append(int(tokens[-1]))
        return step(tokens, budget)

    decode_bare(memory, note, budgets)
    assert chosen[2:] == [token.token for token in answer.trace][:-1]
    assert seen.count == 1 + 12 + 3


def test_floors_count_what_the_method_asks_for() -> None:
    reader = make_reader(memory=Memory(n_init=4, n_local=24, block_size=8, prefill_budget=2))
    costs = Costs.of(reader)
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 80 + 2 * 64
    assert costs.body == 3 * layer
    # 3 layers, 2 key-value heads of 16, keys and values, 4 bytes.
    token = 3 * 2 * 16 * 2 * 4
    # (100 + 1 - 24 - 4) // 8 = 9 far blocks; the output projection in float32.
    assert costs.pass_bytes(100, 50) == 4 * 3 * layer + 4 * 97 * 64 + 9 * token / 2 + 50 * token
    attended = sum(min(position + 1, 4 + 24 + 16) for position in range(100))
    assert costs.prefill_flops(100) == 2 * 3 * layer * 100 + 4 * 3 * 4 * 16 * attended
    memory = prefill(reader, some_tokens(100))
    tensors = [*(store.tokens for store in [*memory.keys, *memory.values]), *memory.representatives]
    kept = sum(x.numel() * x.itemsize for x in tensors)
    assert costs.resident_bytes(100) == kept + costs.model * 4 + 4 * 97 * 64


def test_verdicts() -> None:
    assert Row("", RATIO, (1.0, 9.0, 2.0), Bar("<=", 2.0), Part("", 6.0), None, 2.0).verdict == "met"
    assert Row("", RATIO, (1.0,), Bar(">=", 2.0)).verdict == "missed"
    assert Row("", RATIO, reason="why").verdict == "not measured (why)"
    assert Row("", RATIO, (1.0,)).verdict == ""
    assert math.isnan(Row("", RATIO).distance)


def test_a_plan_too_small_is_refused() -> None:
    plan = measure.Plan(**PLAN)
    reader = make_reader()
    for wrong, said in (
        (replace(plan, decode=(100, 2560)), "shortest context"),
        (replace(plan, tokens=4), "too short"),
    ):
        with pytest.raises(UserError, match=said):
            measure.measure(reader, wrong, Machine(1.0, 1.0))


def test_training_is_measured_alone_and_side_by_side():
    found = list(training.measure([16], [1], seeds=3, steps=4))
    assert [(one.width, one.threads, one.seeds, one.steps) for one in found] == [(16, 1, 1, 4), (16, 1, 3, 4)]
    assert all(one.step_s > 0 and one.cpu_s > 0 for one in found)
    data = training.random_sequences(20, 16, 0)
    assert (int(data.length.min()), int(data.length.max())) <= training.LENGTHS
    assert [data.step[row] for row in data.position[3, : data.length[3]]] == list(range(int(data.length[3])))


def test_the_client_is_measured_beside_the_least_possible(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    (found,) = endpoints.measure(6, concurrency=2, seconds=0.01, runs=1)
    assert found.ideal_s == pytest.approx(6 * 0.01 / 2)
    assert found.took_s >= found.ideal_s
    assert found.ratio == found.took_s / found.ideal_s
