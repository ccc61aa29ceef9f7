"""``bench/gpu.py``, which measures a GPU: a small run on the CPU, runs that are cut off, and what it refuses."""

import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from commands import ENVIRONMENT
from conftest import ROOT

from utaca.reporting import paper

SCRIPT = str(ROOT / "bench" / "gpu.py")
PARTS = ["exactness", "card", "sizes", "full", "points", "profile", "replay", "pipeline"]


@pytest.fixture(scope="module")
def gpu() -> Iterator[ModuleType]:
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        patch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        yield import_module("gpu")


@pytest.fixture
def parts(gpu: ModuleType) -> ModuleType:
    """What the script measures, as a module."""
    return import_module("gpu_parts")


def saved(path: Path) -> dict[str, Any]:
    """The report in a file; NaN and infinity, which are no JSON, are an error."""
    return json.loads(path.read_text(), parse_constant=pytest.fail)


# A whole run


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small run of all parts: its report, and what it printed."""
    out = tmp_path_factory.mktemp("gpu") / "folder" / "gpu.json"
    command = [sys.executable, SCRIPT, "--small", "--out", str(out)]
    done = subprocess.run(command, cwd=out.parents[1], env=ENVIRONMENT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(report=saved(out), stdout=done.stdout, stderr=done.stderr)


def rows(small: Any, part: str) -> list[dict[str, Any]]:
    return small.report["parts"][part]["rows"]


def test_a_run_writes_the_report_that_the_schema_says(small: Any, gpu: ModuleType, parts: ModuleType) -> None:
    report = small.report
    assert report.keys() == gpu.Report.__annotations__.keys()
    assert report["machine"].keys() == gpu.Machine.__annotations__.keys()
    assert report["machine"]["torch"] == torch.__version__
    assert report["machine"]["card"] == ""
    assert report["small"] is True
    assert list(report["parts"]) == PARTS == list(gpu.PARTS)
    assert 0 < report["seconds"] < 60 * report["minutes"]
    of_parts = {"card": parts.CardRow, "sizes": parts.SizeRow, "full": parts.FullRow, "points": parts.PointsRow}
    of_parts |= {"profile": parts.ProfileRow, "pipeline": parts.PipelineRow}
    for name, part in report["parts"].items():
        assert part.keys() == gpu.PartReport.__annotations__.keys()
        if name == "replay":
            assert (part["status"], part["why"]) == ("not run", "a step is recorded as a graph on a GPU only")
            continue
        assert (part["status"], part["why"]) == ("done", "")
        assert part["seconds"] > 0
        assert part["rows"]
        if name in of_parts:
            columns = [field.name for field in fields(of_parts[name])]
            assert all(list(row) == columns for row in part["rows"])
        for row in part["rows"]:
            assert all(isinstance(value, str | int | float | None) for value in row.values())


def test_every_case_is_exact_on_the_cpu(small: Any) -> None:
    assert [row["case"] for row in rows(small, "exactness") if not row["exact"]] == []


def test_figures_of_every_size_and_point(small: Any, parts: ModuleType) -> None:
    assert all(row["value"] > 0 for row in rows(small, "card"))
    found = Counter((row["length"], row["storage"], row["what"]) for row in rows(small, "sizes"))
    points = len(parts.POINTS) + 1
    assert found == {
        (length, storage, what): count
        for length, storage in parts.SMALL.sizes
        for what, count in (("prefill", 1), ("answer", points))
    }
    prefill = ["seconds", "room_s", "tokens_per_s", "peak_gib", "floor", "floor_share"]
    answer = ["first_s", "median_ms", "mean_ms", "mtokens", "end_to_end_s", "peak_gib", "floor", "floor_share"]
    read: dict[tuple[int, str], float] = {}
    for row in rows(small, "sizes"):
        assert row["note"] == ""
        measured = prefill if row["what"] == "prefill" else answer
        assert all(row[column] > 0 for column in measured), row
        if row["what"] == "prefill":
            read[row["length"], row["storage"]] = row["seconds"]
            assert row["tokens_per_s"] == pytest.approx(row["length"] / row["seconds"], rel=1e-4)
        else:
            # An answer of 200 tokens, the document read before it.
            later = row["end_to_end_s"] - read[row["length"], row["storage"]] - row["first_s"]
            assert later == pytest.approx(0.199 * row["mean_ms"], rel=1e-3)
    fixed = [row for row in rows(small, "sizes") if row["method"] == "infllm"]
    assert all(row["mtokens"] == 16 * row["budget"] for row in fixed)
    # Budget 64, then 32 at every step: no step is expanded.
    same = parts.SAME_STEP
    expected = 16 * (same.budget + (parts.SMALL.tokens - 1) * same.budget / 2) / parts.SMALL.tokens
    kept = [row for row in rows(small, "sizes") if row["policy"] == same.policy]
    assert [row["mtokens"] for row in kept] == pytest.approx([expected] * len(parts.SMALL.sizes), rel=1e-5)
    # One of twelve tokens takes a second pass, and it is among the eight that are timed.
    expanded = [row for row in rows(small, "sizes") if row["every"]]
    assert all(row["floor"] == pytest.approx(kept[0]["floor"] * 9 / 8, rel=1e-5) for row in expanded)


def test_the_papers_figures_stand_next_to_those_of_the_papers_length(small: Any, parts: ModuleType) -> None:
    table = paper.tables().tradeoff[paper.LLAMA]
    compared = 0
    for row in rows(small, "sizes"):
        figures = (
            table.get((row["method"], row["budget"], row["policy"])) if row["length"] == parts.SMALL.paper else None
        )
        for column in ("mtokens", "end_to_end_s", "peak_gib"):
            assert row[f"paper_{column}"] == (figures[column] if figures else None)
        compared += figures is not None
    # On the device and in host memory.
    assert compared == 2 * len(table)


def test_full_attention_is_held_against_the_same_length(small: Any) -> None:
    for row in rows(small, "full"):
        (ours,) = [
            size
            for size in rows(small, "sizes")
            if (size["length"], size["storage"], size["what"]) == (row["length"], "device", "prefill")
        ]
        assert row["ours_prefill_s"] == ours["seconds"]
        assert row["prefill_ratio"] == pytest.approx(row["prefill_s"] / ours["seconds"], rel=1e-4)
        assert row["token_ratio"] == pytest.approx(row["median_ms"] / row["ours_median_ms"], rel=1e-4)
        assert row["peak_gib"] > 0
        assert row["note"] == ""


def test_points_share_passes(small: Any, parts: ModuleType) -> None:
    first, together, *others, after_another = rows(small, "points")
    single = [first, *others]
    assert first["what"] == parts.FIXED_STEP.name
    assert {row["what"] for row in single} == {point.name for point in parts.POINTS}
    assert after_another["seconds"] == pytest.approx(sum(row["seconds"] for row in single), rel=1e-4)
    assert 0 < together["seconds"] < after_another["seconds"]


def test_a_profile_has_ten_operations_and_the_hosts_waits(small: Any, parts: ModuleType) -> None:
    cases = {row["case"] for row in rows(small, "profile")}
    assert len(cases) == len(parts.CASES)
    for case in cases:
        mine = [row for row in rows(small, "profile") if row["case"] == case]
        times = [row["value"] for row in mine if row["kind"] == "operation"]
        assert len(times) == 10
        assert times == sorted(times, reverse=True)
        assert times[-1] > 0
        figures = {row["what"]: row["value"] for row in mine if row["kind"] == "figure"}
        assert figures["token, not profiled"] > 0
        assert figures["operations"] > 100
        # The tokens are read from the device by one copy, not number by number.
        assert figures["numbers that the host reads"] == 0


def test_the_pipelines_tables_are_compared(small: Any) -> None:
    (row,) = rows(small, "pipeline")
    assert row["table"] == "validation"
    assert row["cells"] > 50
    assert row["differing"] == 0


def test_a_run_shows_its_progress_and_a_summary(small: Any) -> None:
    assert "| bar | wanted | measured | met |" in small.stdout
    assert "| cases that are not exact | <= 0 | 0 | yes |" in small.stdout
    for part in PARTS:
        status = "not run" if part == "replay" else "done"
        assert f"## {part}\n\n{status}" in small.stdout
        assert f" s left] {part}: {status}" in small.stderr


# Runs that are cut off


def test_a_run_that_is_killed_leaves_its_rows_and_no_process(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    command = [sys.executable, SCRIPT, "--small", "sizes", "full", "--out", str(out)]
    run = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (out.exists() and saved(out)["parts"]["sizes"]["rows"]):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    children = psutil.Process(run.pid).children(recursive=True)
    assert children
    run.kill()
    run.wait()
    left = saved(out)["parts"]
    assert (left["sizes"]["status"], left["sizes"]["why"]) == ("cut off", "the run was ended while this part ran")
    assert left["sizes"]["rows"][0]["seconds"] > 0
    assert (left["full"]["status"], left["full"]["why"]) == ("not run", "the run ended before its turn")
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


class Pretended:
    """A process that sends one row, and then dies unless it ``lives``."""

    def __init__(self, *, lives: bool = False) -> None:
        self.orders, self.theirs = Pipe()
        self.theirs.send(("row", {"what": "copy", "value": 1.0}))
        self.process = SimpleNamespace(join=lambda seconds: None, exitcode=-11)
        if not lives:
            self.theirs.close()

    def end(self) -> None:
        self.orders.close()


def test_a_run_that_is_ended_says_what_ran(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    def say(run: Any, name: str, what: str) -> None:
        if what.startswith("what=copy"):
            gpu.stop(signal.SIGTERM, None)

    child = Pretended(lives=True)
    monkeypatch.setattr(gpu, "Child", lambda small: child)
    monkeypatch.setattr(gpu.Run, "say", say)
    with pytest.raises(SystemExit, match="Error: the run was ended by SIGTERM"):
        gpu.main(["--small", "card", "sizes", "--out", str(tmp_path / "gpu.json")])
    card = saved(tmp_path / "gpu.json")["parts"]["card"]
    assert (card["status"], card["rows"]) == ("cut off", [{"what": "copy", "value": 1.0}])
    assert child.orders.closed
    assert "## card\n\ncut off: the run was ended while this part ran" in capsys.readouterr().out


def test_parts_end_with_their_share_of_the_time(gpu: ModuleType, tmp_path: Path, capsys: Any) -> None:
    started = time.monotonic()
    gpu.main(["--small", "--minutes", "0.03", "--out", str(tmp_path / "gpu.json")])
    assert time.monotonic() - started < 20
    report = saved(tmp_path / "gpu.json")
    assert {part["status"] for part in report["parts"].values()} <= {"cut off", "not run"}
    assert report["parts"]["exactness"]["why"].endswith("s were over")
    assert "s left] pipeline: " in capsys.readouterr().err


def test_a_part_gets_what_earlier_ones_left(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[str, float] = {}
    run = gpu.Run(PARTS, 8, True, tmp_path / "gpu.json")
    monkeypatch.setattr(run, "measure", lambda name, limit: limits.update({name: limit}))
    run.all()
    # Nothing took any time, so the last part has all of it.
    assert limits["pipeline"] == pytest.approx(480, abs=5)
    assert limits["exactness"] == pytest.approx(80, abs=5)
    assert limits["sizes"] > 160


def test_what_would_take_too_long_is_not_begun(parts: ModuleType) -> None:
    lab = parts.Lab(parts.SMALL)
    lab.reading = {"device": 0.1, "host": 0.1}
    lab.decoding = {"device": 1.0, "host": 1.0}
    clock = parts.Clock(time.monotonic() + 50)
    refused = [parts.tidy(row) for row in parts.sizes(lab, clock, [])]
    assert [(row["length"], row["storage"]) for row in refused] == list(parts.SMALL.sizes)
    assert refused[0]["note"] == "not run: 2560 tokens, storage=device, would take about 268 s, 50 s are left"
    assert [row.note for row in parts.points(lab, clock, [])] == [
        "not run: 7 points of 2048 tokens would take about 277 s, 50 s are left"
    ]
    assert "bench" not in vars(lab), "nothing was loaded for it"


# Parts that fail


def test_a_part_that_raises_fails_in_a_sentence(
    gpu: ModuleType, parts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Iterator[Any]:
        yield {"case": "first", "value": math.nan}
        raise ValueError("no such kernel")

    monkeypatch.setitem(gpu.PARTS, "card", parts.Part(broken, 1, True))
    sent: list[Any] = []
    gpu.answer(gpu.Order("card", time.monotonic() + 5, []), parts.Lab(parts.SMALL), sent.append)
    assert sent == [("row", {"case": "first", "value": None}), ("failed", "ValueError: no such kernel")]


def test_a_missing_package_is_named(parts: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Traceback\nModuleNotFoundError: No module named 'omegaconf'\n")
    assert "package omegaconf is missing" in str(parts.fault(tmp_path))
    (tmp_path / "log").write_text("Building\nError: reader.device=cuda, but it is not\n")
    assert "failed: Error: reader.device=cuda, but it is not" in str(parts.fault(tmp_path))
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(parts.NotRun, match="package snakemake is missing; install"):
        next(parts.pipeline(parts.Lab(parts.SMALL), parts.Clock(math.inf), []))


def test_a_process_that_died_fails_its_part_and_the_next_has_another(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Pretended] = []

    def start(small: bool) -> Pretended:
        started.append(Pretended())
        return started[-1]

    monkeypatch.setattr(gpu, "Child", start)
    run = gpu.Run(["card", "sizes"], 1, True, tmp_path / "gpu.json")
    run.all()
    assert len(started) == 2
    assert saved(tmp_path / "gpu.json") == run.report
    for part in run.report["parts"].values():
        assert (part["status"], part["why"]) == ("failed", "its process ended with exit code -11")
    assert "failed: its process ended" in gpu.summary(run.report)


# What is computed


def event(category: str, name: str, start: float, duration: float, launch: int = 0) -> dict[str, Any]:
    """An event of a trace, in µs; ``launch`` is what a call of CUDA and what it launched have in common."""
    arguments = {"correlation": launch} if launch else {}
    return {"ph": "X", "cat": category, "name": name, "tid": 1, "ts": start, "dur": duration, "args": arguments}


TRACE = [
    event("kernel", "gemm", 0, 1000, 1),
    # On a second stream, half of it while the first is at work.
    event("kernel", "softmax", 500, 1000, 2),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 2000, 500, 3),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 3500, 500, 9),
    event("gpu_user_annotation", "step", 0, 9000),
    event("cpu_op", "aten::matmul", 0, 100),
    event("cpu_op", "aten::mm", 0, 40),
    event("cuda_runtime", "cudaLaunchKernel", 10, 5, 1),
    event("cpu_op", "aten::mm", 40, 30),
    event("cuda_driver", "cuLaunchKernelEx", 80, 5, 2),
    event("cpu_op", "aten::_local_scalar_dense", 100, 900),
    event("cuda_runtime", "cudaMemcpyAsync", 110, 5, 3),
    event("cuda_runtime", "cudaStreamSynchronize", 120, 800, 4),
    event("cuda_runtime", "cudaDeviceSynchronize", 4000, 900, 5),
    {"ph": "M", "name": "thread_name"},
]


def test_figures_of_a_trace(parts: ModuleType) -> None:
    found = {(row.what, row.unit): row.value for row in parts.figures(TRACE, steps=2, token_ms=5.0)}
    assert found == {
        ("operations", ""): 2,
        ("numbers that the host reads", ""): 0.5,
        ("kernels", ""): 1,
        ("launches", ""): 1,
        ("waits of the host", ""): 0.5,
        ("copies to the host", ""): 0.5,
        ("copies to the device", ""): 0.5,
        ("device at work", "ms"): pytest.approx(1.25),
        ("gaps, as profiled", "ms"): pytest.approx(0.75),
        ("gaps, not profiled", "ms"): pytest.approx(3.75),
        ("copies", "ms"): pytest.approx(0.5),
        ("waits of the host", "ms"): pytest.approx(0.4),
    }


def test_operations_of_a_trace_have_the_time_that_is_their_own(parts: ModuleType) -> None:
    assert parts.operations(TRACE) == {
        "aten::matmul": parts.Operation(calls=1, host_us=30, device_us=1000),
        "aten::mm": parts.Operation(calls=2, host_us=70, device_us=1000),
        "aten::_local_scalar_dense": parts.Operation(calls=1, host_us=900, device_us=500),
        "launched by no operation": parts.Operation(device_us=500),
    }


def test_tables_are_compared_cell_by_cell(parts: ModuleType, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, score, name in ((one, "50", "a"), (other, "40", "b")):
        folder.mkdir()
        header = "point,cas_pct,prefill_s,prefill_s_low,seconds_per_token,peak_gib,note\n"
        (folder / "test.csv").write_text(f"{header}k,{score},{score},{score},{score},{score},\nl,1,2,3,4,5,{name}\n")
    (one / "lost.csv").write_text("a\n1\n")
    (one / "long.csv").write_text("a\n1\n")
    (other / "long.csv").write_text("a\n1\n2\n")
    long, lost, test = parts.compared(one, other)
    assert (lost.table, lost.note) == ("lost", "only one of the devices has this table")
    assert (long.table, long.note) == ("long", "the tables have other columns, or 1 and 2 rows")
    assert (test.cells, test.differing, test.largest_pct) == (6, 2, 100)
    assert test.note == "differing: cas_pct, note"
    (one / "test.csv").write_text("cas_pct\n50\n")
    (other / "test.csv").write_text("cas_pct\n40\n")
    assert [*parts.compared(one, other)][-1].largest_pct == pytest.approx(20)


def test_logits_of_a_whole_document_are_refused(parts: ModuleType, tiny: Any) -> None:
    tokens = tiny.encode("The sea was calm.")[None]
    from utaca.readers.attention import ATTENTION

    tiny.model.set_attn_implementation("sdpa")
    try:
        with parts.only_last_logits(tiny.model):
            tiny.model(tokens, logits_to_keep=1)
            with pytest.raises(RuntimeError, match="logits of"):
                tiny.model(tokens)
    finally:
        tiny.model.set_attn_implementation(ATTENTION)


def test_bars_are_met_or_not(gpu: ModuleType, parts: ModuleType) -> None:
    def measured(*found: Any) -> dict[str, Any]:
        return {"status": "done", "why": "", "seconds": 1.0, "rows": [parts.tidy(row) for row in found]}

    def size(storage: str, what: str, **figures: Any) -> Any:
        return parts.SizeRow(length=252_000, storage=storage, what=what, **figures)

    def shown() -> list[tuple[str, ...]]:
        return [tuple(bar.row(report)[name] for name in ("wanted", "measured", "met")) for bar in gpu.bars(report)]

    fixed, same, replayed = (x._asdict() for x in (parts.FIXED_STEP, parts.SAME_STEP, parts.REPLAYED_STEP))
    sizes = [
        size("device", "prefill", seconds=7.0),
        size("device", "answer", **fixed, median_ms=8.0, peak_gib=50.0),
        size("device", "answer", **same, median_ms=9.6),
        size("host", "answer", **fixed, median_ms=20.0, peak_gib=19.0),
    ]
    report = {
        "machine": {"card": "NVIDIA H100 80GB HBM3"},
        "parts": {
            "exactness": measured({"case": "a", "exact": True}, {"case": "b", "exact": False}),
            "sizes": measured(*sizes),
            "replay": measured(sizes[1], size("device", "answer", **replayed, median_ms=6.0)),
            "full": measured(parts.FullRow(length=131_072, prefill_ratio=6.0)),
        },
    }
    assert shown() == [
        ("<= 0", "1", "no"),
        ("<= 8 s", "7 s", "yes"),
        ("<= 9 ms", "8 ms", "yes"),
        ("<= 20 GiB", "19 GiB", "yes"),
        ("<= 1", "0.75", "yes"),
        ("<= 1.1", "1.2", "no"),
        (">= 5", "6", "yes"),
    ]
    report["machine"]["card"] = "NVIDIA H200"
    assert shown()[1] == ("<= 6 s", "7 s", "no")
    report["machine"]["card"] = "NVIDIA A100"
    assert shown()[1] == ("–", "7 s", "–")
    report["parts"] = {"exactness": measured({"case": "a", "exact": True}) | {"status": "cut off"}}
    assert {measured for _, measured, _ in shown()} == {"not measured"}


# What is refused


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A card that suffices, as torch tells of it; a test takes something from it."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (78 << 30, 80 << 30))
    return monkeypatch


def refusal(gpu: ModuleType, *arguments: str) -> str:
    """The one sentence with which the script ends, before it writes or measures anything."""
    with pytest.raises(SystemExit) as error:
        gpu.main([*arguments])
    text = str(error.value)
    assert text.startswith("Error: ")
    assert "\n" not in text
    return text


def test_a_card_that_suffices_is_not_refused(gpu: ModuleType, card: pytest.MonkeyPatch) -> None:
    gpu.check(PARTS, 8, False)


def test_torch_without_cuda_is_refused(gpu: ModuleType, card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.version, "cuda", None)
    card.setattr(torch.cuda, "is_available", lambda: False)
    assert "is built without CUDA; install a torch for CUDA (docs/install.md#another-torch)" in refusal(gpu)


def test_no_visible_card_is_refused(gpu: ModuleType, card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device is visible; check the driver with nvidia-smi" in refusal(gpu)


def test_a_card_without_bfloat16_is_refused(gpu: ModuleType, card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "needs a GPU of the Ampere generation or later, which has bfloat16" in refusal(gpu)


def test_too_little_memory_is_refused_only_for_parts_that_need_it(gpu: ModuleType, card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "mem_get_info", lambda device=None: (12 << 30, 16 << 30))
    said = refusal(gpu, "sizes")
    assert "12.0 GiB are free" in said
    assert "ask for the parts exactness, card, pipeline" in said
    gpu.check(["exactness", "card", "pipeline"], 8, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--small", "size"], "no part is called size; the parts are exactness, card, sizes"),
        (["--small", "--minutes", "0"], "--minutes is 0; give it a number above 0"),
        (["--small", "--minutes", "nan"], "--minutes is nan; give it a number above 0"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(gpu: ModuleType, arguments: list[str], said: str) -> None:
    assert said in refusal(gpu, *arguments)


def test_a_file_that_cannot_be_written_is_refused(gpu: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(gpu, "--small", "--out", str(tmp_path / "file" / "gpu.json"))
    assert "cannot be written" in said
    assert "give --out a file in a folder that can" in said
    assert "cannot be written" in refusal(gpu, "--small", "--out", str(tmp_path))
