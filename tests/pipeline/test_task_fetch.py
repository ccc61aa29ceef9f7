"""The official files of benchmarks: fetched, checked, moved into place whole, and named where they cannot be had."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from server import Reply, serving

from utaca.data_files import sha256
from utaca.errors import UserError
from utaca.tasks import fetch as tasks
from utaca.tasks.fetch import Official, Outcome, Source, fetch
from utaca.tasks.registry import TASKS
from utaca.tasks.ruler import QA1, QA2

ROW = {"id": 1, "_id": "1", "context": "A book.", "input": "Who?", "answer": ["He"], "answers": ["He"]}
LINE = json.dumps(ROW) + "\n"

Book = type("Book", (TASKS["longbook_qa_eng"],), {"rows": 3})
Story = type("Story", (TASKS["narrativeqa"],), {"rows": 2})
Query = type("Query", (TASKS["qmsum"],), {"rows": 2})
Paragraphs = type("Paragraphs", (QA1,), {"rows": 1, "articles": 1})
Hops = type("Hops", (QA2,), {"rows": 1})


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The address of a file that is held under a path from now on; ``serve.calls`` are those of the server."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    files: dict[str, Reply] = {}

    def serve(path: str, body: bytes | str, **how: Any) -> str:
        files[path] = Reply(body, **how)
        return server.address + path

    with serving(lambda server, call: files.get(call.path, Reply("", status=404))) as server:
        serve.calls = server.calls  # type: ignore[attr-defined]
        yield serve


def fetched(official: Official, folder: Path) -> Outcome:
    (found,) = fetch(["it"], folder, {"it": official})
    return found


def nothing_but(folder: Path, *names: str) -> bool:
    """Whether the folder has these files and no others, scratch files included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(names)


def test_members_of_one_archive_are_downloaded_once(tmp_path: Path, serve: Any) -> None:
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
    assert all(found.now for found in done)
    assert [call.path for call in serve.calls] == ["/data.zip"]
    assert lost.fault == (
        f"{source.address} is incomplete or has no file data/gone.jsonl; copy its member data/gone.jsonl "
        f"to {tmp_path}/data/InfiniteBench/longbook_qa_eng.jsonl yourself"
    )
    assert nothing_but(tmp_path / "data", "LongBench/narrativeqa.jsonl", "LongBench/qmsum.jsonl")


def test_members_of_a_pattern_are_joined_in_the_order_of_their_names(tmp_path: Path, serve: Any) -> None:
    archive = tmp_path / "essays.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for name, text in {"x/b.txt": "Two.\n", "x/a.txt": "Une é. ", "y/a.txt": "Elsewhere.", "x/a.md": "No."}.items():
            packed.writestr(f"top/{name}", text)
    about = {"files": {"essays": "RULER/essays.json"}, "is_official": lambda self, files: True, "unit": "words"}
    essays = type("Essays", (TASKS["niah_single_2"],), about)
    file = Official(essays, Source(serve("/essays.zip", archive.read_bytes())), "*/x/*.txt")
    found = fetched(file, tmp_path)
    assert (found.now, found.size) == (True, "500 words")
    assert json.loads((tmp_path / "RULER" / "essays.json").read_text()) == {"text": "Une é. Two.\n"}


def test_files_of_ruler_are_checked_by_what_they_hold(tmp_path: Path, serve: Any) -> None:
    archive = tmp_path / "rules.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("punkt_tab/english/abbrev_types.txt", "dr")
    for name, body, said in (
        ("ruler_essays", b'{"text": "Other essays."}', "does not have the 111,876 words of the official file"),
        ("ruler_sentences", archive.read_bytes(), "is no whole archive with punkt_tab/english/abbrev_types.txt"),
        ("ruler_words", b'{"1": "word"}', "does not have the 8,564,991 bytes of the official file"),
    ):
        file = replace(tasks.OFFICIAL[name], source=Source(serve(f"/{name}", body)), member="")
        fault = fetched(file, tmp_path).fault
        assert fault.startswith(f"{file.source.address} {said}"), fault
        assert fault.endswith(f"; copy the file to {file.path(tmp_path)} yourself")


