"""A server on the loopback that follows a script, for whatever asks over HTTP; and an endpoint's client against it."""

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pydantic

from utaca.endpoints import Outcomes, Request, ask
from utaca.endpoints.prompts import Prompt
from utaca.settings.schema import EndpointSettings

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


@dataclass(frozen=True)
class Reply:
    """A reply: after ``seconds``, whole or cut after ``cut`` bytes, with ``trickle`` seconds after each byte or cut."""

    body: bytes | str = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cut: int | None = None
    trickle: float = 0.0


@dataclass(frozen=True)
class Call:
    """A request as it arrived: its JSON body ({} if it has none), and how often the same came up to now."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]
    number: int

    @property
    def task(self) -> dict[str, Any]:
        """The task of a prompt; {} without one."""
        task = self.body["messages"][:2][-1]["content"].partition("```json\n")[2]
        return json.loads(task.partition("\n```")[0]) if task else {}

    @property
    def item(self) -> str:
        """The item of a :func:`request`."""
        return self.task["item"]

    @property
    def again(self) -> bool:
        """Whether it names the fault of an earlier answer."""
        return len(self.body["messages"]) > 2


Script = Callable[["Server", Call], Reply]


class Server:
    """The server: its script, and the calls that it got."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.numbers: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self.address = ""

    @property
    def url(self) -> str:
        """The base URL of an endpoint."""
        return f"{self.address}/v1"

    @property
    def chats(self) -> list[Call]:
        return [call for call in self.calls if "messages" in call.body]

    def n_of(self, item: object) -> int:
        """Requests about an item, follow-ups included."""
        return sum(call.item == str(item) for call in self.chats)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._reply(await self._call(reader), writer):
                pass
        writer.transport.abort()

    async def _call(self, reader: asyncio.StreamReader) -> Call:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        target = urlsplit(lines[0].split()[1])
        name = f"{lines[0]} {body!r}"
        self.numbers[name] += 1
        query = dict(parse_qsl(target.query))
        held = json.loads(body) if body.startswith(b"{") else {}
        call = Call(target.path, query, headers, held, self.numbers[name])
        self.calls.append(call)
        return call

    async def _reply(self, call: Call, writer: asyncio.StreamWriter) -> bool:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        reply = self.script(self, call)
        await asyncio.sleep(reply.seconds)
        self.in_flight -= 1
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        headers = {"content-type": "application/json", "content-length": str(len(body)), **reply.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        whole = f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n{head}\r\n".encode() + body
        slowly = reply.trickle and reply.cut is None
        for piece in [whole[at : at + 1] for at in range(len(whole))] if slowly else [whole[: reply.cut]]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(reply.trickle)
        return reply.cut is None


@contextmanager
def serving(script: Script, *, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run a server on a free port of the loopback, in a thread."""
    server, ready, ends = Server(script), threading.Event(), []

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        server.address = f"http{'s' if tls else ''}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        end = asyncio.Event()
        ends.append(partial(asyncio.get_running_loop().call_soon_threadsafe, end.set))
        ready.set()
        await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        ends[0]()
        thread.join()


# Chat completions


def completion(content: Any, finish: str = "stop", **message: Any) -> Reply:
    """A chat completion with this content."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content} | message, "finish_reason": finish}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": USAGE}
    return Reply(json.dumps(whole))


GOOD = completion('{"number": 1}')


def chat(script: Script = lambda server, call: GOOD, models: list[str] | None = None) -> Script:
    """A script for an endpoint, which lists model "m" or other ``models``."""
    listed = Reply(json.dumps({"object": "list", "data": [{"id": name} for name in models or ["m"]]}))
    return lambda server, call: script(server, call) if "messages" in call.body else listed


class Number(pydantic.BaseModel):
    number: int


def request(item: object, **settings: Any) -> Request:
    return Request(str(item), {"item": str(item)}, Prompt("1", "Say a number."), Number, **settings)


def endpoint(server: Server | None = None, **settings: Any) -> EndpointSettings:
    """The endpoint of a server, of little patience unless the settings say otherwise."""
    usual = {"name": "wild", "model": "m", "base_url": server.url if server else "", "max_failed": 1.0}
    return EndpointSettings(
        **{**usual, "timeout_s": 5.0, "backoff_s": 0.01, "patience_s": 5.0, "concurrency": 4, **settings}
    )


def ask_items(server: Server | None = None, store: Path | str = "", count: int = 8, **settings: Any) -> Outcomes:
    """Ask for items "0", "1", ...; each has one outcome."""
    items = [str(number) for number in range(count)]
    answers = ask(endpoint(server, **settings), [request(item) for item in items], store=store, description="items")
    assert sorted([*answers.values, *answers.failures]) == sorted(items)
    assert [row["item"] for row in answers.used] == items
    return answers
