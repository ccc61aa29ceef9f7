"""What a run consists of: paths, tables, what a command asks for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from utaca import preflight
from utaca.errors import UserError
from utaca.plan import KINDS, SPLITS, STAGES, Plan
from utaca.reporting.registry import ENTRIES, WHEN, Entry
from utaca.reporting.table import CELLS, columns, columns_of
from utaca.settings.command import read, runs_here
from utaca.settings.compose import compose
from utaca.settings.modules import closure, code
from utaca.sizes import Model, Sizes


def planned(root: Path, **overrides: Any) -> Plan:
    return Plan(compose(overrides, root), root / "src")


@pytest.fixture(scope="module")
def plan(root: Path) -> Plan:
    return planned(root)


def test_everything_of_a_run_lies_in_its_folder(plan: Plan) -> None:
    files = [path for stage in STAGES for path in plan.stage(stage)]
    assert plan.folder == f"results/{plan.settings.run}"
    outside = [path for path in files if not path.startswith(f"{plan.folder}/")]
    assert outside == [plan.report] == [f"results/tables/{plan.settings.run}.html"]
    assert len(set(files)) == len(files)


def test_two_runs_share_no_file(root: Path, plan: Plan) -> None:
    other = planned(root, seed=1)
    files, others = ({path for stage in STAGES for path in one.stage(stage)} for one in (plan, other))
    assert not files & others


def test_every_point_is_decoded_once_by_its_kind(root: Path) -> None:
    plan = planned(root, suites="methods")
    for split in ("validation", "test"):
        labels = [point.label for kind in KINDS for point in plan.points(split, kind)]
        assert len(labels) == len(set(labels))
        suites = [suite for suite in plan.settings.suites.values() if suite.split == split]
        named = {p.label for suite in suites for p in plan.settings.ran(suite)}
        assert set(labels) == named
    assert all(point.in_blocks for point in plan.points("test", "blocks"))
    assert not any(point.in_blocks for point in plan.points("test", "methods"))
    assert plan.decoded == [("validation", "blocks"), ("test", "methods"), ("test", "blocks")]
    others, blocks = plan.points("test", "methods"), plan.points("test", "blocks")
    assert set(plan.methods(others)) == {point.base or point.method for point in others}
    assert plan.methods(blocks) == {}


def test_points_with_a_detector_name_its_file(root: Path) -> None:
    plan = planned(root, suites="llama_full", scale={"detector_seeds": "3"})
    triggers = plan.triggers(plan.points("test", "blocks"))
    for label, (variant, seed, path) in triggers.items():
        assert path == f"{plan.folder}/detectors/{variant}/seed{seed}/model.safetensors"
        assert path in plan.detectors[variant], label
    assert triggers["utaca-K64-sub16-seed2"][:2] == ["utaca", 2]
    assert set(plan.trigger_files(plan.points("test", "blocks"))) == {path for *_, path in triggers.values()}


def test_shards_are_those_of_the_scale(root: Path) -> None:
    plan = planned(root, scale={"train": {"shards": "3"}})
    assert [Path(path).name for path in plan.trajectories("train")] == [f"part-{n}.parquet" for n in range(3)]
    assert len(plan.generations("answers", "test", "blocks")) == plan.size("test").shards
    assert plan.generations("answers", "test", "methods") == []


def test_a_detector_without_a_judge_needs_no_labels(root: Path) -> None:
    plan = planned(root, detectors="paper")
    assert plan.training_labels("needed", "train") == []
    assert plan.training_labels("utaca", "train") == [f"{plan.labels}/train.parquet"]


# Tables


@pytest.mark.parametrize(
    ("overrides", "more"),
    [
        ({"suites": "tiny_full"}, {"seeds", "sweep"}),
        ({"suites": "methods_tiny"}, {"methods", "equal_budgets"}),
        ({"detectors": "paper"}, {"triggers", "triggers_validation"}),
        ({"scale": {"replays": "2"}}, {"replay", "bound", "failures", "cases"}),
    ],
)
def test_options_bring_their_tables(root: Path, plan: Plan, overrides: dict[str, Any], more: set[str]) -> None:
    assert set(planned(root, **overrides).tables) - set(plan.tables) == more
    assert not more & set(plan.tables)


def test_every_table_is_made_from_files_of_the_run(root: Path) -> None:
    plan = planned(root, suites="llama_variants", detectors="paper", scale={"replays": "2"})
    made = {path for stage in STAGES for path in plan.stage(stage)}
    made |= set(plan.tokenizer_files)
    made |= {path.replace("/answers-", f"/{what}-") for path in made for what in ("traces", "replays")}
    for name in plan.tables:
        for group, files in plan.made_from(name).items():
            beside = group.endswith(("_usage", "trace_labels", "uncorrected", "replay_scores"))
            assert beside or set(files) <= made, (name, group)


def test_a_table_depends_on_the_code_that_makes_it_alone(root: Path) -> None:
    script = root / "workflow" / "scripts" / "table.py"
    reached = {
        name: {Path(path).stem for path in closure(script, root / "src", f"utaca.reporting.{ENTRIES[name].module}")}
        for name in ENTRIES
    }
    assert "scorers" in reached["scorers"]
    assert "scorers" not in reached["test"] | reached["labels"] | reached["detection"]
    assert "detection" not in reached["scorers"] | reached["endpoints"]
    assert all("table" in found and "registry" in found for found in reached.values())
    digests = {code(script, root / "src", f"utaca.reporting.{ENTRIES[name].module}") for name in ("test", "labels")}
    assert len(digests) == 2


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_what_is_listed_can_be_made(entry: Entry, plan: Plan) -> None:
    assert callable(getattr(import_module(f"utaca.reporting.{entry.module}"), entry.function))
    assert set(entry.files) <= set(plan.named)
    assert entry.when in WHEN
    assert (entry.kind == "table") == bool(entry.columns)
    assert all(column.meaning and column.cell in ("", *CELLS) for column in columns_of(entry).values())


def test_every_column_is_shown_somewhere() -> None:
    assert set(columns()) == {name for entry in ENTRIES.values() for name in columns_of(entry)}


# What a command asks for


def test_targets_that_the_config_does_not_make_are_refused(plan: Plan) -> None:
    plan.check_targets(["results/tables", f"{plan.folder}/tables/test.csv", "documents"])
    with pytest.raises(UserError, match=r"seeds\.md needs a suite with table: seeds: .* --config suites=tiny_full"):
        plan.check_targets([f"{plan.folder}/tables/seeds.md"])
    with pytest.raises(UserError, match=r"did you mean results/quick/tables/tradeoff\.md\?"):
        plan.check_targets([f"{plan.folder}/tables/tradoff.md"])


def test_a_target_of_another_run_is_refused(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan.check_targets(["results/mine/tables/test.csv"])  # snakemake says that nothing makes it
    Path("results/mine").mkdir(parents=True)
    Path("results/mine/run.yaml").touch()
    with pytest.raises(UserError, match=r"belongs to run mine.*--configfile results/mine/run\.yaml"):
        plan.check_targets(["results/mine/tables/test.csv"])


def test_a_taken_detector_is_where_it_is_taken_from(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = "results/else/detectors/margin"
    taking = planned(root, detectors={"other": {"taken": folder, "embedding": "false", "lstm": "false"}})
    files = [f"{folder}/seed{n}/model.safetensors" for n in range(8)]
    for path in (*files[:2], *files[3:]):
        Path(path).parent.mkdir(parents=True)
        Path(path).touch()
    assert taking.detectors["other"] == [*files[:2], *files[3:]], "of the others the checks before the first job say so"
    told = rf"^detectors\.other\.taken is {folder}, but {files[2]} does not exist; first make the detectors of the run"
    preflight.check(taking.settings, {"labels"})
    with pytest.raises(UserError, match=told):
        preflight.check(taking.settings, {"detections"})
    Path(files[2]).parent.mkdir()
    Path(files[2]).touch()
    assert taking.detectors["other"] == files
    assert set(files) < set(taking.stage("detectors"))
    preflight.check(taking.settings, {"detections"})


def test_splits_and_stages_are_known() -> None:
    assert SPLITS == ("train", "validation", "test")


def test_what_a_command_line_says_beside_its_targets() -> None:
    line = ["snakemake", "--cores", "2", "results/tables", "--config", "scale=smoke"]
    said = read(line)
    assert (list(said.targets), said.dryrun, said.touch, runs_here(said)) == (["results/tables"], False, False, True)
    assert read([*line, "-n"]).dryrun
    assert read([*line, "--touch"]).touch
    assert not runs_here(read([*line, "--workflow-profile", "slurm"])), "a cluster's nodes have another memory"
    assert runs_here(read([*line, "--workflow-profile", "default"]))


# What jobs ask of a cluster


def big(settings: dict[str, Any], root: Path) -> Plan:
    """A run of a reader of Llama-3.1-8B's sizes, whose jobs run on a cluster."""
    config = compose({"reader": settings | {"use": "llama31_8b"}, "scale": "paper", "corpus": "wikipedia"}, root)
    plan = Plan(config, root / "src", here=False)
    sizes = Sizes(layers=32, heads=32, kv_heads=8, head_size=128, hidden=4096, intermediate=14336)
    plan.__dict__["model"] = Model(plan.settings.reader, sizes, 8_030_261_248, 131_072)
    return plan


