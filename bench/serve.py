"""What the server costs, and what it saves: ``python bench/serve.py [--reader NAME]``.

* The second question about a document: seconds to the first token, and tokens a second after it, against Hugging
  Face's ``generate`` with the document's cache kept, and with the document read again.
* Clients at once against one: tokens a second of all of them.
* An answer through the server against the same answer from the Python API, in turns.
"""

import argparse
import copy
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from report import Row, compared, markdown
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.generation.streamers import BaseStreamer

import utaca
from utaca.app.choices import choose
from utaca.app.serving.protocol import ServerSettings
from utaca.app.serving.server import Server
from utaca.readers.load import Reader

QUESTION = "Summarize the birth date, university and hobby of Emma Thompson."
SENTENCE = "The sea was calm and the town slept. "


class Times(NamedTuple):
    """Seconds to the first token, tokens in all, and seconds in all."""

    first: float
    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second after the first token."""
        return (self.tokens - 1) / (self.seconds - self.first)


class Clock(BaseStreamer):
    """Notes when ``generate`` gives tokens; its first call hands over the prompt."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.moments = list[float]()

    def put(self, value: Any) -> None:
        self.moments.append(time.perf_counter() - self.started)

    def end(self) -> None:
        """Nothing is to be done."""

    @property
    def times(self) -> Times:
        moments = self.moments[1:]
        return Times(moments[0], len(moments), moments[-1])


def document(reader: Reader, tokens: int, name: str = "Emma") -> str:
    """A text of about so many tokens."""
    sentence = len(reader.encode(SENTENCE))
    fact = f"The birth date of {name} Thompson is May 3, 1959. The hobby of {name} Thompson is golf. "
    half = SENTENCE * (tokens // sentence // 2)
    return half + fact + half


@contextmanager
def serving(reader: Reader) -> Iterator[Server]:
    """A server of the reader in this process."""
    server = Server(reader, ServerSettings(reader.settings.name, port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.address:
        time.sleep(0.01)
    yield server
    server.end()
    thread.join()


def ask(server: Server, text: str, longest: int) -> Times:
    """One streamed answer."""
    body = {"model": server.settings.name, "stream": True, "max_tokens": longest, "utaca": {"trigger": "never"}}
    body |= {
        "messages": [{"role": "user", "content": f"{text}\n\n{QUESTION}"}],
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(*server.address.removeprefix("http://").split(":"))
    sent = json.dumps(body)
    started = time.perf_counter()
    first = 0.0
    tokens = 0
    connection.request("POST", "/v1/chat/completions", sent, {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["delta"].get("content") and not first:
                first = time.perf_counter() - started
            tokens = event.get("usage", {}).get("completion_tokens", tokens)
    connection.close()
    return Times(first, tokens, time.perf_counter() - started)


def hugging_face(reader: Reader, text: str, longest: int) -> tuple[Callable[[], Times], Callable[[], Times]]:
    """Answers of ``generate``: with the document's cache kept, and with the document read again."""
    model = AutoModelForCausalLM.from_pretrained(
        reader.model.config._name_or_path, dtype=reader.dtype, attn_implementation="sdpa"
    ).to(reader.device)
    begin = reader.encode_document(text)
    rest = reader.encode_question(QUESTION)
    whole = torch.cat((begin, rest))[None]
    kept = DynamicCache()
    with torch.inference_mode():
        for piece in begin.split(512):
            model(piece[None], past_key_values=kept, logits_to_keep=1)

    def answer(cache: DynamicCache | None) -> Times:
        clock = Clock()
        past = copy.deepcopy(cache) if cache else None
        model.generate(
            whole,
            past_key_values=past,
            do_sample=False,
            min_new_tokens=longest,
            max_new_tokens=longest,
            streamer=clock,
            attention_mask=torch.ones_like(whole),
            pad_token_id=0,
        )
        return clock.times

    return lambda: answer(kept), lambda: answer(None)


def second_question(server: Server, reader: Reader, options: argparse.Namespace) -> str:
    text = document(reader, options.document)
    ask(server, text, options.tokens)
    kept, again = hugging_face(reader, text, options.tokens)
    rows = []
    for what, run in (
        ("the server", lambda: ask(server, text, options.tokens)),
        ("generate, cache kept", kept),
        ("generate, read again", again),
    ):
        times = [run() for _ in range(options.rounds)]
        first = statistics.median(each.first for each in times)
        rows.append((what, f"{first:.3f} s", f"{statistics.median(each.rate for each in times):.1f}"))
    return markdown((f"Second question about {options.document} tokens", "First token", "Tokens a second"), rows)


def at_once(server: Server, reader: Reader, options: argparse.Namespace) -> str:
    text = document(reader, options.document)
    rows = []
    for clients in (1, options.clients):
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            times = list(pool.map(lambda _: ask(server, text, options.tokens), range(clients)))
        rate = sum(each.tokens for each in times) / (time.perf_counter() - started)
        rows.append((str(clients), f"{max(each.first for each in times):.3f} s", f"{rate:.1f}"))
    return markdown(("Clients", "Last first token", "Tokens a second of all"), rows)


def overhead(server: Server, reader: Reader, options: argparse.Namespace) -> str:
    text = document(reader, options.document)
    memory = utaca.prefill(reader, text)
    ask(server, text, options.tokens)
    choice = choose(reader, trigger="never", max_new_tokens=options.tokens)
    rounds = []
    for _ in range(options.rounds):
        started = time.perf_counter()
        utaca.generate(memory, QUESTION, **choice.options)
        alone = time.perf_counter() - started
        rounds.append(
            [Row("an answer by the server", ask(server, text, options.tokens).seconds, "the Python API", alone)]
        )
    return compared(rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python bench/serve.py", description="Time the server.")
    parser.add_argument("--reader", default="tiny", help="its name or folder (%(default)s)")
    parser.add_argument("--document", type=int, default=16384, help="tokens of the document (%(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of an answer (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="clients at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each figure is taken (%(default)s)")
    options = parser.parse_args(arguments)
    reader = utaca.load_reader(options.reader)
    # Answers are to be of one length.
    reader.stop_tokens = frozenset()
    with serving(reader) as server:
        for measure in (second_question, at_once, overhead):
            print(measure(server, reader, options), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
