"""The client against a real server on the loopback that misbehaves on purpose.

After each fault every item has one outcome, the server was asked as often as was needed, and nothing that it answered
is asked again.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pyarrow as pa
import pydantic
import pytest
from commands import typed

from utaca.endpoints import Answers, Request, ask, check, transport
from utaca.endpoints.store import Store
from utaca.endpoints.transport import Pace, connect
from utaca.errors import UserError
from utaca.judging.labels import label
from utaca.judging.roles import Role
from utaca.records import write
from utaca.records.logs import stage_log
from utaca.reporting.table import Table, save
from utaca.reporting.tables.endpoints import endpoints
from utaca.settings.checks import digest as settings_digest
from utaca.settings.checks import identity
from utaca.settings.schema import Config, Endpoint

USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def completion(content: Any, finish: str = "stop", **message: Any) -> bytes:
    said = {"role": "assistant", "content": content} | message
    choice = {"index": 0, "message": said, "finish_reason": finish}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": USAGE}
    return json.dumps(whole).encode()


@dataclass(frozen=True)
class Reply:
    """What the server does with one sending: waits, answers, cuts the connection after ``cut`` bytes, or trickles."""

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cut: int | None = None
    trickle: float = 0.0


GOOD = Reply(completion('{"number": 1}'))
Script = Callable[["Server", dict[str, Any], int], Reply]


class Server:
    """A server that follows a script: the body of a sending and how often the same messages came make its reply."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.models: list[str] | None = ["m"]
        self.in_flight = self.most_in_flight = 0
        self.url = ""

    def asked(self, item: str) -> int:
        """Sendings for an item, follow-ups included."""
        return sum(body["messages"][0]["content"] == item for body in self.bodies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                self.keys.add(head.partition("authorization: ")[2].split("\r\n")[0])
                length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
                body = json.loads(await reader.readexactly(length) or b"{}")
                if not await self._reply(body, writer):
                    writer.transport.abort()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _reply(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        if "messages" not in body:
            listed = {"object": "list", "data": [{"id": model} for model in self.models or []]}
            reply = Reply(json.dumps(listed).encode(), status=404 if self.models is None else 200)
        else:
            messages = json.dumps(body["messages"], sort_keys=True)
            self.bodies.append(body)
            self.times.append(time.monotonic())
            self.sent[messages] += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            reply = self.script(self, body, self.sent[messages])
            await asyncio.sleep(reply.seconds)
            self.in_flight -= 1
            self.answered[messages] += reply.status == 200 and reply.cut is None
        headers = {"content-type": "application/json", "content-length": str(len(reply.body))} | reply.headers
        head = f"HTTP/1.1 {reply.status} Said\r\n" + "".join(f"{key}: {value}\r\n" for key, value in headers.items())
        whole = head.encode() + b"\r\n" + reply.body
        pieces = [whole[: reply.cut]]
        if reply.trickle:
            pieces = [whole[at : at + 1] for at in range(len(whole))]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(reply.trickle)
        return reply.cut is None


@contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """The server on a free port of the loopback, in a thread of its own."""
    server, loop, ready = Server(script), asyncio.new_event_loop(), threading.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
        server.url = f"http{'s' if tls else ''}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await asyncio.Event().wait()

    task = loop.create_task(run())

    def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        for left in asyncio.all_tasks(loop):
            left.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


class Number(pydantic.BaseModel):
    number: int


def request(item: str) -> Request:
    return Request(item, [{"role": "user", "content": item}], Number, "1")


def endpoint(server: Server, **settings: Any) -> Endpoint:
    given = {"name": "wild", "model": "m", "base_url": server.url, "max_failed": 1.0, "timeout_s": 5.0}
    given |= {"backoff_s": 0.01, "patience_s": 5.0, "concurrency": 4}
    return Endpoint(**{**given, **settings})


def ask_items(server: Server, store: Path | str, count: int = 8, **settings: Any) -> Answers:
    """Ask for items "0", "1", ... and see to it that each has one outcome."""
    items = [str(number) for number in range(count)]
    answers = ask(endpoint(server, **settings), [request(item) for item in items], store=store, description="items")
    assert sorted([*answers.values, *answers.failures]) == sorted(items)
    assert [row["item"] for row in answers.used] == items
    return answers


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


# Faults that pass

NO_ANSWER = {
    "429": Reply(status=429),
    "429, Retry-After 0": Reply(status=429, headers={"retry-after": "0"}),
    "429, Retry-After in ms": Reply(status=429, headers={"retry-after-ms": "30"}),
    "429, Retry-After a date": Reply(status=429, headers={"retry-after": email.utils.formatdate(0, usegmt=True)}),
    "500": Reply(b"<html>", status=500),
    "503, Retry-After nonsense": Reply(status=503, headers={"retry-after": "soon"}),
    "reset before the head": Reply(GOOD.body, cut=0),
    "reset in the head": Reply(GOOD.body, cut=12),
    "reset in mid-body": Reply(GOOD.body, cut=150),
    "no JSON": Reply(b"<html>well</html>"),
    "no UTF-8": Reply(b'{"choices": [{"message": {"content": "\xff"}}]}'),
    "a lone surrogate": Reply(completion("\ud800")),
    "JSON, no completion": Reply(b'[{"choices": 3}]'),
    "an error under HTTP 200": Reply(b'{"error": {"message": "no capacity", "code": 502}}'),
    "an error as the finish": Reply(completion('{"number"', "error")),
    "a stall": Reply(GOOD.body, seconds=0.6),
    "a slow trickle": Reply(GOOD.body, trickle=0.02),
}


@pytest.mark.parametrize("fault", NO_ANSWER.values(), ids=NO_ANSWER)
def test_no_answer_is_asked_for_again(fault: Reply, store: Path) -> None:
    with serving(lambda server, body, time: fault if time == 1 and body["messages"][0]["content"] < "3" else GOOD) as s:
        answers = ask_items(s, store, timeout_s=0.3)
        assert not answers.failures
        assert [s.asked(str(item)) for item in range(8)] == [2, 2, 2, 1, 1, 1, 1, 1]
        assert (answers.usage.requests, answers.usage.cached) == (8, 0)
        assert answers.usage.resent + answers.usage.retries == 3
        again = ask_items(s, store)
        assert len(s.bodies) == 11
        assert (again.values, again.used) == (answers.values, answers.used)


UNUSABLE = {
    "prose": (Reply(completion("one, I think")), "shape"),
    "broken JSON": (Reply(completion('{"number": ')), "shape"),
    "another shape": (Reply(completion('{"number": "many"}')), "shape"),
    "truncated": (Reply(completion('{"number": 1}', "length")), "truncated"),
    "refused": (Reply(completion(None, refusal="I will not")), "refused"),
    "filtered": (Reply(completion("", "content_filter")), "refused"),
    "empty": (Reply(completion("")), "empty"),
    "no content": (Reply(completion(None)), "empty"),
    "content of another type": (Reply(completion([{"type": "text"}])), "empty"),
    "reasoning alone": (Reply(completion(None, reasoning_content="Hm.")), "reasoning"),
    "reasoning alone, in the text": (Reply(completion("<think>Hm.</think>")), "reasoning"),
}


@pytest.mark.parametrize(("fault", "kind"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_answer_is_asked_for_again_with_its_fault(fault: Reply, kind: str, store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        item, told = body["messages"][0]["content"], len(body["messages"]) > 1
        return fault if item == "0" or (item == "1" and not told) else GOOD

    with serving(script) as s:
        answers = ask_items(s, store)
        assert answers.failures == {"0": kind}
        assert [s.asked(str(item)) for item in range(8)] == [3, 2, 1, 1, 1, 1, 1, 1]
        assert set(s.sent.values()) == {1}
        assert [len(row["answers"]) for row in answers.used] == [3, 2, 1, 1, 1, 1, 1, 1]
        again = ask_items(s, store)
        assert (again.values, again.failures, again.used) == (answers.values, answers.failures, answers.used)
        assert len(s.bodies) == 11
        more = ask_items(s, store, attempts=4)
        assert s.asked("0") == 4
        assert len(s.bodies) == 12
        assert more.failures == {"0": kind}


def test_no_answer_does_not_count_as_an_unusable_one(store: Path) -> None:
    """Else a later run, which knows the answers alone, would come to another outcome."""

    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(seconds=0.5) if len(server.bodies) in (2, 3) else Reply(completion("prose"))

    with serving(script) as s:
        answers = ask_items(s, store, count=1, timeout_s=0.2)
        assert answers.failures == {"0": "shape"}
        assert len(s.bodies) == 5
        assert len(answers.used[0]["answers"]) == 3
        assert ask_items(s, store, count=1).used == answers.used
        assert len(s.bodies) == 5


# Faults that stay

LASTING = {
    "http 413": (Reply(status=413), 1),
    "http 403": (Reply(status=403), 1),
    "timeout": (Reply(seconds=2), 3),  # past 0.2, 0.4 and 0.8 s
    "protocol": (Reply(b"<html>"), 3),
}


@pytest.mark.parametrize(("kind", "fault", "sent"), [(kind, *rest) for kind, rest in LASTING.items()], ids=LASTING)
def test_a_lasting_fault_has_its_kind(kind: str, fault: Reply, sent: int, store: Path) -> None:
    with serving(lambda server, body, time: fault if body["messages"][0]["content"] == "5" else GOOD) as s:
        answers = ask_items(s, store, timeout_s=0.2)
        assert answers.failures == {"5": kind}
        assert len(s.bodies) == 7 + sent
        assert answers.used[5] == {"item": "5", "failure": kind, "answers": []}
        ask_items(s, store, timeout_s=0.2)
        assert len(s.bodies) == 7 + 2 * sent


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Reply(status=500), "http 500"), (Reply(status=429), "http 429"), (Reply(cut=0), "unreachable")],
    ids=["500", "429", "reset"],
)
def test_patience_ends(fault: Reply, kind: str, store: Path) -> None:
    with serving(lambda server, body, time: fault if body["messages"][0]["content"] == "5" else GOOD) as s:
        assert ask_items(s, store, patience_s=0.1).failures == {"5": kind}
        # pauses of 10, 20, 40 ms, each less up to a quarter
        assert 4 <= s.asked("5") <= 5
        assert len(s.bodies) == 7 + s.asked("5")


def test_a_pause_beyond_patience_is_not_begun(store: Path) -> None:
    with serving(lambda server, body, time: Reply(status=429, headers={"retry-after": "3600"})) as s:
        began = time.monotonic()
        assert set(ask_items(s, store, count=2).failures.values()) == {"http 429"}
        assert time.monotonic() - began < 2
        assert len(s.bodies) == 2


def test_a_storm_stops_the_stage_with_its_counts(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(status=500) if int(body["messages"][0]["content"]) >= 4 else GOOD

    with serving(script) as s:
        with pytest.raises(UserError, match=r"items: 2 of 8 requests .*\(2 http 500\).*max_failed=0.2"):
            ask_items(s, store, concurrency=1, patience_s=0.02, max_failed=0.2)
        s.script = lambda server, body, time: GOOD
        assert not ask_items(s, store).failures
        assert [s.asked(str(item)) for item in range(4)] == [1] * 4


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, r"refuses the key in PLANTED \(HTTP 401\)"),
        (404, r"has no chat completions for model m \(HTTP 404\)"),
        (402, r"HTTP 402 \(.*spent\)"),
    ],
)
def test_what_all_requests_would_meet_stops_the_stage_at_once(
    status: int, said: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "sk-planted-0123456789")
    body = b'{"error": {"message": "sk-planted-0123456789 is spent"}}'
    with serving(lambda server, _, time: Reply(body, status=status)) as s:
        with pytest.raises(UserError, match=rf"items: endpoint wild: {s.url} .*{said}.*kept in") as raised:
            ask_items(s, store, api_key_env="PLANTED")
        assert "sk-planted" not in str(raised.value)
        assert len(s.bodies) == 1
        with pytest.raises(UserError, match=rf"judge: {s.url} .*{said}"):
            check(endpoint(s, api_key_env="PLANTED"), "judge")


