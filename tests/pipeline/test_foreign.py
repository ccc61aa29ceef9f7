"""The client against a server that others wrote, `transformers serve`, with a small Qwen."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server import ask_items

from utaca.data_files import root
from utaca.endpoints import check
from utaca.errors import UserError
from utaca.readers import gguf, public
from utaca.settings.schema import EndpointSettings

FILE = root() / public.FOLDER / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
CONTENT = {"shape", "check", "truncated", "empty"}
START_SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of a server's endpoint; skips where it or the model is not there."""
    if not FILE.is_file():
        pytest.skip(f"no {FILE.name} under {public.FOLDER} ({public.COMMAND} qwen25_coder_0_5b)")
    if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))):
        pytest.skip("fastapi or uvicorn is not installed (pip install 'transformers[serving]')")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model, log = str(gguf.converted(FILE)), tmp_path_factory.mktemp("serve") / "log"
    start = [str(Path(sys.executable).with_name("transformers")), "serve", model, "--host", "127.0.0.1"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*start, "--port", str(port)], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            break
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
    yield {"base_url": f"http://127.0.0.1:{port}/v1", "model": model, "max_tokens": 24, "attempts": 2, "timeout_s": 60}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_foreign_server_is_asked_and_its_answers_are_kept(server: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "a.sqlite"
    check(EndpointSettings(name="foreign", **server), "judge")
    answers = ask_items(store=store, count=3, **server)
    # So small a model seldom gives what is asked for; what matters is that it was asked and counted.
    assert set(answers.failures.values()) <= CONTENT
    counts = [(one["prompt_tokens"], one["completion_tokens"]) for row in answers.used for one in row["answers"]]
    assert len(counts) >= 3
    assert all(prompt > 10 and 0 < completion <= 24 for prompt, completion in counts)
    gone = ask_items(store=store, count=3, **server | {"base_url": "http://127.0.0.1:9/v1"})
    assert (gone.values, gone.used) == (answers.values, answers.used)
    with pytest.raises(UserError, match=r"1 of 1 .* \(1 timeout\).*the server is too slow for its timeout_s=0.1"):
        ask_items(store=tmp_path / "b.sqlite", count=1, **server | {"timeout_s": 0.1, "attempts": 1, "max_failed": 0.0})
