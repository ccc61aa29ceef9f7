"""The workflow: hygiene, dry runs, mistakes before the first job, and one whole run at a tiny scale."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, copy_checkout
from transformers import AutoModelForCausalLM, AutoTokenizer

from utaca.readers.tiny.training import SCHEDULE

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
LAST_LINE = "The tables of tiny are in results/tables; start with results/tables/index.md."
TABLES = [
    *[
        "detection",
        "detection_own",
        "endpoints",
        "validation",
        "test",
        "tradeoff",
        "pareto",
        "replay",
        "failures",
        "cases",
    ],
    *["scorers", "disagreements", "labels", "human", "resources"],
]


def call(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def snakemake(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return call(folder, sys.executable, "-m", "snakemake", *arguments, **variables)


def planned(folder: Path, *arguments: str) -> dict[str, int]:
    """Number of jobs by rule in a dry run."""
    done = snakemake(folder, "-n", *arguments)
    assert done.returncode == 0, done.stdout
    if "Nothing to be done" in done.stdout:
        return {}
    stats = done.stdout.split("Job stats:")[1].split("total")[0]
    return {name: int(count) for name, count in re.findall(r"^(\S+) +(\d+)$", stats, re.MULTILINE)}


# Hygiene


def test_lint(checkout: Path) -> None:
    done = snakemake(checkout, "--lint")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["snakefmt", "--check", "Snakefile", "workflow"],
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--check", "--no-cache", "."],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_format(checkout: Path, command: list[str]) -> None:
    done = call(checkout, str(BIN / command[0]), *command[1:])
    assert done.returncode == 0, done.stdout


def test_lock_names_versions_alone() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)


# Dry runs


def test_main_job_is_the_default(checkout: Path) -> None:
    jobs = planned(checkout)
    assert jobs == {
        "corpus": 1,
        "draw_biographies": 2,
        "write_biographies": 1,
        "pad": 3,
        "decode_trajectories": 5,
        "label": 3,
        "correct_labels": 3,
        "label_traces": 3,
        "train_utaca": 1,
        "train_two_way": 1,
        "train_evidential": 1,
        "train_chained": 1,
        "fit_baselines": 1,
        "detections": 1,
        "generate_validation": 1,
        "generate_test": 2,
        "score_validation": 6,
        "score_test": 8,
        "score_chained": 3,
        "table_detection": 1,
        "table_detection_own": 1,
        "table_validation": 1,
        "table_test": 1,
        "table_tradeoff": 1,
        "table_pareto": 1,
        "table_scorers": 1,
        "table_labels": 1,
        "table_human": 1,
        "table_endpoints": 1,
        "table_resources": 1,
        "figure_budget": 1,
        "figure_detectors": 1,
        "collect": 1,
        "tables": 1,
    }
    for alias in ("results/tables", "results/tables/"):
        assert sum(planned(checkout, alias).values()) == sum(jobs.values())


@pytest.mark.parametrize(
    ("target", "last", "absent"),
    [
        ("biographies", "biographies", "corpus"),
        ("corpus", "corpus", "draw_biographies"),
        ("documents", "documents", "decode_trajectories"),
        ("trajectories", "trajectories", "label"),
        ("labels", "labels", "train_utaca"),
        ("detectors", "detectors", "detections"),
        ("detections", "detections", "generate_test"),
        ("generations", "generations", "score_test"),
        ("scores", "scores", "collect"),
        ("reader", "reader", "corpus"),
        ("results/tiny/reader/trained", "reader", "corpus"),
        ("results/tiny/reader/card.md", "card", "train_utaca"),
        ("results/tiny/reader/speed.json", "reader_speed", "read_card"),
        ("results/tiny/reader/readings/blocks-32768.parquet", "read_card", "reader_speed"),
        ("results/benchmarks/engine.md", "benchmark_engine", "corpus"),
        ("results/tiny/tables/detection.csv", "table_detection", "generate_test"),
        ("results/tiny/tables/detection_own.csv", "table_detection_own", "score_test"),
        ("results/tiny/labels/reference/traces/test.parquet", "label_traces", "generate_validation"),
        ("results/tiny/trajectories/train/part-1.parquet", "decode_trajectories", "label"),
        ("results/tiny/labels/reference/train.parquet", "correct_labels", "train_utaca"),
        ("results/tiny/labels/reference/review.html", "review_labels", "correct_labels"),
        ("results/tiny/scores/reference/review.html", "review_scores", "score_validation"),
        ("results/tiny/tables/labels.md", "table_labels", "train_utaca"),
        ("results/tiny/tables/pareto.svg", "table_pareto", "score_validation"),
        ("results/tiny/tables/scorers.md", "table_scorers", "score_validation"),
        ("results/tiny/tables/budget.svg", "figure_budget", "score_test"),
        ("results/tiny/traces/test.html", "view_traces", "score_validation"),
        ("traces", "traces", "table_test"),
        ("results/report.html", "report", "collect"),
        ("results/tiny/detectors/utaca/seed3/model.safetensors", "train_utaca", "detections"),
        ("results/tiny/generations/test/utaca-K64-sub16/answers-0.parquet", "generate_test", "generate_validation"),
    ],
)
def test_every_stage_is_a_target(checkout: Path, target: str, last: str, absent: str) -> None:
    jobs = planned(checkout, target)
    assert last in jobs
    assert absent not in jobs
    assert (last == "reader") == ("reader" in jobs)


def test_every_variant_is_a_job_and_an_own_one_is_an_entry(checkout: Path) -> None:
    own = "detectors={use: paper, mine: {lstm: false, class_weights: [1.0, 1.0, 1.0]}}"
    jobs = planned(checkout, "--config", own, "--", "results/tiny/tables/triggers.csv")
    trained = {name.removeprefix("train_") for name in jobs if name.startswith("train_")}
    assert {"utaca", "two_way", "margin", "mlp", "evidential", "needed", "retrieval", "budget", "mine"} <= trained
    assert len(trained) == 16
    target = "results/tiny/detectors/needed/seed0/model.safetensors"
    assert "label" not in planned(checkout, "--config", "detectors=paper", "--", target), "no judge is asked"


def test_paper_scale_plans(checkout: Path) -> None:
    options = ["reader=qwen2_7b", "writer=gpt_oss_120b", "labeller=gpt_oss_120b", "judge=gpt_oss_120b"]
    jobs = planned(checkout, "--config", *options, "corpus=wikipedia", "scale=paper", "--", "results/tables")
    assert (jobs["decode_trajectories"], jobs["generate_test"], jobs["score_test"]) == (32 + 2 + 20, 20, 7)


# Mistakes


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("jugde=x", "Error: unknown config key jugde; did you mean judge?"),
        ("judge=nope", "Error: judge=nope is unknown; judge is one of gpt_oss_120b, reference."),
        ("detectors={utaca: {lstm: maybe}}", "Error: config key detectors.utaca.lstm"),
    ],
)
def test_config_mistakes_end_the_run_with_a_sentence(checkout: Path, setting: str, said: str) -> None:
    done = snakemake(checkout, "--cores", "1", "--config", setting, "--", "results/tables")
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(lines) == 1, done.stdout
    assert lines[0].startswith(said)


@pytest.mark.parametrize(
    ("settings", "target", "said"),
    [
        (["reader={path: config}"], "documents", r"config\.json"),
        (["corpus=none/articles.jsonl"], "corpus", r"none/articles\.jsonl"),
        (["writer=gpt_oss_120b"], "biographies", "UTACA_API_KEY"),
        (
            ["writer={use: gpt_oss_120b, base_url: 'http://127.0.0.1:9/v1', api_key_env: HOME}"],
            "biographies",
            r"127\.0\.0\.1:9",
        ),
    ],
    ids=["reader", "corpus", "key", "address"],
)
def test_preflight_ends_the_run_before_its_first_job(
    checkout: Path, settings: list[str], target: str, said: str
) -> None:
    for _ in range(2):  # the second time, no lock may be left
        done = snakemake(checkout, "--cores", "1", "--config", *settings, "--", target, HF_HUB_OFFLINE="1")
        assert done.returncode == 1
        errors = [line for line in done.stdout.splitlines() if line.startswith("Error: ")]
        assert len(errors) == 1, done.stdout
        assert re.search(said, errors[0])
        assert "Traceback" not in done.stdout
        assert "Finished jobid" not in done.stdout
        assert "cannot be locked" not in done.stdout


def test_a_key_is_written_nowhere(tmp_path: Path) -> None:
    folder, key = copy_checkout(tmp_path / "utaca"), "sk-planted-0123456789"
    server = subprocess.Popen(
        [sys.executable, "-m", "utaca.reference", "--port", "0"], cwd=folder, env=ENVIRONMENT | {"PYTHONPATH": "src"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with server:
        address = server.stdout.readline().split()[-1]
        writer = f"{{use: gpt_oss_120b, base_url: '{address}', model: utaca-reference, api_key_env: PLANTED}}"
        settings = ["scale=smoke", f"writer={writer}"]
        done = snakemake(folder, "--cores", "1", "--config", *settings, "--", "biographies", PLANTED=key)
        server.terminate()
    assert done.returncode == 0, done.stdout
    assert key not in done.stdout
    written = [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert [path for path in written if "tests" not in path.parts] == []


# What the workflow takes from Snakemake without its word for it

_SNAKEFILE = """
workflow.global_resources.setdefault("gpu", 1)


