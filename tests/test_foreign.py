"""The client against a server that others wrote: `transformers serve` with SmolLM2, in every role."""

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
from typing import Any

import pyarrow as pa
import pytest

from utaca.biographies.writer import write_narratives
from utaca.endpoints import check
from utaca.errors import UserError
from utaca.judging import cas, labels
from utaca.readers import smollm2
from utaca.readers.shelf import root
from utaca.settings.schema import Endpoint

MODEL = root() / smollm2.FOLDER
CONTENT = {"shape", "check", "truncated", "empty"}
PERSON = "Ada Lopez"
DOCUMENT = {"id": "d0", "person": PERSON, "facts": [{"attribute": "hobby", "value": "Rock climbing"}]}
PIECES = ["The", " hobby", " of", " Ada", " Lopez", " is", " Rock", " climbing", "."]
START_SECONDS = 120


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of `transformers serve`; skips where it or the model is not there."""
    if not (MODEL / "model.safetensors").exists():
        pytest.skip(f"no SmolLM2 under {smollm2.FOLDER} (python -m utaca.readers.smollm2)")
    lacking = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"{' and '.join(lacking)} not installed (pip install 'transformers[serving]')")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [Path(sys.executable).with_name("transformers"), "serve", MODEL, "--host", "127.0.0.1", "--port", port]
    with log.open("wb") as file:
        server = subprocess.Popen(
            [str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except OSError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
    yield f"http://127.0.0.1:{port}/v1"
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def endpoint(address: str, **settings: Any) -> Endpoint:
    given = {"name": "foreign", "model": str(MODEL), "base_url": address, "max_tokens": 24, "attempts": 2}
    return Endpoint(**{**given, "max_failed": 1.0, "patience_s": 10.0, **settings})


def test_foreign_server_serves_every_role(address: str, tmp_path: Path) -> None:
    """Each request comes back with an answer of the model, and what it cannot do counts as its failure."""
    served, store = endpoint(address), tmp_path / "a.sqlite"
    check(served, "judge")
    used: list[dict[str, Any]] = []
    answer = {"document": "d0", "suite": "s", "point": "p", "text": "".join(PIECES)}
    (judged,) = cas.score([answer], [DOCUMENT], served, store, used)
    rows = [
        {"document": "d0", "budget": 1, "step": i, "token": 7, "text": text, "finish": "eos" if text == "." else ""}
        for i, text in enumerate(PIECES)
    ]
    told = labels.label(pa.Table.from_pylist(rows), [DOCUMENT], served, store, used).to_pylist()
    with suppress(UserError):  # a biography that it could not write, as `used` tells
        write_narratives([("d0", PERSON, [("hobby", "Rock climbing")])], served, store, used)
    assert len(used) == 3
    # A model of 135 million parameters seldom gives what is asked for; what matters is that it was asked and counted.
    assert judged["failure"] in CONTENT or 0 <= judged["cas"] <= 1
    assert {row["source"] for row in told[6:8]} <= {"endpoint", "failed"}
    assert {row["failure"] for row in used} <= CONTENT | {None}
    assert all(row["answers"] for row in used)
    counts = [(one["prompt_tokens"], one["completion_tokens"]) for row in used for one in row["answers"]]
    assert all(prompt > 100 and 0 < completion <= 24 for prompt, completion in counts)
    gone = endpoint("http://127.0.0.1:9/v1")
    assert cas.score([answer], [DOCUMENT], gone, store) == [judged]


def test_foreign_server_that_is_late_is_called_slow(address: str, tmp_path: Path) -> None:
    answer = {"document": "d0", "suite": "s", "point": "p", "text": "".join(PIECES)}
    late = endpoint(address, timeout_s=0.05, max_failed=0.0)
    with pytest.raises(UserError, match=r"1 of 1 .* \(1 timeout\).*the server is too slow for its timeout_s=0.05"):
        cas.score([answer], [DOCUMENT], late, tmp_path / "a.sqlite")
