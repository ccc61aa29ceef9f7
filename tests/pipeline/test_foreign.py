"""The client against servers that others wrote, `transformers serve` and `llama.cpp`, a small Qwen in every role."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from utaca.data_files import root
from utaca.endpoints import check
from utaca.errors import UserError
from utaca.judging import cas, labels
from utaca.judging.roles import Role
from utaca.judging.writer import write_narratives
from utaca.readers import gguf, public
from utaca.settings.schema import Endpoint

FILE = root() / public.FOLDER / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CONTENT = {"shape", "check", "truncated", "empty"}
PERSON = "Ada Lopez"
DOCUMENT = {"id": "d0", "person": PERSON, "facts": [{"attribute": "hobby", "value": "Rock climbing"}]}
PIECES = ["The", " hobby", " of", " Ada", " Lopez", " is", " Rock", " climbing", "."]
START_SECONDS = 120


LLAMA = """
import sys, time
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx, params.cpuparams.n_threads = sys.argv[1], int(sys.argv[2]), 8192, 1
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
"""
"""llama.cpp's own server, in a process of its own."""


class Server(NamedTuple):
    """A server that runs: its base URL and the model as it calls it."""

    address: str
    model: str


def command(kind: str, port: int) -> tuple[str, list[str]]:
    """The model's name and what starts a server; skips where it or the model is not there."""
    if not FILE.is_file():
        pytest.skip(f"no {FILE.name} under {public.FOLDER} ({public.COMMAND} qwen25_coder_0_5b)")
    if kind == "llama.cpp":
        if importlib.util.find_spec("xllamacpp") is None:
            pytest.skip("xllamacpp not installed (pip install --no-deps xllamacpp)")
        return str(FILE), [sys.executable, "-c", LLAMA, str(FILE), str(port)]
    lacking = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"{' and '.join(lacking)} not installed (pip install 'transformers[serving]')")
    transformers = str(Path(sys.executable).with_name("transformers"))
    model = str(gguf.converted(FILE))
    return model, [transformers, "serve", model, "--host", "127.0.0.1", "--port", str(port)]


@pytest.fixture(scope="module", params=["transformers", "llama.cpp"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each server in turn."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model, start = command(request.param, port)
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(start, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
    yield Server(f"http://127.0.0.1:{port}/v1", model)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def endpoint(server: Server, **settings: Any) -> Endpoint:
    given = {"name": "foreign", "model": server.model, "base_url": server.address, "max_tokens": 24, "attempts": 2}
    return Endpoint(**{**given, "max_failed": 1.0, "patience_s": 10.0, **settings})


def test_foreign_server_serves_every_role(server: Server, tmp_path: Path) -> None:
    """Each request comes back with an answer of the model, and what it cannot do counts as its failure."""
    role = Role(endpoint(server), tmp_path / "a.sqlite")
    check(role.endpoint, "judge")
    answer = {"document": "d0", "split": "s", "point": "p", "text": "".join(PIECES)}
    (judged,) = cas.score([answer], [DOCUMENT], role)
    rows = [
        {"document": "d0", "budget": 1, "step": i, "token": 7, "text": text, "finish": "eos" if text == "." else ""}
        for i, text in enumerate(PIECES)
    ]
    told = labels.label(pa.Table.from_pylist(rows), [DOCUMENT], role).to_pylist()
    with suppress(UserError):  # a biography that it could not write, as the usage tells
        write_narratives([("d0", PERSON, [("hobby", "Rock climbing")])], role)
    used = role.used
    assert len(used) == 3
    # So small a model seldom gives what is asked for; what matters is that it was asked and counted.
    assert judged["failure"] in CONTENT or 0 <= judged["cas"] <= 1
    assert {row["source"] for row in told[6:8]} <= {"endpoint", "failed"}
    assert {row["failure"] for row in used} <= CONTENT | {None}
    assert all(row["answers"] for row in used)
    counts = [(one["prompt_tokens"], one["completion_tokens"]) for row in used for one in row["answers"]]
    assert all(prompt > 100 and 0 < completion <= 24 for prompt, completion in counts)
    gone = Role(endpoint(Server("http://127.0.0.1:9/v1", server.model)), role.store)
    assert cas.score([answer], [DOCUMENT], gone) == [judged]


def test_foreign_server_that_is_late_is_called_slow(server: Server, tmp_path: Path) -> None:
    answer = {"document": "d0", "split": "s", "point": "p", "text": "".join(PIECES)}
    late = Role(endpoint(server, timeout_s=0.05, max_failed=0.0), tmp_path / "a.sqlite")
    with pytest.raises(UserError, match=r"1 of 1 .* \(1 timeout\).*the server is too slow for its timeout_s=0.05"):
        cas.score([answer], [DOCUMENT], late)
