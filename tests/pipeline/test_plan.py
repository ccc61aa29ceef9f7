"""What a run consists of: paths, tables, what a command asks for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from configs import planned, run_files

from utaca import preflight
from utaca.errors import UserError
from utaca.reporting.registry import ENTRIES, WHEN, TableEntry
from utaca.reporting.table import CELLS, columns, columns_of
from utaca.settings.modules import closure, code
from utaca.sizes import Model, Sizes


@pytest.fixture(scope="module")
def plan(root: Path) -> Any:
    return planned(root)


def test_everything_of_a_run_lies_in_its_folder(plan: Any) -> None:
    assert f"results/{plan.SETTINGS.run}" == plan.OUT
    outside = {path for path in run_files(plan) if not path.startswith(f"{plan.OUT}/")}
    assert outside == {plan.REPORT, *plan.TOKENIZER_FILES}
    assert f"results/tables/{plan.SETTINGS.run}.html" == plan.REPORT


def test_every_point_is_decoded_once_by_its_kind(root: Path) -> None:
    plan = planned(root, points="methods")
    for split in ("validation", "test"):
        labels = [point.label for kind in plan.KINDS for point in plan.POINTS.get((split, kind), [])]
        assert len(labels) == len(set(labels))
        sections = plan.SETTINGS.sections(split)
        assert set(labels) == {point.label for section in sections for point in plan.SETTINGS.decoded(section)}
    others, blocks = plan.POINTS["test", "methods"], plan.POINTS["test", "blocks"]
    assert all(point.in_blocks for point in blocks)
    assert not any(point.in_blocks for point in others)
    assert set(plan.POINTS) == {("validation", "blocks"), ("test", "methods"), ("test", "blocks")}
    assert set(plan.methods_of(others)) == {point.base or point.method for point in others}
    assert plan.methods_of(blocks) == {}


def test_points_with_a_detector_name_its_file(root: Path) -> None:
    seeds = {"utaca-K64-sub16-seeds": {"method": "utaca", "budget": "64", "policy": "sub.16", "seeds": "all"}}
    plan = planned(root, points=seeds, decode={"test": [*seeds]}, scale={"detector_seeds": "3"})
    points = plan.POINTS["test", "blocks"]
    triggers = plan.triggers(points)
    assert set(triggers) == {point.label for point in points if point.detected}
    for label, (variant, seed, path) in triggers.items():
        assert path == f"{plan.OUT}/detectors/{variant}/seed{seed}/model.safetensors"
        assert path in plan.DETECTORS[variant], label
    assert triggers["utaca-K64-sub16-seeds-seed2"][:2] == ["utaca", 2]
    assert plan.trigger_files(points) == sorted({path for *_, path in triggers.values()})


def test_shards_are_those_of_the_scale(root: Path) -> None:
    plan = planned(root, scale={"train": {"shards": "3"}})
    names = [Path(path).name for path in plan.shards(plan.TRAJECTORIES, "train")]
    assert names == [f"part-{n}.parquet" for n in range(3)]
    assert len(plan.generations("answers", "test", "blocks")) == plan.size("test").shards
    assert plan.generations("answers", "test", "methods") == []


def test_a_detector_without_a_judge_needs_no_labels(root: Path) -> None:
    plan = planned(root, detectors="paper")
    assert "train_labels" not in plan.lessons("needed")
    assert plan.lessons("utaca")["train_labels"] == [f"{plan.LABELS}/train.parquet"]


# Tables


@pytest.mark.parametrize(("points", "table"), [("tiny_full", "sweep"), ("methods_tiny", "methods")])
def test_options_bring_their_tables(root: Path, plan: Any, points: str, table: str) -> None:
    assert set(planned(root, points=points).TABLES) - set(plan.TABLES) == {table}


def test_a_table_depends_on_the_code_that_makes_it_alone(root: Path) -> None:
    script = root / "workflow" / "scripts" / "table.py"
    reached = {
        name: {Path(path).stem for path in closure(script, root / "src", f"utaca.reporting.{ENTRIES[name].module}")}
        for name in ENTRIES
    }
    assert "retrieval" in reached["retrieval"]
    assert "retrieval" not in reached["test"] | reached["labels"] | reached["detection"]
    assert "detection" not in reached["retrieval"] | reached["endpoints"]
    assert all("table" in found and "registry" in found for found in reached.values())
    digests = {code(script, root / "src", f"utaca.reporting.{ENTRIES[name].module}") for name in ("test", "labels")}
    assert len(digests) == 2


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_what_is_listed_can_be_made(entry: TableEntry, plan: Any) -> None:
    assert callable(getattr(import_module(f"utaca.reporting.{entry.module}"), entry.function))
    assert set(plan.made_from(entry.name)) == set(entry.files)
    assert entry.when in WHEN
    assert (entry.kind == "table") == bool(entry.columns)
    assert all(column.meaning and column.cell in ("", *CELLS) for column in columns_of(entry).values())


def test_every_column_is_shown_somewhere() -> None:
    assert set(columns()) == {name for entry in ENTRIES.values() for name in columns_of(entry)}


# What a command asks for


def test_targets_that_the_config_does_not_make_are_refused(plan: Any) -> None:
    plan.check_targets(["results/tables", f"{plan.OUT}/tables/test.csv", "documents"])
    with pytest.raises(UserError, match=r"sweep\.md needs points in decode\.sweep: .* --config points=tiny_full"):
        plan.check_targets([f"{plan.OUT}/tables/sweep.md"])
    with pytest.raises(UserError, match=r"did you mean tradeoff\?"):
        plan.check_targets([f"{plan.OUT}/tables/tradoff.md"])


def test_a_target_of_another_run_is_refused(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan.check_targets(["results/mine/tables/test.csv"])  # snakemake says that nothing makes it
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/run.yaml").touch()
    with pytest.raises(UserError, match=r"belongs to run mine.*--configfile results/mine/run\.yaml"):
        plan.check_targets(["results/mine/tables/test.csv"])


def test_a_taken_detector_is_where_it_is_taken_from(root: Path) -> None:
    folder = "results/else/detectors/margin"
    plan = planned(root, detectors={"other": {"taken": folder, "embedding": "false", "lstm": "false"}})
    assert plan.DETECTORS["other"] == [f"{folder}/seed{n}/model.safetensors" for n in range(8)]
    assert plan.TAKEN.keys() == {"other"}


# What jobs ask of a cluster


def big(settings: dict[str, Any], root: Path) -> Any:
    """A run of a reader of Llama-3.1-8B's sizes, whose jobs run on a cluster."""
    reader = settings | {"use": "llama31_8b"}
    plan = planned(root, here=False, reader=reader, scale="paper", corpus="wikipedia")
    sizes = Sizes(layers=32, heads=32, kv_heads=8, head_size=128, hidden=4096, intermediate=14336)
    plan.model = lambda: Model(plan.SETTINGS.reader, sizes, 8_030_261_248, 131_072)
    return plan