def asked(plan: Plan, split: str, attempt: int = 1) -> tuple[int, int, int]:
    """GPUs, memory (GB) and minutes of a shard of answers."""
    found = plan.decodes(lambda wildcards: plan.answer_work(wildcards.split, "blocks"))
    wildcards = SimpleNamespace(split=split)
    return found["gpu"](wildcards), *(found[key](wildcards, attempt) for key in ("mem_mb", "runtime"))


@pytest.mark.parametrize("here", [0, 8])
def test_a_clusters_jobs_ask_by_the_reader_alone(root: Path, monkeypatch: pytest.MonkeyPatch, here: int) -> None:
    monkeypatch.setattr("utaca.plan.gpus", lambda: here)
    assert asked(big({}, root), "test")[0] == 1, "auto is a GPU for a large reader"
    assert asked(big({"device": "cpu"}, root), "test")[0] == 0
    small = Plan(compose({}, root), root / "src", here=False)
    assert asked(small, "test")[0] == 0
    assert Plan(compose({}, root), root / "src").gpu == int(here > 0), "here, auto is what there is"


def test_conditions_of_evidence_are_documents_to_decode(root: Path) -> None:
    evidence = {"scale": {"train": {"evidence": ["complete", "partial", "missing"]}}}
    once, thrice = (Plan(compose(own, root), root / "src").trajectory_work("train") for own in ({}, evidence))
    assert thrice.documents == 3 * once.documents


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
    validation = big({}, root).answer_work("validation", "blocks")
    assert validation.tokens == big({}, root).settings.reader.max_new_tokens, "one attribute a question"
    assert asked(big({"device": "cpu"}, root), "validation")[1] < asked(big({"device": "cpu"}, root), "test")[1]


