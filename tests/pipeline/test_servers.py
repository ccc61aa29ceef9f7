"""Servers that differ from the usual one: in what they take, in the form of their answers, in how they are reached."""

import json
import re
import shutil
import ssl
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from server import GOOD, Call, Reply, Script, Server, ask_items, chat, endpoint, request, serving

from utaca.endpoints import ask, check
from utaca.endpoints.reading import read
from utaca.errors import UserError
from utaca.judging.cas import Score
from utaca.runs.compose import compose
from utaca.settings.checks import address_fault
from utaca.settings.schema import EndpointSettings

# What a server takes

PARAMETERS = {"temperature", "top_p", "seed", "max_tokens", "response_format"}


def refusing(name: str, *, body: Any) -> Script:
    """A server that refuses requests with a parameter."""
    return chat(lambda server, call: Reply(json.dumps(body), status=400) if name in call.body else GOOD)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"} | more}


LEFT_OUT = {
    "by its param": ("seed", error("Unsupported parameter.", param="seed")),
    "for its value": ("temperature", error("'temperature' does not support 0 with this model. Only 1 is supported.")),
    "not for this number": ("top_p", error("`top_p` must be > 0.0 and < 1.0", param=None)),
    "FastAPI": ("seed", {"detail": [{"loc": ["body", "seed"], "msg": "extra fields not permitted"}]}),
    "among others": ("temperature", error("temperature is none of the supported: max_tokens, top_p, seed")),
    "format": ("response_format", error("response_format is not supported")),
}


