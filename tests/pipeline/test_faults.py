"""The client against a server that misbehaves: each request has one outcome, and no answer is asked for twice."""

import email.utils
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from commands import typed
from server import GOOD, Call, Number, Reply, Server, ask_items, chat, completion, endpoint, request, serving

from utaca.endpoints import ask, check
from utaca.endpoints.chat import shape
from utaca.endpoints.store import AnswerStore, identity
from utaca.endpoints.transport import retry_after
from utaca.errors import UserError
from utaca.records import write
from utaca.records.logs import stage_log

KEY = "sk-planted-0123456789"


# What is sent and kept


def test_a_second_run_sends_nothing(store: Path) -> None:
    settings = {"reasoning_effort": "low"}
    with serving(lambda server, call: Reply(GOOD.body, seconds=0.02)) as s:
        first = ask_items(s, store, count=20, **settings)
        assert len(s.calls) == first.usage.requests == 20
        assert (first.usage.prompt_tokens, s.most_in_flight) == (140, 4)
        body = s.calls[0].body
        assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.0, 1.0, 0, 2048)
        assert body["reasoning_effort"] == "low"
        assert body["response_format"]["json_schema"]["schema"]["required"] == ["number"]
        second = ask_items(s, store, count=20, base_url="http://elsewhere/v1", **settings)
        assert (second.values, second.used) == (first.values, first.used)
        assert (second.usage.requests, second.usage.cached, len(s.calls)) == (0, 20, 20)
        ask_items(s, store, count=1, temperature=0.5, **settings)
        assert len(s.calls) == 21


def test_what_is_asked_twice_is_sent_once_and_the_answer_that_another_process_kept_counts(store: Path) -> None:
    def script(server: Server, call: Call) -> Reply:
        asked = identity(endpoint(server), call.body["messages"], shape(Number), "1")
        with AnswerStore(store) as other:
            other.put(asked, "m", json.loads(completion('{"number": 2}').body), (7, 2), 0.1)
        return Reply(GOOD.body, seconds=0.02)

    with serving(script) as s:
        requests = [request("0"), replace(request("0"), key="twin")]
        values = ask(endpoint(s), requests, store=store, description="x").values
        assert values == {"0": Number(number=2), "twin": Number(number=2)}, "as a later run will find it"
        assert len(s.calls) == 1


# Faults that pass

NO_ANSWER = {
    "429, Retry-After": Reply(status=429, headers={"retry-after": "0.05"}),
    "500": Reply("<html>", status=500),
    "reset in mid-body": Reply(GOOD.body, cut=150),
    "a lone surrogate": completion("\ud800"),
    "an error under HTTP 200": Reply('{"error": {"message": "no capacity", "code": 502}}'),
    "a slow trickle": Reply(GOOD.body, trickle=0.02),
}


@pytest.mark.parametrize("fault", NO_ANSWER.values(), ids=NO_ANSWER)
def test_a_request_without_an_answer_is_repeated(fault: Reply, store: Path) -> None:
    with serving(lambda server, call: fault if call.number == 1 and call.item < "3" else GOOD) as s:
        answers = ask_items(s, store, timeout_s=2)
        assert not answers.failures
        assert [s.n_of(item) for item in range(8)] == [2, 2, 2, 1, 1, 1, 1, 1]
        assert (answers.usage.requests, answers.usage.cached) == (8, 0)
        assert answers.usage.resent + answers.usage.retries == 3
        again = ask_items(s, store)
        assert len(s.calls) == 11
        assert (again.values, again.used) == (answers.values, answers.used)


UNUSABLE = {
    "another shape": (completion('{"number": "many"}'), "shape"),
    "truncated": (completion('{"number": 1}', "length"), "truncated"),
    "refused": (completion(None, refusal="I will not"), "refused"),
    "filtered": (completion("", "content_filter"), "refused"),
    "reasoning alone": (completion(None, reasoning_content="Hm."), "reasoning"),
}


