"""How near the endpoints' client comes to what its concurrency allows.

``python bench/client.py`` asks a server on this machine that takes a fixed time for an answer, and prints a Markdown
table. Each run starts with an empty store and includes making the client. Leave the machine to it meanwhile.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import pydantic
from report import markdown

from utaca.endpoints.client import Request, ask
from utaca.endpoints.prompts import Prompt
from utaca.settings.schema import EndpointSettings

PROMPT = Prompt("1", "Reply with a number. " * 100)  # as long as the judge's


class Number(pydantic.BaseModel):
    """The answer asked for."""

    number: int


def run(address: str, items: int, concurrency: int) -> tuple[float, float]:
    """Seconds of ``items`` answers, ``concurrency`` at once, of the wall and of the client's processor."""
    requests = [Request(str(number), {"item": number}, PROMPT, Number) for number in range(items)]
    endpoint = EndpointSettings(name="bench", model="bench", base_url=address, concurrency=concurrency)
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        worked = time.process_time()
        answers = ask(endpoint, requests, store=Path(folder) / "answers.sqlite", description="client")
        took = time.perf_counter() - started
        cpu = time.process_time() - worked
    if len(answers.values) < items:
        raise RuntimeError(f"{len(answers.failures)} of {items} items failed")
    return took, cpu


@contextmanager
def serving(seconds: float) -> Iterator[str]:
    """Address of the server, in a process of its own."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(seconds, sender), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def serve(seconds: float, port: Connection) -> None:
    """Answer every request after ``seconds``; the server's port is sent through ``port``."""
    asyncio.run(_serve(seconds, port))


async def _serve(seconds: float, port: Connection) -> None:
    message = {"role": "assistant", "content": '{"number": 1}'}
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "bench",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    body = json.dumps(answer).encode()
    response = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
                await asyncio.sleep(seconds)
                writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python bench/client.py", description="Time the client of the endpoints.")
    parser.add_argument("--items", type=int, default=1000, help="answers asked for (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at once (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.05, help="that the server takes for each (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="repeats (%(default)s)")
    options = parser.parse_args(arguments)
    least = options.items * options.seconds / options.concurrency
    rows = []
    with serving(options.seconds) as address:
        for number in range(options.rounds):
            took, cpu = run(address, options.items, options.concurrency)
            rows.append((str(number + 1), f"{least:.2f}", f"{took:.2f}", f"{cpu:.2f}", f"{took / least:.2f}"))
    print(markdown(("Round", "Least possible s", "Took s", "Client's processor s", "Ratio"), rows))


if __name__ == "__main__":
    main()