def test_a_key_that_no_header_can_hold_is_not_shown(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "sk-planted\n")
    with (
        serving(lambda server, body, time: GOOD) as s,
        pytest.raises(UserError, match=r"variable PLANTED holds no key") as raised,
    ):
        ask_items(s, store, api_key_env="PLANTED")
    assert "sk-planted" not in str(raised.value)


def test_the_runs_deadline_keeps_answers(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return GOOD if int(body["messages"][0]["content"]) < 3 else Reply(seconds=5)

    with serving(script) as s:
        said = (
            r"items: 3 of 8 requests to endpoint wild \(model m\) were answered and none failed when its run_timeout_s"
        )
        with pytest.raises(UserError, match=said):
            ask_items(s, store, run_timeout_s=0.5)
        s.script = lambda server, body, time: GOOD
        answers = ask_items(s, store)
        assert (answers.usage.cached, answers.usage.requests) == (3, 5)
        assert [s.asked(str(item)) for item in range(3)] == [1] * 3


# How much at once, and how long to wait


def test_a_server_that_answers_too_late_gets_half(store: Path) -> None:
    pace = Pace(8)

    async def once(s: Server) -> None:
        async with connect(endpoint(s, timeout_s=0.2), pace=pace) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "0"}])

    with serving(lambda server, body, time: Reply(seconds=5)) as s, pytest.raises(openai.APITimeoutError):
        asyncio.run(once(s))
    assert pace.width == 4