@pytest.mark.parametrize(("fault", "kind"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_answer_is_asked_for_again_with_its_fault(fault: Reply, kind: str, store: Path) -> None:
    with serving(
        lambda server, call: fault if call.item == "0" or (call.item == "1" and not call.again) else GOOD
    ) as s:
        answers = ask_items(s, store)
        assert answers.failures == {"0": kind}
        assert [s.n_of(item) for item in range(8)] == [3, 2, 1, 1, 1, 1, 1, 1]
        assert [len(row["answers"]) for row in answers.used] == [3, 2, 1, 1, 1, 1, 1, 1]
        follow_up = next(call.body["messages"] for call in s.calls if call.again)
        assert [message["role"] for message in follow_up] == ["system", "user", "assistant", "user"]
        assert follow_up[3]["content"].startswith("Your answer ")
        again = ask_items(s, store)
        assert (again.values, again.failures, again.used) == (answers.values, answers.failures, answers.used)
        assert len(s.calls) == 11
        assert ask_items(s, store, attempts=4).failures == {"0": kind}
        assert (s.n_of(0), len(s.calls)) == (4, 12)


def test_no_answer_does_not_count_as_an_unusable_one(store: Path) -> None:
    """Else a later run, which has the answers alone, would come to another outcome."""
    late = (2, 3)
    with serving(lambda server, _: Reply(seconds=0.5) if len(server.calls) in late else completion("prose")) as s:
        answers = ask_items(s, store, count=1, timeout_s=0.2)
        assert answers.failures == {"0": "shape"}
        assert (len(s.calls), len(answers.used[0]["answers"])) == (5, 3)
        assert ask_items(s, store, count=1).used == answers.used
        assert len(s.calls) == 5


# Faults that stay

# The fault, its kind, and how often it is sent: past 0.2, 0.4 and 0.8 s; with pauses of 10, 20, 40 ms, each less up to
# a quarter.
LASTING = [
    (Reply(status=413), "http 413", (1,)),
    (Reply(seconds=2), "timeout", (3,)),
    (Reply(headers={"x-policy": "a" * 9000}), "protocol", (3,)),
    (Reply(status=429), "http 429", (4, 5)),
    (Reply(cut=0), "unreachable", (4, 5)),
]


@pytest.mark.parametrize(("fault", "kind", "sent"), LASTING, ids=[kind for _, kind, _ in LASTING])
def test_a_lasting_fault_has_its_kind(fault: Reply, kind: str, sent: tuple[int, ...], store: Path) -> None:
    with serving(lambda server, call: fault if call.item == "5" else GOOD) as s:
        answers = ask_items(s, store, timeout_s=0.2, patience_s=0.1)
        assert answers.failures == {"5": kind}
        assert answers.used[5] == {"item": "5", "failure": kind, "answers": []}
        assert s.n_of(5) in sent
        ask_items(s, store, timeout_s=0.2, patience_s=0.1)
        assert s.n_of(5) >= 2 * sent[0], "asked again"
        assert len(s.calls) == 7 + s.n_of(5)


def test_a_late_server_has_more_time_and_is_called_slow(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda server, call: Reply(GOOD.body, seconds=0.5)) as s:
        assert not ask_items(s, store, 3, timeout_s=0.2, concurrency=2).failures
        assert len(s.calls) == 9  # 0.2 and 0.4 s were too short, 0.8 s was not
        (warning,) = [message for message in caplog.messages if "took longer than timeout_s=0.2" in message]
        assert "(now 1)" in warning
        slow = r"2 of 2 .* failed \(2 timeout\).*; the server is too slow for its timeout_s=0.1 and concurrency=4"
        with pytest.raises(UserError, match=slow):
            ask_items(s, store.with_name("b"), 2, max_failed=0.5, timeout_s=0.1)


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (401, r"refuses the key in PLANTED \(HTTP 401\)"),
        (404, r"has no chat completions for model m \(HTTP 404\)"),
        (402, r"HTTP 402 \(.*spent"),
    ],
)
def test_what_every_request_would_meet_stops_the_stage_at_once(
    status: int, fault: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", KEY)
    body = f'{{"error": {{"message": "{KEY} is spent"}}}}'
    with serving(chat(lambda server, call: Reply(body, status=status))) as s:
        with pytest.raises(UserError, match=rf"items: endpoint wild: {s.url} .*{fault}.*kept in") as raised:
            ask_items(s, store, api_key_env="PLANTED")
        assert KEY not in str(raised.value)
        assert len(s.calls) <= 4
        with pytest.raises(UserError, match=rf"judge: {s.url} .*{fault}"):
            check(endpoint(s, api_key_env="PLANTED"), "judge")


def test_a_server_that_is_gone_stops_the_stage(store: Path) -> None:
    with pytest.raises(UserError, match=r"endpoint wild: http://127.0.0.1:9/v1 cannot be reached"):
        ask_items(store=store, base_url="http://127.0.0.1:9/v1", patience_s=0.1)


# How much at once, and how long to wait


def test_a_busy_server_gets_what_it_can_take(store: Path) -> None:
    def script(server: Server, call: Call) -> Reply:
        return Reply(GOOD.body, seconds=0.01) if server.in_flight <= 3 else Reply(status=429)

    with serving(script) as s:
        answers = ask_items(s, store, count=120, concurrency=24)
        assert not answers.failures
        # At full width most sendings would be refused.
        assert answers.usage.resent == len(s.calls) - 120 < 120


def test_retry_after_is_a_number_or_a_date(monkeypatch: pytest.MonkeyPatch) -> None:
    when = time.time() + 36000
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "UTC+9")
        time.tzset()
        for headers, seconds in (
            ({"retry-after": "2.5"}, 2.5),
            ({"retry-after": "9", "retry-after-ms": "40"}, 0.04),
            ({"retry-after": email.utils.formatdate(0, usegmt=True)}, 0),
            ({"retry-after": email.utils.formatdate(when, usegmt=True)}, pytest.approx(36000, abs=60)),
            ({"retry-after": time.asctime(time.gmtime(when))}, pytest.approx(36000, abs=60)),
            ({"retry-after": "-3"}, None),
            ({"retry-after-ms": "nan"}, None),
        ):
            assert retry_after(httpx2.Response(429, headers=headers)) == seconds
    time.tzset()