onstart:
    workflow.scheduler.keepgoing = True


rule all:
    input:
        expand("{name}.txt", name=["a", "bad", "c", "d"]),


rule one:
    output:
        "{name}.txt",
    resources:
        gpu=1,
    shell:
        "mkdir busy && sleep 0.2 && rmdir busy && test {wildcards.name} != bad && touch {output}"
"""


def test_gpu_jobs_queue_and_failures_stay_alone(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(_SNAKEFILE)
    done = snakemake(tmp_path, "--cores", "4")
    assert done.returncode == 1
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["a.txt", "c.txt", "d.txt"], done.stdout


# One whole run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the whole workflow has run at the smallest scale."""
    if not (ROOT / "data" / "readers" / "tiny" / "model.safetensors").is_file():
        pytest.skip("data/readers/tiny/model.safetensors is not there yet; train it with: snakemake reader")
    folder = copy_checkout(tmp_path_factory.mktemp("finished") / "utaca")
    done = snakemake(folder, "--cores", "2", "--config", "scale=smoke", "--", "results/tables")
    assert done.returncode == 0, done.stdout
    (folder / "output.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def smoke(folder: Path, *settings: str, target: str = "results/tables") -> dict[str, int]:
    return planned(folder, "--config", "scale=smoke", *settings, "--", target)


@contextmanager
def edited(path: Path) -> Iterator[None]:
    """A comment at the end of a module, for the length of the block."""
    before = path.read_text(encoding="utf-8")
    path.write_text(before + "\n# edited\n", encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def test_run_leaves_tables_and_says_where(finished: Path) -> None:
    folder = finished / "results" / "tables"
    expected = {f"tiny-{table}.{form}" for table in [*TABLES, "ablation"] for form in ("csv", "md", "tex")}
    expected |= {f"tiny-{figure}.{form}" for figure in ("reliability", "margins") for form in ("csv", "png", "svg")}
    assert expected | {"index.md"} <= {path.name for path in folder.iterdir()}
    assert all(path.stat().st_size for path in folder.iterdir())
    output = (finished / "output.txt").read_text(encoding="utf-8")
    assert output.rstrip().splitlines()[-1] == LAST_LINE


def test_every_job_has_its_log(finished: Path) -> None:
    logs = sorted(path.relative_to(finished).as_posix() for path in finished.glob("logs/**/*.log"))
    assert {"logs/tiny/train_detector/utaca.log", "logs/tiny/generate/test-1.log"} <= set(logs)
    assert "suites test" in (finished / "logs/tiny/generate/test-0.log").read_text(encoding="utf-8")


def test_nothing_to_do_after_a_run(finished: Path) -> None:
    assert smoke(finished) == {}


def test_every_rule_is_measured() -> None:
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        text = path.read_text(encoding="utf-8")
        logs, measured = (
            re.findall(rf"{key}:\n *f?\"(.+)\\.{end}\"", text) for key, end in [("log", "log"), ("benchmark", "tsv")]
        )
        renamed = [log.replace("{LOGS}/", "{BENCHMARKS}/").replace("logs/", "results/benchmarks/") for log in logs]
        assert measured == renamed, path.name


def test_a_lost_measurement_repeats_nothing(finished: Path) -> None:
    folder = finished / "results" / "tiny" / "benchmarks"
    jobs = json.loads((folder / "jobs.json").read_text(encoding="utf-8"))
    names = {rule for rule, _, _ in jobs}
    assert {"draw_biographies", "train_utaca", "generate_test", "score_test", "table_test"} <= names
    assert all((finished / path).is_file() for _, path, _ in jobs)
    for path in [*folder.rglob("*.tsv")]:
        path.rename(path.with_suffix(".aside"))
    try:
        assert smoke(finished) == {}
    finally:
        for path in [*folder.rglob("*.aside")]:
            path.rename(path.with_suffix(".tsv"))


def test_the_report_and_snakemakes_own(finished: Path) -> None:
    """Both without a network."""
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    options = ["--cores", "1", "--config", "scale=smoke"]
    target = "results/report.html"
    done = snakemake(finished, *options, "--", target, **offline)
    assert done.returncode == 0, done.stdout
    page = (finished / target).read_text(encoding="ascii")
    links = re.findall(r'href="([^"#]+)"', page)
    assert all((finished / "results" / link).is_file() for link in links)
    assert all(f'id="{name}"' in page for name in [*TABLES, "ablation", "reliability", "margins", "pareto", "budget"])
    assert "--config scale=smoke" in page
    assert (finished / "results" / "tiny" / "traces" / "test.html").stat().st_size < 2**20

    done = snakemake(finished, *options, "--report", "all.html", "--", target, "results/tables", **offline)
    assert done.returncode == 0, done.stdout
    own = (finished / "all.html").read_text(encoding="utf-8")
    assert all(name in own for name in ("tiny-detection.csv", "tiny-pareto.svg", "Traces", "synthetic prose"))
    assert smoke(finished, target=target) == {}


def test_another_judge_reruns_judging_and_tables_alone(finished: Path) -> None:
    jobs = smoke(finished, "judge=gpt_oss_120b")
    assert set(jobs) == {
        "score_validation",
        "score_test",
        "score_chained",
        "score_replays",
        "table_validation",
        "table_test",
        "table_tradeoff",
        "table_pareto",
        "table_replay",
        "table_scorers",
        "table_human",
        "table_endpoints",
        "table_resources",
        "collect",
        "results/tables",
    }


def test_transport_reruns_nothing(finished: Path) -> None:
    storage = "reader={memory: {storage: host}}"
    assert smoke(finished, "judge={concurrency: 3, timeout_s: 7}", "corpus={requests_per_second: 0.5}", storage) == {}


def test_pairing_reruns_what_decodes_suites(finished: Path) -> None:
    jobs = smoke(finished, "generation={paired: true}")
    assert {"generate_validation", "generate_test"} <= set(jobs)
    assert not {"decode_trajectories", "label", "train_utaca", "write_biographies"} & set(jobs)


def test_more_points_are_decoded_beside_the_others(finished: Path) -> None:
    jobs = smoke(finished, "suites=llama_full")
    assert {"score_seeds": 2, "score_oracles": 3, "table_seeds": 1, "table_pareto": 1}.items() <= jobs.items()
    assert not {"generate_validation", "train_detector", "decode_trajectories"} & set(jobs)


def test_methods_are_answered_beside_the_others(finished: Path) -> None:
    jobs = smoke(finished, "suites=methods")
    assert jobs["compare_test"] == 2, "a job a shard"
    assert jobs["table_methods"] == 1
    assert {"score_methods", "score_budgets"} <= set(jobs)
    assert not {"pad", "decode_trajectories", "label", "train_utaca", "generate_validation"} & set(jobs)
    assert smoke(finished, "methods={snapkv: {kernel: 5}}") == {}, "no suite of the run has it"


def test_a_removed_table_is_remade_alone(finished: Path) -> None:
    path = finished / "results" / "tiny" / "tables" / "detection.csv"
    kept = path.read_bytes()
    path.unlink()
    assert smoke(finished, target="results/tiny/tables/detection.csv") == {"table_detection": 1}
    done = snakemake(finished, "--cores", "1", "--config", "scale=smoke", "--", "results/tiny/tables/detection.csv")
    assert done.returncode == 0, done.stdout
    assert path.read_bytes() == kept
    assert smoke(finished) == {}


def test_a_removed_seed_is_remade_alone(finished: Path) -> None:
    target = "results/tiny/detectors/utaca/seed1/model.safetensors"
    path = finished / target
    kept = path.read_bytes()
    path.unlink()
    assert smoke(finished, target=target) == {"train_utaca": 1}
    done = snakemake(finished, "--cores", "1", "--config", "scale=smoke", "--", target)
    assert done.returncode == 0, done.stdout
    assert path.read_bytes() == kept
    assert smoke(finished) == {}


def test_an_edit_reruns_what_uses_the_module(finished: Path) -> None:
    source = finished / "src" / "utaca"
    with edited(source / "reporting" / "render.py"):
        tables = {f"table_{table}" for table in TABLES if table not in ("failures", "cases", "disagreements")}
        assert set(smoke(finished)) == {*tables, "figure_budget", "figure_detectors", "collect", "results/tables"}
    with edited(source / "judging" / "cas.py"):
        jobs = smoke(finished)
        assert {"score_validation", "score_test"} <= set(jobs)
        assert not {"pad", "decode_trajectories", "label", "train_utaca", "generate_test"} & set(jobs)
    with edited(source / "detection" / "training" / "metrics.py"):
        jobs = smoke(finished)
        assert {"train_utaca", "fit_baselines"} <= set(jobs)
        assert not {"corpus", "draw_biographies", "write_biographies", "pad"} & set(jobs)
    with edited(source / "settings" / "document.py"):
        assert smoke(finished) == {}


MEASURED = ["prefill_seconds", "decode_seconds", "peak_bytes"]


def results(folder: Path) -> dict[str, object]:
    """What a run made that must not depend on the clock: bytes of files, answers without their measurements."""
    found: dict[str, object] = {}
    for path in sorted((folder / "results").rglob("*")):
        name = path.relative_to(folder / "results").as_posix()
        timeless = {f"{table}.{form}" for table in ("detection", "endpoints") for form in ("csv", "md", "tex")}
        timeless |= {"curve.csv", "budget.csv"}
        if path.name.startswith("answers-"):
            found[name] = pq.read_table(path).drop_columns(MEASURED)
        elif "journal" in path.parts:
            continue
        elif path.suffix in {".parquet", ".safetensors", ".json"} or path.name in {
            *timeless,
            "curve.csv",
            "budget.csv",
        }:
            found[name] = path.read_bytes()
    return found


def test_a_killed_run_resumes_and_ends_in_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "utaca")
    command = ["--cores", "2", "--config", "scale=smoke", "--", "results/tables"]
    journal = folder / "results" / "tiny" / "journal"
    run = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *command], cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while run.poll() is None and time.monotonic() < deadline and len(list(journal.rglob("*.parquet"))) < 3:
        time.sleep(0.05)
    assert run.poll() is None, "the run ended before it could be killed"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kept = {path: path.stat().st_mtime_ns for path in journal.rglob("*.parquet")}
    assert kept

    assert snakemake(folder, "--cores", "1", "--unlock").returncode == 0
    seen: dict[Path, int] = {}
    resumed = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--rerun-incomplete", *command], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while resumed.poll() is None:
        for path in kept:
            with suppress(FileNotFoundError):
                seen[path] = path.stat().st_mtime_ns
        time.sleep(0.2)
    assert resumed.returncode == 0
    assert seen == {path: at for path, at in kept.items() if path in seen}, "a journaled piece was made again"

    expected, found = results(finished), results(folder)
    assert found.keys() == expected.keys()
    for name, content in expected.items():
        same = content.equals(found[name]) if isinstance(content, pa.Table) else content == found[name]
        assert same, name


# The tiny reader


def test_the_reader_is_trained_by_its_rule(checkout: Path) -> None:
    """The smallest share of the schedule, a step a stage, of a narrow model on a tiny corpus."""
    (checkout / "hills").mkdir()
    (checkout / "hills" / "hills.txt").write_text("The hills are old. " * 30 + "\n\n" + "The rivers are young. " * 30)
    training = "{share: 0.0001, corpus: hills, hidden_size: 32, layers: 3, heads: 2, kv_heads: 1, vocabulary: 600}"
    done = snakemake(checkout, "--cores", "1", "--config", f"reader={{training: {training}}}", "--", "reader")
    assert done.returncode == 0, done.stdout
    folder = checkout / "results" / "tiny" / "reader" / "trained"
    assert len((folder / "curve.csv").read_text().splitlines()) == 1 + len(SCHEDULE)
    card = (folder / "README.md").read_text()
    assert "**A trial**" in card
    assert "`hills`" in card
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 3
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert not (folder / "checkpoint.pt").exists()
    assert not folder.with_name("training").exists()
