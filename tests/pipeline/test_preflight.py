"""What is checked before a run: each fault named with its mend, all of them at once; no network."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import call, typed
from conftest import ROOT
from safetensors.torch import save_file
from server import chat, serving

from utaca import preflight
from utaca.errors import UserError
from utaca.readers import files
from utaca.readers.checks import check_settings
from utaca.settings import runs, schema
from utaca.settings.checks import load
from utaca.settings.compose import compose
from utaca.tasks import metrics

GIB = 2**30


@pytest.fixture(autouse=True)
def in_the_checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


@pytest.fixture
def settings(root: Path) -> schema.Config:
    return load(compose({"scale": "smoke"}, root))


def said(settings: schema.Config, *stages: str, **about: Any) -> dict[str, str]:
    """What each check found, faults marked."""
    found = preflight.findings(settings, stages, **about)
    return {each.name: f"! {each.fault}" if each.fault else each.note for each in found}


def test_the_shipped_run_lacks_nothing(settings: schema.Config) -> None:
    found = said(settings, *preflight.STAGES)
    names = ["corpus", "reader", "methods", "memory", "writer and labeller and judge", "disk"]
    assert list(found) == names
    assert not [note for note in found.values() if note.startswith("!")], found
    preflight.check(settings, preflight.STAGES)


def test_people_of_a_file_need_no_writer_and_are_counted(settings: schema.Config) -> None:
    def written(path: str) -> schema.Config:
        scale = replace(settings.scale, test=replace(settings.scale.test, people=path))
        return replace(settings, scale=scale, writer=replace(settings.writer, name="away", kind="remote"))

    path = "data/biographies/handwritten.jsonl"
    found = said(written(path), "biographies", "documents")
    assert found["people"] == f"2 biographies of {path}"
    assert not [name for name in found if "writer" in name]
    assert said(written("none.jsonl"), "biographies")["people"].startswith("! none.jsonl cannot be read")


def test_a_stage_is_checked_for_what_it_needs_alone(settings: schema.Config) -> None:
    lost = replace(
        settings, reader=replace(settings.reader, path="none"), corpus=schema.CorpusSettings("x", "folder", "none")
    )
    preflight.check(lost, {"detectors", "tables", "labels"})
    assert set(said(lost, "scores")) == {"judge"}
    assert set(said(lost, "corpus")) == {"corpus"}
    preflight.check(lost, set())


def test_all_that_is_missing_is_said_at_once(settings: schema.Config) -> None:
    remote = schema.EndpointSettings(name="m", model="m", base_url="http://127.0.0.1:9/v1", patience_s=0.0)
    lost = replace(
        settings,
        reader=replace(settings.reader, path="none/there"),
        corpus=schema.CorpusSettings("x", "folder", "none/prose.jsonl"),
        judge=remote,
        labeller=replace(remote, api_key_env="NO_SUCH_KEY"),
    )
    with pytest.raises(UserError) as caught:
        preflight.check(lost, preflight.STAGES)
    first, *faults = str(caught.value).split("\n- ")
    assert first == "4 things are missing:"
    for wanted in ("none/prose.jsonl", "reader.path=none/there", "NO_SUCH_KEY", "http://127.0.0.1:9/v1 cannot be"):
        assert sum(wanted in fault for fault in faults) == 1, (wanted, faults)


def test_the_store_is_tried_if_a_server_is_asked(
    settings: schema.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    away = schema.EndpointSettings(name="m", model="m", base_url="http://127.0.0.1:9/v1", patience_s=0.0)
    served = replace(settings, answers="postgresql://ada@db1/utaca", labeller=away)
    assert "extra postgres" in said(served, "labels")["answers"]
    assert not {"answers"} & {*said(served, "detectors"), *said(served, "scores")}
    (tmp_path / "a.sqlite").write_text("no database, but long enough to be taken for one" * 100)
    assert "cannot be used" in said(replace(served, answers=str(tmp_path / "a.sqlite")), "labels")["answers"]


def test_endpoints_answer_and_list_the_model(settings: schema.Config) -> None:
    def remote(url: str) -> schema.Config:
        endpoint = schema.EndpointSettings(name="m", model="m", base_url=url)
        return replace(settings, writer=endpoint, judge=endpoint)

    with serving(chat()) as server:
        notes = said(remote(server.url), "biographies", "scores")
        assert notes["writer and judge"] == f"{server.url} answers as m"
        assert [call.path for call in server.calls] == ["/v1/models", "/v1/chat/completions"], "once for both"
    with serving(chat(models=["other"])) as server:
        assert "does not list model m; it lists other" in said(remote(server.url), "scores")["judge"]


def test_all_faults_of_methods_settings_are_told_at_once(root: Path) -> None:
    methods = {"h2o": {"heavyy": "2", "heavy": "much"}, "snapkv": {"kernel": "7"}, "window": {"budget": True}}
    with pytest.raises(UserError) as caught:
        preflight.check(load(compose({"methods": methods}, root)), {"methods"})
    assert set(str(caught.value).split("\n- ")[1:]) == {
        "unknown config key methods.h2o.heavyy; did you mean methods.h2o.heavy?",
        "methods.h2o.heavy must be a number, not 'much'.",
        "methods.window.budget must be a whole number, not True.",
    }


# Memory


def test_too_little_memory_is_said_with_the_ways_out(settings: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = {"generations"}
    reader = replace(settings.reader, device="cuda", dtype="bfloat16")
    on_gpu = replace(settings, reader=reader)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(preflight, "_weights", lambda *_: 16 * GIB)
    monkeypatch.setattr(preflight, "_longest", lambda *_: 400_000)
    monkeypatch.setattr(preflight, "_sizes", lambda _: SimpleNamespace(cache_bytes=lambda *_: 50 * GIB, hidden=8))
    free = {"gpu": 80 * GIB, "main": 64 * GIB}
    monkeypatch.setattr("utaca.settings.machine.free_gpu_memory", lambda: free["gpu"])
    monkeypatch.setattr("utaca.settings.machine.free_memory", lambda: free["main"])
    assert said(on_gpu, *stages)["memory"].startswith("66.0 GiB of the GPU, 80.0 GiB are free; 16.0 GiB of main memory")
    free["gpu"] = 40 * GIB
    assert said(on_gpu, *stages)["memory"] == (
        "! reader tiny needs 66.0 GiB of the GPU (16.0 GiB of weights and 50.0 GiB for a document of 400,000 tokens), "
        "but 40.0 GiB are free; take reader.memory.storage=host, or a smaller reader, or shorter documents."
    )
    in_host = replace(on_gpu, reader=replace(reader, memory=replace(reader.memory, storage="host")))
    assert not said(in_host, *stages)["memory"].startswith("!")
    free |= {"gpu": 80 * GIB, "main": 15 * GIB}
    assert "needs 50.0 GiB of main memory" in said(in_host, *stages)["memory"]
    assert "needs 16.0 GiB of main memory" in said(on_gpu, *stages)["memory"], "weights pass through it"
    free |= {"gpu": None, "main": None}
    assert not said(on_gpu, *stages)["memory"].startswith("!"), "unknown"
    on_cpu = replace(settings, reader=replace(settings.reader, device="cpu", dtype="float32"))
    free["main"] = 60 * GIB
    found = said(on_cpu, *stages)["memory"]
    assert "needs 66.0 GiB of main memory" in found
    assert "take reader.dtype=bfloat16, or" in found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_job_of_slurms_does_not_fall_back_from_its_gpu(
    settings: schema.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_settings(settings.reader)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    with pytest.raises(UserError, match="Slurm gave this job a GPU, but torch sees no CUDA device"):
        check_settings(settings.reader)
    check_settings(replace(settings.reader, device="cpu"))


def test_another_machines_memory_and_gpus_are_not_guessed(
    settings: schema.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("utaca.settings.machine.free_memory", lambda: 1)
    remote = replace(settings, reader=replace(settings.reader, device="cuda"))
    with pytest.raises(UserError, match=r"reader\.device=cuda, but no CUDA device"):
        preflight.check(remote, {"generations"})
    assert "memory" not in said(remote, "generations", here=False)
    preflight.check(remote, {"generations"}, here=False)


# Benchmarks of other domains


@pytest.fixture
def asking(root: Path, tmp_path: Path) -> schema.Config:
    """A run that asks two sets, and a detector that learns from a third; the files of all lie there."""
    sets = {
        "a": {"task": "qa_1", "length": 3000, "examples": 2},
        "b": {"task": "qmsum", "length": 0},
        "c": {"task": "qa_2", "length": 900, "budgets": [2], "examples": 4, "evidence": ["complete", "missing"]},
    }
    overrides = {"scale": "smoke", "tasks": {"path": str(tmp_path), "sets": sets}}
    overrides |= {"points": {"full": {"method": "full"}}, "decode": {"a": ["full"], "b": ["full"]}}
    settings = load(compose(overrides | {"detectors": {"utaca": {"sets": ["c"]}}}, root))
    for path in ("RULER/dev-v2.0.json", "LongBench/qmsum.jsonl", "RULER/hotpot_dev_distractor_v1.json"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    return settings


def test_sets_that_are_asked_or_learned_from_are_checked(asking: schema.Config) -> None:
    folder = asking.tasks.path
    found = said(asking, *preflight.STAGES)
    assert found["tasks"] == f"3 sets of 3 files in {folder}"
    assert not [note for note in found.values() if note.startswith("!")], found
    assert list(said(asking, "tasks")) == ["reader", "tasks", "methods", "memory", "disk"]
    assert said(asking, "tasks")["tasks"] == f"2 sets of 2 files in {folder}"
    learning = said(asking, "detectors")
    assert learning["tasks"] == f"1 sets of 1 files in {folder}"
    assert {"reader", "memory"} <= learning.keys(), "trajectories are decoded"
    assert said(asking, "tasks", sets=["c"])["tasks"] == f"1 sets of 1 files in {folder}"
    assert list(said(asking, "corpus", "tasks", sets=[])) == ["corpus"]
    assert "a document of 3,000 tokens" in said(asking, "tasks")["memory"]
    lost = replace(asking, reader=replace(asking.reader, path="org/m"))
    assert said(lost, "detectors")["reader"].startswith("!"), "weights are wanted where a set is decoded"


def test_all_faults_of_sets_are_said_at_once(asking: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = asking.tasks.sets
    sets["a"].length = 20
    sets["c"].files = {"questions": "gone.json"}
    monkeypatch.setitem(metrics.VERSIONS, "rouge", "9.9")
    found = re.split("; (?=tasks)", said(asking, "tasks", "detectors")["tasks"].removeprefix("! "))
    folder = asking.tasks.path
    for fault, (begin, within) in zip(
        found,
        [
            ("tasks.sets.a: task qa_1 fills a prompt up to its set's length", "which is 20; give it"),
            ("tasks.sets.b: the task's metric needs rouge 9.9", 'pip install "utaca[benchmarks]"'),
            (f"tasks.sets.c: {folder}/gone.json", "is not there"),
        ],
        strict=True,
    ):
        assert fault.startswith(begin)
        assert within in fault
    sets["a"].task = "qa_9"
    found = said(asking, "tasks")
    assert found["tasks"].count("tasks.sets.a: no task is called 'qa_9'") == 1
    assert not found["disk"].startswith("!"), "counts what is known"


# Weights and disk


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub that holds the config of model org/m; its folder. The hub itself cannot be reached."""
    snapshot = tmp_path / "models--org--m" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--m" / "refs").mkdir()
    (tmp_path / "models--org--m" / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("utaca.readers.checks.check", lambda reader: None)
    monkeypatch.setattr(preflight, "_memory", lambda *_: "")
    monkeypatch.setattr(preflight, "_sizes", lambda reader: SimpleNamespace(hidden=8))
    return snapshot


def test_a_hub_models_weights_are_in_the_cache_or_to_be_fetched(settings: schema.Config, hub: Path) -> None:
    config = replace(settings, reader=replace(settings.reader, name="m", path="org/m"))
    with pytest.raises(UserError, match=r"has no weights in the cache, and the hub cannot be asked.*hf download org/m"):
        preflight.check(config, {"generations"})
    shards = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (hub / "model.safetensors.index.json").write_text(json.dumps(shards))
    save_file({"a": torch.zeros(512, 1024)}, hub / "1.safetensors")
    assert said(config, "generations")["reader"].startswith("!"), "half of them"
    save_file({"b": torch.zeros(3, 5)}, hub / "2.safetensors")
    assert said(config, "generations")["reader"] == "org/m, 2 MiB of weights in the cache"
    assert files.parameters(files.weights(config.reader)) == 512 * 1024 + 15


def test_a_fetched_reader_is_pinned_or_told_how(settings: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def download(path: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(revision)
        assert "*.safetensors" in allow_patterns
        if path == "org/gated":
            raise OSError("403 Client Error\nmore")
        return f"/cache/{'b' * 40}"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    reader = replace(settings.reader, name="m", path="org/m")
    assert files.fetch(reader).endswith(f"pin them by reader={{use: m, revision: {'b' * 40}}}")
    assert "pin" not in files.fetch(replace(reader, revision="v1"))
    assert asked == [None, "v1"]
    with pytest.raises(UserError, match=r"org/gated\) cannot be fetched from the hub: 403 Client Error; a gated model"):
        files.fetch(replace(reader, path="org/gated"))
    assert "1 files of weights" in files.fetch(settings.reader), "a folder is what it is"


def test_weights_to_be_fetched_want_room(settings: schema.Config, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"model-1.safetensors": 10 * GIB, "model-2.safetensors": 6 * GIB, "model.bin": 99 * GIB}
    listed = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: listed)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=12 * GIB))
    config = replace(settings, reader=replace(settings.reader, name="m", path="org/m"))
    found = said(config, "generations")
    assert found["reader"] == "org/m, 16.0 GiB of weights to be fetched"
    assert found["disk"].startswith("! weights take 16.0 GiB, but 12.0 GiB are free in")
    assert "HF_HOME" in found["disk"]


