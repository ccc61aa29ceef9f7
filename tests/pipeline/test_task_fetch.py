"""The official files of benchmarks: fetched, checked, moved into place whole, and named where they cannot be had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from server import Reply, Server, serving

from utaca.data_files import sha256
from utaca.errors import UserError
from utaca.settings.compose import compose
from utaca.tasks import fetch as tasks
from utaca.tasks.fetch import OFFICIAL, Official, Outcome, Source, fetch
from utaca.tasks.registry import TASKS
from utaca.tasks.rows import Rows
from utaca.tasks.ruler import QA1

ROW = {"id": 1, "_id": "1", "context": "A book.", "input": "Who?", "answer": ["He"], "answers": ["He"]}
LINE = json.dumps(ROW) + "\n"


class Book(TASKS["longbook_qa_eng"]):
    rows = 3


class Story(TASKS["narrativeqa"]):
    rows = 2


class Query(TASKS["qmsum"]):
    rows = 2


class Paragraphs(QA1):
    rows = 1
    articles = 1


class Files:
    """Files by their paths on a server; gives the address of one that it is to hold."""

    def __init__(self, server: Server) -> None:
        self.calls, self._address = server.calls, server.address
        self._held: dict[str, Reply] = {}
        server.script = lambda server, call: self._held.get(call.path, Reply("", status=404))

    def __call__(self, path: str, body: bytes | str, **how: Any) -> str:
        self._held[path] = Reply(body, **how)
        return self._address + path


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(lambda server, call: Reply(status=404)) as server:
        yield Files(server)


def fetched(official: Official, folder: Path) -> Outcome:
    (found,) = fetch(["it"], folder, {"it": official})
    return found


def nothing_but(folder: Path, *names: str) -> bool:
    """Whether the folder has these files and no others, scratch files included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(names)


def test_a_file_is_fetched_once_and_told_with_its_digest(tmp_path: Path, serve: Files) -> None:
    file = Official(Book, Source(serve("/book.jsonl", LINE * 3)))
    path = tmp_path / "data" / "InfiniteBench" / "longbook_qa_eng.jsonl"
    done = fetched(file, tmp_path / "data")
    assert done == Outcome(path, 3, sha256(path), now=True)
    assert path.read_text() == LINE * 3
    assert fetched(file, tmp_path / "data") == replace(done, now=False), "it is there"
    assert [call.path for call in serve.calls] == ["/book.jsonl"]
    assert list((tmp_path / "data").iterdir()) == [path.parent]
    assert path.stat().st_mode & 0o044 == Path(__file__).stat().st_mode & 0o044, "others may read it"


def test_members_of_one_archive_are_downloaded_once(tmp_path: Path, serve: Files) -> None:
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("data/narrativeqa.jsonl", LINE * 2)
        packed.writestr("data/qmsum.jsonl", LINE * 2 + "\n")
    source = Source(serve("/data.zip", archive.read_bytes()), sha256=sha256(archive))
    files = {
        "a": Official(Story, source, "data/narrativeqa.jsonl"),
        "b": Official(Query, source, "data/qmsum.jsonl"),
        "c": Official(Book, source, "data/gone.jsonl"),
    }
    *done, lost = fetch(files, tmp_path / "data", files)
    assert [(found.path.name, found.now, found.fault) for found in done] == [
        ("narrativeqa.jsonl", True, ""),
        ("qmsum.jsonl", True, ""),
    ]
    assert [call.path for call in serve.calls] == ["/data.zip"]
    assert lost.fault == (
        f"{source.address} is no whole archive with data/gone.jsonl; bring it by hand: its member data/gone.jsonl must "
        f"lie at {tmp_path}/data/InfiniteBench/longbook_qa_eng.jsonl"
    )
    assert nothing_but(tmp_path / "data", "LongBench/narrativeqa.jsonl", "LongBench/qmsum.jsonl")


SQUAD = {"data": [{"title": "A", "paragraphs": [{"context": "A text.", "qas": []}]}]}


