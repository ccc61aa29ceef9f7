"""Python and commands on the pages, run as a reader pastes them: from the top of a page to its end."""

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import call
from conftest import ROOT
from test_docs import IDS, PAGES, tokens

import utaca
from utaca.app.serving.server import Server
from utaca.detection.signals import SIGNALS
from utaca.methods import METHODS
from utaca.readers import load
from utaca.readers.families import FAMILIES
from utaca.readers.load import Reader
from utaca.tasks.registry import TASKS

SERVE = ROOT / "docs" / "serve.md"


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in a language; "" has the commands."""
    return [token.content for token in tokens(page) if token.type == "fence" and token.info == language]


PYTHON = [page for page in PAGES if page != SERVE and blocks(page, "python")]


@pytest.fixture
def folder(tiny: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files that pages name; every reader that a page loads by its name is the tiny one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    detector = Path("results/quick/detectors/utaca/seed0/model.safetensors")
    detector.parent.mkdir(parents=True)
    shutil.copy(ROOT / "data/detectors/tiny/utaca/seed0/model.safetensors", detector)
    (tmp_path / "text.txt").write_text("It was a cold day, and nobody came. " * 40)
    loaded = load.load_reader
    monkeypatch.setattr(
        utaca, "load_reader", lambda name, **options: loaded(name, **options) if options else tiny, raising=False
    )
    registries: list[dict[str, Any]] = [METHODS, FAMILIES, SIGNALS, TASKS]
    before = [dict(registry) for registry in registries]
    yield tmp_path
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


def pasted(page: Path) -> dict[str, Any]:
    """Run the Python of a page, block by block in one session; returns the session's names."""
    name = str(page.relative_to(ROOT))
    given: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        exec(compile(block, name, "exec"), given)
    return given


@pytest.mark.parametrize("page", PYTHON, **IDS)
def test_the_python_of_a_page_runs_as_pasted(page: Path, folder: Path) -> None:
    pasted(page)


def test_what_the_page_on_python_shows(folder: Path) -> None:
    given = pasted(ROOT / "docs" / "python.md")
    assert {token.k for token in given["fixed"].trace} == {32}
    assert "Lund University" in given["fixed"].text
    assert [(token.tentative or token).k for token in given["adaptive"].trace[:2]] == [64, 48]
    assert given["exact"].dtype == torch.float32
    assert given["exact"].settings.memory.prefill_budget == 4


def test_a_client_asks_the_server_as_pasted(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(SERVE, "python")
    given: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:8000", server.address), given)
    # The last digits of the means depend on the processor.
    printed, shown = (
        [re.sub(r"[\d.]+", "0", line) for line in text.splitlines()]
        for text in (capsys.readouterr().out, next(text for text in blocks(SERVE, "text") if "Lund University" in text))
    )
    assert printed == shown


def test_the_first_command_of_a_newcomer_answers(tmp_path: Path) -> None:
    first = blocks(ROOT / "docs" / "ask.md", "")[0]
    done = call(tmp_path, "bash", "-ec", first, XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=python_path())
    assert done.returncode == 0, done.stdout
    assert "The university of Emma Thompson is Lund University." in done.stdout


def test_a_restarted_server_finds_the_document_on_disk(tiny: Reader, tmp_path: Path) -> None:
    (tutorial,) = blocks(SERVE, "bash")
    assert len(tutorial.splitlines()) <= 10
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    done = call(tmp_path, "bash", "-ec", tutorial.replace("8000", port), PYTHONPATH=python_path())
    assert done.returncode == 0, done.stdout
    first, second = (json.loads((tmp_path / f"{run}.json").read_text()) for run in ("first", "second"))
    assert "Lund University" in first["choices"][0]["message"]["content"]
    assert second["choices"][0]["message"] == first["choices"][0]["message"]
    read = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, second)]
    assert read == [0, len(tiny.document("The university of Emma Thompson is Lund University."))]


def python_path() -> str:
    """Where a process of another folder finds the package under test first."""
    return os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
