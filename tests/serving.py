"""A server of the tiny reader within the test's process, and what tests ask it."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from utaca.app.serving.protocol import ServerSettings
from utaca.app.serving.server import Server
from utaca.readers.load import Reader

SEA = " The sea was calm and the town slept."
DOCUMENT = f"Emma Thompson was born on May 3, 1959.{SEA * 40} Emma Thompson studied at Harvard University.{SEA * 40}"
QUESTION = "Summarize the birth date and university of Emma Thompson."


@contextmanager
def serving(reader: Reader, **settings: Any) -> Iterator[Server]:
    """A running server."""
    defaults = {"port": 0, "room": 200 << 20, "budget": 8, "trigger": "never"}
    server = Server(reader, ServerSettings("tiny", **defaults | settings))
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


def chat(document: str = DOCUMENT, question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    """The body of a request about a document."""
    return {"model": "tiny", "messages": [{"role": "user", "content": f"{document}\n\n{question}"}]} | fields


def begin(address: str, body: Any, path: str = "/v1/chat/completions", **headers: str) -> http.client.HTTPConnection:
    """A connection on which a request is sent; ``body`` is an object, or bytes as they are."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, sent, {"Content-Type": "application/json"} | headers)
    return connection


def post(server: Server, body: Any, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any]:
    """Status and object of an answer, as :func:`begin` asks for it."""
    connection = begin(server.address, body, path, **headers)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content


def get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    """Status and text of a page."""
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=120)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def choice(server: Server, *about: str, **fields: Any) -> dict[str, Any]:
    """The choice of an answer to :func:`chat`."""
    status, answer = post(server, chat(*about, **fields))
    assert status == 200, answer
    return answer["choices"][0]


def text_of(server: Server, *about: str, **fields: Any) -> str:
    return choice(server, *about, **fields)["message"]["content"]
