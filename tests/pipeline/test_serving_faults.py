"""What clients send that is odd: each request gets an answer, or an error of 4xx in OpenAI's format."""

import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import DOCUMENT, QUESTION, SEA, begin, choice, get, post, serving
from small import make_reader

from utaca.app.serving import protocol
from utaca.app.serving.protocol import Fault, Order, ServerSettings, parse
from utaca.app.serving.server import Server
from utaca.app.serving.worker import Job, Piece, Worker
from utaca.errors import UserError
from utaca.judging.rules.endpoint import run as run_rules
from utaca.readers.load import Reader
from utaca.settings.checks import EMBEDDED

CHAT = "/v1/chat/completions"
PLAINEST = {"model": "tiny", "messages": [{"role": "user", "content": f"{SEA * 3}\n\n{QUESTION}"}]}
SHORT = PLAINEST | {"max_tokens": 2}


def order(reader: Reader, **fields: Any) -> Order:
    """The order of a chat request."""
    body = json.dumps(PLAINEST | fields).encode()
    return parse(reader, ServerSettings("tiny", trigger="never"), body, chat=True)[1][0]


def fault(reader: Reader, body: Any, *, chat: bool = True) -> Fault:
    """Why a request is refused; ``body`` is an object, or bytes as they are."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Fault) as raised:
        parse(reader, ServerSettings("tiny", trigger="never"), sent, chat=chat)
    assert raised.value.status in (400, 404)
    return raised.value


# Options that are not set


@pytest.mark.parametrize(
    "unset",
    [
        *[
            {name: None}
            for name in ("stream", "stream_options", "utaca", "max_tokens", "max_completion_tokens", "stop")
        ],
        *[{name: None} for name in ("n", "logprobs", "top_logprobs", "tools", "tool_choice", "logit_bias", "seed")],
        *[{name: None} for name in ("temperature", "top_p", "response_format", "modalities", "user", "metadata")],
        {"stream_options": {"include_usage": None}},
        {"utaca": dict.fromkeys(("budget", "policy", "trigger", "trace"))},
        {"messages": [{"role": "user", "content": f"{SEA * 3}\n\n{QUESTION}", "name": None, "tool_calls": None}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": SEA, "cache_control": None}] * 2}]},
    ],
)
def test_null_means_left_out(tiny: Reader, unset: dict[str, Any]) -> None:
    left_out = {key: value for key, value in unset.items() if key == "messages"}
    assert order(tiny, **unset).options == order(tiny, **left_out).options


@pytest.mark.parametrize("name", ["prompt", "echo", "logprobs", "best_of", "suffix", "stream", "utaca"])
def test_null_means_left_out_of_plain_requests_too(tiny: Reader, name: str) -> None:
    body = {"model": "tiny", "prompt": f"{SEA}\n\n{QUESTION}"} | {name: None}
    if name == "prompt":
        assert fault(tiny, body, chat=False).param == "prompt"
    else:
        assert parse(tiny, ServerSettings("tiny", trigger="never"), json.dumps(body).encode(), chat=False)[1]


# Messages

SAID = [{}, {"content": None}, {"content": ""}, {"content": []}, {"content": None, "tool_calls": [], "audio": None}]


@pytest.mark.parametrize("turn", SAID)
def test_a_turn_in_which_the_assistant_said_nothing_is_an_empty_text(tiny: Reader, turn: dict[str, Any]) -> None:
    def tokens(turn: dict[str, Any]) -> tuple[int, ...]:
        first, last = {"role": "user", "content": "a"}, SHORT["messages"][0]
        return order(tiny, messages=[first, {"role": "assistant"} | turn, last]).document

    assert tokens(turn) == tokens({"content": ""})
    assert tokens({"refusal": "No.", "content": None}) == tokens({"content": "No."})
    assert tokens({"content": [{"type": "refusal", "refusal": "No."}]}) == tokens({"content": "No."})


REFUSED = {
    "a call of a tool": (
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        "messages.0 has tool_calls",
    ),
    "an old call": ({"role": "assistant", "function_call": {"name": "f"}}, "messages.0 has function_call"),
    "a tool's answer": ({"role": "tool", "content": "4", "tool_call_id": "1"}, "messages.0 is of role tool"),
    "a function's answer": ({"role": "function", "content": "4", "name": "f"}, "messages.0 is of role function"),
    "speech": ({"role": "assistant", "audio": {"id": "1"}}, "messages.0 has audio"),
    "an unknown role": ({"role": "robot", "content": "4"}, "messages.0.role: Input should be 'system'"),
    "a user without a text": ({"role": "user", "content": None}, "messages.0.content: Field required"),
    "a number": ({"role": "user", "content": 5}, "messages.0.content: Input should be a valid string"),
    "an object": ({"role": "user", "content": {"type": "text", "text": "a"}}, "messages.0.content: Input should be"),
    "an image": (
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}],
        },
        "messages.0.content.1 is of type image_url, and this server reads only parts of type text",
    ),
    "a part of another protocol": (
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        "type input_text",
    ),
    "a part without a text": (
        {"role": "user", "content": [{"type": "text"}]},
        "messages.0.content.0.text: Field required",
    ),
    "a part that is a text": ({"role": "user", "content": ["a"]}, "messages.0.content.0: Input should be"),
    "no message": ("a", "messages.0: Input should be"),
}


@pytest.mark.parametrize(("message", "words"), REFUSED.values(), ids=REFUSED)
def test_a_message_that_is_refused_is_named_with_its_part(tiny: Reader, message: Any, words: str) -> None:
    found = fault(tiny, SHORT | {"messages": [message, SHORT["messages"][0]]})
    assert str(found).startswith(words) or words in str(found)
    assert found.param == str(found).split(" ")[0].rstrip(":")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stop": 1}, "stop: Input should be a valid string"),
        ({"stop": [1]}, "stop.0: Input should be a valid string"),
        ({"stop": ["a", {}]}, "stop.1: Input should be a valid string"),
        ({"prompt": [1.5]}, "prompt.0: Input should be a valid integer"),
        ({"prompt": ["a", 1]}, "prompt.1: Input should be a valid string"),
        ({"prompt": [[1, 2], [1, "a"]]}, "prompt.1.1: Input should be a valid integer"),
        ({"prompt": {"text": "a"}}, "prompt: Input should be a valid string"),
        ({"prompt": []}, "prompt: "),
        ({"prompt": [[]]}, "at least one token"),
        ({"prompt": [1, -1]}, "token id"),
        ({"prompt": [1, 2**70]}, "token id"),
        ({"prompt": [1, True]}, "prompt.1: Input should be a valid integer"),
    ],
)
def test_a_fault_is_about_the_value_that_was_sent(tiny: Reader, fields: dict[str, Any], words: str) -> None:
    assert words in str(fault(tiny, {"model": "tiny", "prompt": "a b"} | fields, chat=False))


# Blank lines


@pytest.mark.parametrize("line", ["\r\n\r\n", "\r\r", "\r\n\n", "\n\r\n"])
def test_a_blank_line_may_end_in_cr(tiny: Reader, line: str) -> None:
    def asked(line: str, question: str = QUESTION, **more: Any) -> Order:
        text = f"The mill stood by the river.{SEA * 5}{line}{question}"
        return order(tiny, messages=[{"role": "user", "content": text}], **more)

    assert asked(line).document == asked("\n\n").document
    assert asked(line).question == asked("\n\n").question
    assert asked(line).document == asked(line, "Summarize the hobby of Ada Brook.").document
    parts = [
        [{"type": "text", "text": each.replace("\n", line)} for each in ("a\nb", QUESTION)] for line in ("\n", "\r\n")
    ]
    one, other = (order(tiny, messages=[{"role": "user", "content": each}]) for each in parts)
    assert (one.document, one.question) == (other.document, other.question)


@pytest.mark.parametrize("line", ["\n\n", "\r\n\r\n", "\r\r", "\n \t\n", "\r\n \r\n", "\n\n\n"])
def test_a_prompt_is_split_at_a_blank_line_of_any_kind(tiny: Reader, line: str) -> None:
    settings = ServerSettings("tiny", trigger="never")
    prompts = [f"a b\r\nc\nd\re{SEA}{line}{question}" for question in (QUESTION, "Summarize the hobby of Ada Brook.")]
    body = json.dumps({"model": "tiny", "prompt": prompts}).encode()
    one, other = parse(tiny, settings, body, chat=False)[1]
    assert one.document == other.document
    assert tiny.tokenizer.decode(one.document).endswith("slept." + line[:-2] * (line == "\n\n\n"))
    whole = tiny.tokenizer(prompts[0])["input_ids"]
    assert [*one.document, *one.question] == whole, "no token is changed"


def test_the_places_of_blocks_are_those_of_the_text_that_was_sent(server: Server) -> None:
    crlf = DOCUMENT.replace(". ", ".\r\n")
    found = choice(server, crlf, utaca={"budget": 4, "trace": True}, max_tokens=4)["utaca"]["places"]
    same = choice(server, crlf.replace("\r\n", "\n"), utaca={"budget": 4, "trace": True}, max_tokens=4)["utaca"][
        "places"
    ]
    assert found.keys() == same.keys() != set()
    for (number, start, end), (_, first, last) in zip(found.values(), same.values(), strict=True):
        assert number == 0
        assert crlf[start:end].replace("\r\n", "\n") == crlf.replace("\r\n", "\n")[first:last]


# Bodies


def test_half_a_character_becomes_the_replacement_character(tiny: Reader, server: Server) -> None:
    text = '{"role": "user", "content": "The mill %s stood.\\n\\nWhere?"}'
    halves, whole = (
        parse(tiny, ServerSettings("tiny"), b'{"model": "tiny", "messages": [%s]}' % (text % each).encode(), chat=True)
        for each in ("\\ud83d", "\ufffd")
    )
    assert halves[1][0].document == whole[1][0].document
    body = json.dumps(SHORT | {"stop": ["a\ud83d"], "user": "\udc00"}).encode()
    assert post(server, body)[0] == 200
    assert post(server, json.dumps({"model": "\ud83d", "prompt": "a b"}).encode(), "/v1/completions")[0] == 404


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"\xef\xbb\xbf" + json.dumps(SHORT).encode(), {}, 200, ""),
        (json.dumps(SHORT).encode(), {"Content-Encoding": "identity"}, 200, ""),
        (json.dumps(SHORT).encode(), {"Content-Encoding": ""}, 200, ""),
        (json.dumps(SHORT).encode(), {"Content-Type": "application/JSON; charset=UTF-8"}, 200, ""),
        (gzip.compress(json.dumps(SHORT).encode()), {"Content-Encoding": "gzip"}, 415, "compressed"),
        (gzip.compress(json.dumps(SHORT).encode()), {"Content-Encoding": "GZIP, br"}, 415, "compressed"),
        (gzip.compress(json.dumps(SHORT).encode()), {}, 400, "not UTF-8"),
        (json.dumps(SHORT).encode("utf-16"), {}, 400, "not UTF-8"),
        (json.dumps(SHORT).encode("utf-16-le"), {}, 400, "not JSON"),
        (b"", {}, 400, "not JSON"),
        (b"[" * 100_000, {}, 400, "nested too deep"),
        (b'{"model": "tiny", "seed": %s}' % (b"9" * 5000), {}, 400, "4,300 digits"),
        (b'{"model": "%s"}' % (b"x" * 10**6), {}, 400, "messages"),
        (json.dumps(SHORT | {"model": "x" * 10**6}).encode(), {}, 404, "no model"),
        (json.dumps(SHORT | {"utaca": {"trigger": "x" * 10**6}}).encode(), {}, 400, "no trigger"),
    ],
)
def test_a_body_is_read_or_refused_in_a_short_sentence(
    server: Server, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    found, answer = post(server, body, **headers)
    assert found == status, answer
    if status != 200:
        assert words in answer["error"]["message"]
        assert len(answer["error"]["message"]) < 1100


@pytest.mark.parametrize("options", [{"trigger": "every.@"}, {"trigger": "agreement.@"}, {"trigger": "margin.@"}])
def test_numbers_of_thousands_of_digits_are_refused(tiny: Reader, options: dict[str, str]) -> None:
    long = {key: value.replace("@", "9" * 5000) for key, value in options.items()}
    assert "is not a trigger; write" in str(fault(tiny, SHORT | {"utaca": long}))
    assert "not understood" in str(fault(tiny, SHORT | {"utaca": {"policy": f"sub.{'9' * 5000}", "trigger": "margin"}}))


# One client that asks for much


def test_what_one_client_may_ask_of_the_thread_that_answers_all_is_bounded(tiny: Reader) -> None:
    many = [f"q{number}" for number in range(protocol.STOPS + 1)]
    assert "stop: List should have at most 256" in str(fault(tiny, SHORT | {"stop": many}))
    assert len(order(tiny, stop=many[1:]).stop) == protocol.STOPS
    for prompt in ("a b", [1, 2]):
        body = {"model": "tiny", "prompt": [prompt] * (protocol.PROMPTS + 1)}
        assert "prompt: List should have at most 1024" in str(fault(tiny, body, chat=False))


def test_an_order_is_looked_up_by_a_digest(tiny: Reader) -> None:
    one, same = order(tiny), order(tiny)
    assert one.key == same.key
    assert one.key != order(tiny, messages=[{"role": "user", "content": f"{SEA * 4}\n\n{QUESTION}"}]).key
    assert one.key is one.key, "made once: the worker asks for it between two tokens"


def test_a_request_of_many_prompts_does_not_keep_others_waiting_for_all_of_them() -> None:
    worker, ended = Worker(make_reader(), 1 << 30, 1), []

    def jobs(name: str, count: int) -> list[Job]:
        def tell(event: object) -> None:
            if isinstance(event, Piece) and event.reason:
                ended.append(name)

        request = object()
        orders = [Order((3, 4, number), (5,), {"budget": 1, "max_new_tokens": 2}) for number in range(count)]
        return [Job(each, tell, request) for each in orders]

    worker.submit(jobs("many", 5))
    worker.submit(jobs("one", 1))
    worker.submit(jobs("two", 2))
    while worker.waiting or worker.answering:
        worker._turn()
    assert ended == ["many", "one", "two", "many", "two", "many", "many", "many"]


def test_reading_a_long_text_leaves_the_other_threads_running(tiny: Reader) -> None:
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(None)

    thread = threading.Thread(target=tick)
    thread.start()
    before = len(ticks)
    tiny.prompts.text(SEA * 20_000)
    passed = len(ticks) - before
    done.set()
    thread.join()
    assert passed > 10, "Tokenizer.encode would keep the lock of the interpreter"


# Addresses, keys, methods


def test_keys_are_compared_as_http_defines_them(tiny: Reader) -> None:
    with serving(tiny, api_key="a+b/c=") as server:
        for value, status in (
            ("Bearer a+b/c=", 200),
            ("bearer a+b/c=", 200),
            ("BEARER   a+b/c=", 200),
            ("Bearer a+b/c= ", 200),
            ("Bearer A+B/C=", 401),
            ("Basic a+b/c=", 401),
            ("Bearer", 401),
            ("Bearera+b/c=", 401),
            ("a+b/c=", 401),
            ("Bearer schl\xfcssel", 401),
            ("", 401),
        ):
            assert get(server, "/v1/models", Authorization=value)[0] == status, value
        connection = begin(server.address, SHORT)
        response = connection.getresponse()
        assert (response.status, response.getheader("WWW-Authenticate")) == (401, "Bearer")
        assert json.loads(response.read())["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", ["schlüssel", "key\n", "key\r", " ", "two words", "tab\t", "nul\0", "é"])
def test_a_key_that_no_client_can_send_is_refused_at_the_start(tiny: Reader, key: str) -> None:
    with pytest.raises(UserError, match="UTACA_API_KEY holds"):
        Server(tiny, ServerSettings("tiny", port=0, room=1 << 20, api_key=key))


def test_errors_of_http_are_in_openais_format_and_counted(server: Server) -> None:
    def asked(method: str, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, Any]:
        connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=60)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, response.headers, json.loads(text)["error"]["message"] if text else ""

    for method, path, allowed in (
        ("GET", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/health", "GET"),
    ):
        status, headers, message = asked(method, path)
        assert (status, message) == (405, f"{method} {path}: Method Not Allowed")
        assert allowed in headers["Allow"].split(", ")
    for host in ("host.docker.internal:8000", "evil.example", "localhost.evil.example", "[::2]", ""):
        status, _, message = asked("GET", "/v1/models", Host=host)
        assert status == 421
        assert repr(host) in message
        assert "--host 0.0.0.0" in message
    for host in ("LOCALHOST:8000", "127.0.0.1", "127.0.0.2:9", "[::1]:8000", "localhost."):
        assert get(server, "/health", Host=host)[0] == 200, host
    assert 'utaca_requests_total{path="",status="421"}' in get(server, "/metrics")[1]


@pytest.mark.parametrize(("version", "status"), [(b"1.0", b"200"), (b"1.1", b"400")])
def test_only_http_1_0_needs_no_host(server: Server, version: bytes, status: bytes) -> None:
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/" + version + b"\r\n\r\n")
        assert connection.recv(64).split()[1] == status


def test_a_model_is_found_with_a_slash_behind_it(server: Server) -> None:
    for path in ("/v1/models", "/v1/models/tiny"):
        assert get(server, f"{path}/") == get(server, path)
    assert 'utaca_requests_total{path="/v1/models",status="405"}' in get(server, "/metrics")[1]


def test_a_port_that_is_in_use_is_refused_before_the_weights_are_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-c", "from utaca.app.main import run; run()", "serve", "--port", str(port)]
        done = subprocess.run([*words, "--reader", "no-such-reader"], capture_output=True, text=True)
    assert done.stderr == f"Error: port {port} is in use; choose another with --port, or 0 for a free one\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("", "--host is empty"),
        (" ", "--host is empty"),
        ("no.such.host.invalid", "not an address"),
        ("203.0.113.7", "not an addr"),
    ],
)
def test_an_address_is_checked_by_every_server(tiny: Reader, host: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Server(tiny, ServerSettings("tiny", host=host, port=0, room=1 << 20, trigger="never"))
    with pytest.raises(UserError, match=words):
        run_rules(host, 0)


def test_an_empty_key_is_refused() -> None:
    words = [sys.executable, "-c", "from utaca.app.main import run; run()", "serve", "--reader", "tiny"]
    done = subprocess.run(words, capture_output=True, text=True, env={"UTACA_API_KEY": "", "PATH": ""})
    assert (
        done.stderr
        == "Error: UTACA_API_KEY is set but empty, so clients would need no key; unset it or set it to a key\n"
    )


# The rules' server


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/", "/nowhere"])
@pytest.mark.parametrize("head", ["1.0\r\n", "1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding:\r\n"])
def test_the_rules_server_ends_a_connection_that_a_client_ends(rules: tuple[str, int], head: str, path: str) -> None:
    body = json.dumps({"model": EMBEDDED, "messages": [{"role": "user", "content": "Answer"}]})
    with socket.create_connection(rules, timeout=20) as connection:
        connection.sendall(f"POST {path} HTTP/{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.split()[1] == (b"404" if path == "/nowhere" else b"200")


@pytest.mark.parametrize(
    ("field", "status"), [({"stream": True}, 400), ({"n": 2}, 400), ({"stream": None, "n": 1.0}, 200)]
)
def test_the_rules_server_refuses_what_it_would_not_heed(
    rules: tuple[str, int], field: dict[str, Any], status: int
) -> None:
    body = {"model": EMBEDDED, "messages": [{"role": "user", "content": "Answer"}]} | field
    connection = http.client.HTTPConnection(*rules, timeout=20)
    connection.request("POST", CHAT, json.dumps(body))
    assert connection.getresponse().status == status


def test_the_rules_server_answers_a_malformed_request_once(rules: tuple[str, int]) -> None:
    with socket.create_connection(rules, timeout=20) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\n" + b"X: a\r\n" * 300 + b"\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.count(b'"error"') == 1


def test_the_rules_server_answers_in_the_protocols_form(rules: tuple[str, int]) -> None:
    ready = {"model": EMBEDDED, "messages": [{"role": "user", "content": 'Answer {"ready": true}'}]}
    parts = [
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "half \ud83d"}]},
    ]

    def asked(body: bytes | None, method: str = "POST", path: str = CHAT, **headers: str) -> tuple[int, Any, Any]:
        connection = http.client.HTTPConnection(*rules, timeout=20)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read() or b"{}")

    for body in (json.dumps(ready).encode(), b"\xef\xbb\xbf" + json.dumps(ready).encode()):
        assert asked(body)[2]["choices"][0]["message"]["content"] == '{"ready": true}'
    assert asked(json.dumps(ready | {"messages": parts}).encode())[0] == 200
    nested = "```json\n" + "[" * 100_000 + "\n```"
    deep = asked(json.dumps(ready | {"messages": [{"role": "user", "content": nested}]}).encode())
    assert (deep[0], deep[2]["choices"][0]["finish_reason"]) == (200, "stop")
    for body, method, path, headers, status in (
        (b"[" * 100_000, "POST", CHAT, {}, 400),
        (b"\xff", "POST", CHAT, {}, 400),
        (b"[]", "POST", CHAT, {}, 400),
        (json.dumps(ready | {"messages": []}).encode(), "POST", CHAT, {}, 400),
        (json.dumps(ready | {"messages": [{"role": "user", "content": 5}]}).encode(), "POST", CHAT, {}, 400),
        (json.dumps(ready | {"model": "x\ud83d"}).encode(), "POST", CHAT, {}, 404),
        (json.dumps(ready).encode(), "POST", CHAT, {"Content-Length": "-5"}, 411),
        (json.dumps(ready).encode(), "POST", CHAT, {"Content-Length": "five"}, 411),
        (json.dumps(ready).encode(), "POST", CHAT, {"Transfer-Encoding": "chunked"}, 411),
        (None, "POST", CHAT, {}, 400),
        (json.dumps(ready).encode(), "POST", CHAT, {"Content-Length": "9" * 5000}, 411),
        (json.dumps(ready).encode(), "POST", CHAT, {"Content-Length": "9" * 12}, 413),
        (json.dumps(ready).encode(), "POST", CHAT, {"Content-Encoding": "gzip"}, 415),
        (json.dumps(ready).encode(), "POST", "/v1/models", {}, 405),
        (None, "GET", CHAT, {}, 405),
        (None, "OPTIONS", CHAT, {}, 405),
        (None, "DELETE", CHAT, {}, 405),
        (None, "GET", "/", {}, 404),
        (b"{}", "POST", "/", {}, 404),
    ):
        found, sent, answer = asked(body, method, path, **headers)
        assert found == status, (body and body[:80], method, path, headers, answer)
        assert answer["error"]["type"] == "invalid_request_error"
        assert (sent["Allow"] is not None) == (status == 405)


# Any body at all

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**30, 0.0, -0.5, 1.0, 1.5, 1e308, float("nan"), float("inf")]),
    st.sampled_from(["", " ", "\0", "\ud83d", "tiny", "user", "text", "margin", "never", "every.2", "sub.1", "set.99"]),
    st.sampled_from(["margin.0", "agreement", "agreement.1", "every.99999999999", "\n\n", "\r\n\r\n", "a\n\nb", "<s>"]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    ODD,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
PARTS = st.fixed_dictionaries(
    {"type": st.one_of(st.sampled_from(["text", "refusal", "image_url", "input_audio"]), ODD)},
    optional={"text": VALUES, "refusal": VALUES, "image_url": VALUES},
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.one_of(st.sampled_from(["system", "developer", "user", "assistant", "tool"]), ODD)},
    optional={
        "content": st.one_of(st.text(max_size=30), st.lists(st.one_of(PARTS, VALUES), max_size=3), VALUES),
        "tool_calls": VALUES,
        "refusal": VALUES,
        "name": VALUES,
    },
)
OPTIONS = {
    "stream": st.booleans(),
    "stream_options": st.one_of(VALUES, st.fixed_dictionaries({"include_usage": VALUES})),
    "max_tokens": st.one_of(st.integers(0, 3), ODD),
    "max_completion_tokens": st.one_of(st.integers(1, 3), ODD),
    "temperature": st.one_of(st.floats(0, 2), ODD),
    "top_p": st.one_of(st.floats(0, 1), ODD),
    "seed": ODD,
    "stop": VALUES,
    "echo": st.booleans(),
    "logprobs": st.one_of(st.booleans(), st.integers(0, 5), ODD),
    "top_logprobs": ODD,
    "n": ODD,
    "tools": VALUES,
    "logit_bias": VALUES,
    "response_format": VALUES,
    "utaca": st.one_of(
        VALUES, st.fixed_dictionaries({}, optional={x: VALUES for x in ("budget", "policy", "trigger", "trace")})
    ),
    "": VALUES,
    "model_extra": VALUES,
    "__class__": VALUES,
}
MODELS = st.one_of(st.just("tiny"), st.just("tiny"), st.just("tiny"), ODD)
CHATS = st.fixed_dictionaries(
    {"model": MODELS, "messages": st.one_of(st.lists(MESSAGES, min_size=1, max_size=3), VALUES)}, optional=OPTIONS
)
TOKENS = st.lists(st.one_of(st.integers(0, 400), ODD), min_size=1, max_size=8)
PLAIN = st.fixed_dictionaries(
    {"model": MODELS, "prompt": st.one_of(st.text(max_size=30), TOKENS, st.lists(TOKENS, max_size=2), VALUES)},
    optional=OPTIONS,
)


def ends_well(server: Server, body: bytes, path: str) -> None:
    """An answer, whole or as a stream without an error of the server's, or an error of 4xx in OpenAI's format."""
    connection = begin(server.address, body, path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert 200 <= response.status < 500, (response.status, text, body)
    if response.getheader("Content-Type", "").startswith("text/event-stream"):
        assert '"server_error"' not in text, (text, body)
        assert text.endswith("data: [DONE]\n\n") or '{"error"' in text
        return
    answer = json.loads(text)
    if response.status >= 400:
        error = answer["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"].strip()
        assert "\n" not in error["message"], error
        assert "Traceback" not in error["message"]


FUZZED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZED
@given(body=CHATS)
def test_any_chat_gets_an_answer_or_a_sentence(server: Server, body: dict[str, Any]) -> None:
    body.setdefault("max_tokens", 2)
    ends_well(server, json.dumps(body).encode(), CHAT)


@FUZZED
@given(body=PLAIN)
def test_any_prompt_gets_an_answer_or_a_sentence(server: Server, body: dict[str, Any]) -> None:
    body.setdefault("max_tokens", 2)
    ends_well(server, json.dumps(body).encode(), "/v1/completions")


@FUZZED
@given(data=st.data(), path=st.sampled_from([CHAT, "/v1/completions"]))
def test_any_bytes_get_an_answer_or_a_sentence(server: Server, data: st.DataObject, path: str) -> None:
    good = bytearray(json.dumps(SHORT | {"prompt": "a b c", "stop": "\ud83d"}).encode())
    at = data.draw(st.integers(0, len(good)))
    good[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    ends_well(server, data.draw(st.one_of(st.just(bytes(good)), st.binary(max_size=40))), path)
