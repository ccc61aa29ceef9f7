from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pydantic
import pytest

from utaca.endpoints import Request, ask, check, transport
from utaca.errors import UserError
from utaca.settings.schema import Endpoint

KEY = "sk-very-secret-0123456789"
PATIENT = transport._Patient


class Colour(pydantic.BaseModel):
    colour: str


COLOUR = Colour.model_json_schema()


class Server:
    """A scripted chat server in process: ``script`` maps a request's body and number to status and completion parts."""

    def __init__(
        self, script: Callable[[dict[str, Any], int], dict[str, Any]], models: list[str] | None = None
    ) -> None:
        self.script, self.models, self.bodies, self.keys = script, models, [], []
        self.in_flight = self.most_in_flight = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
        self.keys.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        if scope["path"].endswith("/models"):
            status = 200 if self.models is not None else 404
            answer: dict[str, Any] = {"object": "list", "data": [{"id": name} for name in self.models or []]}
        else:
            self.bodies.append(json.loads(body))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            said = self.script(self.bodies[-1], len(self.bodies))
            await asyncio.sleep(said.get("seconds", 0.0))
            self.in_flight -= 1
            status = said.get("status", 200)
            headers += said.get("headers", [])
            choice = {"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop"} | said.get("choice", {})
            choice["message"] = choice["message"] | {"content": said.get("content")} | said.get("message", {})
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
            answer |= {"choices": [choice], "usage": usage}
            if status != 200:
                answer = {"error": {"message": said.get("error", "no")}}
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    def start(script: Callable[[dict[str, Any], int], dict[str, Any]], models: list[str] | None = None) -> Server:
        server = Server(script, models)
        monkeypatch.setattr(transport, "_Patient", partial(PATIENT, transport=httpx2.ASGITransport(app=server)))
        return server

    return start


def endpoint(**settings: Any) -> Endpoint:
    given = {"name": "fake", "model": "m", "base_url": "http://fake/v1", "max_failed": 1.0, "timeout_s": 5.0}
    given |= {"backoff_s": 0.01, "patience_s": 0.2}
    return Endpoint(**{**given, **settings})


def request(key: str, text: str = "", **settings: Any) -> Request:
    messages = [{"role": "user", "content": text or f"colour of {key}?"}]
    return Request(key=key, messages=messages, answer=Colour, version="1", **settings)


def good(body: dict[str, Any], n: int) -> dict[str, Any]:
    return {"content": json.dumps({"colour": body["messages"][0]["content"]})}


def test_second_run_sends_nothing_and_the_key_is_never_stored(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEY", KEY)
    server = serve(good)
    asked = [request(str(i)) for i in range(20)] + [request("again", "colour of 3?")]
    settings = endpoint(api_key_env="FAKE_KEY", concurrency=4, reasoning_effort="low")
    first = ask(settings, asked, store=tmp_path / "a.sqlite", description="colours")
    assert len(server.bodies) == first.usage.requests == 20
    assert first.values["again"] == first.values["3"] == Colour(colour="colour of 3?")
    assert first.usage.prompt_tokens == 60
    assert server.most_in_flight <= 4
    assert set(server.keys) == {f"Bearer {KEY}"}
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.0, 1.0, 0, 2048)
    assert body["reasoning_effort"] == "low"
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["colour"]
    moved = endpoint(base_url="http://elsewhere/v1", reasoning_effort="low")
    second = ask(moved, asked, store=tmp_path / "a.sqlite", description="colours")
    assert len(server.bodies) == 20
    assert second.values == first.values
    assert (second.usage.requests, second.usage.cached) == (0, 21)
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())
    ask(endpoint(temperature=0.5, reasoning_effort="low"), asked[:1], store=tmp_path / "a.sqlite", description="x")
    assert len(server.bodies) == 21


