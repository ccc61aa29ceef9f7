"""Servers that differ from the usual one: in what they take, in the form of their answers, in how they are reached."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_faults import GOOD, Reply, Server, ask_items, completion, endpoint, request, serving

from utaca.endpoints import ask, check
from utaca.endpoints.reading import read
from utaca.endpoints.store import Store
from utaca.errors import UserError
from utaca.judging.cas import Score
from utaca.settings.checks import address_fault
from utaca.settings.compose import compose
from utaca.settings.schema import Endpoint

# What a server takes

SAMPLING = {"temperature", "top_p", "seed", "max_tokens", "response_format"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


def refusing(*names: str, said: Any, together: bool = False, status: int = 400) -> Any:
    """A server that refuses what has one of the parameters, or all of them ``together``."""

    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        held = body.keys() & set(names)
        refused = len(held) == len(names) if together else held
        return Reply(json.dumps(said).encode(), status=status) if refused else GOOD

    return script


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"} | more}


def extra(name: str) -> dict[str, Any]:
    return {"detail": [{"loc": ["body", name], "msg": "extra fields not permitted", "type": "value_error.extra"}]}


PARAMETERS = {
    "by its param": (["seed"], error("Unsupported parameter.", param="seed"), 400, {"seed"}),
    "for its value": (["temperature"], error("'temperature' does not support 0 with this model. Only the default (1) "
                                             "value is supported."), 400, {"temperature"}),
    "not for this number": (["top_p"], error("`top_p` must be > 0.0 and < 1.0", param=None), 422, {"top_p"}),
    "unrecognized": (["seed"], error("Unrecognized request argument supplied: seed"), 400, {"seed"}),
    "as a field": (["seed"], {"message": "Unknown field: seed"}, 400, {"seed"}),
    "FastAPI": (["seed"], extra("seed"), 422, {"seed"}),
    "in a text": (["temperature"], "temperature is deprecated", 400, {"temperature"}),
    "by a gateway": (["seed"], error("Provider returned error", metadata={"raw": '{"message": "Unknown name: seed"}'}),
                     400, {"seed"}),
    "in camel case": (["top_p"], error("Unknown name topP"), 400, {"top_p"}),
    "among others": (["temperature"], error("temperature is none of the supported: max_tokens, top_p, seed"), 400,
                     {"temperature"}),
    "format": (["response_format"], error("response_format is not supported"), 400, {"response_format"}),
}  # fmt: skip


@pytest.mark.parametrize(("names", "said", "status", "left"), PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_that_a_refusal_names_is_left_out(
    names: list[str], said: Any, status: int, left: set[str], store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(refusing(*names, said=said, status=status)) as s:
        check(endpoint(s), "judge")
        assert SAMPLING - s.bodies[-1].keys() == left
        assert f"no {names[0]}" in caplog.text
        assert not ask_items(s, store).failures
        assert SAMPLING - s.bodies[-1].keys() == left
        count = len(s.bodies)
        assert not ask_items(s, store).failures
        assert len(s.bodies) == count, "all is in the store"


def test_what_was_left_out_is_remembered_and_told_once(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(refusing("seed", said=error("Unknown field: seed"))) as s:
        check(endpoint(s), "judge")
        ask_items(s, store)
        ask_items(s, store, count=12)
        assert sum("seed" in body for body in s.bodies) == 1
        assert len(s.bodies) == 2 + 12
    (told,) = [said for said in caplog.messages if "does not take" in said]
    assert (
        told
        == f"endpoint wild: {s.url} does not take all parameters (Unknown field: seed): from now on it gets no seed"
    )


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens is deprecated: max_completion_tokens is the maximum of tokens, reasoning included",
        "Please use max_completion_tokens.",
    ],
)
def test_max_tokens_goes_by_its_new_name(words: str, store: Path) -> None:
    said = error(words)
    with serving(refusing("max_tokens", said=said)) as s:
        check(endpoint(s), "judge")
        assert not ask_items(s, store).failures
        assert {body.get("max_completion_tokens") for body in s.bodies[1:]} == {2048}
    with serving(refusing("max_tokens", "max_completion_tokens", said=extra("max_tokens"), status=422)) as s:
        check(endpoint(s), "judge")
        assert SAMPLING - s.bodies[-1].keys() == {"max_tokens"}


def test_of_two_that_do_not_go_together_one_stays(store: Path) -> None:
    said = error("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    with serving(refusing("temperature", "top_p", said=said, together=True)) as s:
        assert not ask_items(s, store).failures
        assert SAMPLING - s.bodies[-1].keys() == {"top_p"}
        with Store(store) as kept:
            assert {tuple(row["answer"]["left_out"]) for row in kept.export()} == {("top_p",)}
    with serving(refusing("temperature", "top_p", said=said, together=True)) as s:
        check(endpoint(s, top_p=0.9), "judge")
        assert SAMPLING - s.bodies[-1].keys() == {"temperature"}, "the nucleus was chosen"


def test_several_refusals_one_after_the_other(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        for name in ("max_tokens", "temperature", "seed", "response_format"):
            if name in body:
                return Reply(json.dumps(error(f"Unsupported parameter: {name}", param=name)).encode(), status=400)
        return GOOD

    with serving(script) as s:
        check(endpoint(s), "judge")
        answers = ask_items(s, store, count=20, concurrency=8)
        assert not answers.failures
        assert s.bodies[-1].keys() == {"model", "messages", "top_p", "max_completion_tokens"}
        # The format is found out once more, all else is known.
        assert len(s.bodies) == 6 + 2 + 20


def test_a_server_that_begins_to_refuse_is_learned_from_once(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        late = len(server.bodies) > 5 and "seed" in body
        return Reply(json.dumps(extra("seed")).encode(), status=422, seconds=0.05) if late else GOOD

    with serving(script) as s:
        assert not ask_items(s, store, count=20, concurrency=4).failures
        assert sum(s.answered.values()) == 20
        assert len(s.bodies) <= 20 + 5


def test_the_check_asks_as_the_stage_does(store: Path) -> None:
    with serving(lambda server, body, time: GOOD) as s:
        check(endpoint(s, temperature=0.5, reasoning_effort="low"), "judge")
        ask_items(s, store, temperature=0.5, reasoning_effort="low")
        checked, asked = ({**s.bodies[place], "messages": None} for place in (0, -1))
        formats = [body.pop("response_format") for body in (checked, asked)]
        assert checked == asked
        assert [form["type"] for form in formats] == ["json_schema"] * 2
        assert [form["json_schema"]["strict"] for form in formats] == [True] * 2


TOO_LONG = {
    "of the model": "This model's maximum context length is 4096 tokens, but you requested 2048 tokens in max_tokens",
    "of the answer": "max_tokens is too large: 2048. This model supports at most 1024 completion tokens",
    "vLLM": "'max_tokens' or 'max_completion_tokens' is too large: 2048.",
    "Anthropic": "max_tokens: 2048 > 1024, which is the maximum allowed number of output tokens",
    "pydantic": "max_tokens: Input should be less than or equal to 1024",
}


@pytest.mark.parametrize("said", TOO_LONG.values(), ids=TOO_LONG)
def test_a_number_that_is_refused_is_told_in_the_servers_words(said: str, store: Path) -> None:
    with serving(refusing("max_tokens", said=error(said, param="max_tokens"))) as s:
        with pytest.raises(UserError, match=r"judge: .* HTTP 400 \(Error code: 400 - max_tokens: ") as checked:
            check(endpoint(s), "judge")
        assert said[:100] in str(checked.value)
        with pytest.raises(UserError, match=r"1 of 8 requests .*\(1 http 400\).*; mend that and run again") as stopped:
            ask_items(s, store, max_failed=0.0, concurrency=1)
        assert said[:100] in str(stopped.value)
        assert all("max_tokens" in body for body in s.bodies)


def test_a_temperature_that_was_chosen_is_not_left_out_for_its_number(store: Path) -> None:
    with (
        serving(refusing("temperature", said=error("temperature must be between 0 and 1"))) as s,
        pytest.raises(UserError, match=r"temperature must be between 0 and 1"),
    ):
        check(endpoint(s, temperature=1.5), "judge")


def test_a_refusal_that_quotes_a_document_settles_nothing(store: Path) -> None:
    def script(server: Server, body: dict[str, Any], time: int) -> Reply:
        flagged = body["messages"][0]["content"] in ("0", "5")
        return Reply(json.dumps(error("Flagged: 'the seed of temperature'")).encode(), status=400) if flagged else GOOD

    with serving(script) as s:
        assert ask_items(s, store).failures == {"0": "http 400", "5": "http 400"}
        rest = [body for body in s.bodies if body["messages"][0]["content"] not in ("0", "5")]
        assert all(body.keys() >= SAMPLING for body in rest)


def test_another_temperature_has_answers_of_its_own(store: Path) -> None:
    with serving(refusing("seed", said=error("Unknown field: seed"))) as s:
        ask_items(s, store)
        assert ask_items(s, store, temperature=0.5).usage.requests == 8
        assert ask_items(s, store, temperature=0.5).usage.cached == 8


REFUSALS = {
    "FastAPI": ({"detail": [{"loc": ["body", "messages", 0], "msg": "str expected"}]}, "body.messages.0: str expected"),
    "a text as detail": ({"detail": "no such thing"}, "no such thing"),
    "a text as error": ({"error": "no such thing"}, "no such thing"),
    "bare": ({"object": "error", "message": "no such thing"}, "no such thing"),
    "of another form": ({"reason": "no such thing"}, '{"reason": "no such thing"}'),
    "several": ({"errors": [{"message": "one"}, {"message": "two"}]}, "one; two"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "words"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_told_in_the_servers_words(body: Any, words: str, store: Path) -> None:
    with serving(lambda server, _, time: Reply(json.dumps(body).encode(), status=422)) as s:
        with pytest.raises(UserError) as checked:
            check(endpoint(s), "judge")
        assert words in str(checked.value)
        with pytest.raises(UserError) as stopped:
            ask_items(s, store, max_failed=0.0)
        assert words in str(stopped.value)


# What is no completion

NO_COMPLETION = {
    "a web page": (b"<!doctype html><title>Log in</title>", "text/html"),
    "an error": (b'{"error": {"message": "no such route"}}', "application/json"),
    "null": (b"null", "application/json"),
    "nothing": (b"", "application/json"),
    "no choices": (b'{"object": "list", "data": []}', "application/json"),
    "empty choices": (b'{"choices": []}', "application/json"),
    "choices that are null": (b'{"choices": null}', "application/json"),
    "a text completion": (b'{"choices": [{"text": "ready", "finish_reason": "stop"}]}', "application/json"),
}


@pytest.mark.parametrize(("body", "kind"), NO_COMPLETION.values(), ids=NO_COMPLETION)
def test_what_is_no_completion_is_told_by_check_and_stage(body: bytes, kind: str, store: Path) -> None:
    words = body.decode() or "nothing"
    with serving(lambda server, _, time: Reply(body, headers={"content-type": kind})) as s:
        with pytest.raises(
            UserError, match=r"judge: .*HTTP 200, but with no chat completion.*base_url end in /v1"
        ) as e:
            check(endpoint(s), "judge")
        assert f"({kind}: {words}" in str(e.value)
        with pytest.raises(UserError, match=r"\(\d+ protocol\).*no chat completion.*base_url end in /v1") as e:
            ask_items(s, store, max_failed=0.1)
        assert f"({kind}: {words}" in str(e.value)
        assert "max_tokens" not in str(e.value)


def test_the_key_is_not_in_the_words_of_what_is_no_completion(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "sk-planted-0123456789")
    page = Reply(b"<p>you sent sk-planted-0123456789</p>")
    with serving(lambda server, _, time: page) as s, pytest.raises(UserError, match=r"you sent \*\*\*"):
        check(endpoint(s, api_key_env="PLANTED"), "judge")


def test_a_body_that_is_not_in_its_encoding_is_no_completion(store: Path) -> None:
    with serving(lambda server, _, time: Reply(GOOD.body, headers={"content-encoding": "gzip"})) as s:
        with pytest.raises(UserError, match=r"not what its Content-Encoding says"):
            check(endpoint(s), "judge")
        assert set(ask_items(s, store).failures.values()) == {"protocol"}


# Names


@pytest.mark.parametrize("listed", ["openai/*", "*", "m:latest", "models/m", "org/M", "m"])
def test_a_name_that_may_mean_the_model_lets_the_request_decide(listed: str) -> None:
    with serving(lambda server, body, time: GOOD) as s:
        s.models = ["other", listed]
        check(endpoint(s), "judge")
        s.models = ["other", "mm", "m-large"]
        with pytest.raises(UserError, match=r"does not list model m; it lists m-large, mm, other"):
            check(endpoint(s), "judge")
    with serving(lambda server, body, time: Reply(status=404)) as s:
        s.models = [listed]
        with pytest.raises(UserError, match=r"no chat completions for model m \(HTTP 404\)"):
            check(endpoint(s), "judge")


# Certificates, proxies, addresses


def test_a_certificate_is_named(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    key, pem = str(tmp_path / "key.pem"), str(tmp_path / "own.pem")
    options = ["-nodes", "-keyout", key, "-out", pem, "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *options], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, key)
    with serving(lambda server, body, time: GOOD, tls) as s:
        said = r"has a certificate that is not trusted \(self-signed certificate\);.*SSL_CERT_FILE"
        with pytest.raises(UserError, match=rf"judge: {s.url} {said}"):
            check(endpoint(s, patience_s=60.0), "judge")
        with pytest.raises(UserError, match=rf"items: endpoint wild: {s.url} {said}.*kept in"):
            ask_items(s, store, patience_s=60.0)
        monkeypatch.setenv("SSL_CERT_FILE", pem)
        check(endpoint(s), "judge")
        with pytest.raises(UserError, match=r"https://localhost:\d+/v1 has a certificate .*not valid for 'localhost'"):
            check(endpoint(s, base_url=s.url.replace("127.0.0.1", "localhost")), "judge")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(UserError, match=r"judge: endpoint wild: the proxy .* or the certificates \(SSL_CERT_FILE"):
            check(endpoint(s), "judge")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_refusal_by_a_proxy_names_the_proxy(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    with serving(lambda server, body, time: Reply(b"no route", status=503)) as s:
        monkeypatch.setenv("HTTP_PROXY", s.url.replace("//", "//me:planted@").removesuffix("/v1"))
        settings = endpoint(s, base_url="http://gpu7:8000/v1", patience_s=0.1)
        said = (
            r"http://gpu7:8000/v1 \(through the proxy 127.0.0.1:\d+; NO_PROXY=gpu7 goes without\) .*HTTP 503.*no route"
        )
        with pytest.raises(UserError, match=rf"judge: {said}") as e:
            check(settings, "judge")
        assert "planted" not in str(e.value)
        with pytest.raises(UserError, match=said):
            ask(replace(settings, max_failed=0.0), [request("0")], store=store, description="items")
        monkeypatch.setenv("HTTP_PROXY", "http://me:planted@localhost:port")
        with pytest.raises(UserError, match=r"HTTP_PROXY.*cannot be used") as e:
            check(settings, "judge")
        assert "planted" not in str(e.value)


ADDRESSES = [
    "", "localhost", "localhost:8000/v1", "//localhost/v1", "ftp://localhost/v1", "http:/localhost/v1", "http:///v1",
    "http://:8000/v1", "http://localhost:port/v1", "http://localhost:/v1", "http://localhost:0/v1",
    "http://localhost:-1/v1", "http://localhost:65536/v1", "http://localhost:８０/v1", "http://localhost:80:80/v1",
    "http://localhost:8000/v1 ", " http://localhost:8000/v1", "http://local host/v1", "http://localhost:8000/v1\n",
    "http://::1:8000/v1", "http://[::1/v1", "http://[::g]/v1", "http://[fe80::1%25eth0]/v1", "http://999.1.1.1/v1",
    "http://☃.net/v1", "http://localhost：8000/v1", "http://ho\u200bst/v1", "http://a..b/v1",
    f"http://{'a' * 64}.de/v1", "http://<server>:8000/v1", "http://$HOST:8000/v1", "http://h/{model}/v1", "http://http://h/v1",
    "http://h:8000\\v1",
]  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address_that_is_none_is_refused_everywhere(url: str, store: Path, root: Path) -> None:
    remote = Endpoint(name="wild", model="m", base_url=url)
    said = "must be the server's address, as in http://localhost:8000/v1"
    with pytest.raises(UserError, match=said):
        check(remote, "judge")
    with pytest.raises(UserError, match=said):
        ask(remote, [request("0")], store=store, description="items")
    if url:
        with pytest.raises(UserError, match=said):
            compose({"judge": {"use": "gpt_oss_120b", "base_url": url}}, root)


@pytest.mark.parametrize(
    "url", ["http://me:planted@h/v1", "http://h/v1?key=planted", "http://h/v1#planted", "planted@h"]
)
def test_an_address_with_a_secret_is_not_repeated(url: str, store: Path) -> None:
    remote = Endpoint(name="wild", model="m", base_url=url)
    for work in (lambda: check(remote, "judge"), lambda: ask(remote, [request("0")], store=store, description="x")):
        with pytest.raises(UserError, match=r"endpoint wild: base_url must not hold a user, a password or a q") as e:
            work()
        assert "planted" not in str(e.value)


def test_addresses_are_taken() -> None:
    for url in ("http://localhost:8000/v1", "https://api.a-b.com/v1/", "http://[::1]:8000/v1", "http://my_host:80/v1",
                "http://10.0.0.1", "HTTPS://h/v1", "http://xn--bcher-kva.com/v1", "http://h/a%20b/~me"):  # fmt: skip
        assert address_fault(url) == ""


# What an answer says


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

PARTS = {
    "thinking first": ([THINKING, part(RIGHT)], 1),
    "output_text": ([{"type": "reasoning", "summary": []}, part(RIGHT, "output_text")], 1),
    "texts": (["So: ", RIGHT], 1),
    "cut in two": ([part(RIGHT[:9]), part(RIGHT[9:])], 1),
    "no type": ([{"text": DRAFT, "thought": True}, {"text": RIGHT}], 1),
    "a text in an object": ([part({"value": RIGHT, "annotations": []})], 1),
    "one part alone": (part(RIGHT), 1),
    "a refusal": ([{"type": "refusal", "refusal": "I will not"}], "refused"),
    "thinking alone": ([THINKING], "reasoning"),
    "no text": ([{"type": "text"}, None, 3], "empty"),
    "an image": ([{"type": "image_url", "image_url": {}}], "empty"),
    "none": ([], "empty"),
}


@pytest.mark.parametrize(("content", "wanted"), PARTS.values(), ids=PARTS)
def test_an_answer_in_parts_is_read(content: Any, wanted: float | str) -> None:
    assert score(content) == wanted


OPENINGS = [
    "<think>", "<thinking>", "  \n<THINK>\n", "<thought>", "<reasoning>", "<reflection>", "<seed:think>", "[THINK]",
    "◁think▷", "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>commentary<|message|>",
    "<|START_THINKING|>", "<|begin_of_thought|>", "<|channel>thought\n", '<thinking mode="long">',
    "analysisWe see: ", "<think>one</think><think>", HARMONY.format("", "")[:40],
]  # fmt: skip


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_draft_in_reasoning_that_does_not_end_is_no_answer(opening: str) -> None:
    assert score(f"{opening}a draft: {DRAFT}? No, they agree.") == "reasoning"


REASONING = {
    "tags": f"<think>{DRAFT}</think>\n{RIGHT}",
    "no opening": f"{{x}} {DRAFT} no</think>{RIGHT}",
    "twice": f"<think>{DRAFT}</think> so <think>{DRAFT}</think>{RIGHT}",
    "Mistral": f"[THINK]{DRAFT}[/THINK]{RIGHT}",
    "Kimi": f"◁think▷{DRAFT}◁/think▷{RIGHT}",
    "Cohere": f"<|START_THINKING|>{DRAFT}<|END_THINKING|><|START_RESPONSE|>{RIGHT}<|END_RESPONSE|>",
    "begin and end": f"<|begin_of_thought|>{DRAFT}<|end_of_thought|>\n<|begin_of_solution|>{RIGHT}",
    "channels": HARMONY.format("{a} " + DRAFT, RIGHT),
    "channels, constrained": HARMONY.format("{a}", RIGHT).replace("final", "final <|constrain|>json"),
    "channels without marks": f"analysisWe see {{a}} {DRAFT}assistantfinal{RIGHT}",
    "one channel": f"<|channel|>final<|message|>{RIGHT}",
    "marks in the answer": scored(1, "it says <think>, and </think> after"),
    "after the answer": f"{RIGHT}\n<think>or {DRAFT}",
}


@pytest.mark.parametrize("text", REASONING.values(), ids=REASONING)
def test_reasoning_in_the_text_is_left_out(text: str) -> None:
    assert score(text) == 1


WRAPPED = {
    "the task in a first fence": f"```json\n{TASK}\n```\nMy answer:\n```json\n{RIGHT}\n```",
    "the task in a fence": f"```json\n{TASK}\n```\n{RIGHT}",
    "braces before": f"By {{score, reason}} and {{}}: {RIGHT}",
    "braces after": f"{RIGHT} {{done}}",
    "a brace too many": f"{RIGHT}}}",
    "JSON of another form": f'{{"attribute": "hobby"}} {RIGHT}',
    "a draft before a fence": f"First {DRAFT}, but then\n```json\n{RIGHT}\n```",
    "a draft in a fence of another kind": f"```text\nx\n```\nDraft {DRAFT}\n```json\n{RIGHT}\n```",
    "twice the same": f"{RIGHT}\n{RIGHT}",
    "backticks in the reason": f"```json\n{scored(1, 'uses ``` here')}\n```",
    "in a tag": f"<analysis_result>{RIGHT}</analysis_result>",
    "a byte order mark": f"\ufeff{RIGHT}",
    "in a list": f"[{RIGHT}]",
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_the_answer_is_found_in_what_is_around_it(text: str) -> None:
    assert score(text) == 1


@pytest.mark.parametrize(
    "text",
    [f"{RIGHT} or {DRAFT}", f"```thinking\n{DRAFT}\n```\n{RIGHT}", TASK, "{" * 10**6, '{"a": ' * 10**5, RIGHT[:-1]],
)
def test_what_does_not_say_one_thing_is_of_another_shape(text: str) -> None:
    assert score(text) == "shape"


def test_what_is_more_than_one_answer_is_asked_again(store: Path) -> None:
    both = Reply(completion('{"number": 1} or {"number": 2}'))
    with serving(lambda server, body, time: both if len(body["messages"]) == 1 else GOOD) as s:
        assert ask_items(s, store, count=1).values["0"].number == 1
        assert "was more than one object of the form asked for" in s.bodies[1]["messages"][2]["content"]