def test_a_local_run_asks_for_gpus_alone(plan: Plan) -> None:
    assert set(plan.decodes(lambda wildcards: plan.trajectory_work("train"))) == {"gpu"}
    assert plan.learns("train") == {}


def test_a_reader_that_is_not_fetched_asks_for_nothing_before_its_jobs_do(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = compose({"reader": "llama31_8b", "scale": "paper", "corpus": "wikipedia"}, root)
    plan = Plan(config, root / "src", here=False)
    rule = plan.decodes(lambda wildcards: plan.trajectory_work(wildcards.split))
    with pytest.raises(UserError, match=r"Llama-3\.1-8B-Instruct is not here yet; fetch it first.* readers$"):
        rule["mem_mb"](SimpleNamespace(split="train"), 1)


# Benchmarks of other domains


@pytest.fixture
def asking(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan whose suite asks two sets, and whose detector learns from a third."""
    monkeypatch.chdir(tmp_path)
    sets = {
        "a": {"task": "qa_1", "length": 900},
        "b": {"task": "qa_2", "length": 900},
        "c": {"task": "meetings", "budgets": [2]},
    }
    suites = {"ood": {"split": "tasks", "sets": ["a", "b"], "points": [{"method": "full"}]}}
    return planned(root, tasks={"sets": sets}, suites=suites, detectors={"utaca": {"sets": ["c"]}})


def test_a_set_without_its_file_is_refused_where_it_is_needed(asking: Plan) -> None:
    assert asking.task_files("a") == []
    told = {
        "a": r"RULER/dev-v2\.0\.json, file 'questions' of task qa_1, is not there",
        "c": r"QMSum/test\.jsonl, file 'rows' of task meetings, is not there",
    }
    for name, sentence in told.items():
        with pytest.raises(UserError, match=sentence):
            preflight.check(asking.settings, set(), sets=[name])
    path = Path(asking.settings.tasks.path, "RULER", "dev-v2.0.json")
    path.parent.mkdir(parents=True)
    path.touch()
    assert asking.task_files("a") == [str(path)]


def test_a_classifier_of_llmlingua2_is_an_input_once_it_is_trained(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(root, suites="methods_tiny")
    folder = Path(plan.settings.methods["llmlingua2"]["model"])
    assert folder == Path("results/training/llmlingua_classifier")
    assert plan.classifier("methods") == []
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    assert plan.classifier("methods") == [str(folder / "model.safetensors")]
    assert str(folder / "model.safetensors") in plan.inputs
    assert plan.classifier("blocks") == []
    assert str(folder / "model.safetensors") not in planned(root).inputs
