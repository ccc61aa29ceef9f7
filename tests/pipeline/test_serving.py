"""``utaca serve``: the OpenAI protocol over a reader, its errors, and what is reused."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import DOCUMENT, QUESTION, SEA, begin, chat, choice, get, post, serving, text_of, wait
from small import make_reader

import utaca
from utaca.app.serving import server as servers
from utaca.app.serving import worker as workers
from utaca.app.serving.memories import Memories
from utaca.app.serving.protocol import Order, ServerSettings
from utaca.app.serving.server import Server
from utaca.errors import UserError
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="-", max_retries=0)


@pytest.fixture(scope="module")
def expected(tiny: Reader) -> Any:
    """What the engine answers without a server."""
    return utaca.generate(utaca.prefill(tiny, DOCUMENT), QUESTION, budget=8, max_new_tokens=512)


def test_an_answer_is_the_engines(server: Server, expected: Any) -> None:
    status, answer = post(server, chat(echo=True, colour="a field of no chat is ignored"))
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.text}
    assert choice["finish_reason"] == "stop"
    assert choice["utaca"] == {
        "budget": 8,
        "mean_selected_tokens": pytest.approx(expected.mean_selected_tokens, abs=0.01),
        "attended_keys": pytest.approx(expected.mean_attended_tokens, abs=0.01),
        "rollbacks": 0,
    }
    assert answer["usage"]["completion_tokens"] == len(expected.trace)
    counts = dict(line.rsplit(" ", 1) for line in get(server, "/metrics")[1].splitlines() if line[0] != "#")
    assert float(counts["utaca_generated_tokens_total"]) >= len(expected.trace)
    assert float(counts["utaca_documents"]) > 0
    assert get(server, "/health") == (200, '{"status":"ok"}')
    assert client(server).models.retrieve("tiny").id == "tiny"


def test_a_prompt_may_be_text_or_tokens(server: Server, tiny: Reader, expected: Any) -> None:
    prompt = f"{tiny.before}{DOCUMENT}\n\n{QUESTION}{tiny.after}"
    tokens = tiny.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for each in (prompt, tokens, [prompt, prompt], [tokens]):
        status, answer = post(server, {"model": "tiny", "prompt": each}, "/v1/completions")
        assert status == 200, answer
        assert {choice["text"] for choice in answer["choices"]} == {expected.text}
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(tiny.document(DOCUMENT))
    status, answer = post(server, {"model": "tiny", "prompt": prompt, "echo": True}, "/v1/completions")
    assert answer["choices"][0]["text"] == prompt + expected.text


def test_a_stream_says_the_same(server: Server, expected: Any) -> None:
    stream = client(server).chat.completions.create(
        **chat(), stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=2
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert last.usage.completion_tokens == len(expected.trace)
    tokens = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert [token.logprob for token in tokens] == pytest.approx([token.logprob for token in expected.trace], abs=1e-3)
    for token in tokens:
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-6)
    split = choice(server, "\u6771\u4eac" * 20, "\U0001f600", logprobs=True, top_logprobs=10, max_tokens=4)
    tops = [top for token in split["logprobs"]["content"] for top in token["top_logprobs"]]
    assert {top["bytes"] for top in tops if "\ufffd" in top["token"]} == {None}, "parts of characters"


def test_a_request_chooses_how_it_is_decoded_and_sees_the_tokens(server: Server) -> None:
    options = {"trigger": "every.3", "policy": "set.1", "budget": 4, "trace": True}
    found = choice(server, messages=[{"role": "system", "content": "Be brief."}, *chat()["messages"]], utaca=options)
    trace = found["utaca"]["trace"]
    assert "".join(token["text"] for token in trace) == found["message"]["content"]
    assert {token["budget"] for token in trace} == {1, 4}
    assert found["utaca"]["rollbacks"] == sum(token["rolled_back"] is not None for token in trace) > 0
    message, start, end = found["utaca"]["places"][next(iter(trace[0]["blocks"]))]
    assert message == 1
    assert 0 <= start < end <= len(DOCUMENT)


def test_an_answer_ends_where_it_is_told_to_and_a_seed_draws_the_same_again(server: Server, expected: Any) -> None:
    head, stop, _ = expected.text.partition("University")
    found = choice(server, stop=["T" + "x" * 10**6, stop])
    assert (found["message"]["content"], found["finish_reason"]) == (head, "stop")
    found = choice(server, max_completion_tokens=3)
    assert found["finish_reason"] == "length"
    assert expected.text.startswith(found["message"]["content"])
    first, again, other = (text_of(server, temperature=2, seed=seed, max_tokens=8) for seed in (1, 1, 2))
    assert first == again != other
    assert choice(server, messages=[{"role": "user", "content": "Hello"}], max_tokens=4), "no document"


def test_a_reader_that_reads_a_document_for_each_budget_is_not_served() -> None:
    own = make_reader(memory=MemorySettings(n_init=8, n_local=48, prefill_chunk=32, prefill_budget=-1))
    with pytest.raises(UserError, match="prefill_budget to a number of blocks"):
        servers.Server(own, ServerSettings("test", trigger="never"))


def test_the_document_that_was_used_last_longest_ago_leaves() -> None:
    small = make_reader(memory=MemorySettings(n_init=8, n_local=48, prefill_chunk=32, prefill_budget=0))
    texts = [[number] * 200 for number in (1, 2, 3)]
    keys, memories = list(map(tuple, texts)), Memories(small, Memories(small, 0)._size(200) * 2)
    for key, text in zip(keys[:2], texts[:2], strict=True):
        entry, passes, _ = memories.begin(text)
        assert list(passes)[-1] == 200
        memories.keep(key, entry)
        entry.users = 1
    assert memories.begin(texts[2]) is None
    for key in reversed(keys[:2]):
        memories.get(key).users = 0
    memories.keep(keys[2], memories.begin(texts[2])[0])
    assert [bool(memories.get(key)) for key in keys] == [True, False, True]
    assert memories.fault(200) == ""
    assert "--memory" in memories.fault(4000)


def test_a_worker_answers_no_more_than_parallel_at_once_and_reads_no_part_twice() -> None:
    worker, most, told = workers.Worker(make_reader(), 1 << 30, 1), 0, []

    def submitted(*document: int) -> workers.Job:
        job = workers.Job(Order(document, (5,), {"budget": 1, "max_new_tokens": 40}), told.append)
        worker.submit([job])
        return job

    left = submitted(*[3] * 200)
    for _ in range(4):
        worker._turn()
    left.cancelled = True
    # A client that gives up and asks again goes on where reading stopped.
    again, *_ = [submitted(*[token] * length) for token, length in ((3, 200), (1, 9), (2, 64), (1, 9))]
    while worker.waiting or worker.answering:
        worker._turn()
        most = max(most, worker.answering)
    assert most == 1
    assert 0 < again.cached < 200
    submitted(4)
    worker._turn = None
    worker.run()
    assert "shutting down" in str(told[-1]), "no one waits for a worker that has ended"


BAD = [
    (b"{", 400, "not JSON"),
    (b"[]", 400, "not a JSON object"),
    ({"model": "tiny"}, 400, "messages"),
    (chat(model="gpt-4"), 404, "no model 'gpt-4'"),
    (chat(tools=[{"type": "function"}]), 400, "tools is not supported"),
    (chat(messages=[{"role": "tool", "content": "x"}]), 400, "role"),
    (chat(messages=[{"role": "assistant", "content": "x"}]), 400, "must have the role user"),
    (chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "content"),
    (chat(max_tokens=0), 400, "max_tokens"),
    (chat(max_tokens=5000), 400, "1280 positions"),
    (chat(document=SEA * 9000), 400, "--memory"),
    (chat(utaca={"trigger": "luck"}), 400, "luck"),
    (chat(utaca={"trigger": "/etc/passwd.safetensors"}), 400, "is the path of a file"),
    (chat(utaca={"colour": "red"}), 400, "colour"),
    ({"model": "tiny", "prompt": [1]}, 400, "at least two tokens"),
    ({"model": "tiny", "prompt": [1, 5000]}, 400, "has token id 5000"),
    ({"model": "tiny", "prompt": "a b", "max_completion_tokens": "5"}, 400, "max_completion_tokens"),
    ({"model": "tiny", "prompt": "a b", "max_tokens": 0, "echo": True}, 400, "max_tokens=0 needs echo and logprobs"),
]


@pytest.mark.parametrize(("body", "status", "words"), BAD)
def test_what_cannot_be_answered_is_a_sentence(server: Server, body: Any, status: int, words: str) -> None:
    answer = post(server, body, "/v1/completions" if "prompt" in list(body) else "/v1/chat/completions")
    assert answer[0] == status, answer
    assert words in answer[1]["error"]["message"]
    assert answer[1]["error"]["type"] == "invalid_request_error"
    assert "\n" not in answer[1]["error"]["message"]


def test_other_mistakes_are_sentences_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "BODY", 1000)
    status, answer = post(server, chat())
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    assert post(server, chat("short"), **{"Content-Type": "text/plain"})[0] == 400
    assert post(server, {}, "/v1/embeddings")[0] == 404
    assert get(server, "/", Host="attacker.example")[0] == 421
    monkeypatch.setattr(servers, "Reply", None)
    assert "the request failed (TypeError)" in post(server, chat("short"))[1]["error"]["message"]


def test_a_pass_that_fails_ends_one_answer_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    step, faults = server.worker._batch.step, [MemoryError("secret")]

    def failing(*_: int) -> Any:
        if faults:
            raise faults.pop()
        return step()

    monkeypatch.setattr(server.worker._batch, "step", failing)
    status, answer = post(server, chat(max_tokens=2))
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert "MemoryError" in answer["error"]["message"]
    assert "secret" not in answer["error"]["message"]
    assert text_of(server, max_tokens=2)
    faults.append(utaca.UserError("it cannot be read"))
    monkeypatch.setattr(server.worker.memories, "_passes", lambda *_: map(failing, [0]))
    status, answer = post(server, chat("A document that is new."))
    assert (status, answer["error"]["message"]) == (400, "it cannot be read")


def test_the_api_key_is_asked_for(tiny: Reader) -> None:
    with serving(tiny, api_key="secret") as locked:
        status, answer = post(locked, chat())
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError):
            client(locked).models.retrieve("made-up")
        assert client(locked).with_options(api_key="secret").models.list().data[0].id == "tiny"
        assert "made-up" not in get(locked, "/metrics")[1]


def test_the_server_ends_on_sigterm() -> None:
    """Answers under way end; status 0."""
    command = [sys.executable, "-m", "utaca", "serve", "--reader", "tiny", "--port", "0", "--memory", "200MiB"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        # Notes, and then the address.
        notes = []
        for line in process.stdout:
            if "answers at" in line:
                break
            notes.append(line)
        assert any('understands only questions such as "Summarize the' in note for note in notes)
        address = line.partition("http://")[2].partition("/")[0]
        response = begin(address, chat(max_tokens=20, stream=True, temperature=2, seed=3)).getresponse()
        while b'"delta": {"content"' not in response.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert "[DONE]" in response.read().decode().splitlines()[-2]
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_answers_that_cannot_end_or_begin_are_told(tiny: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tiny) as ending:
        monkeypatch.setattr(workers, "WAITING", 0)
        assert post(ending, chat())[1]["error"]["code"] == "overloaded"
        monkeypatch.setattr(workers, "WAITING", 1)
        several = {"model": "tiny", "prompt": ["a b"] * 3, "max_tokens": 1}
        assert len(post(ending, several, "/v1/completions")[1]["choices"]) == 3
        monkeypatch.undo()
        response = begin(ending.address, chat(max_tokens=300, stream=True, temperature=2, seed=3)).getresponse()
        while b'"delta": {"content"' not in response.readline():
            pass
        ending.worker.close(0)
        assert "shutting_down" in response.read().decode().splitlines()[-2]
        assert post(ending, chat())[1]["error"]["code"] == "shutting_down"
        wait(lambda: get(ending, "/health")[0] == 503)
    with monkeypatch.context() as early:
        early.setattr(Server, "run", lambda ending: ending.end())
        servers.serve(tiny, servers.ServerSettings("tiny", room=0))
    monkeypatch.setattr(servers, "GRACE_S", 0.5)
    with serving(tiny) as broken:
        _stalled = begin(broken.address, b"{", **{"Content-Length": "9"})
        monkeypatch.setattr(broken.worker, "_begin", None)
        assert post(broken, chat())[1]["error"]["code"] == "shutting_down"
        assert 'status="200"' not in get(broken, "/metrics")[1]


# Clients that misbehave


def resident() -> int:
    """Bytes of this process in main memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux")
