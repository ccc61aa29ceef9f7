"""The line on a whole run: jobs, rate and time left, from earlier runs and from jobs that have finished."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from commands import snakemake
from conftest import ROOT

from workflow.time_left import Job, TimeLeft, earlier_seconds, in_words, rule_of, seconds_in

JOBS = {
    1: Job("short", "short/a.tsv"),
    2: Job("short", "short/b.tsv"),
    3: Job("long", "long.tsv"),
    4: Job("tables", ""),
}


def benchmark(path: Path, seconds: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s\th:m:s\n{seconds}\t0:00:01\n", encoding="utf-8")


def run(results: Path, name: str, scale: str, age: int, reader: str = "tiny", **seconds: str) -> None:
    """A run of earlier: ``age`` is how old its config is, in hours; ``seconds`` are those of rules with one job."""
    for rule, number in seconds.items():
        benchmark(results / name / "benchmarks" / f"{rule}.tsv", number)
    config = results / name / "run.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump({"scale": {"use": {"name": scale}}, "reader": {"use": {"name": reader}}}))
    os.utime(config, (0, 10**9 - 3600 * age))


def settings(name: str) -> SimpleNamespace:
    return SimpleNamespace(run=name, scale=SimpleNamespace(name="quick"), reader=SimpleNamespace(name="tiny"))


def test_long_jobs_weigh_more_than_short_ones() -> None:
    state = TimeLeft("quick", JOBS, {"short/a.tsv": 10, "short/b.tsv": 10, "long.tsv": 100}, now=50)
    assert state.line(0, 4, 50) == "Run quick: 0 of 4 jobs in 0 s."
    state.start([1], 50)
    state.finish(1, 70)
    # 10 of 120 seconds of work took 20 s, so the other 110 take 220 s.
    assert state.left(70) == (pytest.approx(220), 0)
    assert state.line(1, 4, 70) == "Run quick: 1 of 4 jobs in 20 s (3.0 per min); about 4 min left."
    state.start([2, 3], 70)
    state.finish(2, 90)
    # Half of the 40 s so far went into the job that runs: 10 + 10 + 20 seconds of work.
    assert state.left(90) == (pytest.approx(80), 0)
    # A job that takes longer than expected has nothing left, and less than nothing is never said.
    assert state.left(500) == (0, 0)
    assert state.line(2, 4, 500).endswith("; about 1 min left.")
    state.finish(3, 500)
    assert state.left(500) == (0, 0)


def test_a_rule_that_was_never_timed_is_not_in_the_estimate() -> None:
    state = TimeLeft("new", JOBS, {}, now=0)
    assert state.left(9) == (None, 2)
    assert state.line(0, 4, 9) == "Run new: 0 of 4 jobs in 9 s (0.0 per min)."
    state.start([1], 0)
    state.finish(1, 90)
    # The other job of its rule is expected to take the same.
    assert state.left(90) == (90, 1)
    assert state.line(1, 4, 90) == (
        "Run new: 1 of 4 jobs in 1 min 30 s (0.7 per min); "
        "about 2 min left, and the jobs of 1 rule that no run has timed yet."
    )
    state.start([2], 90)
    assert state.line(1, 4, 180).endswith("; time left not known, as no run has timed 1 rule yet.")


def test_a_job_without_a_file_of_its_own_takes_the_mean_of_its_rule() -> None:
    state = TimeLeft("quick", JOBS, {"short/x.tsv": 4, "short/y.tsv": 8, "long.tsv": 12}, now=0)
    state.finish(1, 6)
    # 6 of 6 + 6 + 12 seconds of work are done.
    assert state.left(6) == (pytest.approx(18), 0)


def test_seconds_come_from_the_run_itself_and_the_newest_run_of_its_size(tmp_path: Path) -> None:
    run(tmp_path, "mine", "quick", 0, corpus="1.5")
    run(tmp_path, "paper", "paper", 1, corpus="99", pad="99")
    run(tmp_path, "other-reader", "quick", 2, reader="qwen", pad="99")
    run(tmp_path, "untimed", "quick", 3)
    run(tmp_path, "newer", "quick", 4, corpus="2", pad="3")
    run(tmp_path, "older", "quick", 5, pad="4", label="5")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.yaml").write_text("- 1")
    assert earlier_seconds(settings("mine"), tmp_path) == {"corpus.tsv": 1.5, "pad.tsv": 3}
    assert earlier_seconds(settings("mine"), tmp_path / "nothing") == {}


def test_benchmark_files_that_are_cut_off_are_left_out(tmp_path: Path) -> None:
    benchmark(tmp_path / "generate" / "test-blocks-0.tsv", "12.5")
    benchmark(tmp_path / "corpus.tsv", "NA")
    (tmp_path / "pad.tsv").write_text("")
    (tmp_path / "fill.tsv").write_text("s\th:m:s\n")
    assert seconds_in(tmp_path) == {"generate/test-blocks-0.tsv": 12.5}
    assert [rule_of(name) for name in ("generate/test-blocks-0.tsv", "corpus.tsv")] == ["generate", "corpus"]


def test_durations_in_words() -> None:
    durations = [4.4, 200, 3590, 3599.8, 7510]
    assert [in_words(one) for one in durations] == ["4 s", "3 min 20 s", "59 min 50 s", "1 h 0 min", "2 h 5 min"]
    long = TimeLeft("quick", JOBS, {"short/a.tsv": 1, "short/b.tsv": 1, "long.tsv": 99}, now=0)
    long.finish(1, 75)
    assert long.line(1, 4, 75).endswith("; about 2 h 5 min left.")


WORKFLOW = """
import sys
from pathlib import Path
from types import SimpleNamespace
sys.path[:0] = SOURCES
from workflow import time_left
time_left.EVERY = 0
settings = SimpleNamespace(run="toy", scale=SimpleNamespace(name="s"), reader=SimpleNamespace(name="r"))

rule all:
    input: expand("results/toy/{n}.txt", n=range(3))

rule one:
    output: "results/toy/{n}.txt"
    benchmark: "results/toy/benchmarks/one/{n}.tsv"
    shell: "sleep 0.2; touch {output}"

onstart:
    time_left.watch(settings, workflow.dag.needrun_jobs(), Path("results"))
"""


def test_snakemake_logs_the_line_unless_progress_is_silenced(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(f"SOURCES = {[str(ROOT / 'src'), str(ROOT)]!r}\n{WORKFLOW}", encoding="utf-8")
    done = snakemake(tmp_path, "--cores", "1", "--quiet", "rules")
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("Run toy: ")]
    counts = [line.partition(" jobs in ")[0] for line in lines]
    assert counts == ["Run toy: 1 of 4", "Run toy: 2 of 4", "Run toy: 3 of 4"]
    assert all(line.endswith("; about 1 min left.") for line in lines)
    quiet = snakemake(tmp_path, "--cores", "1", "--quiet", "progress", "--forceall")
    assert quiet.returncode == 0, quiet.stdout
    assert "Run toy" not in quiet.stdout