def test_results_want_room(settings: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(settings, scale=replace(settings.scale, test=replace(settings.scale.test, biographies=10**6)))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=GIB))
    assert said(settings, "documents")["disk"] == "about 0 MiB for results, 1.0 GiB are free"
    found = said(large, "documents")["disk"]
    assert found.startswith("! results take about 11.6 GiB, but 1.0 GiB are free in results;")


# The command


def test_the_command_tells_a_line_a_check(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("scale: {use: smoke}\njudge: {use: gpt_oss_120b, patience_s: 0}\n")
    address = "judge={base_url: 'http://127.0.0.1:9/v1'}"
    done = typed("preflight", "--configfile", str(file), "--config", address, "run=fresh")
    lines = done.stdout.splitlines()
    assert done.exit_code == 1
    assert lines[0] == "ok     config: run fresh"
    assert [line for line in lines if line.startswith("fault")] == [
        "fault  judge: http://127.0.0.1:9/v1 cannot be reached; start the server or correct base_url"
    ]
    done = typed("preflight", "--config", "scale=smoke", "run=fresh")
    assert done.exit_code == 0
    assert all(line.startswith("ok ") for line in done.stdout.splitlines())


def test_the_command_names_a_config_that_cannot_be_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.yaml").write_bytes("run: J\u00fcrgen".encode("latin-1"))
    runs.write(compose({"scale": "smoke"}, root), Path("results/smoke/run.yaml"))
    files = [["--configfile", name] for name in ("none.yaml", "latin.yaml", ".")]
    wrong = [(words, "--config") for words in (["--config", "smoke"], ["--config", "run=#x"], *files)]
    wrong += [(["--config", "jugde=x"], "unknown config key jugde; did you mean judge?")]
    wrong += [(["--config", "scale=smoke", "run=smoke", "seed=3"], "run smoke in results/smoke was made with another")]
    for words, sentence in wrong:
        done = typed("preflight", *words)
        assert done.exit_code == 1
        assert done.stdout.startswith(f"fault  config: {sentence}"), words


def test_the_command_tells_of_letters_that_the_terminal_lacks() -> None:
    done = call(ROOT, sys.executable, "-m", "utaca", "preflight", "--config", "reader=模型", PYTHONIOENCODING="latin-1")
    assert done.returncode == 1
    assert r"\u6a21\u578b" in done.stdout


def test_jobs_are_checked_by_what_their_rules_need(asking: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    monkeypatch.setattr(preflight, "check", lambda settings, stages, **about: found.update(stages=stages, **about))

    def job(rule: str, **wildcards: str) -> SimpleNamespace:
        return SimpleNamespace(rule=SimpleNamespace(name=rule), wildcards_dict=wildcards)

    jobs = [job("label", split="test"), job("generate", kind="methods"), job("report"), job("task_scores", task="c")]
    preflight.check_jobs(asking, jobs, here=False)
    assert found["stages"] - {""} == {"labels", "generations", "methods"}
    assert (found["sets"], found["here"]) == (["c"], False)
