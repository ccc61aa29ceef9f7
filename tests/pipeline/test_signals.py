"""Real signals and closed pipes, sent to real processes: what they leave, how they end, and that the same goes on."""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import stages
from commands import ENVIRONMENT, typed
from conftest import ROOT, copy_checkout
from server import Call, Reply, Server, chat, completion
from server import serving as scripted
from serving import DOCUMENT, QUESTION, SEA

from utaca.judging.rules import tasks
from utaca.records import read, write
from utaca.runs.compose import compose

pytestmark = pytest.mark.slow
SIGNALS = [signal.SIGINT, signal.SIGTERM]
STATUS = {signal.SIGINT: {130, -signal.SIGINT}, signal.SIGTERM: {143, -signal.SIGTERM}}
"""What a process ends with, as a shell or as Python says it."""
FAILED = {number: {1, 130, *status} for number, status in STATUS.items()}
"""What a stage ends with: it ends at both signals as at Ctrl-C, but one that is still importing as Python does."""


def start(command: Sequence[str], folder: Path, **pipes: Any) -> subprocess.Popen[bytes]:
    """A process that heeds interrupts, which a shell's background jobs, and so perhaps these tests, ignore."""
    about = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
    paths = os.pathsep.join([*(path for path in sys.path if path), ENVIRONMENT["PYTHONPATH"]])
    heed = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    return subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT | {"PYTHONPATH": paths}, preexec_fn=heed, **about
    )  # fmt: skip


def wait(process: subprocess.Popen[bytes], condition: Callable[[], Any], patience: float = 120) -> None:
    """Wait for a condition while a process runs."""
    deadline = time.monotonic() + patience
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def unread(process: subprocess.Popen[bytes]) -> int:
    """Number of bytes in the pipe of a process's standard output."""
    room = bytearray(4)
    fcntl.ioctl(process.stdout, termios.FIONREAD, room)
    return int.from_bytes(room, sys.byteorder)


# utaca ask


def asking(folder: Path, document: Path | str, *more: str) -> list[str]:
    """The command that asks about a document, with a cache in ``folder``."""
    cache = ["--cache", str(folder / "cache"), "--trigger", "never"]
    return [
        sys.executable,
        "-m",
        "utaca",
        "ask",
        "--reader",
        "tiny",
        "--document",
        str(document),
        *cache,
        *more,
        QUESTION,
    ]


def kept(folder: Path) -> list[str]:
    """The files in the cache of :func:`asking`."""
    return [path.name for path in (folder / "cache").glob("*")]


def waiting_for_its_document(folder: Path) -> subprocess.Popen[bytes]:
    process = start(asking(folder, "-"), folder, stdin=subprocess.PIPE)
    # More than a pipe holds: once it is written, the command waits for the rest of its document.
    process.stdin.write((SEA * 5000).encode())
    process.stdin.flush()
    return process


def reading(folder: Path) -> subprocess.Popen[bytes]:
    path = folder / "long.txt"
    path.write_text(SEA * 20000)
    with open(folder / "stderr", "wb") as complaint:
        process = start(asking(folder, path), folder, stderr=complaint)
    wait(process, lambda: b"reading" in (folder / "stderr").read_bytes())
    return process