@pytest.mark.parametrize(("name", "body"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_parameter_that_a_refusal_names_is_left_out(name: str, body: Any, store: Path, caplog: Any) -> None:
    with serving(refusing(name, body=body)) as s:
        check(endpoint(s), "judge")
        caplog.clear()
        assert not ask_items(s, store).failures
        assert PARAMETERS - s.calls[-1].body.keys() == {name}
        (warning,) = [message for message in caplog.messages if "does not take all parameters" in message]
        assert warning.startswith(f"endpoint wild: {s.url} ")
        assert f"no {name}" in warning
        count = len(s.calls)
        assert not ask_items(s, store).failures
        assert len(s.calls) == count, "all is in the store"


def test_several_refusals_one_after_the_other_or_in_the_midst_are_learned_from(store: Path) -> None:
    def script(server: Server, call: Call) -> Reply:
        for name in ("max_tokens", "temperature", "response_format", *["seed"] * (len(server.calls) > 40)):
            if name in call.body:
                return Reply(json.dumps(error(f"Unsupported parameter: {name}", param=name)), status=400)
        return Reply(GOOD.body, seconds=0.01)

    with serving(chat(script)) as s:
        assert not ask_items(s, store, count=60, concurrency=4).failures
        assert s.calls[-1].body.keys() == {"model", "messages", "top_p", "max_completion_tokens"}
        # Each refusal costs one sending of each request in flight at most.
        assert len(s.calls) <= 60 + 6 * 4
    # A format that is refused without a word is left out too.
    with serving(lambda server, call: Reply("", status=422) if "response_format" in call.body else GOOD) as s:
        assert not ask_items(s, store.with_name("b"), count=20).failures
        assert len(s.calls) <= 20 + 2 * 4


def test_a_refusal_of_one_request_settles_nothing_for_others(store: Path) -> None:
    flagged = Reply(json.dumps(error("Flagged: 'the seed of temperature'")), status=400)
    for reply in (flagged, Reply(status=400)):
        with serving(lambda server, call, reply=reply: reply if call.item in ("0", "5") else GOOD) as s:
            assert ask_items(s, store).failures == {"0": "http 400", "5": "http 400"}
            assert all(call.body.keys() >= PARAMETERS for call in s.calls if call.item not in ("0", "5"))
        store = store.with_name("b")


def test_a_number_that_is_refused_is_told_in_the_servers_words(store: Path) -> None:
    words = "This model's maximum context length is 4096 tokens, but you requested 2048 tokens in max_tokens"
    with serving(refusing("max_tokens", body=error(words))) as s:
        with pytest.raises(UserError, match=r"judge: .* HTTP 400 \(") as checked:
            check(endpoint(s), "judge")
        with pytest.raises(
            UserError, match=r"1 of 8 requests .*\(1 http 400\).*; correct that and run again"
        ) as stopped:
            ask_items(s, store, max_failed=0.0, concurrency=1)
        assert all(words[:100] in str(raised.value) for raised in (checked, stopped))


# What is no completion

NO_COMPLETION = {
    "a web page": ("<!doctype html><title>Log in</title>", "text/html"),
    "a text completion": ('{"choices": [{"text": "ready", "finish_reason": "stop"}]}', "application/json"),
}


@pytest.mark.parametrize(("body", "kind"), NO_COMPLETION.values(), ids=NO_COMPLETION)
def test_what_is_no_completion_is_told_by_check_and_stage(body: str, kind: str, store: Path) -> None:
    with serving(chat(lambda server, call: Reply(body, headers={"content-type": kind}))) as s:
        fault = rf"HTTP 200, but with no chat completion \({kind}: {re.escape(body)}; check base_url"
        with pytest.raises(UserError, match=rf"judge: .*{fault}"):
            check(endpoint(s), "judge")
        with pytest.raises(UserError, match=rf"\(\d+ protocol\).*{fault}"):
            ask_items(s, store, max_failed=0.1)
        for how in ({"headers": {"content-encoding": "gzip"}}, {"headers": {"x-policy": "a" * 9000}}, {"cut": 150}):
            s.script = lambda server, call, how=how: Reply(GOOD.body, **how)
            with pytest.raises(UserError, match=r"its Content-Encoding says|no readable HTTP \(Got more|breaks off"):
                check(endpoint(s, patience_s=0.1), "judge")


def test_a_model_that_the_server_lacks_is_named(caplog: Any) -> None:
    # All but the last may mean the model; a deployment of Azure is not listed. The request decides.
    for listed in ("openai/*", "m:latest", "org/M", "mm"):
        assert not caplog.messages
        with serving(chat(models=["other", listed])) as s:
            check(endpoint(s), "judge")
    lacks = f"{s.url} does not list model m; it lists mm, other"
    assert caplog.messages == [f"{lacks}; yet it answers to that name, perhaps as another model"]
    with (
        serving(chat(lambda server, call: Reply(status=404), ["other", "mm", "m-large"])) as s,
        pytest.raises(UserError, match=rf"judge: {s.url} does not list model m; it lists m-large, mm, other \(.*404"),
    ):
        check(endpoint(s), "judge")
    for unlisted in (Reply(status=404), Reply(seconds=5)):
        with serving(lambda server, call, unlisted=unlisted: GOOD if call.body else unlisted) as s:
            check(endpoint(s, timeout_s=0.5), "judge")


# Certificates, proxies, addresses


def test_a_certificate_is_named(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    key, pem = str(tmp_path / "key.pem"), str(tmp_path / "own.pem")
    options = ["-nodes", "-keyout", key, "-out", pem, "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *options], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, key)
    with serving(chat(), tls=tls) as s:
        fault = r"has a certificate that is not trusted \(self-signed certificate\);.*SSL_CERT_FILE"
        with pytest.raises(UserError, match=rf"judge: {s.url} {fault}"):
            check(endpoint(s, patience_s=60.0), "judge")
        with pytest.raises(UserError, match=rf"items: endpoint wild: {s.url} {fault}.*kept in"):
            ask_items(s, store, patience_s=60.0)
        monkeypatch.setenv("SSL_CERT_FILE", pem)
        check(endpoint(s), "judge")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(UserError, match=r"judge: endpoint wild: the proxy .* or the certificates \(SSL_CERT_FILE"):
            check(endpoint(s), "judge")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_refusal_by_a_proxy_names_the_proxy(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    with serving(lambda server, call: Reply("no route", status=503)) as s:
        monkeypatch.setenv("HTTP_PROXY", s.address.replace("//", "//me:planted@"))
        settings = endpoint(s, base_url="http://gpu7:8000/v1", patience_s=0.1)
        fault = (
            r"http://gpu7:8000/v1 \(through the proxy 127.0.0.1:\d+; NO_PROXY=gpu7 goes without\) .*HTTP 503.*no route"
        )
        with pytest.raises(UserError, match=rf"judge: {fault}") as raised:
            check(settings, "judge")
        assert "planted" not in str(raised.value)
        with pytest.raises(UserError, match=fault):
            ask(replace(settings, max_failed=0.0), [request("0")], store=store, description="items")
        monkeypatch.setenv("HTTP_PROXY", "http://me:planted@localhost:port")
        with pytest.raises(UserError, match=r"HTTP_PROXY.*cannot be used") as raised:
            check(settings, "judge")
        assert "planted" not in str(raised.value)


ADDRESSES = [
    "", "localhost:8000/v1", "//localhost/v1", "ftp://localhost/v1", "http:/localhost/v1", "http://:8000/v1",
    "http://localhost:port/v1", "http://localhost:65536/v1", "http://localhost:８０/v1", "http://localhost:80:80/v1",
    "http://local host/v1", "http://localhost:8000/v1\n", "http://[::g]/v1", "http://999.1.1.1/v1", "http://☃.net/v1",
    "http://a..b/v1", "http://" + "a" * 64, "http://<server>:8000/v1", "http://http://h/v1",
]  # fmt: skip


def test_an_address_that_is_none_or_holds_a_secret_is_refused_everywhere(store: Path, root: Path) -> None:
    fault = "must be the address of the server, such as http://localhost:8000/v1"
    assert all(fault in address_fault(url) for url in ADDRESSES)
    for url in ("http://localhost:8000/v1", "https://api.a-b.com/v1/", "http://[::1]:8000/v1", "http://my_host:80/v1",
                "http://10.0.0.1", "HTTPS://h/v1", "http://xn--bcher-kva.com/v1", "http://h/a%20b/~me"):  # fmt: skip
        assert address_fault(url) == ""
    secrets = ("http://me:planted@h/v1", "http://h/v1?key=planted", "http://h/v1#planted", "planted@h")
    for url, said in (("localhost:8000/v1", fault), *((url, "must not have a user, a password or") for url in secrets)):
        remote = EndpointSettings(name="wild", model="m", base_url=url)
        asked = partial(ask, remote, [request("0")], store=store, description="x")
        for work in (partial(check, remote, "judge"), asked):
            with pytest.raises(UserError, match=f"endpoint wild: base_url .*{said}") as refused:
                work()
            assert "planted" not in str(refused.value)
        with pytest.raises(UserError, match=said):
            compose({"judge": {"use": "gpt_oss_120b", "base_url": url}}, root)


# The content of an answer


def score(content: Any, **message: Any) -> float | str:
    """The score in an answer, or its kind of failure."""
    answer = {"choices": [{"finish_reason": "stop", "message": {"content": content} | message}]}
    _, value = read(answer, Score)
    return value.score if isinstance(value, Score) else value.kind


def scored(value: float, reason: str = "r") -> str:
    return json.dumps({"score": value, "reason": reason})


def part(text: Any, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


RIGHT, DRAFT = scored(1), scored(0)
THINKING = {"type": "thinking", "thinking": [part(DRAFT)]}
TASK = json.dumps({"task": "score", "attribute": "hobby"})
HARMONY = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"

CONTENTS = {
    "thinking first": ([THINKING, part(RIGHT)], 1),
    "output_text": ([{"type": "reasoning", "summary": []}, part(RIGHT, "output_text")], 1),
    "a text in an object": ([part({"value": RIGHT, "annotations": []})], 1),
    "a refusal": ([{"type": "refusal", "refusal": "I will not"}], "refused"),
    "thinking alone": ([THINKING], "reasoning"),
    "tags": (f"<think>{DRAFT}</think>\n{RIGHT}", 1),
    "no opening": (f"{{x}} {DRAFT} no</think>{RIGHT}", 1),
    "Cohere": (f"<|START_THINKING|>{DRAFT}<|END_THINKING|><|START_RESPONSE|>{RIGHT}<|END_RESPONSE|>", 1),
    "channels": (HARMONY.format("{a} " + DRAFT, RIGHT), 1),
    "channels without marks": (f"analysisWe see {{a}} {DRAFT}assistantfinal{RIGHT}", 1),
    "marks in the answer": (scored(1, "it says <think>, and </think> after"), 1),
    "the task in a first fence": (f"```json\n{TASK}\n```\nMy answer:\n```json\n{RIGHT}\n```", 1),
    "braces around": (f"By {{score, reason}} and {{}}: {RIGHT} {{done}}", 1),
    "JSON of another form": (f'{{"attribute": "hobby"}} {RIGHT}', 1),
    "twice the same": (f"{RIGHT}\n{RIGHT}", 1),
    "backticks in the reason": (f"```json\n{scored(1, 'uses ``` here')}\n```", 1),
    "a byte order mark": (f"\ufeff{RIGHT}", 1),
    "nothing": (" ", "empty"),
    "two answers": (f"{RIGHT} {DRAFT}", "shape"),
    "no answer": (TASK, "shape"),
    "many braces": ("{" * 10**6, "shape"),
    "deep braces": ('{"a": ' * 10**5, "shape"),
    "cut off": (RIGHT[:-1], "shape"),
}

OPENINGS = [
    "<think>", "  \n<THINK>\n", "<thought>", "<reasoning>", "<seed:think>", "[THINK]", "◁think▷", "<|START_THINKING|>",
    "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>commentary<|message|>", "<|channel>thought\n",
    "<|begin_of_thought|>", '<thinking mode="long">', "analysisWe see: ", "<think>one</think><think>",
]  # fmt: skip
"""How reasoning begins; a draft in one that does not end is no answer."""


def test_the_answer_is_read_from_what_is_around_it() -> None:
    for name, (content, value) in CONTENTS.items():
        assert score(content) == value, name
    for opening in OPENINGS:
        assert score(f"{opening}a draft: {DRAFT}? No, they agree.") == "reasoning", opening


def test_the_fault_of_an_incomplete_answer_is_not_that_of_an_object_in_it() -> None:
    for content, place in ((f'{{"scores": [{TASK}, }}', "Invalid JSON"), (f"By {{score}}: {TASK}", "score: ")):
        value = read({"choices": [{"message": {"content": content}}]}, Score)[1]
        assert place in value.complaint