def test_clients_that_misbehave_harm_no_other(tiny: Reader) -> None:
    """Of 200 requests of 16 clients a fifth are cut or no JSON: no answer is mixed up, memory does not grow."""
    names = ["Emma", "Ada", "Maria", "Olga", "Ivan", "Hugo"]

    def about(name: str) -> tuple[str, str]:
        return f"The hobby of {name} Thompson is golf.{SEA * 25}", f"Summarize the hobby of {name} Thompson."

    with serving(tiny, room=12 << 20, parallel=8) as server:
        expected = {name: text_of(server, *about(name), max_tokens=8) for name in names}
        assert all(name in text for name, text in expected.items())
        chance, sizes = random.Random(0), []
        plan = [(chance.choice(names), chance.random(), chance.random()) for _ in range(200)]

        def ask(name: str, kind: float, cut: float) -> None:
            if kind < 0.1:
                begin(server.address, b"{", **{"Content-Length": "9"}).close()
                assert post(server, json.dumps(chat(*about(name))).encode()[: int(cut * 500)])[0] == 400
            elif kind < 0.2:
                connection = begin(server.address, chat(*about(name), max_tokens=8, stream=True))
                if cut < 0.7:
                    connection.getresponse().read(int(cut * 1000))
                connection.sock.shutdown(socket.SHUT_RDWR)
                connection.close()
            else:
                assert text_of(server, *about(name), max_tokens=8) == expected[name]

        with ThreadPoolExecutor(16) as pool:
            for half in (plan[:100], plan[100:]):
                list(pool.map(lambda each: ask(*each), half))
                wait(lambda: not server.worker.answering and not server.worker.waiting)
                sizes.append((server.worker.memories.size, resident()))
        assert all(size <= 12 << 20 for size, _ in sizes)
        assert sizes[1][1] < sizes[0][1] + (48 << 20)
