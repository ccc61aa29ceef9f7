"""A server of the tiny reader within the test's process, and what tests ask it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from utaca.app.serving.protocol import Defaults
from utaca.app.serving.server import Server, Settings
from utaca.readers.load import Reader

SEA = " The sea was calm and the town slept."
DOCUMENT = f"Emma Thompson was born on May 3, 1959.{SEA * 40} Emma Thompson studied at Harvard University.{SEA * 40}"
QUESTION = "Summarize the birth date and university of Emma Thompson."


@contextmanager
def serving(reader: Reader, **settings: Any) -> Iterator[Server]:
    """A running server."""
    defaults = Defaults(budget=8, trigger="never")
    server = Server(reader, Settings("tiny", port=0, **{"room": 200 << 20, "defaults": defaults} | settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait(lambda: server.address)
    yield server
    server.end()
    thread.join(60)
    server.worker.join(60)
    assert not thread.is_alive()
    assert not server.worker.is_alive()


def wait(condition: Any, patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def connect(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*server.address.removeprefix("http://").split(":"), timeout=120)


def chat(document: str = DOCUMENT, question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    """The body of a request about a document."""
    return {"model": "tiny", "messages": [{"role": "user", "content": f"{document}\n\n{question}"}]} | fields


def post(
    server: Server, body: Any, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and object of an answer; ``body`` is an object, or bytes as they are."""
    connection = connect(server)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, sent, {"Content-Type": "application/json"} | (headers or {}))
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content