def test_a_busy_server_gets_what_it_can_take(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(GOOD.body, seconds=0.01) if server.in_flight <= 3 else Reply(status=429)

    with serving(script) as s:
        answers = ask_items(s, store, count=120, concurrency=24)
        assert not answers.failures
        assert set(s.answered.values()) == {1}
        assert len(s.answered) == 120
        # at full width most sendings would be refused
        assert answers.usage.resent == len(s.bodies) - 120 < 120


def test_429_halves_the_width_once_for_a_burst_and_answers_widen_it_slowly() -> None:
    pace = Pace(16)
    sent = time.monotonic()
    for _ in range(10):
        pace.refused(sent, 0.0)
    assert pace.width == 8
    pace.refused(time.monotonic() + 1, 0.0)
    assert pace.width == 4
    for _ in range(4):
        pace.answered()
    assert pace.width == 4
    pace.answered()
    assert pace.width == 5
    for _ in range(1000):
        pace.answered()
    assert pace.width == 16
    for _ in range(9):
        pace.refused(time.monotonic() + 100, 0.0)
    assert pace.width == 1


def test_a_pause_asked_for_holds_for_all(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(status=429, headers={"retry-after-ms": "300"}) if len(server.bodies) == 3 else GOOD

    with serving(script) as s:
        assert not ask_items(s, store, concurrency=2).failures
        refused = s.times[2]
        # the one in flight beside it may still come
        assert sum(refused < at < refused + 0.25 for at in s.times) <= 1
        assert len(s.bodies) == 9


def test_a_pause_longer_than_the_sdks_is_kept(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = [0.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    busy = Reply(status=503, headers={"retry-after": "250"})
    with serving(lambda server, body, time: busy if time == 1 else GOOD) as s:
        assert not ask_items(s, store, count=1, patience_s=300.0).failures
        assert slept == [250.0]


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"retry-after": "2.5"}, 2.5, 2.5),
        ({"retry-after": "9", "retry-after-ms": "40"}, 0.04, 0.04),
        ({"retry-after": email.utils.formatdate(0, usegmt=True)}, 0, 0),
    ],
)
def test_retry_after_is_a_number_or_a_date(headers: dict[str, str], low: float, high: float) -> None:
    assert low <= transport._retry_after(httpx2.Response(429, headers=headers)) <= high


