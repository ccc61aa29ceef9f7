"""Shared fixtures: a copy of the checkout to run the workflow in."""

import shutil
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from postgres import Postgres

ROOT = Path(__file__).resolve().parents[1]
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".snakemake", "results", "logs", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis",
    ".coverage*", "*.gguf", "wheels", "dist", "*.sif", "report.zip",
    # A user's own sheets belong to the user's runs.
    "label_corrections.csv", "cas_scores.csv",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest comes first, lest one process is left alone with it in the end."""
    items.sort(key=lambda item: item.path.name != "test_workflow.py")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Host and port of the running rules."""
    from serving import wait

    from utaca.judging.rules.endpoint import run

    servers: list[ThreadingHTTPServer] = []
    monkeypatch.setattr(ThreadingHTTPServer, "service_actions", lambda server: servers.append(server))
    thread = threading.Thread(target=run, args=("127.0.0.1", 0))
    thread.start()
    wait(lambda: servers)
    yield servers[0].server_address[:2]
    servers[0].shutdown()
    thread.join()


@pytest.fixture(scope="session")
def tiny() -> Any:
    """The reader that is shipped."""
    from utaca.readers.load import load_reader

    return load_reader("tiny")


@pytest.fixture(scope="module")
def server(tiny: Any) -> Iterator[Any]:
    """A running server of that reader."""
    from serving import serving

    with serving(tiny) as running:
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium; on Debian: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL server; skips where there is none, or no driver."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The file of a new answer store."""
    return tmp_path / "answers.sqlite"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new answer store: with the parameter "postgresql" in a database, otherwise in a file."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").make()
    return str(tmp_path / "answers.sqlite")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without results, shared by the tests that change nothing in it."""
    return copy_checkout(tmp_path_factory.mktemp("checkout") / "utaca")


def copy_checkout(target: Path) -> Path:
    """Copy the checkout, without environment, results and fetched readers, to ``target``."""
    shutil.copytree(ROOT, target, ignore=_LEFT_OUT)
    return target
