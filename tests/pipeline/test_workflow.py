"""The workflow: hygiene, dry runs, mistakes before the first job, and one whole run at a tiny scale."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import BIN, ENVIRONMENT, call, snakemake
from configs import planned as plan_of
from conftest import ROOT, copy_checkout
from server import Call, Reply, Server, chat, completion, serving

from utaca.judging.rules import tasks
from utaca.judging.sheets import Correction, HumanScore, columns
from utaca.reporting import paper, paper_tables
from utaca.reporting.registry import ENTRIES
from utaca.settings.checks import SPLITS
from workflow.reporting import Reporting

PLAN = plan_of(ROOT)
LAST_LINE = "Run smoke is done: open results/tables/smoke.html; its tables are in results/smoke/tables."
TABLES = {
    *["verdict", "dataset", "detection", "detection_budgets", "distrust", "ablation", "two_way"],
    *["validation", "test", "tradeoff", "retrieval", "places", "failures", "probabilities", "example"],
    *["human", "cas_cases", "human_points", "labels", "endpoints", "resources"],
}
# The smallest run makes every one.
SMOKE, SMOKE_TABLES = "config/runs/smoke.yaml", TABLES | {"ood", "calibration"}
FIGURES = {"curves", "differences", "cost", "expansions", "detector", "class_shares"}
VARIANTS = [
    *["utaca", "two_way", "evidential", "chained", "linear_probe"],
    *["margin_only", "embedding", "margin_lstm", "embedding_lstm", "margin_embedding", "mlp", "residual"],
]


def planned(folder: Path, *arguments: str) -> dict[str, int]:
    """Number of jobs in a dry run by rule and what of a table, variant, split or kind they are for."""
    done = snakemake(folder, "--quiet", "host", "-n", *arguments)
    assert done.returncode == 0, done.stdout
    assert "`utaca preflight`" in done.stdout, "it says what it does not check"
    found: dict[str, int] = {}
    for rule, about in re.findall(r"^(?:local)?rule (\S+):\n((?:    .*\n)*)", done.stdout, re.MULTILINE):
        wildcards = re.search(r"^    wildcards: (.*)$", about, re.MULTILINE)
        values = [] if wildcards is None else re.findall(r"(?!shard)\b\w+=([^,\s]+)", wildcards[1])
        name = " ".join([rule, *values])
        found[name] = found.get(name, 0) + 1
    return found


# Hygiene


@pytest.mark.parametrize(
    "command",
    [
        ["snakemake", "--lint"],
        ["snakemake", "-s", "training/Snakefile", "--lint"],
        ["snakefmt", "--check", "Snakefile", "workflow", "training"],
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--check", "--no-cache", "."],
    ],
    ids=" ".join,
)
def test_hygiene(checkout: Path, command: list[str]) -> None:
    done = call(checkout, str(BIN / command[0]), *command[1:])
    assert done.returncode == 0, done.stdout


# Dry runs


def test_main_job_is_the_default(checkout: Path) -> None:
    jobs = planned(checkout)
    assert jobs == {
        "run_config": 1,
        "manifest": 1,
        "corpus": 1,
        "draw_biographies train": 1,
        "draw_biographies validation": 1,
        "write_biographies": 1,
        **{f"fill {split}": 1 for split in ("train", "validation")},
        "pad": 1,
        **{f"{rule} {split}": PLAN.size(split).shards for split in SPLITS for rule in ("decode_trajectories", "label")},
        **{f"correct_labels {split}": 1 for split in SPLITS},
        **{f"train_detector {variant}": 1 for variant in VARIANTS},
        "detect test": 1,
        "generate validation blocks": PLAN.size("validation").shards,
        "generate test blocks": PLAN.size("test").shards,
        **{f"score {split} blocks": 1 for split in ("validation", "test")},
        "replay": 1,
        "score_replays": 1,
        "time_answers": 1,
        **{f"{rule} {split}": 1 for split in ("validation", "test") for rule in ("label_traces", "view_traces")},
        **{f"table {table}": 1 for table in TABLES},
        **{f"figure {figure}": 1 for figure in FIGURES},
        "review_labels": 1,
        "review_scores": 1,
        "report": 1,
        "tables": 1,
    }
    for alias in ("results/tables", "results/tables/"):
        assert sum(planned(checkout, alias).values()) == sum(jobs.values())


@pytest.mark.parametrize(
    ("target", "last", "absent"),
    [
        ("biographies", "biographies", "corpus"),
        ("readers", "readers", "corpus"),
        ("results/quick/trajectories/train/part-0.parquet", "decode_trajectories train", "corpus"),
        ("results/quick/tables/detection.csv", "table detection", "generate test blocks"),
        ("results/quick/labels/reference/traces/test.parquet", "label_traces test", "generate validation blocks"),
        ("results/quick/labels/reference/review.html", "review_labels", "correct_labels train"),
        ("results/quick/figures/curves.svg", "figure curves", "score validation blocks"),
        ("results/quick/detectors/utaca/seed3/model.safetensors", "train_detector utaca", "train_detector two_way"),
    ],
)
def test_every_stage_is_a_target(checkout: Path, target: str, last: str, absent: str) -> None:
    jobs = planned(checkout, target)
    assert last in jobs
    assert absent not in jobs


def test_every_table_and_variant_is_a_job_and_an_own_one_is_an_entry(checkout: Path) -> None:
    own = "detectors={use: paper, mine: {lstm: false, chain: 1, signals: [margin, retrieval]}}"
    jobs = planned(checkout, "--config", "run=quick", "points=llama_variants", own)
    tables = Reporting(plan_of(ROOT, points="llama_variants", detectors="paper")).tables
    assert {f"{entry.kind} {name}" for name, entry in tables.items()} <= set(jobs)
    trained = {name.removeprefix("train_detector ") for name in jobs if name.startswith("train_detector")}
    assert {"utaca", "two_way", "margin_only", "mlp", "evidential", "needed", "retrieval", "mine"} <= trained
    target = "results/quick/detectors/needed/seed0/model.safetensors"
    jobs = planned(checkout, target, "--config", "run=quick", "detectors=paper")
    assert not {"label train", "label validation"} & set(jobs), "no judge is asked"


# Mistakes


def test_config_mistakes_end_the_run_with_a_sentence(checkout: Path) -> None:
    done = snakemake(checkout, "--cores", "1", "--config", "jugde=x", "--", "results/tables")
    assert done.returncode == 1
    # Snakemake names its profile first.
    lines = [line for line in done.stdout.splitlines() if line.strip()][1:]
    assert lines == ["Error: unknown config key jugde; did you mean judge?"]


ANOTHER = "belongs to run quik, but the config is that of run quick; "
MISTAKES = {
    "trajectorys": "there is no target trajectorys; did you mean trajectories?",
    "everything": "there is no target everything; targets are biographies, corpus, detections, ",
    "results/quik/tables/test.md": f"results/quik/tables/test.md {ANOTHER}",
    "results/tables/quik.html": f"results/tables/quik.html {ANOTHER}",
    "tables --config corpus=none.jsonl": "corpus.path none.jsonl does not exist; correct the path",
    "tables --config scale={test:{people:none.jsonl}}": "scale.test.people none.jsonl does not exist; correct the path",
    "tables --configfile twice.yaml": "twice.yaml, line 3: the key 'seed' occurs twice, first in line 1; remove one",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_dry_run_names_what_cannot_be_made(checkout: Path, tmp_path: Path, words: str) -> None:
    (tmp_path / "twice.yaml").write_text("seed: 1\nreader: tiny\nseed: 2\n", encoding="utf-8")
    target, *options = (word.replace(":", ": ") for word in words.split())
    done = snakemake(tmp_path, "-s", str(checkout / "Snakefile"), "-n", *options, "--", target)
    (error,) = [line for line in done.stdout.splitlines() if "Error" in line]
    assert error.startswith("Error: ")
    assert MISTAKES[words] in error
    assert done.returncode == 1
    assert "Traceback" not in done.stdout


# The end by a signal

ENDED = "Interrupted. Finished work is kept; the same command continues."


def ended(folder: Path, sign: str, number: int, *command: str) -> list[str]:
    """The lines of a command whose whole process group gets a signal once it has printed ``sign``."""
    run = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = []
    for line in run.stdout:
        lines.append(line.rstrip())
        if sign in line:
            # A moment later, so that jobs have begun.
            time.sleep(1.5)
            os.killpg(run.pid, number)
            sign = "\0"
    assert run.wait() != 0
    assert sign == "\0", "\n".join(lines)
    return lines


def test_a_run_that_is_interrupted_ends_in_a_sentence_and_goes_on(tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "utaca")
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "documents", "--config", "scale=smoke"]
    for sign in ("Building DAG", "Select jobs", "Finished jobid"):
        lines = ended(folder, sign, signal.SIGINT, *command)
        assert lines[-1] == ENDED
        assert not [line for line in lines if line.startswith("Traceback")], lines
        assert not locked(folder)
    lines = ended(folder, "Select jobs", signal.SIGTERM, *command)
    assert not [line for line in lines if line.startswith("Traceback")], lines
    # Snakemake is still being imported.
    tables = [sys.executable, "-m", "utaca", "tables", "--cores", "2", "--config", "scale=smoke"]
    run = subprocess.Popen(tables, cwd=folder, env=ENVIRONMENT, start_new_session=True, stderr=subprocess.PIPE)
    time.sleep(1)
    os.killpg(run.pid, signal.SIGINT)
    assert b"Traceback" not in run.communicate()[1]

    done = call(folder, *command)
    assert done.returncode == 0, done.stdout
    made = "Done: results/smoke/documents/train.parquet and 2 more in results/smoke/documents."
    assert done.stdout.rstrip().splitlines()[-1] == made
    again = call(folder, *command)
    assert "Nothing to be done" in again.stdout
    assert again.stdout.rstrip().splitlines()[-1] == made
    # Snakemake looks only at its time.
    cut = folder / "results" / "smoke" / "documents" / "test.parquet"
    written = cut.stat()
    cut.write_bytes(cut.read_bytes()[:300])
    os.utime(cut, ns=(written.st_atime_ns, written.st_mtime_ns))
    done = snakemake(folder, "--cores", "2", "trajectories", "--config", "scale=smoke")
    assert done.returncode == 1
    (error,) = [line for line in done.stdout.splitlines() if "Error" in line]
    path = "results/smoke/documents/test.parquet"
    assert error == f"Error: {path} is not a complete Parquet file; remove it and run again."
    assert "Finished jobid" not in done.stdout


def locked(folder: Path) -> bool:
    """Whether a run has left its lock, so that no other may start."""
    return any((folder / ".snakemake" / "locks").glob("*"))


def test_preflight_ends_the_run_before_its_first_job(checkout: Path) -> None:
    writer = "writer={use: gpt_oss_120b, base_url: 'http://127.0.0.1:9/v1', api_key_env: HOME, patience_s: 0.5}"
    done = snakemake(checkout, "--cores", "1", "--config", writer, "--", "biographies")
    assert done.returncode == 1
    (error,) = [line for line in done.stdout.splitlines() if line.startswith("Error: ")]
    assert "127.0.0.1:9" in error
    assert "Traceback" not in done.stdout
    assert "Finished jobid" not in done.stdout
    assert not locked(checkout)


def test_a_key_is_written_nowhere(tmp_path: Path) -> None:
    folder, key = copy_checkout(tmp_path / "utaca"), "sk-planted-0123456789"

    def script(server: Server, call: Call) -> Reply:
        return completion(json.dumps(tasks.answer(call.task) if call.task else {"ready": True}))

    with serving(chat(script)) as server:
        writer = f"{{use: gpt_oss_120b, base_url: '{server.url}', model: m, name: planted, api_key_env: PLANTED}}"
        settings = ["scale=smoke", f"writer={writer}"]
        done = snakemake(folder, "--cores", "1", "--config", *settings, "--", "biographies", PLANTED=key)
    assert done.returncode == 0, done.stdout
    assert {call.headers["authorization"] for call in server.calls} == {f"Bearer {key}"}
    assert key not in done.stdout
    written = [path for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert [path for path in written if "tests" not in path.parts] == []


# One whole run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the whole workflow has made every table at the smallest scale."""
    folder = copy_checkout(tmp_path_factory.mktemp("finished") / "utaca")
    done = snakemake(folder, "--cores", "2", "results/tables", "--configfile", SMOKE)
    assert done.returncode == 0, done.stdout
    (folder / "output.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def smoke(folder: Path, *settings: str) -> dict[str, int]:
    return planned(folder, "results/tables", "--configfile", SMOKE, *(["--config", *settings] if settings else []))


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
    folder = finished / "results" / "smoke"
    expected = {f"tables/{table}.{form}" for table in SMOKE_TABLES for form in ("csv", "md", "tex")}
    expected |= {f"figures/{figure}.{form}" for figure in FIGURES for form in ("csv", "png", "svg")}
    assert all((folder / name).stat().st_size for name in expected | {"run.yaml", "manifest.json"})
    output = (finished / "output.txt").read_text(encoding="utf-8")
    assert output.rstrip().splitlines()[-1] == LAST_LINE


def test_a_run_says_what_it_was_made_of_and_is_repeated_from_it(finished: Path) -> None:
    manifest = json.loads((finished / "results" / "smoke" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["run"] == "smoke"
    weights = (finished / "data" / "readers" / "tiny" / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() in json.dumps(manifest)
    assert planned(finished, "results/tables", "--configfile", "results/smoke/run.yaml") == {}
    assert smoke(finished) == {}


def test_the_smallest_scale_alone_shares_the_run(finished: Path) -> None:
    jobs = planned(finished, "results/tables", "--config", "scale=smoke")
    assert {"report", "detect test"} <= set(jobs), "a detector fewer"
    assert not {
        "pad",
        "generate test blocks",
        "decode_trajectories train",
        "label train",
        "train_detector utaca",
    } & set(jobs)
    assert not {"table ood", "table calibration"} & set(jobs)


def test_the_report_links_what_is_there(finished: Path) -> None:
    report = finished / "results" / "tables" / "smoke.html"
    page = report.read_text(encoding="utf-8")
    links = re.findall(r'href="([^"#]+)(?:#[^"]*)?"', page)
    assert links
    assert all((report.parent / link).is_file() for link in links if "://" not in link)
    assert all(f'id="{name}"' in page for name in SMOKE_TABLES | FIGURES)
    assert (finished / "results" / "smoke" / "traces" / "test.html").stat().st_size < 2**20


def test_snakemakes_own_report_holds_every_table_and_figure(finished: Path, tmp_path: Path) -> None:
    archive = tmp_path / "report.zip"
    done = snakemake(finished, "--report", str(archive), "--configfile", SMOKE)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(archive) as report:
        held = {Path(name).name for name in report.namelist()}
        page = report.read("report/report.html").decode("utf-8")
    assert {f"{table}.csv" for table in SMOKE_TABLES} | {f"{figure}.svg" for figure in FIGURES} <= held
    assert {"smoke.html", "run.yaml", "manifest.json", "report.html"} <= held
    for entry in map(ENTRIES.get, SMOKE_TABLES | FIGURES):
        assert entry.title in page
    assert "Run smoke of the UT-ACA experiment" in page
    assert "system-message" not in page
    assert smoke(finished) == {}, "captions and categories make nothing stale"


def test_another_judge_reruns_judging_and_tables_alone(finished: Path) -> None:
    # "ablation" and "two_way" have each variant's CAS as a trigger.
    judged = ["ablation", "two_way", "verdict", "test", "validation", "tradeoff", "retrieval", "failures"]
    judged += ["human", "cas_cases", "human_points", "methods", "ood", "calibration", "example", "places"]
    # The labeller decides what these show.
    labelled = {"detector", "class_shares"}
    assert set(smoke(finished, "judge=gpt_oss_120b")) == {
        *["run_config", "manifest", "review_scores"],
        *["score validation blocks", "score test blocks", "score test methods", "score_replays"],
        *["view_traces validation", "view_traces test", "report", "results/tables"],
        *(f"table {table}" for table in [*judged, "endpoints", "labels", "resources"]),
        *(f"figure {figure}" for figure in FIGURES - labelled),
    }


def test_transport_reruns_nothing(finished: Path) -> None:
    storage = "reader={memory: {storage: host}}"
    changed = ["judge={concurrency: 3, timeout_s: 7}", storage, "answers=a.db"]
    assert smoke(finished, *changed) == {}


def test_methods_are_answered_beside_the_others(finished: Path) -> None:
    changed = "methods={snapkv: {kernel: 5}}"
    jobs = smoke(finished, changed)
    assert jobs["generate test methods"] == 2, "a job a shard"
    assert {"table methods", "score test methods"} <= set(jobs)
    others = {"pad", "fill train", "decode_trajectories train", "label train", "train_detector utaca"}
    assert not {*others, "generate test blocks"} & set(jobs)
    fewer = "decode={methods: [full]}"
    assert smoke(finished, fewer) == smoke(finished, fewer, changed), "no point of the run has it"


def test_an_edit_reruns_what_uses_the_module(finished: Path) -> None:
    source = finished / "src" / "utaca"
    with edited(source / "reporting" / "render.py"):
        jobs = set(smoke(finished))
        assert {*(f"table {table}" for table in SMOKE_TABLES), "report"} <= jobs
        drawn = {"table", "figure", "report", "results/tables", "view_traces", "review_labels", "review_scores"}
        assert {name.split()[0] for name in jobs - {"manifest"}} <= drawn
    with edited(source / "reporting" / "tables" / "endpoints.py"):
        assert set(smoke(finished)) == {"table endpoints", "manifest", "report", "results/tables"}, "no other table"
    with edited(source / "judging" / "cas.py"):
        jobs = set(smoke(finished))
        assert {"score validation blocks", "score test blocks"} <= jobs
        assert not {"pad", "fill train", "decode_trajectories train", "label train", "train_detector utaca"} & jobs
        assert "generate test blocks" not in jobs
    for unused in ("app/main.py", "runs/preflight.py"):
        with edited(source / unused):
            assert smoke(finished) == {}, unused


def test_what_is_added_beside_reruns_only_what_names_it(finished: Path) -> None:
    """A method, a signal, a table, a task, a reader and an option that nobody names leave a finished run as it is."""
    source = finished / "src" / "utaca"
    added = {"methods/agreed.py": "add_method", "detection/signals/lead.py": "add_signal"}
    lists = {
        source / "tasks" / "rows.yaml": "\nmine:\n  benchmark: B\n  template: T\n",
        finished / "data" / "readers" / "public.yaml": "\n# another reader\n",
    }
    before = {path: path.read_text(encoding="utf-8") for path in lists}
    table, option = source / "reporting" / "tables" / "lengths.py", finished / "config" / "points" / "own.yaml"

    def example(page: str) -> str:
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]

    try:
        for name, page in added.items():
            (source / name).write_text(example(page), encoding="utf-8")
        for path, text in lists.items():
            path.write_text(before[path] + text, encoding="utf-8")
        shutil.copy(option.with_name("tiny.yaml"), option)
        assert smoke(finished) == {}
        table.write_text(example("add_table"), encoding="utf-8")
        assert set(smoke(finished)) == {"table lengths", "manifest", "report", "results/tables"}
        table.unlink()
        jobs = smoke(finished, "points={own: {method: agreed}}", "decode={methods: [full, own]}")
        assert jobs["generate test methods"] == 2
        assert not {"generate test blocks", "decode_trajectories train", "detect test"} & set(jobs)
        jobs = smoke(finished, "detectors={mine: {signals: [margin, lead]}}")
        assert {"decode_trajectories train", "train_detector mine"} <= set(jobs)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
        for path in (*(source / name for name in added), table, option):
            path.unlink(missing_ok=True)
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
        elif path.suffix in {".parquet", ".safetensors", ".json"} or path.name in timeless:
            found[name] = path.read_bytes()
    return found


def test_a_killed_run_resumes_and_ends_in_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "utaca"
    shutil.copytree(finished, folder, symlinks=True)
    # What is decoded from block memory and answered is made again, by the detectors of the finished run.
    made, splits = folder / "results" / "smoke", ("validation", "test")
    for name in ("journal", *(f"generations/{split}/blocks" for split in splits), "trajectories/test", "scores"):
        shutil.rmtree(made / name)
    targets = [f"results/smoke/scores/reference/{split}/blocks.parquet" for split in splits]
    command = ["--cores", "2", *targets, "detections", "--configfile", SMOKE]
    run = subprocess.Popen(
        [sys.executable, "-m", "snakemake", *command], cwd=folder, env=ENVIRONMENT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def journaled() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in made.rglob("journal/generations/**/*.parquet")}

    deadline = time.monotonic() + 240
    while run.poll() is None and time.monotonic() < deadline and len(journaled()) < 3:
        time.sleep(0.05)
    assert run.poll() is None, "the run ended before it could be killed"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    kept = journaled()
    assert kept

    assert locked(folder)
    assert snakemake(folder, "--cores", "1", "--unlock").returncode == 0
    assert not locked(folder)
    done = snakemake(folder, "--rerun-incomplete", *command)
    assert done.returncode == 0, done.stdout
    assert kept.items() <= journaled().items(), "a journaled piece was made again"

    expected, found = results(finished), results(folder)
    assert {"generations", "trajectories", "detectors", "scores"} <= {Path(name).parts[1] for name in found}
    for name, content in found.items():
        same = content.equals(expected[name]) if isinstance(content, pa.Table) else content == expected[name]
        assert same, name


# Another base, a table again, and people's scores


def files_of(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_run_of_another_base_does_not_overwrite(finished: Path) -> None:
    before = files_of(finished / "results")
    done = snakemake(finished, "--cores", "1", "results/tables", "--configfile", SMOKE, "--config", "seed=1")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Error: ")]
    assert "run smoke in results/smoke was made with other settings: seed (0 there, 1 now)" in line
    assert "give this run another name (--config run=NAME)" in line
    assert "--configfile results/smoke/run.yaml" in line
    assert files_of(finished / "results") == before
    assert not locked(finished)
    jobs = planned(finished, "biographies", "--configfile", SMOKE, "--config", "seed=1", "run=other")
    assert "draw_biographies train" in jobs, "under another name it is a run of its own"


def reviewed(page: Path) -> list[tuple[list[Any], dict[str, Any]]]:
    """What a review page asks of a person: the rows that it exports, without the person's word, each with its unit."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("ascii"), re.DOTALL)
    asked = json.loads(data[1])
    assert asked["columns"][-2:] == ["human", "annotator"]
    return [(row, unit) for item in asked["items"] for unit in item["units"] for row in unit["rows"]]


def test_sheets_lead_to_the_tables_and_their_loss_to_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "utaca"
    shutil.copytree(finished, folder, symlinks=True)
    run, sheets = folder / "results" / "smoke", folder / "data" / "annotations"

    def bytes_of(*tables: str) -> dict[str, bytes]:
        paths = [run / "tables" / f"{table}.{form}" for table in tables for form in ("csv", "md", "tex")]
        return {path.name: path.read_bytes() for path in paths}

    def make(*tables: str, others: int = 0) -> None:
        """Make these tables, with as many other jobs."""
        targets = [f"results/smoke/tables/{table}.csv" for table in tables]
        done = snakemake(folder, "--cores", "2", *targets, "--configfile", SMOKE)
        assert done.returncode == 0, done.stdout
        assert re.search(rf"^total +{len(tables) + others}$", done.stdout, re.MULTILINE), done.stdout
        assert re.search(rf"^table +{len(tables)}$", done.stdout, re.MULTILINE), done.stdout

    before = bytes_of("human", "detection")

    # A person who gives one prediction after the other 0, 1, 2, 3, 4 quarters, and again from 0.
    sheet, asked = sheets / "cas_scores.csv", reviewed(run / "scores" / "reference" / "review.html")
    units = list(dict.fromkeys(id(unit) for _, unit in asked))
    given = [units.index(id(unit)) % 5 / 4 for _, unit in asked]
    by_hand = pd.DataFrame([row for row, _ in asked], columns=columns(HumanScore)[:-2]).assign(
        human=given, annotator="eve"
    )
    by_hand.to_csv(sheet, index=False)
    make("human", "human_points", "cas_cases")

    keys = ["document", "split", "point", "attribute"]
    judged = pd.concat(
        pd.read_parquet(path) for path in sorted((run / "scores" / "reference" / "test").glob("*.parquet"))
    )
    both = (
        judged.merge(by_hand[[*keys, "human"]], on=keys, validate="one_to_one")
        .dropna(subset=["cas"])
        .astype({"cas": float, "human": float})
    )
    assert len(both) == len(by_hand)
    points = pd.read_csv(run / "tables" / "human_points.csv").set_index("point")
    assert points.loc["all", "n_scored"] == len(both)
    assert set(points.index) == {*both["point"], "all"}
    for point, of_point in [*both.groupby("point"), ("all", both)]:
        row = points.loc[point]
        assert row["n_scored"] == len(of_point)
        assert row["human_pct"] == pytest.approx(100 * of_point["human"].mean(), abs=1e-3)
        assert row["cas_pct"] == pytest.approx(100 * of_point["cas"].mean(), abs=1e-3)
        assert row["distance_pct"] == pytest.approx(100 * (of_point["cas"] - of_point["human"]).abs().mean(), abs=1e-3)
    assert points.loc["all", "correlation"] == pytest.approx(both["cas"].corr(both["human"]), abs=1e-5)

    human = pd.read_csv(run / "tables" / "human.csv")
    # The studied answers are those of the largest K_max.
    own = both[both["point"] == "utaca-K8-sub2"]
    means = own.groupby("document")["human"].mean()
    assert human["human_pct"][:-1].tolist() == pytest.approx(
        [100 * means[name] for name in human["document"][:-1]], abs=1e-3
    )
    assert human["human_pct"].iloc[-1] == pytest.approx(100 * means.mean(), abs=1e-3)
    assert human["n_right"].iloc[-1] == pytest.approx((own["human"] >= 0.5).groupby(own["document"]).sum().mean())
    assert "No person has scored" not in (run / "tables" / "human.md").read_text(encoding="utf-8")

    sheet.unlink()
    (run / "tables" / "detection.csv").unlink()
    make("human", "detection")
    assert bytes_of("human", "detection") == before

    # And who sees every fourth label otherwise.
    asked = reviewed(run / "labels" / "reference" / "review.html")
    given = [row[5] if n % 4 else (row[5] + 1) % 3 for n, (row, _) in enumerate(asked)]
    labels = pd.DataFrame([row for row, _ in asked], columns=columns(Correction)[:-2]).assign(
        human=given, annotator="eve"
    )
    sheet = sheets / "label_corrections.csv"
    labels.to_csv(sheet, index=False)
    make("labels", others=len(SPLITS))
    row = pd.read_csv(run / "tables" / "labels.csv").set_index("split").loc["all"]
    by_labeller = pd.Series([unit["source"] == "endpoint" for _, unit in asked])
    compared = labels[by_labeller & (labels["sample"] == "random")]
    shares = pd.crosstab(compared["label"], compared["human"], normalize=True).reindex(index=range(3), columns=range(3))
    shares = shares.fillna(0).to_numpy()
    agreed, expected = shares.trace(), shares.sum(1) @ shares.sum(0)
    assert len(compared) > 20
    assert 0.5 < agreed < 1
    assert (row["n_reviewed"], row["n_person"]) == (len(labels), -(-len(labels) // 4))
    assert row["agreement_pct"] == pytest.approx(100 * agreed, abs=1e-3)
    assert row["kappa"] == pytest.approx((agreed - expected) / (1 - expected), abs=1e-5)


# Benchmarks of other domains


def test_a_detector_goes_on_learning_from_a_benchmark(finished: Path) -> None:
    """Questions that ship with the project, answered, scored and learned from."""
    run = finished / "results" / "smoke"
    ood, calibration = (pd.read_csv(run / "tables" / f"{name}.csv") for name in ("ood", "calibration"))
    assert list(ood["set"].unique()) == ["qa_1-1k", "qa_2-1k", "QA-1k"]
    assert list(ood["method"][:6]) == ["No document", "Full attention", "H2O", "InfLLM", "UT-ACA", "UT-ACA"]
    assert set(ood["source"]) == {"protocol"}
    assert set(ood["n_rows"]) == {3, 6}
    assert list(calibration["detector"][:2]) == ["utaca", "calibrated_mixed"]
    assert list(calibration["learned_from"][:2]) == ["biographies", "biographies, qa_1-calibration"]
    trajectories = pd.read_parquet(run / "tasks/qa_1-calibration/trajectories.parquet")
    labels = pd.read_parquet(run / "labels/reference/tasks/qa_1-calibration.parquet")
    assert len(trajectories) == len(labels)
    assert trajectories["document"].nunique() == 3 * 6
    assert labels["label"].isin([0, 1, 2]).all()


# The paper's tables

LABELS = {
    "tab:uncertainty-detection-comparison", "tab:val-context-acc-comparison", "tab:test-set-exp",
    "tab:quality-latency-memory", "tab:ablation_study", "tab:openset_combined", "tab:example_attributes",
    "tab:wiki_data_name", "tab:example_data", "tab:hyperparams", "tab:annotation_results", "tab:case_study",
    "tab:ablation_metric", "tab:ruler-calibration", "tab:case_study_for_perplexity_change", "tab:fp-fn-cases",
}  # fmt: skip


def test_every_table_of_the_paper_is_made_with_its_figures_beside(finished: Path) -> None:
    listed = paper_tables.listed()
    named = [table.label for table in listed if table.label]
    assert len(named) == len(LABELS)
    assert set(named) == LABELS
    figures = paper.tables().model_dump()
    faults = [
        *(f"{target} is no table" for target in {*paper_tables.targets()} - {*ENTRIES}),
        *(
            f"data/paper.yaml has no figures under {key}, of {table.title}"
            for table in listed
            for key in table.figures
            if not figures.get(key)
        ),
        *(
            f"{target} has no row in the smallest run"
            for target in paper_tables.targets()
            if pd.read_csv(finished / "results" / "smoke" / "tables" / f"{target}.csv").empty
        ),
    ]
    assert faults == []


def test_the_list_has_the_labels_of_the_paper() -> None:
    source = Path(os.environ.get("UTACA_PAPER", ROOT.parent / "shared" / "paper" / "ut-aca.tex"))
    if not source.is_file():
        pytest.skip("needs the paper's LaTeX source; UTACA_PAPER names the file")
    assert set(re.findall(r"\\label\{(tab:[^}]*)\}", source.read_text(encoding="utf-8"))) == LABELS
