"""The client against servers that others wrote, with readers so small that they seldom give what is asked for.

What counts is that every request arrives and has one outcome, and that every answer is kept, in each of the roles.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from server import ask_items
from test_gguf import write_gguf

from utaca.endpoints import check
from utaca.endpoints.store import AnswerStore
from utaca.errors import UserError
from utaca.judging import cas, labels, writer
from utaca.judging.roles import Role
from utaca.settings.schema import EndpointSettings

pytestmark = pytest.mark.slow
CONTENT = {"shape", "check", "truncated", "empty"}
"""Kinds of failure of an answer that came, as the smallest models give them."""
LLAMA = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
PERSON, FACTS = "Ada Lopez", [("hobby", "Chess"), ("work place", "Oslo")]


@contextmanager
def running(command: list[str], port: int, log: Path, environment: dict[str, str]) -> Iterator[None]:
    """A server's process, once it says that it is in health."""
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **environment}
        )
    deadline = time.monotonic() + 120
    try:
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module", params=["transformers serve", "llama-server"])
def foreign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of a running server's endpoint; skips where the server is not installed."""
    folder, port = tmp_path_factory.mktemp("foreign"), free_port()
    place = ["--host", "127.0.0.1", "--port", str(port)]
    if request.param == "transformers serve":
        if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
            pytest.skip(f"{' and '.join(missing)} not installed: pip install 'transformers[serving]'")
        model = str(ROOT / "data" / "readers" / "tiny")
        command = [str(Path(sys.executable).with_name("transformers")), "serve", model, *place]
    else:
        if LLAMA is None:
            pytest.skip("llama.cpp's llama-server is not installed; LLAMA_SERVER names it elsewhere")
        model = str(write_gguf(folder / "small.gguf"))
        command = [LLAMA, "--model", model, *place]
    with running(command, port, folder / "log", {"HF_HUB_OFFLINE": "1"}):
        settings = {"base_url": f"http://127.0.0.1:{port}/v1", "model": model, "max_tokens": 24, "attempts": 2}
        yield settings | {"timeout_s": 120, "concurrency": 2, "max_failed": 1.0}


def test_requests_arrive_and_their_answers_are_kept(foreign: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "a.sqlite"
    answers = ask_items(store=store, count=3, **foreign)
    assert set(answers.failures.values()) <= CONTENT
    counts = [(one["prompt_tokens"], one["completion_tokens"]) for row in answers.used for one in row["answers"]]
    assert len(counts) >= 3
    assert all(prompt > 10 and 0 < completion <= 24 for prompt, completion in counts)
    # All of it is in the store now.
    gone = ask_items(store=store, count=3, **foreign | {"base_url": "http://127.0.0.1:9/v1"})
    assert (gone.values, gone.used) == (answers.values, answers.used)


def ignores_formats(settings: dict[str, Any]) -> bool:
    """Whether the server takes ``response_format`` and makes nothing of it, as ``transformers serve`` does."""
    return settings["model"].endswith("tiny")


def test_a_format_that_a_server_ignores_is_no_answer(
    foreign: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = ask_items(store=tmp_path / "a.sqlite", count=1, **foreign | {"attempts": 1})
    assert not [message for message in caplog.messages if "does not take all parameters" in message]
    if ignores_formats(foreign):
        assert not answers.values
        assert answers.failures["0"] in {"shape", "truncated"}


@pytest.mark.parametrize("name", ["writer", "labeller", "judge"])
def test_every_role_asks_with_its_schema(name: str, foreign: dict[str, Any], tmp_path: Path) -> None:
    endpoint = EndpointSettings(name="foreign", **foreign)
    check(endpoint, name)
    role = Role(endpoint, tmp_path / "answers.sqlite")
    document = {"id": "d", "person": PERSON, "facts": [{"attribute": a, "value": v} for a, v in FACTS]}
    if name == "writer":
        # No narrative of a split may be missing.
        with pytest.raises(UserError, match=r"the writer endpoint foreign .* failed to write 1 of 1 biographies \(1 "):
            writer.write_narratives([("d", PERSON, FACTS)], role)
        count = 1
    elif name == "labeller":
        pieces = ["The hobby of Ada Lopez is", " Chess", ".", ""]
        tokens = [
            {"document": "d", "budget": 1, "step": n, "token": 7, "text": piece} for n, piece in enumerate(pieces)
        ]
        tokens = [token | {"finish": "" if token["text"] else "eos"} for token in tokens]
        labels.label_tokens({("d", 1): tokens}, [document], role)
        assert [token["source"] for token in tokens] == ["template", "failed", "template", "template"]
        assert tokens[1]["label"] is None
        assert tokens[1]["reason"] in CONTENT
        count = 1
    else:
        answer = {"document": "d", "split": "test", "point": "p", "text": "The hobby of Ada Lopez is Chess."}
        rows = cas.score([answer], [document], role)
        assert [row["attribute"] for row in rows] == ["hobby", "work place"]
        # A grammar may bring even the smallest model to a score.
        assert all(row["failure"] in CONTENT if row["cas"] is None else 0 <= row["cas"] <= 1 for row in rows)
        assert [row["string_match"] for row in rows] == [1.0, 0.0]
        count = 2
    assert len(role.used) == count
    failed = [row for row in role.used if row["failure"]]
    assert all(row["failure"] in CONTENT and len(row["answers"]) == 2 for row in failed)
    with AnswerStore(role.store) as opened:
        sent = list(opened.export())
    assert all(row["schema"]["required"] for row in sent)
    assert len(sent) == sum(len(row["answers"]) for row in role.used)
    # What cannot be used is asked for again, its fault named.
    assert sum("Your answer" in row["messages"][-1]["content"] for row in sent) >= len(failed)
    assert len(failed) == count or not ignores_formats(foreign)
