"""What a run consists of: paths, tables, what a command asks for."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from configs import planned, point

from utaca.errors import UserError
from utaca.reporting.registry import ENTRIES, WHEN
from utaca.reporting.table import columns, columns_of
from utaca.runs.compose import groups, points_of
from utaca.sizes import Model, Sizes
from utaca.stages import STAGES
from workflow.needs import Needs
from workflow.plan import Plan
from workflow.reporting import Reporting
from workflow.targets import Targets


@pytest.fixture(scope="module")
def plan(root: Path) -> Plan:
    return planned(root)


def test_points_with_a_detector_name_its_file(root: Path) -> None:
    seeds = {"utaca-K64-sub16-seeds": {"method": "utaca", "budget": "64", "policy": "sub.16", "seeds": "all"}}
    scale, folder = {"detector_seeds": "3"}, "results/else/detectors/margin_only"
    taken = {"other": {"taken": folder, "embedding": "false", "lstm": "false"}}
    plan = planned(root, points=seeds, decode={"test": [*seeds]}, scale=scale, detectors=taken)
    points = plan.points["test", "blocks"]
    triggers = plan.triggers(points)
    assert set(triggers) == {point.label for point in points if point.detected}
    for label, (variant, seed, path) in triggers.items():
        assert path == f"{plan.out}/detectors/{variant}/seed{seed}/model.safetensors"
        assert path in plan.detectors[variant], label
    assert triggers["utaca-K64-sub16-seeds-seed2"][:2] == ["utaca", 2]
    assert plan.detectors["other"] == [f"{folder}/seed{n}/model.safetensors" for n in range(3)]
    assert {*plan.outside()} - {*plan.inputs} == {*plan.detectors["other"]}, "the manifest has their digests"


def test_what_is_listed_can_be_made_and_every_column_is_shown_somewhere() -> None:
    for entry in ENTRIES.values():
        assert callable(getattr(import_module(f"utaca.reporting.{entry.module}"), entry.function))
    assert set(columns()) == {name for entry in ENTRIES.values() for name in columns_of(entry)}


def test_tables_are_made_of_bars_and_of_what_the_labeller_is_asked_about_benchmarks(root: Path, plan: Plan) -> None:
    calibrated = Reporting(planned(root, detectors="calibrated", points="ood_public"))
    used = calibrated.made_from("endpoints")["labeller_usage"]
    assert sum("/usage/labels/reference/tasks/qa_" in path for path in used) == 2
    read = planned(root, tasks="biographies", points="reading")
    assert (len(read.task_corpus("biographies-4k")), read.task_corpus("biographies")) == (1, []), "padded to a length"
    assert "human" not in Reporting(planned(root, decode={"test": []})).tables
    one = planned(root, points="methods_tiny", methods={"llmlingua2": {"model": f"{root}/data/readers/tiny"}})
    found = [one.classifier_files([one.settings.operating[name]]) for name in ("llmlingua2", "snapkv")]
    assert [bool(files) for files in found] == [True, False]
    usual = Reporting(plan)
    lower = Reporting(planned(root, reader={"bars": [{"set": "biographies", "limit": 50}]}))
    assert [name for name in ENTRIES if lower.shown(name) != usual.shown(name)] == ["bars"]
    fewer = Reporting(planned(root, decode={"ablation": []}))
    changed = {name for name in ENTRIES if fewer.shown(name) != usual.shown(name)}
    assert {"ablation", "two_way", "human", "cas_cases", "test"} <= changed
    assert not {"detection", "labels", "endpoints", "resources"} & changed, "they show no point"


def test_targets_that_the_config_does_not_make_are_refused(plan: Plan, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    targets, mine = Targets(Reporting(plan)), "results/mine/tables/test.csv"
    targets.check(["results/tables", f"{plan.out}/tables/test.csv", "documents", "results/corpus/cache/x"])
    with pytest.raises(UserError, match=r"belongs to run mine.*correct one of them"):
        targets.check([mine])
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/run.yaml").touch()
    for target, said in {
        mine: r"belongs to run mine.*--configfile results/mine/run\.yaml",
        f"{plan.out}/tables/sweep.md": r"sweep\.md needs points in decode\.sweep: .* --config points=tiny_full",
        f"{plan.out}/tables/bars.md": r"those of tiny are in config/runs/validation\.yaml\): .* points=reading",
        f"{plan.out}/tables/tradoff.md": r"did you mean tradeoff\?",
    }.items():
        with pytest.raises(UserError, match=said):
            targets.check([target])


def test_the_stages_are_those_of_the_workflow(plan: Plan, root: Path) -> None:
    # The corpus is a rule, and so a target of its own.
    made = Targets(Reporting(plan)).stages
    assert {name for name in made if "/" not in name} | {"corpus"} == {stage.name for stage in STAGES}
    text = "\n".join(path.read_text("utf-8") for path in (root / "workflow" / "rules").glob("*.smk"))
    rules = set(re.findall(r"^rule (\w+):", text, re.MULTILINE))
    of_stages = [rule for stage in STAGES for rule in stage.rules]
    assert len(set(of_stages)) == len(of_stages)
    assert rules - set(of_stages) == {"run_config", "manifest", "report", "readers", "public_reader"}
    assert set(of_stages) <= rules
    assert all(set(stage.checked) <= set(stage.rules) for stage in STAGES)


def test_a_hint_names_the_readers_own_group_of_points(root: Path) -> None:
    known = groups(root)["points"]
    for reader, base, full, methods in (
        ("tiny", "tiny", "points=tiny_full", "points=methods_tiny"),
        ("qwen2_7b", "qwen", "points=qwen_full", "points=methods_qwen"),
        ("llama31_8b", "llama", "points=llama_full", "points=methods"),
        ("qwen25_coder_1_5b", "public", "", "points=methods"),
        ("mine", "llama", "points=llama_full", "points=methods"),
    ):
        assert points_of(reader, root) == base
        found = [WHEN[name].option(base, known) for name in ("on_test", "sweep", "methods")]
        assert found == [f"points={base}", full, methods]


# What jobs ask of a cluster


class Big(Needs):
    """What jobs on a cluster need whose reader has Llama-3.1-8B's sizes."""

    def model(self) -> Model:
        sizes = Sizes(layers=32, heads=32, kv_heads=8, head_size=128, hidden=4096, intermediate=14336)
        return Model(self.settings.reader, sizes, 8_030_261_248, 131_072)


