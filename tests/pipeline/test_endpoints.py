"""What the client sends, keeps, tells and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_faults import GOOD, Number, Reply, Server, completion, endpoint, serving

from utaca.endpoints import Request, ask, check
from utaca.errors import UserError
from utaca.settings.schema import Endpoint

KEY = "sk-very-secret-0123456789"
AWAY = Endpoint(name="away", model="m", base_url="http://127.0.0.1:9/v1", max_failed=1.0, patience_s=0.1)


def request(key: str, text: str = "", **settings: Any) -> Request:
    messages = [{"role": "user", "content": text or f"number of {key}?"}]
    return Request(key=key, messages=messages, answer=Number, version="1", **settings)


def requests(count: int) -> list[Request]:
    return [request(str(number)) for number in range(count)]


def good(server: Server, body: dict[str, Any], time: int) -> Reply:
    return GOOD


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


def test_second_run_sends_nothing_and_the_key_is_never_stored(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", KEY)
    asked = [*requests(20), request("again", "number of 3?")]
    with serving(lambda server, body, time: Reply(GOOD.body, seconds=0.02)) as s:
        first = ask(endpoint(s, api_key_env="FAKE_KEY", reasoning_effort="low"), asked, store=store, description="x")
        assert len(s.bodies) == first.usage.requests == 20
        assert first.values["again"] == first.values["3"] == Number(number=1)
        assert first.usage.prompt_tokens == 140
        assert s.most_in_flight == 4
        assert s.keys == {f"bearer {KEY}"}
        body = s.bodies[0]
        assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.0, 1.0, 0, 2048)
        assert body["reasoning_effort"] == "low"
        assert body["response_format"]["json_schema"]["schema"]["required"] == ["number"]
        moved = endpoint(s, base_url="http://elsewhere/v1", reasoning_effort="low")
        second = ask(moved, asked, store=store, description="x")
        assert len(s.bodies) == 20
        assert second.values == first.values
        assert (second.usage.requests, second.usage.cached) == (0, 21)
        assert all(KEY.encode() not in path.read_bytes() for path in store.parent.iterdir())
        ask(endpoint(s, temperature=0.5, reasoning_effort="low"), asked[:1], store=store, description="x")
        assert len(s.bodies) == 21


def test_what_is_wrong_with_an_answer_is_told(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(completion("one, I think")) if len(body["messages"]) == 1 else GOOD

    with serving(script) as s:
        answers = ask(endpoint(s), requests(1), store=store, description="x")
        assert answers.values == {"0": Number(number=1)}
        assert (answers.usage.requests, answers.usage.retries) == (2, 1)
        assert [message["role"] for message in s.bodies[1]["messages"]] == ["user", "assistant", "user"]
        assert "form asked for" in s.bodies[1]["messages"][2]["content"]
        complained = request("a", check=lambda value: "named no real number")
        answers = ask(endpoint(s, attempts=2), [complained], store=store.with_name("b"), description="x")
        assert answers.failures == {"a": "check"}
        s.script = good
        answers = ask(endpoint(s, attempts=2), [complained], store=store.with_name("c"), description="x")
        assert answers.failures == {"a": "check"}
        assert "Your answer named no real number." in s.bodies[-1]["messages"][2]["content"]


def test_too_many_failures_stop_with_counts_and_keep_answers(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        return Reply(completion("?")) if "odd" in body["messages"][0]["content"] else GOOD

    asked = [request(f"{i}", f"{'odd' if i % 2 else 'even'} {i}") for i in range(20)]
    with serving(script) as s:
        strict = endpoint(s, max_failed=0.1, attempts=1, concurrency=1)
        with pytest.raises(UserError, match=r"3 of 20 requests to endpoint wild \(model m\) failed \(3 shape\)"):
            ask(strict, asked, store=store, description="x")
        assert len(s.bodies) == 6
        loose = ask(endpoint(s, max_failed=0.5, attempts=1), asked, store=store, description="x")
        assert len(s.bodies) == 20
        assert len(loose.values) == len(loose.failures) == 10


def test_late_answer_is_waited_for_longer_and_a_server_that_stays_late_is_called_slow(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(lambda server, body, time: Reply(GOOD.body, seconds=0.5)) as s:
        answers = ask(endpoint(s, timeout_s=0.2, concurrency=2), requests(3), store=store, description="x")
        assert not answers.failures  # 0.2 and 0.4 s were too short, 0.8 s was not
        assert len(s.bodies) == 9
        told = [message for message in caplog.messages if "took longer than timeout_s=0.2" in message]
        assert len(told) == 1
        assert "(now 1)" in told[0]
        slow = r"2 of 2 .* failed \(2 timeout\).*; the server is too slow for its timeout_s=0.1 and concurrency=4"
        strict = endpoint(s, max_failed=0.5, timeout_s=0.1)
        with pytest.raises(UserError, match=slow):
            ask(strict, requests(2), store=store.with_name("b"), description="x")


def test_bar_and_log_tell_what_was_sent_for(
    store: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO", "utaca")
    odd = {2: Reply(status=429), 4: Reply(completion("?"))}
    with serving(lambda server, body, time: odd.get(len(server.bodies), GOOD)) as s:
        priced = endpoint(s, prompt_price=1e5, completion_price=1e6)
        for count in (4, 5, 5):
            ask(priced, requests(count), store=store, description="x")
    told = [
        "0 from the store, 5 answers sent for, 1 asked again, 1 sent again, 35 + 10 tokens, 13.5 USD",
        "4 from the store, 1 answers sent for, 0 asked again, 0 sent again, 7 + 2 tokens, 2.7 USD",
        "5 from the store, 0 answers sent for, 0 asked again, 0 sent again, 0 + 0 tokens",
    ]
    start = "x: {} requests to endpoint wild (model m): {}"
    assert caplog.messages[-3:] == [start.format(n, line) for n, line in zip((4, 5, 5), told, strict=True)]
    bars = capsys.readouterr().err
    assert told[0] in bars
    assert told[1] in bars


def test_server_that_is_gone_stops_the_run(store: Path) -> None:
    with pytest.raises(UserError, match=r"endpoint away: http://127.0.0.1:9/v1 cannot be reached"):
        ask(AWAY, requests(9), store=store, description="x")
    assert ask(AWAY, requests(1), store=store, description="x").failures == {"0": "unreachable"}


def test_preflight_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"labeller: http://127.0.0.1:9/v1 cannot be reached"):
        check(AWAY, "labeller")
    with serving(good) as s:
        with pytest.raises(UserError, match=r"judge: endpoint wild: environment variable FAKE_KEY .*not set"):
            check(endpoint(s, api_key_env="FAKE_KEY"), "judge")
        with pytest.raises(UserError, match=r"judge: .*base_url '' must be"):
            check(endpoint(s, base_url=""), "judge")
        s.models = ["other", "another"]
        with pytest.raises(UserError, match=rf"judge: {s.url} does not list model m; it lists another, other"):
            check(endpoint(s), "judge")
        for s.models in (["m"], [], None):
            check(endpoint(s), "judge")
        monkeypatch.setenv("FAKE_KEY", KEY)
        strange = json.dumps({"error": {"message": f"strange {KEY}"}}).encode()
        s.script = lambda server, body, time: Reply(strange, status=422)
        with pytest.raises(UserError, match=r"writer: .* HTTP 422") as raised:
            check(endpoint(s, api_key_env="FAKE_KEY"), "writer")
        assert KEY not in str(raised.value)
        s.script = lambda server, body, time: Reply(status=401)
        with pytest.raises(UserError, match=r"refuses the key in FAKE_KEY \(HTTP 401\)"):
            check(endpoint(s, api_key_env="FAKE_KEY"), "writer")
