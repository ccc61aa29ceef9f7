"""What is checked before a run: each fault named with its mend, all of them at once; no network."""

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
from safetensors.torch import save_file
from server import chat, serving

from utaca.errors import UserError
from utaca.readers import files
from utaca.readers.checks import check_settings
from utaca.runs import preflight
from utaca.runs import record as runs
from utaca.runs.compose import compose
from utaca.settings import schema
from utaca.settings.checks import load
from utaca.tasks import metrics

GIB = 2**30


@pytest.fixture(autouse=True)
def in_the_checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


@pytest.fixture(autouse=True)
def without_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is not there is asked once, not six times with pauses of 23 seconds in all."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def settings(root: Path) -> schema.Config:
    return load(compose({"scale": "smoke"}, root))


def but(settings: Any, **changes: Any) -> Any:
    """Settings with other values; a mapping changes keys of a section."""
    new = {key: but(getattr(settings, key), **x) if isinstance(x, dict) else x for key, x in changes.items()}
    return replace(settings, **new)


def said(settings: schema.Config, *stages: str, **about: Any) -> dict[str, str]:
    """What each check found, faults marked."""
    found = preflight.findings(settings, stages, **about)
    return {each.name: f"! {each.fault}" if each.fault else each.note for each in found}


AWAY = schema.EndpointSettings(name="m", model="m", base_url="http://127.0.0.1:9/v1", patience_s=0.0)


def test_people_of_a_file_need_no_writer_and_are_counted(settings: schema.Config) -> None:
    path = "data/biographies/handwritten.jsonl"
    found = said(but(settings, scale={"test": {"people": path}}, writer=AWAY), "biographies", "documents")
    assert found["people"] == f"2 biographies of {path}"
    assert not [name for name in found if "writer" in name]
    none = but(settings, scale={"test": {"people": "none.jsonl"}})
    assert said(none, "biographies")["people"].startswith("! none.jsonl cannot be read")


def test_all_that_a_stage_needs_and_nothing_else_is_said_at_once(settings: schema.Config) -> None:
    found = said(settings, *preflight.STAGES)
    assert found["window"].endswith("initial tokens and window: train 65%, validation 65%, test 85%")
    assert list(found) == ["corpus", "window", "reader", "methods", "memory", "writer and labeller and judge", "disk"]
    assert not [note for note in found.values() if note.startswith("!")], found
    corpus, keyless = schema.CorpusSettings("x", "folder", "none/prose.jsonl"), replace(AWAY, api_key_env="NO_SUCH_KEY")
    taken = settings.detectors | {"mine": schema.DetectorSettings(taken="none/mine")}
    lost = but(settings, reader={"path": "none/there"}, corpus=corpus, judge=AWAY, labeller=keyless)
    lost = replace(lost, detectors=taken)
    with pytest.raises(UserError) as caught:
        preflight.check(lost, preflight.STAGES)
    first, *faults = str(caught.value).split("\n- ")
    assert first == "5 things are missing:"
    for wanted in ("none/prose.jsonl", "reader.path=none/there", "NO_SUCH_KEY", "http://127.0.0.1:9/v1 cannot be",
                   "detectors.mine.taken is none/mine, but none/mine/seed0/model.safetensors"):  # fmt: skip
        assert sum(wanted in fault for fault in faults) == 1, (wanted, faults)
    preflight.check(lost, {"detectors", "tables"})
    assert set(said(lost, "scores")) == {"answers", "judge"}
    assert set(said(lost, "corpus")) == {"corpus"}


def test_endpoints_answer_and_list_the_model(settings: schema.Config) -> None:
    with serving(chat()) as server:
        endpoint = replace(AWAY, base_url=server.url)
        notes = said(but(settings, writer=endpoint, judge=endpoint), "biographies", "scores")
        assert notes["writer and judge"] == f"{server.url} answers as m"
        assert [call.path for call in server.calls] == ["/v1/models", "/v1/chat/completions"], "once for both"


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

ON_GPU, ON_HOST = {"device": "cuda", "dtype": "bfloat16"}, {"memory": {"storage": "host"}}
MEMORY = [
    (ON_GPU, 80, 64, "66.0 GiB of the GPU, 80.0 GiB are free; 16.0 GiB of main memory"),
    (ON_GPU, 40, 64, "! reader tiny needs 66.0 GiB of the GPU (16.0 GiB of weights and 50.0 GiB for a document of "
     "400,000 tokens), but only 40.0 GiB are free; use reader.memory.storage=host, or a smaller reader, or shorter"),
    (ON_GPU | ON_HOST, 40, 64, "16.0 GiB of the GPU, 40.0 GiB are free; 50.0 GiB of main memory"),
    (ON_GPU, 80, 15, "! reader tiny needs 16.0 GiB of main memory"),  # weights pass through it
    (ON_GPU, None, None, "66.0 GiB of the GPU; 16.0 GiB of main memory"),
    ({"device": "cpu", "dtype": "float32"}, 80, 60, "! reader tiny needs 66.0 GiB of main memory (16.0 GiB of "
     "weights and 50.0 GiB for a document of 400,000 tokens), but only 60.0 GiB are free; use reader.dtype=bfloat16"),
]  # fmt: skip
"""A reader, GiB that are free on the GPU and in main memory, and what is said of it."""


