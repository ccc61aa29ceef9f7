"""How near the client comes to what its concurrency allows, against a server that takes a fixed time for an answer.

``python -m utaca.benchmarks.endpoints SECONDS`` is that server: it prints its port and serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pydantic

from utaca.endpoints.client import Request, ask
from utaca.settings.schema import Endpoint

_INSTRUCTION = "Reply with a number. " * 100  # as long as the judge's


class _Number(pydantic.BaseModel):
    number: int


@dataclass(frozen=True)
class Measurement:
    """Seconds that a number of items took, of the wall and of the client's processor, and the least possible."""

    run: str
    items: int
    concurrency: int
    server_s: float
    ideal_s: float
    took_s: float
    cpu_s: float

    @property
    def ratio(self) -> float:
        """How many times the least possible it took."""
        return self.took_s / self.ideal_s


def measure(items: int, concurrency: int, seconds: float, runs: int) -> Iterator[Measurement]:
    """Ask for ``items`` answers of ``seconds`` each, ``concurrency`` at once, ``runs`` times from an empty store."""
    requests = [
        Request(
            str(number),
            [{"role": "system", "content": _INSTRUCTION}, {"role": "user", "content": f"Item {number}"}],
            _Number,
            "1",
        )
        for number in range(items)
    ]
    with _serving(seconds) as address:
        endpoint = Endpoint(name="benchmark", model="benchmark", base_url=address, concurrency=concurrency)
        for run in range(1, runs + 1):
            with TemporaryDirectory() as folder:
                started, worked = time.perf_counter(), time.process_time()
                answers = ask(endpoint, requests, store=Path(folder) / "answers.sqlite", description=f"run {run}")
                took, cpu = time.perf_counter() - started, time.process_time() - worked
            if len(answers.values) < items:
                raise RuntimeError(f"{len(answers.failures)} of {items} items failed")
            yield Measurement(str(run), items, concurrency, seconds, items * seconds / concurrency, took, cpu)


@contextmanager
def _serving(seconds: float) -> Iterator[str]:
    """Address of the server, in a process of its own."""
    command = [sys.executable, "-m", "utaca.benchmarks.endpoints", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


async def _serve(seconds: float) -> None:
    message = {"role": "assistant", "content": '{"number": 1}'}
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "benchmark",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    body = json.dumps(answer).encode()
    response = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
                await asyncio.sleep(seconds)
                writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
