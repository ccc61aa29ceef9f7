"""What is sent of answers: the objects of the protocol, whole or in pieces, and metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import accumulate
from secrets import token_hex
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from utaca.app.serving.protocol import Fault, Order, Orders
from utaca.app.serving.worker import End, Event, Job, Piece, Progress, Worker
from utaca.layout import Layout
from utaca.readers.load import Reader
from utaca.records.schemas import CORRECT
from utaca.trace import Generation, Token


class Metrics:
    """What ``/metrics`` shows."""

    def __init__(self, worker: Worker) -> None:
        self.registry = CollectorRegistry()
        make = partial(Counter, registry=self.registry)
        self.requests = make("utaca_requests", "Requests by path and status.", ["path", "status"])
        self.prompt = make("utaca_prompt_tokens", "Tokens of prompts.")
        self.cached = make("utaca_cached_tokens", "Tokens of prompts that were read before.")
        self.generated = make("utaca_generated_tokens", "Tokens of answers.")
        self.rollbacks = make("utaca_rollbacks", "Tokens that were rolled back.")
        self.first = Histogram(
            "utaca_first_token_seconds", "Seconds to an answer's first token.", registry=self.registry
        )
        for name, about, value in (
            ("utaca_answers", "Answers under way.", lambda: worker.answering),
            ("utaca_waiting", "Requests whose answers have not begun.", lambda: worker.waiting),
            ("utaca_documents", "Documents in memory.", lambda: len(worker.memories)),
            ("utaca_document_bytes", "Bytes of documents in memory.", lambda: worker.memories.size),
        ):
            Gauge(name, about, registry=self.registry).set_function(value)

    def count(self, job: Job, end: End) -> None:
        """Count an answer that has ended."""
        self.prompt.inc(len(job.order.document) + len(job.order.question))
        self.cached.inc(job.cached)
        self.generated.inc(len(end.generation.trace))
        self.rollbacks.inc(end.generation.rollbacks)


class Answer:
    """The answer to one request: the jobs of its orders, and what is sent of them."""

    def __init__(self, reader: Reader, worker: Worker, metrics: Metrics, orders: Orders) -> None:
        self._reader, self._metrics, self._orders = reader, metrics, orders
        self._started, self._events = time.perf_counter(), asyncio.Queue[tuple[int, Event]]()
        self._ends: dict[int, End] = {}
        loop = asyncio.get_running_loop()
        kind = "chat.completion" if orders.chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if orders.chat else 'cmpl'}-{token_hex(12)}",
            "object": kind + (".chunk" if orders.chat and orders.stream else ""),
            "created": int(time.time()),
            "model": orders.model,
            "system_fingerprint": reader.identity,
        }
        tell = lambda number, event: loop.call_soon_threadsafe(self._events.put_nowait, (number, event))  # noqa: E731
        self._jobs = [Job(order, partial(tell, number)) for number, order in enumerate(orders.orders)]
        try:
            for job in self._jobs:
                worker.submit(job)
        except Fault:
            self._cancel()
            raise

    def _cancel(self) -> None:
        for job in self._jobs:
            job.cancelled = True

    async def _happenings(self) -> AsyncIterator[tuple[int, Event]]:
        """The events of the jobs until all have ended; raises a :class:`Fault` that ends one.

        If nobody listens any more, the jobs are cancelled.
        """
        begun: set[int] = set()
        try:
            while len(self._ends) < len(self._jobs):
                number, event = await self._events.get()
                if isinstance(event, Fault):
                    raise event
                if isinstance(event, Piece) and number not in begun:
                    begun.add(number)
                    self._metrics.first.observe(time.perf_counter() - self._started)
                if isinstance(event, End):
                    self._ends[number] = event
                    self._metrics.count(self._jobs[number], event)
                yield number, event
        finally:
            self._cancel()

    async def whole(self) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        texts = [job.order.echo for job in self._jobs]
        tokens: list[list[Token]] = [[] for _ in self._jobs]
        async for number, event in self._happenings():
            if isinstance(event, Piece):
                tokens[number].append(event.token)
            if isinstance(event, Piece | End):
                texts[number] += event.text
        choices = [self._choice(number, tokens[number], self._ends[number]) for number in range(len(self._jobs))]
        for choice, text in zip(choices, texts, strict=True):
            choice |= {"message": {"role": "assistant", "content": text}} if self._orders.chat else {"text": text}
        return self._head | {"choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events; how far a document is read is sent as comments, which clients pass over."""
        sent = [len(job.order.echo) for job in self._jobs]
        try:
            for number, job in enumerate(self._jobs):
                if self._orders.chat:
                    yield self._chunk([self._choice(number, []) | {"delta": {"role": "assistant", "content": ""}}])
                elif job.order.echo:
                    yield self._chunk([self._choice(number, []) | {"text": job.order.echo}])
            async for number, event in self._happenings():
                if isinstance(event, Progress):
                    yield f": read {event.done} of {event.total} tokens\n\n"
                    continue
                end = isinstance(event, End)
                choice = self._choice(number, [] if end else [event.token], event if end else None, sent[number])
                sent[number] += len(event.text)
                if event.text or end or choice["logprobs"] or "utaca" in choice:
                    delta = {"content": event.text} if event.text else {}
                    yield self._chunk([choice | ({"delta": delta} if self._orders.chat else {"text": event.text})])
            if self._orders.usage:
                yield self._chunk([], usage=self._usage())
            yield "data: [DONE]\n\n"
        except Fault as fault:
            yield f"data: {json.dumps(fault.body)}\n\n"

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps(self._head | {'choices': choices} | more)}\n\n"

    def _choice(self, number: int, tokens: list[Token], end: End | None = None, sent: int = 0) -> dict[str, Any]:
        """A choice without its text: ``tokens`` that are new in it, ``end`` if it has ended."""
        order, values, about = self._jobs[number].order, None, {}
        if order.logprobs is not None and tokens:
            values = (_chat_logprobs if self._orders.chat else partial(_logprobs, sent))(self._reader, order, tokens)
        if end:
            about = {
                "mean_selected_tokens": round(end.generation.mean_selected_tokens, 2),
                "attended_keys": round(end.generation.mean_attended_tokens, 2),
                "rollbacks": end.generation.rollbacks,
            }
        if order.trace and (tokens or end):
            about["trace"] = [_traced(token, self._reader.settings.memory.block_size) for token in tokens]
        if order.trace and end:
            about["places"] = _block_places(self._reader, order, end.generation)
        choice = {"index": number, "finish_reason": end.reason if end else None, "logprobs": values}
        return choice | ({"utaca": about} if about else {})

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(job.order.document) + len(job.order.question) for job in self._jobs)
        completion = sum(len(end.generation.trace) for end in self._ends.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(job.cached for job in self._jobs)},
        }