def big(root: Path, **reader: Any) -> Big:
    chosen = reader | {"use": "llama31_8b"}
    return Big(planned(root, reader=chosen, scale="paper", corpus="wikipedia"), here=False)


def asked(needs: Needs, split: str, attempt: int = 1) -> tuple[int, int, int]:
    """GPUs, memory (MB) and minutes of a shard of answers."""
    points = needs.plan.points[split, "blocks"]
    needed = needs.decodes(lambda wildcards: needs.split_work(wildcards.split, points))
    wildcards = SimpleNamespace(split=split)
    return needed["gpu"](wildcards), *(needed[key](wildcards, attempt) for key in ("mem_mb", "runtime"))


def test_a_clusters_jobs_ask_for_what_their_documents_take(root: Path) -> None:
    weights, tokens = 16.06e3, 400_000 * 2 * 32 * 8 * 128 * 2 / 1e6
    needs, on_cpu = big(root), big(root, device="cpu", dtype="bfloat16")
    gpu = asked(needs, "test")
    assert weights < gpu[1] < weights + 16e3, "weights pass through main memory"
    assert asked(big(root, memory={"storage": "host"}), "test")[1] > gpu[1] + tokens
    cpu = asked(on_cpu, "test")
    assert (gpu[0], cpu[0]) == (1, 0), "whatever there is here"
    assert cpu[1] > weights + tokens
    assert cpu[2] > 10 * gpu[2], "minutes"
    assert asked(needs, "test", attempt=2)[1:] == pytest.approx([2 * x for x in gpu[1:]])
    blocks = (needs.plan.size("test").tokens[-1] - 128) // 16
    shares = [point("infllm", "5%"), point("utaca", "100%", "sub.4"), point("infllm", 8)]
    assert needs.split_work("test", shares).budgets == (blocks // 20, blocks, 8)
    assert needs.split_work("validation", []).tokens == needs.settings.reader.max_new_tokens, "one attribute a question"
    profile = (root / "profiles" / "slurm" / "profile.yaml").read_text(encoding="utf-8")
    assert profile.count(" * attempt\n") == 2, "jobs of other rules ask for more as well"


def test_a_reader_that_is_not_fetched_asks_for_nothing_before_its_jobs_do(root: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    needs = Needs(planned(root, reader="llama31_8b", scale="paper", corpus="wikipedia"), here=False)
    rule = needs.decodes(lambda wildcards: needs.split_work("train", []))
    with pytest.raises(
        UserError, match=r"Llama-3\.1-8B-Instruct of reader 'llama31_8b' is not here yet; fetch it first.* readers$"
    ):
        rule["mem_mb"](SimpleNamespace(split="train"), 1)