def test_wrong_shape_is_asked_again_with_its_fault(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(
        lambda body, n: {"content": "blue, I think"} if n == 1 else {"content": '```json\n{"colour": "b"}\n```'}
    )
    answers = ask(endpoint(), [request("a")], store=tmp_path / "a.sqlite", description="x")
    assert answers.values == {"a": Colour(colour="b")}
    assert (answers.usage.requests, answers.usage.retries) == (2, 1)
    roles = [message["role"] for message in server.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert "form asked for" in server.bodies[1]["messages"][2]["content"]


def test_check_is_told_and_recorded(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(good)
    asked = request("a", check=lambda value: "named no real colour")
    answers = ask(endpoint(attempts=2), [asked], store=tmp_path / "a.sqlite", description="x")
    assert answers.failures == {"a": "check"}
    assert "Your answer named no real colour." in server.bodies[1]["messages"][2]["content"]


@pytest.mark.parametrize(
    ("said", "kind", "sent"),
    [
        ({"content": "blue"}, "shape", 3),
        ({"content": '{"colour": 1'}, "shape", 3),
        ({"content": '{"colour": "b"}', "choice": {"finish_reason": "length"}}, "truncated", 3),
        ({"message": {"refusal": "I cannot"}}, "refused", 3),
        ({"content": "", "choice": {"finish_reason": "content_filter"}}, "refused", 3),
        ({"content": ""}, "empty", 3),
        ({"message": {"reasoning_content": "Let me think"}}, "reasoning", 3),
        ({"content": "<think>Hm</think>"}, "reasoning", 3),
        ({"seconds": 1.0}, "timeout", 3),
        ({"status": 413}, "http 413", 1),
        ({"status": 400}, "http 400", 3),
    ],
)
def test_failures_keep_their_kind(
    serve: Callable[..., Server], tmp_path: Path, said: dict[str, Any], kind: str, sent: int
) -> None:
    server = serve(lambda body, n: said)
    settings = endpoint(timeout_s=0.2 if "seconds" in said else 5.0)
    answers = ask(settings, [request("a")], store=tmp_path / "a.sqlite", description="x")
    assert (answers.values, answers.failures) == ({}, {"a": kind})
    assert len(server.bodies) == sent
    ask(settings, [request("a")], store=tmp_path / "a.sqlite", description="x")
    replayed = not (kind.startswith("http") or kind == "timeout")
    assert (len(server.bodies) == sent) is replayed


def test_too_many_failures_stop_with_counts_and_keep_answers(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(lambda body, n: {"content": "?"} if "odd" in body["messages"][0]["content"] else good(body, n))
    asked = [request(f"{i}", f"{'odd' if i % 2 else 'even'} {i}") for i in range(20)]
    strict = endpoint(max_failed=0.1, attempts=1, concurrency=1)
    with pytest.raises(UserError, match=r"3 of 20 requests to endpoint fake \(model m\) failed \(3 shape\)"):
        ask(strict, asked, store=tmp_path / "a.sqlite", description="colours")
    assert len(server.bodies) == 6
    loose = ask(endpoint(max_failed=0.5, attempts=1), asked, store=tmp_path / "a.sqlite", description="colours")
    assert len(server.bodies) == 20
    assert len(loose.values) == len(loose.failures) == 10


def test_format_is_found_once(serve: Callable[..., Server], tmp_path: Path) -> None:
    def script(body: dict[str, Any], n: int) -> dict[str, Any]:
        form = body.get("response_format", {}).get("type")
        return {"status": 400} if form == "json_schema" else good(body, n)

    server = serve(script)
    answers = ask(endpoint(), [request(str(i)) for i in range(9)], store=tmp_path / "a.sqlite", description="x")
    assert len(answers.values) == 9
    forms = [body["response_format"]["type"] for body in server.bodies]
    assert forms == ["json_schema"] + ["json_object"] * 9


def test_busy_server_is_asked_again_after_its_pause(serve: Callable[..., Server], tmp_path: Path) -> None:
    pause = {"status": 429, "headers": [(b"retry-after-ms", b"20")]}
    server = serve(lambda body, n: pause if n < 3 else good(body, n))
    answers = ask(endpoint(), [request("a")], store=tmp_path / "a.sqlite", description="x")
    assert not answers.failures
    assert len(server.bodies) == 3


def test_late_answer_is_waited_for_longer_and_a_server_that_stays_late_is_called_slow(
    serve: Callable[..., Server], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda body, n: good(body, n) | {"seconds": 0.5})
    settings = endpoint(timeout_s=0.2, concurrency=2)
    asked = [request(str(i)) for i in range(3)]
    answers = ask(settings, asked, store=tmp_path / "a.sqlite", description="x")
    assert not answers.failures  # 0.2 and 0.4 s were too short, 0.8 s was not
    assert len(server.bodies) == 9
    told = [said for said in caplog.messages if "took longer than timeout_s=0.2" in said]
    assert len(told) == 1
    assert "(now 1)" in told[0]
    slow = r"2 of 2 .* failed \(2 timeout\).*; the server is too slow for its timeout_s=0.05 and concurrency=64"
    strict = endpoint(max_failed=0.5)
    strict.timeout_s = 0.05
    with pytest.raises(UserError, match=slow):
        ask(strict, asked[:2], store=tmp_path / "b.sqlite", description="x")


def test_bar_and_log_tell_what_was_sent_for(
    serve: Callable[..., Server],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("INFO", "utaca")
    busy = {"status": 429}
    serve(lambda body, n: busy if n == 2 else {"content": "?"} if n == 4 else good(body, n))
    settings = endpoint(prompt_price=2e5, completion_price=1e6)
    ask(settings, [request(str(i)) for i in range(4)], store=tmp_path / "a.sqlite", description="x")
    told = ["0 from the store, 5 answers sent for, 1 asked again, 1 sent again, 15 + 10 tokens, 13 USD"]
    ask(settings, [request(str(i)) for i in range(5)], store=tmp_path / "a.sqlite", description="x")
    told.append("4 from the store, 1 answers sent for, 0 asked again, 0 sent again, 3 + 2 tokens, 2.6 USD")
    ask(settings, [request(str(i)) for i in range(5)], store=tmp_path / "a.sqlite", description="x")
    told.append("5 from the store, 0 answers sent for, 0 asked again, 0 sent again, 0 + 0 tokens")
    start = "x: {} requests to endpoint fake (model m): {}"
    assert caplog.messages[-3:] == [start.format(n, said) for n, said in zip((4, 5, 5), told, strict=True)]
    bars = capsys.readouterr().err
    assert told[0] in bars
    assert told[1] in bars


def test_server_that_is_gone_stops_the_run(tmp_path: Path) -> None:
    asked = [request(str(i)) for i in range(9)]
    with pytest.raises(UserError, match=r"endpoint fake: http://127.0.0.1:9/v1 cannot be reached"):
        ask(endpoint(base_url="http://127.0.0.1:9/v1"), asked, store=tmp_path / "a.sqlite", description="x")
    answers = ask(endpoint(base_url="http://127.0.0.1:9/v1"), asked[:1], store=tmp_path / "a.sqlite", description="x")
    assert answers.failures == {"0": "unreachable"}


def test_preflight_names_what_is_wrong(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"judge: endpoint fake: environment variable FAKE_KEY .*not set"):
        check(endpoint(api_key_env="FAKE_KEY"), "judge")
    with pytest.raises(UserError, match=r"judge: .*base_url '' must be"):
        check(endpoint(base_url=""), "judge")
    with pytest.raises(UserError, match=r"labeller: http://127.0.0.1:9/v1 cannot be reached"):
        check(endpoint(base_url="http://127.0.0.1:9/v1"), "labeller")
    serve(good, models=["other", "another"])
    with pytest.raises(UserError, match=r"judge: http://fake/v1 does not list model m; it lists another, other"):
        check(endpoint(), "judge")
    serve(good, models=["m"])
    check(endpoint(), "judge")
    serve(good, models=None)
    check(endpoint(), "judge")
    monkeypatch.setenv("FAKE_KEY", KEY)
    serve(lambda body, n: {"status": 422, "error": f"strange {KEY}"}, models=["m"])
    with pytest.raises(UserError, match=r"writer: .* HTTP 422") as raised:
        check(endpoint(api_key_env="FAKE_KEY"), "writer")
    assert KEY not in str(raised.value)
    serve(lambda body, n: {"status": 401}, models=["m"])
    with pytest.raises(UserError, match=r"refuses the key in FAKE_KEY \(HTTP 401\)"):
        check(endpoint(api_key_env="FAKE_KEY"), "writer")