def _best(token: Token, count: int) -> list[tuple[int, float]]:
    """The best tokens of a pass with their log-probabilities; none if the token itself is not among those kept.

    Logits and log-probabilities differ by the softmax's denominator, which a token of both lists shows.
    """
    if token.token not in token.top_tokens:
        return []
    shift = token.logprob - token.top_logits[token.top_tokens.index(token.token)]
    pairs = zip(token.top_tokens, token.top_logits, strict=True)
    return [(number, logit + shift) for number, logit in pairs][:count]


def _written(reader: Reader, token: int) -> str:
    return reader.tokenizer.decode([token], clean_up_tokenization_spaces=False)


def _chat_logprobs(reader: Reader, order: Order, tokens: Sequence[Token]) -> dict[str, Any]:
    def entry(number: int, logprob: float) -> dict[str, Any]:
        text = _written(reader, number)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    best = [[entry(*pair) for pair in _best(token, order.logprobs or 0)] for token in tokens]
    pairs = zip(tokens, best, strict=True)
    return {"content": [entry(token.token, token.logprob) | {"top_logprobs": tops} for token, tops in pairs]}


def _logprobs(start: int, reader: Reader, order: Order, tokens: Sequence[Token]) -> dict[str, Any]:
    """Log-probabilities as completions have them; ``start`` is where the first token's text begins."""
    best = [{_written(reader, n): value for n, value in _best(token, order.logprobs or 0)} for token in tokens]
    return {
        "tokens": [_written(reader, token.token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": best,
        "text_offset": list(accumulate((len(token.text) for token in tokens[:-1]), initial=start)),
    }


def _traced(token: Token, block_size: int) -> dict[str, Any]:
    """A token of a trace. ``blocks`` are those that were retrieved, each with the number of layers that did."""
    rejected = token.tentative
    return {
        "text": token.text,
        "token": token.token,
        "logprob": token.logprob,
        "budget": token.k,
        "selected_tokens": token.k * block_size,
        "attended_keys": token.attended,
        "distrust": None if token.gdm is None else round(1 - token.gdm[CORRECT], 4),
        "rolled_back": None if rejected is None else {"token": rejected.token, "budget": rejected.k},
        "blocks": Tally(token.selected.flatten().tolist()),
    }


def _block_places(reader: Reader, order: Order, generation: Generation) -> dict[int, tuple[int, int, int]]:
    """Where the blocks that an answer retrieved lie: the message, and where in its text a block begins and ends."""
    m, places = reader.settings.memory, {}
    layout = Layout(m.n_init, m.n_local, m.block_size)
    for block in {block for token in generation.trace for block in token.selected.flatten().tolist()}:
        first = layout.first_token(block)
        inside = [place for place in order.places[first : first + m.block_size] if place[0] >= 0]
        if inside:
            message, start, _ = inside[0]
            places[block] = message, start, max(end for number, _, end in inside if number == message)
    return places