@pytest.mark.parametrize(
    ("task", "body", "said"),
    [
        (Book, LINE * 2, "{address} has not the 3 rows of the official file"),
        (Book, LINE * 2 + "{}\n", "{address}, line 3, has no text under 'context'"),
        (Paragraphs, json.dumps(SQUAD), "{address} has not the 1 rows of the official file"),
        (Paragraphs, '{"error": "gone"}', "{address}, row 1, has no list of objects under 'paragraphs'"),
    ],
)
def test_another_layout_and_number_of_rows_are_not_let_in(
    tmp_path: Path, serve: Files, task: type[Rows], body: bytes | str, said: str
) -> None:
    file = Official(task, Source(serve("/x", body)))
    fault = fetched(file, tmp_path).fault
    assert fault.startswith(said.format(address=file.source.address)), fault
    assert fault.endswith(f"; bring it by hand: the file must lie at {file.path(tmp_path)}")
    assert ".fetched-" not in fault
    changed = replace(file, source=replace(file.source, sha256="0" * 64))
    assert "/x has SHA-256 " in (fault := fetched(changed, tmp_path).fault)
    assert f", not {'0' * 64}: it was changed" in fault
    assert nothing_but(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/data cannot be written to .*; name another by --folder"):
        list(fetch(["qa_1"], tmp_path / "file" / "data"))


def test_what_cannot_be_reached_is_named_and_keeps_no_other_back(tmp_path: Path, serve: Files) -> None:
    size = len(LINE) * 3
    files = {
        "lost": Official(TASKS["qmsum"], Source(none := serve("/none", "", status=404))),
        "closed": Official(Paragraphs, Source("http://127.0.0.1:9/x")),
        "half": Official(Book, Source(serve("/half", LINE * 3, cut=size // 2 - size))),
        "whole": Official(Story, Source(serve("/whole", LINE * 2))),
    }
    lost, closed, half, whole = fetch(files, tmp_path, files)
    assert lost.fault == (
        f"{none} cannot be fetched (HTTP Error 404: Not Found); bring it by hand: the file must lie at "
        f"{tmp_path}/LongBench/qmsum.jsonl"
    )
    assert closed.fault.startswith("http://127.0.0.1:9/x cannot be fetched (<urlopen error [Errno 111]")
    assert f"/half cannot be fetched (the connection broke after {size // 2:,} of {size:,} bytes)" in half.fault
    assert whole.now
    assert nothing_but(tmp_path, "LongBench/narrativeqa.jsonl")


def test_what_lies_there_is_never_replaced(tmp_path: Path, serve: Files) -> None:
    file = Official(Book, Source(serve("/x", LINE * 3)))
    path = file.path(tmp_path)
    path.parent.mkdir()
    for own in (LINE, "mine"):
        path.write_text(own)
        assert fetched(file, tmp_path).fault.endswith(f"; move {path} away to have the official file fetched")
        assert path.read_text() == own
    assert serve.calls == []


def test_files_of_the_hub_are_those_of_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(dataset: str, name: str, *, local_dir: Path, **about: Any) -> str:
        asked.append((dataset, name, about))
        path = local_dir / name
        path.write_text(LINE * 3)
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    file = Official(Book, Source("x.jsonl", "org/set", "abc"))
    assert fetched(file, tmp_path).now
    assert asked == [("org/set", "x.jsonl", {"repo_type": "dataset", "revision": "abc"})]
    assert nothing_but(tmp_path, "InfiniteBench/longbook_qa_eng.jsonl")


def test_a_hub_out_of_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fault = fetched(Official(Book, Source("x.jsonl", "org/set", "abc")), tmp_path).fault
    begin = "https://huggingface.co/datasets/org/set/resolve/abc/x.jsonl cannot be fetched (Cannot reach https://hugg"
    assert fault.startswith(begin), fault
    assert "offline mode is enabled" in fault
    assert fault.endswith(f"; bring it by hand: the file must lie at {tmp_path}/InfiniteBench/longbook_qa_eng.jsonl")
    assert "\n" not in fault


CHILD = """
import signal
import sys
from pathlib import Path
from utaca.tasks.fetch import Official, Source, fetch
from utaca.tasks.registry import TASKS
# A process that was started in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
list(fetch(["it"], Path(sys.argv[1]), {"it": Official(TASKS["longbook_qa_eng"], Source(sys.argv[2]))}))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_download_leaves_nothing_half(tmp_path: Path, serve: Files, root: Path, how: signal.Signals) -> None:
    address = serve("/x", LINE * 100_000, cut=-len(LINE), trickle=60)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), address],
        env={**os.environ, "PYTHONPATH": str(root / "src")}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not any(path.stat().st_size for path in tmp_path.glob(".fetched-*/*")):
        assert time.monotonic() < until
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(how)
    assert child.wait(30) != 0
    assert not (tmp_path / "InfiniteBench").exists()
    assert how == signal.SIGKILL or nothing_but(tmp_path), "an interrupt leaves no scratch file either"
    assert fetched(Official(Book, Source(serve("/x", LINE * 3))), tmp_path).now


# What is official


def test_every_task_and_every_file_of_the_papers_sets_is_offered(root: Path) -> None:
    assert set(TASKS) - {"biographies"} < set(OFFICIAL), "which ship"
    offered = {str(file.path(Path())): file.task for file in OFFICIAL.values()}
    assert len(offered) == len(OFFICIAL)
    for name, about in compose({"scale": "smoke", "tasks": "paper", "points": "ood"}, root)["tasks"]["sets"].items():
        task = TASKS[about["task"]]
        for path in {**task.files, **about.get("files", {})}.values():
            assert issubclass(offered[path], task), name
        if name.endswith("-calibration"):
            assert {**task.files, **about["files"]} == OFFICIAL[name].task.files


# The command


def test_the_command_says_a_line_a_file(tmp_path: Path, serve: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = serve("/y", "", status=404)
    files = {"good": Official(Book, Source(serve("/x", LINE * 3))), "bad": Official(Story, Source(lost))}
    monkeypatch.setattr(tasks, "OFFICIAL", files)
    monkeypatch.setattr(tasks, "fetch", lambda names, folder: fetch(names, folder, files))
    done = typed("fetch-tasks", "--folder", str(tmp_path))
    assert done.exit_code == 1
    path = tmp_path / "InfiniteBench" / "longbook_qa_eng.jsonl"
    assert done.stdout == f"{path}: fetched and checked; 3 rows, SHA-256 {sha256(path)}\n"
    assert done.stderr.startswith(f"Error: {lost} cannot be fetched (HTTP Error 404: Not Found); bring it by hand")
    assert "is there already; 3 rows" in typed("fetch-tasks", "--folder", str(tmp_path), "good").stdout
    done = typed("fetch-tasks", "--folder", str(tmp_path), "better")
    assert done.exit_code == 2
    assert done.stderr == "Error: no benchmark's file is called 'better'; name one of good, bad\n"