def answering(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "short.txt").write_text(DOCUMENT)
    process = start(asking(folder, folder / "short.txt", "--json"), folder)
    # A page of a pipe does not hold the answer: the command waits with a part of it.
    held = fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    wait(process, lambda: unread(process) > held - 400)
    return process


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (waiting_for_its_document, signal.SIGINT),
        (reading, signal.SIGINT),
        (reading, signal.SIGTERM),
        (answering, signal.SIGINT),
        (answering, signal.SIGTERM),
    ],
)
def test_ask_ends_at_a_signal_and_answers_afterwards(
    moment: Callable[[Path], subprocess.Popen[bytes]], number: int, tmp_path: Path
) -> None:
    with moment(tmp_path) as process:
        process.send_signal(number)
        said, complaint = process.communicate(timeout=60)
    assert process.returncode in STATUS[number]
    complaint = complaint or b""
    if (tmp_path / "stderr").is_file():
        complaint = (tmp_path / "stderr").read_bytes()
    assert b"Traceback" not in complaint
    # Of the answer there are whole lines, but for the last one; of the cache what was read in whole.
    assert all(json.loads(line)["type"] == "token" for line in said.splitlines()[:-1])
    assert len(kept(tmp_path)) == (moment is answering)
    if moment is answering:
        done = typed(*asking(tmp_path, tmp_path / "short.txt", "--json")[3:])
        assert done.exit_code == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["cached"]
        assert answer["finish"] == "eos"
        assert "Harvard University" in answer["text"]


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "lines"])
def test_ask_ends_quietly_where_nobody_reads_on(more: list[str], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(DOCUMENT)
    command = f"{shlex.join(asking(tmp_path, 'short.txt', *more))} 2> said | head -c 1; echo ${{PIPESTATUS[*]}}"
    done = start(["bash", "-c", command], tmp_path)
    shown, complaint = done.communicate(timeout=120)
    assert complaint == b""
    ask, head = shown[1:].decode().split()
    assert shown[:1].decode() == ("{" if more else "T")
    # The system's own way to end a writer, or as the command's library ends one.
    assert int(ask) in (0, 1, 128 + signal.SIGPIPE)
    assert head == "0"
    said = (tmp_path / "said").read_text()
    assert "Traceback" not in said
    assert "Error" not in said


# Stages


def stage(script: str, folder: Path, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """The process of a script, with its log in ``folder``."""
    return start([sys.executable, stages.__file__, script, json.dumps(job)], folder, stdout=subprocess.DEVNULL)


def writing(server: Server) -> dict[str, Any]:
    """A job of the stage of biographies, whose writer is a server."""
    writer = {"use": "gpt_oss_120b", "base_url": server.url, "model": "m", "name": "slow", "concurrency": 2}
    config = compose({"writer": writer, "scale": "smoke"}, ROOT)
    params = {"seed": 0, "number": 8, "people": "", "writer": config["writer"]}
    return {"output": {"biographies": "made.parquet", "usage": "usage.parquet"}, "params": params, "config": config}


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_stage_that_waits_for_a_server_ends_and_asks_for_the_rest_alone(number: int, tmp_path: Path) -> None:
    slow = True

    def script(server: Server, call: Call) -> Reply:
        answer = completion(json.dumps(tasks.answer(call.task))).body
        return Reply(answer, seconds=60 if slow and len(server.chats) > 4 else 0)

    (tmp_path / "results").mkdir()
    with scripted(chat(script)) as server:
        job = writing(server)
        with stage("write_biographies", tmp_path, job) as process:
            wait(process, lambda: len(server.chats) == 6)
            process.send_signal(number)
            _, complaint = process.communicate(timeout=60)
        assert process.returncode in FAILED[number], complaint
        assert [path.name for path in tmp_path.glob("*.parquet*")] == [], "no file, whole or half"
        slow = False
        with contextlib.chdir(tmp_path):
            stages.run("write_biographies", job)
        asked = [call.task["person"] for call in server.chats]
    assert read(tmp_path / "made.parquet", "biographies").num_rows == 8
    # Four answers had come, two were waited for.
    assert len(asked) == 8 + 2
    assert len(set(asked)) == 8


def decoding(folder: Path) -> dict[str, Any]:
    """A job of the stage of trajectories about some documents."""
    fact = {"attribute": "hobby", "value": "Chess"}
    prose = [f"Canal {n} was dug by hand in {1600 + n} and flooded {3 * n} times. " for n in range(40)]
    documents = [
        {
            **{"id": f"train-{n}", "split": "train", "person": f"Ann {n}", "n_tokens": 0, "spans": [], "evidence": []},
            **{"facts": [fact], "corpus": "embedded", "text": f"The hobby of Ann {n} is Chess. {''.join(prose[n:])}"},
        }
        for n in range(10)
    ]
    write(folder / "documents.parquet", "documents", documents)
    config = compose({"scale": "smoke", "decode": {"test": ["infllm-K4"]}}, ROOT)
    config["reader"]["path"] = str(ROOT / config["reader"]["path"])
    params = {
        **{"reader": config["reader"], "shards": 1, "together": False, "journal": "journal/trajectories"},
        **{"budgets": [1, 3], "paths": [], "evidence": ["complete"], "recorded": config["trajectories"]},
        "signals": ["margin", "retrieval"],
    }
    weights = f"{config['reader']['path']}/model.safetensors"
    return {
        **{"input": {"documents": "documents.parquet", "reader": [weights]}, "output": {"part": "part-0.parquet"}},
        **{"params": params, "wildcards": {"split": "train", "shard": "0"}, "config": config},
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the stage of trajectories makes where nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with contextlib.chdir(folder):
        stages.run("decode_trajectories", decoding(folder))
    return (folder / "part-0.parquet").read_bytes()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_stage_that_decodes_ends_and_goes_on_in_the_same_bytes(
    number: int, undisturbed: bytes, tmp_path: Path
) -> None:
    job = decoding(tmp_path)

    def journaled() -> list[Path]:
        return [*(tmp_path / "journal").rglob("[!.]*.parquet")]

    with stage("decode_trajectories", tmp_path, job) as process:
        wait(process, lambda: len(journaled()) > 1)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode in FAILED[number], complaint
    assert not (tmp_path / "part-0.parquet").exists()
    pieces = {path: path.stat().st_mtime_ns for path in journaled()}
    assert all(pq.read_table(path).num_rows for path in pieces), "whole ones"
    assert 1 < len(pieces) < 10
    with contextlib.chdir(tmp_path):
        stages.run("decode_trajectories", job)
    assert (tmp_path / "part-0.parquet").read_bytes() == undisturbed
    assert not journaled(), "the part holds all of it"


# Snakemake


def workflow(folder: Path, server: Server) -> subprocess.Popen[bytes]:
    """Snakemake in a session of its own, as a terminal starts it, whose job waits for a slow writer."""
    writer = f"{{use: gpt_oss_120b, base_url: '{server.url}', model: m, name: slow, concurrency: 2}}"
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "1",
        "--config",
        "run=slow",
        "scale=smoke",
        f"writer={writer}",
    ]
    target = "results/slow/biographies/test.parquet"
    return start([*command, "--", target], folder, stderr=subprocess.STDOUT, start_new_session=True)


def test_a_run_ends_at_a_signal_and_the_same_command_finishes_it(tmp_path: Path) -> None:
    """Ctrl-C in a terminal, which all of its processes get, and then a SIGTERM for Snakemake itself."""
    seconds = 60.0

    def script(server: Server, call: Call) -> Reply:
        if not call.task:
            return completion(json.dumps({"ready": True}))
        return Reply(completion(json.dumps(tasks.answer(call.task))).body, seconds=seconds)

    def written() -> list[Path]:
        return [path for path in folder.glob("results/slow/**/*.parquet*") if path.is_file()]

    folder = copy_checkout(tmp_path / "utaca")
    with scripted(chat(script)) as server:
        with workflow(folder, server) as run:
            wait(run, lambda: [call for call in server.chats if call.task])
            os.killpg(run.pid, signal.SIGINT)
            said, _ = run.communicate(timeout=120)
        assert run.returncode not in (0, None), said.decode()
        assert written() == []
        before, seconds = len(server.chats), 5.0
        with workflow(folder, server) as run:
            wait(run, lambda: [call for call in server.chats[before:] if call.task])
            run.send_signal(signal.SIGTERM)
            # Whether it waits for its job or ends it, nothing is left half.
            said, _ = run.communicate(timeout=120)
        assert run.returncode not in (0, None), said.decode()
        assert all(read(path, path.parts[-2] if "usage" not in path.parts else "usage") for path in written())
        seconds = 0.0
        with workflow(folder, server) as run:
            said, _ = run.communicate(timeout=120)
        assert run.returncode == 0, said.decode()
    made = read(folder / "results/slow/biographies/test.parquet", "biographies")
    assert made.num_rows == 2
    assert not any((folder / ".snakemake" / "locks").glob("*"))