def asked(plan: Any, split: str, attempt: int = 1) -> tuple[int, int, int]:
    """GPUs, memory (GB) and minutes of a shard of answers."""
    needed = plan.decodes(lambda wildcards: plan.split_work(wildcards.split, plan.POINTS[wildcards.split, "blocks"]))
    wildcards = SimpleNamespace(split=split)
    return needed["gpu"](wildcards), *(needed[key](wildcards, attempt) for key in ("mem_mb", "runtime"))


@pytest.mark.parametrize("here", [0, 8])
def test_a_clusters_jobs_ask_by_the_reader_alone(root: Path, monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    monkeypatch.setattr("utaca.settings.machine.gpus", lambda: here)
    assert asked(big({}, root), "test")[0] == 1, "auto is a GPU for a large reader"
    assert asked(big({"device": "cpu"}, root), "test")[0] == 0
    assert asked(planned(root, here=False), "test")[0] == 0
    assert planned(root).gpu() == int(here > 0), "here, auto is what there is"


def test_a_clusters_jobs_ask_for_what_their_documents_take(root: Path) -> None:
    weights, tokens = 16.06e3, 400_000 * 2 * 32 * 8 * 128 * 2 / 1e6
    gpu = asked(big({}, root), "test")[1]
    assert weights < gpu < weights + 16e3, "weights pass through main memory"
    host = asked(big({"memory": {"storage": "host"}}, root), "test")[1]
    assert host > gpu + tokens
    cpu = asked(big({"device": "cpu", "dtype": "bfloat16"}, root), "test")
    assert cpu[1] > weights + tokens
    assert cpu[2] > 10 * asked(big({}, root), "test")[2], "minutes"
    assert asked(big({}, root), "test", attempt=2)[1:] == pytest.approx(
        [2 * x for x in asked(big({}, root), "test")[1:]]
    )
    validation = big({}, root).split_work("validation", [])
    assert validation.tokens == big({}, root).SETTINGS.reader.max_new_tokens, "one attribute a question"
    assert asked(big({"device": "cpu"}, root), "validation")[1] < asked(big({"device": "cpu"}, root), "test")[1]


def test_a_local_run_asks_for_gpus_alone(plan: Any) -> None:
    assert set(plan.decodes(lambda wildcards: plan.split_work("train", []))) == {"gpu"}
    assert plan.learns("train") == {}


def test_a_reader_that_is_not_fetched_asks_for_nothing_before_its_jobs_do(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    plan = planned(root, here=False, reader="llama31_8b", scale="paper", corpus="wikipedia")
    rule = plan.decodes(lambda wildcards: plan.split_work("train", []))
    with pytest.raises(UserError, match=r"Llama-3\.1-8B-Instruct is not here yet; fetch it first.* readers$"):
        rule["mem_mb"](SimpleNamespace(split="train"), 1)


# Benchmarks of other domains


@pytest.fixture
def asking(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that asks two sets, and whose detector learns from a third."""
    monkeypatch.chdir(tmp_path)
    sets = {
        "a": {"task": "qa_1", "length": 900},
        "b": {"task": "qa_2", "length": 900},
        "c": {"task": "meetings", "budgets": [2]},
    }
    points, decode = {"full": {"method": "full"}}, {"a": ["full"], "b": ["full"]}
    detectors = {"utaca": {"sets": ["c"]}}
    return planned(root, tasks={"sets": sets}, points=points, decode=decode, detectors=detectors)


def test_a_set_without_its_file_is_refused_where_it_is_needed(asking: Any) -> None:
    assert asking.task_files("a") == []
    told = {
        "a": r"RULER/dev-v2\.0\.json, file 'questions' of task qa_1, is not there",
        "c": r"QMSum/test\.jsonl, file 'rows' of task meetings, is not there",
    }
    for name, sentence in told.items():
        with pytest.raises(UserError, match=sentence):
            preflight.check(asking.SETTINGS, set(), sets=[name])
    path = Path(asking.SETTINGS.tasks.path, "RULER", "dev-v2.0.json")
    path.parent.mkdir(parents=True)
    path.touch()
    assert asking.task_files("a") == [str(path)]