def test_retry_after_may_be_a_date_to_come() -> None:
    date = email.utils.formatdate(time.time() + 3600, usegmt=True)
    assert 3500 <= transport._retry_after(httpx2.Response(429, headers={"retry-after": date})) <= 3600


@pytest.mark.parametrize("headers", [{}, {"retry-after": "soon"}, {"retry-after": "-3"}, {"retry-after-ms": "nan"}])
def test_retry_after_may_be_nonsense(headers: dict[str, str]) -> None:
    assert transport._retry_after(httpx2.Response(429, headers=headers)) is None


def test_a_server_that_restarts_is_waited_for(store: Path) -> None:
    # nobody listens on the port until the second sending
    port: list[int] = []
    with serving(lambda server, body, time: GOOD) as s:
        port.append(int(s.url.rsplit(":", 1)[1].split("/")[0]))
    began = threading.Event()

    def later() -> None:
        began.wait()
        time.sleep(0.3)

        async def run() -> None:
            listening = await asyncio.start_server(s.serve, "127.0.0.1", port[0])
            async with listening:
                await asyncio.sleep(1.5)

        asyncio.run(run())

    thread = threading.Thread(target=later)
    thread.start()
    began.set()
    try:
        assert not ask_items(s, store, patience_s=10.0).failures
        assert len(s.bodies) == 8
    finally:
        thread.join()