@pytest.mark.parametrize(
    ("task", "body", "said"),
    [
        (Book, LINE * 2 + "{}\n", "{address}, line 3, has no text under 'context'"),
        (Paragraphs, '{"data": []}', "{address} does not have the 1 rows of the official file"),
        (Hops, "[]", "{address} does not have the 1 rows of the official file"),
    ],
)
def test_another_layout_and_number_of_rows_are_not_let_in(tmp_path: Path, serve: Any, task, body, said: str) -> None:
    file = Official(task, Source(serve("/x", body)))
    fault = fetched(file, tmp_path).fault
    assert fault.startswith(said.format(address=file.source.address)), fault
    assert fault.endswith(f"; copy the file to {file.path(tmp_path)} yourself")
    assert ".fetched-" not in fault
    changed = replace(file, source=replace(file.source, sha256="0" * 64))
    assert "/x has SHA-256 " in (fault := fetched(changed, tmp_path).fault)
    assert f", not {'0' * 64}: it was changed" in fault
    assert nothing_but(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/data cannot be written to .*; name another folder with --folder"):
        list(fetch(["qa_1"], tmp_path / "file" / "data"))


def test_what_cannot_be_reached_is_named_and_keeps_no_other_back(tmp_path: Path, serve: Any) -> None:
    size = len(LINE) * 3
    files = {
        "closed": Official(Paragraphs, Source("http://127.0.0.1:9/x")),
        "half": Official(Book, Source(serve("/half", LINE * 3, cut=size // 2 - size))),
        "whole": Official(Story, Source(serve("/whole", LINE * 2))),
    }
    closed, half, whole = fetch(files, tmp_path, files)
    assert closed.fault.startswith("http://127.0.0.1:9/x cannot be fetched (<urlopen error [Errno 111]")
    assert f"/half cannot be fetched (the connection broke after {size // 2:,} of {size:,} bytes)" in half.fault
    assert whole.now
    assert nothing_but(tmp_path, "LongBench/narrativeqa.jsonl")


def test_what_lies_there_is_never_replaced(tmp_path: Path, serve: Any) -> None:
    file = Official(Book, Source(serve("/x", LINE * 3)))
    path = file.path(tmp_path)
    path.parent.mkdir()
    path.write_text("mine")
    assert fetched(file, tmp_path).fault.endswith(f"; move {path} away to have the official file fetched")
    assert path.read_text() == "mine"


def test_files_of_the_hub_are_those_of_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(dataset: str, name: str, *, local_dir: Path, **about: Any) -> str:
        asked.append((dataset, name, about))
        (local_dir / name).write_text(LINE * 3)
        return str(local_dir / name)

    file = Official(Book, Source("x.jsonl", "org/set", "abc"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    fault = fetched(file, tmp_path).fault
    begin = "https://huggingface.co/datasets/org/set/resolve/abc/x.jsonl cannot be fetched (Cannot reach https://hugg"
    assert fault.startswith(begin), fault
    assert "offline mode is enabled" in fault
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert fetched(file, tmp_path).now
    assert asked == [("org/set", "x.jsonl", {"repo_type": "dataset", "revision": "abc"})]


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
def test_a_killed_download_leaves_nothing_half(tmp_path: Path, serve: Any, root: Path, how: signal.Signals) -> None:
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


# The command


def test_the_command_says_a_line_a_file(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = serve("/y", "", status=404)
    files = {"good": Official(Book, Source(serve("/x", LINE * 3))), "bad": Official(Story, Source(lost))}
    monkeypatch.setattr(tasks, "OFFICIAL", files)
    monkeypatch.setattr(tasks, "fetch", lambda names, folder: fetch(names, folder, files))
    done = typed("fetch-tasks", "--folder", str(tmp_path))
    assert done.exit_code == 1
    path = tmp_path / "InfiniteBench" / "longbook_qa_eng.jsonl"
    assert done.stdout == f"{path}: fetched and checked; 3 rows, SHA-256 {sha256(path)}\n"
    assert done.stderr == (
        f"Error: {lost} cannot be fetched (HTTP Error 404: Not Found); copy the file to "
        f"{tmp_path}/LongBench/narrativeqa.jsonl yourself.\n"
    )
    assert path.stat().st_mode & 0o044 == Path(__file__).stat().st_mode & 0o044, "others may read it"
    assert "was already there; 3 rows" in typed("fetch-tasks", "--folder", str(tmp_path), "good").stdout
    done = typed("fetch-tasks", "--folder", str(tmp_path), "better")
    assert done.exit_code == 2
    assert done.stderr == "Error: there is no benchmark file 'better'; choose one of good, bad\n"