def test_too_little_memory_is_said_with_the_ways_out(settings: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(preflight, "_weights", lambda *_: 16 * GIB)
    monkeypatch.setattr(preflight, "_longest", lambda *_: 400_000)
    monkeypatch.setattr(preflight, "_sizes", lambda _: SimpleNamespace(cache_bytes=lambda *_: 50 * GIB, hidden=8))
    for reader, gpu, main, sentence in MEMORY:
        monkeypatch.setattr("utaca.machine.free_gpu_memory", lambda free=gpu: free and free * GIB)
        monkeypatch.setattr("utaca.machine.free_memory", lambda free=main: free and free * GIB)
        assert said(but(settings, reader=reader), "generations")["memory"].startswith(sentence)


def test_a_gpu_is_neither_guessed_nor_done_without(settings: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("utaca.machine.free_memory", lambda: 1)
    remote = but(settings, reader={"device": "cuda"})
    with pytest.raises(UserError, match=r"reader\.device=cuda, but no CUDA device"):
        preflight.check(remote, {"generations"})
    assert "memory" not in said(remote, "generations", here=False)
    preflight.check(remote, {"generations"}, here=False)
    check_settings(settings.reader)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    with pytest.raises(UserError, match="Slurm gave this job a GPU, but torch sees no CUDA device"):
        check_settings(settings.reader)
    check_settings(but(settings.reader, device="cpu"))
    monkeypatch.delenv("SLURM_GPUS_ON_NODE")
    graphs = but(settings.reader, graphs=True)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(UserError, match=r"graphs=true, but no CUDA.* \(nvidia-smi.*, or leave reader\.graphs out"):
        check_settings(graphs)
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(UserError, match=r"built without CUDA\. Install torch with CUDA .*, or set reader\.device=cpu"):
        check_settings(remote.reader)


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


def test_sets_that_are_asked_or_learned_from_are_checked(
    asking: schema.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, tasks = said(asking, *preflight.STAGES), said(asking, "tasks")
    assert not [note for note in found.values() if note.startswith("!")], found
    assert list(tasks) == ["reader", "tasks", "methods", "memory", "disk"]
    assert "a document of 3,000 tokens" in tasks["memory"]
    numbers = [each["tasks"].split()[:4] for each in (found, tasks, said(asking, "detectors"))]
    assert numbers == [[str(n), "sets", "of", str(n)] for n in (3, 2, 1)]
    assert said(asking, "tasks", sets=["c"])["tasks"] == f"1 sets of 1 files in {asking.tasks.path}"
    assert list(said(asking, "corpus", "tasks", sets=[])) == ["corpus"]
    lost = but(asking, reader={"path": "org/m"})
    assert said(lost, "detectors")["reader"].startswith("!"), "weights are wanted where a set is decoded"
    rules = {"label": {}, "generate": {"kind": "methods"}, "report": {}, "task_scores": {"task": "c"}}
    jobs = [SimpleNamespace(rule=SimpleNamespace(name=x), wildcards_dict=rules[x]) for x in rules]
    monkeypatch.setattr(preflight, "check", lambda settings, stages, **about: found.update(stages=stages, **about))
    preflight.check_jobs(asking, jobs, here=False)
    assert found["stages"] - {""} == {"labels", "generations", "methods"}
    assert (found["sets"], found["here"]) == (["c"], False)


def test_all_faults_of_sets_are_said_at_once(asking: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = asking.tasks.sets
    sets["a"].length = 20
    sets["c"].files = {"questions": "gone.json"}
    monkeypatch.setitem(metrics.VERSIONS, "rouge", "9.9")
    assert re.fullmatch(
        r"! tasks\.sets\.a: task qa_1 needs a length above .*has length=20; raise length; "
        r"tasks\.sets\.b: the task's metric needs rouge 9\.9.*pip install \"utaca\[benchmarks\]\".*; "
        r"tasks\.sets\.c: .*/gone\.json.*does not exist.*",
        said(asking, "tasks", "detectors")["tasks"],
    )
    sets["a"].task = "qa_9"
    found = said(asking, "tasks")
    assert found["tasks"].count("tasks.sets.a: there is no task 'qa_9'") == 1
    assert not found["disk"].startswith("!"), "counts what is known"


# Weights and disk


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub that holds the config of model org/m; its folder. The hub itself cannot be reached."""
    snapshot, refs = tmp_path / "models--org--m" / "snapshots" / ("a" * 40), tmp_path / "models--org--m" / "refs"
    snapshot.mkdir(parents=True)
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("utaca.readers.checks.check", lambda reader: None)
    monkeypatch.setattr(preflight, "_memory", lambda *_: "")
    monkeypatch.setattr(preflight, "_sizes", lambda reader: SimpleNamespace(hidden=8))
    return snapshot


HUB = {"name": "m", "path": "org/m"}


def test_a_hub_models_weights_are_in_the_cache_or_to_be_fetched_and_want_room(
    settings: schema.Config, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = but(settings, reader=HUB)
    assert said(config, "documents")["reader"] == "org/m"
    with pytest.raises(UserError, match=r"has no weights in the cache, and the hub cannot be reached.*download org/m"):
        preflight.check(config, {"generations"})
    sizes = {"1.safetensors": 10 * GIB, "2.safetensors": 6 * GIB, "1.bin": 99 * GIB, "consolidated.safetensors": GIB}
    listed = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()])
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: listed)
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=GIB))
        found = said(config, "generations")
        assert found["reader"] == "org/m, 16.0 GiB of weights to be fetched"
        assert found["disk"].startswith("! weights take 16.0 GiB, but only 1.0 GiB are free in")
        assert "HF_HOME" in found["disk"]
        assert said(settings, "documents")["disk"] == "about 0 MiB for results, 1.0 GiB are free"
        full = said(but(settings, scale={"test": {"biographies": 10**6}}), "documents")["disk"]
        assert full.startswith("! results take about 11.6 GiB, but only 1.0 GiB are free in results;")
        listed.siblings.clear()
        assert "has no .safetensors files on the hub; set" in said(config, "generations")["reader"]
    shards = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (hub / "model.safetensors.index.json").write_text(json.dumps(shards))
    save_file({"a": torch.zeros(512, 1024)}, hub / "1.safetensors")
    assert said(config, "generations")["reader"].startswith("!"), "half of them"
    save_file({"b": torch.zeros(3, 5)}, hub / "2.safetensors")
    assert said(config, "generations")["reader"] == "org/m, 2 MiB of weights in the cache"
    assert files.parameters(files.weights(config.reader)) == 512 * 1024 + 15


def test_a_fetched_reader_is_pinned_or_told_how(settings: schema.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(path: str, revision: str | None, allow_patterns: list[str], ignore_patterns: str) -> str:
        assert ("*.safetensors" in allow_patterns, ignore_patterns) == (True, "consolidated*")
        if path == "org/gated":
            raise OSError("403 Client Error\nmore")
        return f"/cache/{(revision or 'b') * 40}"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    reader = but(settings.reader, **HUB)
    assert files.fetch(reader).endswith(f"pin them by reader={{use: m, revision: {'b' * 40}}}")
    pinned = files.fetch(replace(reader, revision="v1"))
    assert "v1" * 40 in pinned
    assert "pin" not in pinned
    with pytest.raises(UserError, match=r"org/gated\) cannot be fetched from the hub: 403 Client Error; a gated model"):
        files.fetch(replace(reader, path="org/gated"))
    assert "1 files of weights" in files.fetch(settings.reader), "a folder is what it is"


# The command


def test_the_command_tells_a_line_a_check(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("scale: {use: smoke}\njudge: gpt_oss_120b\n")
    address = "judge={base_url: 'http://127.0.0.1:9/v1', patience_s: 0}"
    done = typed("preflight", "--configfile", str(file), "--config", address, "run=fresh")
    assert done.exit_code == 1
    first, *lines = done.stdout.splitlines()
    assert first == "ok     config: run fresh"
    assert [line for line in lines if not line.startswith("ok ")] == [
        "fault  judge: http://127.0.0.1:9/v1 cannot be reached; start the server or correct base_url"
    ]
    assert typed("preflight", "--config", "scale=smoke", "run=fresh").exit_code == 0


def test_the_command_names_a_config_that_cannot_be_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.yaml").write_bytes("run: J\u00fcrgen".encode("latin-1"))
    runs.write(compose({"scale": "smoke"}, root), Path("results/smoke/run.yaml"))
    for words, sentence in {
        **dict.fromkeys(("--config smoke", "--config run=#x"), "--config"),
        **{f"--configfile {name}": f"the config file {name}" for name in ("none.yaml", "latin.yaml", ".")},
        "--config jugde=x": "unknown config key jugde; did you mean judge?",
        "--config scale=smoke run=smoke seed=3": "run smoke in results/smoke was made with other settings",
    }.items():
        done = typed("preflight", *words.split())
        assert done.exit_code == 1
        assert done.stdout.startswith(f"fault  config: {sentence}"), words
    # Letters that the terminal lacks.
    done = call(root, sys.executable, "-m", "utaca", "preflight", "--config", "reader=模型", PYTHONIOENCODING="latin-1")
    assert done.returncode == 1
    assert r"\u6a21\u578b" in done.stdout