# Death

_CLIENT = """
import sys
sys.path.insert(0, sys.argv[3])
from server import EndpointSettings, ask, request
settings = EndpointSettings(name="wild", model="m", base_url=sys.argv[1], concurrency=4)
ask(settings, [request(item) for item in range(60)], store=sys.argv[2], description="items")
"""


@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
def test_nothing_that_was_answered_is_asked_again_after_a_kill(place: str) -> None:
    def script(server: Server, call: Call) -> Reply:
        wrong = int(call.item) % 3 == 0 and not call.again
        return Reply(completion("prose").body if wrong else GOOD.body, seconds=0.02)

    with serving(script) as s:
        command = [sys.executable, "-c", _CLIENT, s.url, place, str(Path(__file__).parents[1])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        client = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        while client.poll() is None and len(s.calls) < 30:
            time.sleep(0.002)
        client.send_signal(signal.SIGKILL)
        assert client.wait() == -signal.SIGKILL, client.stderr.read().decode()
        with AnswerStore(place) as opened:
            answered = [json.dumps(row["messages"], sort_keys=True) for row in opened.export()]
        assert len(answered) >= 20
        answers = ask_items(s, place, count=60)
        assert not answers.failures
        assert answers.usage.requests == 80 - len(answered)
        messages = [json.dumps(call.body["messages"], sort_keys=True) for call in s.calls]
        assert all(messages.count(one) == 1 for one in answered)
        assert ask_items(s, place, count=60).used == answers.used
        assert len(s.calls) <= 80 + 4


# The key


def test_the_key_is_in_nothing_that_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A server that repeats the key in its refusals; stages that end well, with a sentence, and with a traceback."""
    monkeypatch.setenv("PLANTED", KEY)
    caplog.set_level(logging.DEBUG)
    body = json.dumps({"error": {"message": f"the key {KEY} is bad", "code": 1}})
    refusals = [Reply(body, status=status) for status in (500, 429, 400)] + [Reply(body), Reply(body, cut=100)]
    store = tmp_path / "answers.sqlite"

    def script(server: Server, call: Call) -> Reply:
        return refusals[int(call.item)] if int(call.item) < len(refusals) and call.number < 3 else GOOD

    def crash(*_: Any) -> None:
        raise RuntimeError("disk full")

    with serving(script) as s:
        with stage_log(tmp_path / "well.log"):
            answers = ask_items(s, store, api_key_env="PLANTED")
        assert {call.headers["authorization"] for call in s.calls} == {f"Bearer {KEY}"}
        write(tmp_path / "usage.parquet", "usage", answers.used)
        s.script = lambda server, call: Reply(body, status=401)
        with pytest.raises(SystemExit), stage_log(tmp_path / "sentence.log"):
            ask_items(s, tmp_path / "other.sqlite", api_key_env="PLANTED")
        with pytest.raises(SystemExit), stage_log(tmp_path / "preflight.log"):
            check(endpoint(s, api_key_env="PLANTED"), "judge")
        s.script = chat()
        monkeypatch.setattr(AnswerStore, "put", crash)
        with pytest.raises(RuntimeError), stage_log(tmp_path / "crash.log"):
            ask_items(s, tmp_path / "third.sqlite", api_key_env="PLANTED")
    shown = "".join(typed("answers", name, "--store", str(store)).output for name in ("list", "export"))
    assert "refuses the key in PLANTED" in (tmp_path / "sentence.log").read_text()
    assert "the key *** is bad" in (tmp_path / "well.log").read_text()
    assert "disk full" in (tmp_path / "crash.log").read_text()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 8
    assert [path.name for path in written if KEY.encode() in path.read_bytes()] == []
    printed = capfd.readouterr()
    assert KEY not in shown + printed.out + printed.err + caplog.text


def test_a_key_that_is_lacking_or_fits_no_header_is_not_shown(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"judge: endpoint wild: the environment variable PLANTED .*not set"):
        check(endpoint(api_key_env="PLANTED"), "judge")
    monkeypatch.setenv("PLANTED", "sk-planted\n")
    with pytest.raises(UserError, match=r"variable PLANTED is not a valid key") as raised:
        ask_items(store=store, api_key_env="PLANTED")
    assert "sk-planted" not in str(raised.value)