# The response format


def test_the_format_is_found_by_one_request_whatever_the_concurrency(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        plain = "response_format" not in body
        return Reply(GOOD.body, seconds=0.02) if plain else Reply(status=422 if time == 1 else 400, seconds=0.02)

    with serving(script) as s:
        assert not ask_items(s, store, count=20, concurrency=8).failures
    forms = [body.get("response_format", {}).get("type", "text") for body in s.bodies]
    assert forms == ["json_schema", "json_object"] + ["text"] * 20


def test_a_request_refused_for_another_reason_settles_no_format(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(status=400, seconds=0.02) if body["messages"][0]["content"] == "0" else GOOD

    with serving(script) as s:
        assert ask_items(s, store, concurrency=8).failures == {"0": "http 400"}
        assert s.asked("0") == 3
        rest = [body["response_format"]["type"] for body in s.bodies if body["messages"][0]["content"] != "0"]
        assert rest == ["json_schema"] * 7


# Items inside an answer


def _labels(*pairs: tuple[int, int]) -> Reply:
    return Reply(completion(json.dumps({"labels": [{"index": i, "label": v, "reason": "r"} for i, v in pairs]})))


LABELS = {
    "reordered": (_labels((1, 0), (0, 1)), [1, 0], 1),
    "duplicate": (_labels((0, 1), (0, 1), (1, 0)), [1, 1], 2),
    "too few": (_labels((0, 0)), [1, 1], 2),
    "too many": (_labels((0, 0), (1, 0), (2, 0)), [1, 1], 2),
    "none": (_labels(), [1, 1], 2),
    "an unknown label": (_labels((0, 3), (1, 1)), [1, 1], 2),
}


@pytest.mark.parametrize(("first", "expected", "sent"), LABELS.values(), ids=LABELS)
def test_every_token_gets_its_own_label(first: Reply, expected: list[int], sent: int, store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return first if len(body["messages"]) == 2 else _labels((0, 1), (1, 1))

    pieces = ["The birth city of Ada Byron is", " Lon", "don", "."]
    row = {"document": "d", "budget": 1, "token": 0}
    tokens = [row | {"step": step, "text": text, "finish": ""} for step, text in enumerate(pieces)]
    documents = [{"id": "d", "person": "Ada Byron", "facts": [{"attribute": "birth city", "value": "London"}]}]
    with serving(script) as s:
        for _ in range(2):
            rows = label(pa.Table.from_pylist(tokens), documents, Role(endpoint(s), store)).to_pylist()
            assert [row["label"] for row in rows if row["source"] == "endpoint"] == expected
            assert len(s.bodies) == sent


# Death


_CLIENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_faults import Endpoint, ask, request
settings = Endpoint(name="wild", model="m", base_url=sys.argv[1], concurrency=4)
ask(settings, [request(str(item)) for item in range(60)], store=sys.argv[2], description="items")
"""


@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
def test_kill_nine_and_again(place: str) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        wrong = int(body["messages"][0]["content"]) % 3 == 0 and len(body["messages"]) == 1
        return Reply(completion("prose") if wrong else GOOD.body, seconds=0.02)

    with serving(script) as s:
        command = [sys.executable, "-c", _CLIENT, s.url, place, str(Path(__file__).parents[1])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        client = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        while client.poll() is None and len(s.bodies) < 30:
            time.sleep(0.002)
        client.send_signal(signal.SIGKILL)
        assert client.wait() == -signal.SIGKILL, client.stderr.read().decode()
        with Store(place) as kept:
            answered = [json.dumps(row["messages"], sort_keys=True) for row in kept.export()]
        assert len(answered) >= 20
        answers = ask_items(s, place, count=60)
        assert not answers.failures
        assert answers.usage.requests == 80 - len(answered)
        assert all(s.sent[messages] == 1 for messages in answered)
        assert set(s.sent.values()) <= {1, 2}
        assert len(s.bodies) <= 80 + 4
        assert ask_items(s, place, count=60).used == answers.used
        assert len(s.bodies) <= 80 + 4


# The key


KEY = "sk-planted-0123456789"


def test_the_key_is_in_nothing_that_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A server that repeats the key in its refusals; stages that end well, with a sentence, and with a traceback."""
    monkeypatch.setenv("PLANTED", KEY)
    caplog.set_level(logging.DEBUG)
    said = json.dumps({"error": {"message": f"the key {KEY} is bad", "code": 1}}).encode()
    refusals = [Reply(said, status=status) for status in (500, 429, 400)] + [Reply(said), Reply(said, cut=100)]
    store, config = tmp_path / "answers.sqlite", {}

    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        item = int(body["messages"][0]["content"])
        return refusals[item] if item < len(refusals) and time < 3 else GOOD

    def crash(*_: Any) -> None:
        raise RuntimeError("disk full")

    with serving(script) as s:
        with stage_log(tmp_path / "well.log"):
            answers = ask_items(s, store, api_key_env="PLANTED")
        assert s.keys == {f"bearer {KEY}"}
        write(tmp_path / "usage.parquet", "usage", answers.used)
        settings = Config(judge=endpoint(s, api_key_env="PLANTED"))
        frame = endpoints({"judge_usage": [tmp_path / "usage.parquet"]}, settings)
        save(Table.of("endpoints", frame, settings), tmp_path)
        config |= asdict(settings) | {"params": identity(settings), "digest": settings_digest(settings)}
        s.script = lambda server, body, time: Reply(said, status=401)
        with pytest.raises(SystemExit), stage_log(tmp_path / "sentence.log"):
            ask_items(s, tmp_path / "other.sqlite", api_key_env="PLANTED")
        with pytest.raises(SystemExit), stage_log(tmp_path / "preflight.log"):
            check(endpoint(s, api_key_env="PLANTED"), "judge")
        s.script = lambda server, body, time: GOOD
        monkeypatch.setattr(Store, "put", crash)
        with pytest.raises(ExceptionGroup), stage_log(tmp_path / "crash.log"):
            ask_items(s, tmp_path / "third.sqlite", api_key_env="PLANTED")
    shown = "".join(typed("answers", name, "--store", str(store)).output for name in ("list", "export"))
    assert "refuses the key in PLANTED" in (tmp_path / "sentence.log").read_text()
    assert "HTTP 400 (Error code: 400 - the key *** is bad)" in (tmp_path / "well.log").read_text()
    assert "disk full" in (tmp_path / "crash.log").read_text()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 10
    assert [path.name for path in written if KEY.encode() in path.read_bytes()] == []
    printed = capfd.readouterr()
    assert KEY not in shown + printed.out + printed.err + caplog.text + json.dumps(config)
