"""Build the protocol's responses, whole or streamed in pieces, and count the server's metrics."""

import asyncio
import json
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import accumulate, chain
from secrets import token_hex
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from utaca.app.serving.protocol import ChatRequest, CompletionRequest, Fault, Order
from utaca.app.serving.scores import Scored
from utaca.app.serving.worker import Job, Piece, Progress, Worker
from utaca.readers.load import Reader
from utaca.readers.tokenizer import written
from utaca.records.schemas import CORRECT
from utaca.trace import Generation, Token


class Metrics:
    """The server's metrics, as ``/metrics`` shows them."""

    def __init__(self, worker: Worker) -> None:
        """Make the metrics; some are read from ``worker`` whenever they are shown."""
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
        gauge = partial(Gauge, registry=self.registry)
        gauge("utaca_answers", "Answers under way.").set_function(lambda: worker.answering)
        gauge("utaca_waiting", "Requests whose answers have not begun.").set_function(lambda: worker.waiting)
        gauge("utaca_documents", "Documents in memory.").set_function(lambda: len(worker.memories))
        gauge("utaca_document_bytes", "Bytes of documents in memory.").set_function(lambda: worker.memories.size)

    def count(self, job: Job, generation: Generation) -> None:
        """Count an answer that has ended."""
        self.prompt.inc(len(job.order.document) + len(job.order.question))
        self.cached.inc(job.cached)
        self.generated.inc(len(generation.trace))
        self.rollbacks.inc(generation.rollbacks)


class Reply:
    """The response to one request: submits a job for each order, and sends what the jobs report.

    A job's number is its index among the request's orders, and that of its choice in the response.
    """

    def __init__(
        self, reader: Reader, worker: Worker, metrics: Metrics, request: CompletionRequest, orders: Sequence[Order]
    ) -> None:
        self._reader = reader
        self._metrics = metrics
        self._chat = isinstance(request, ChatRequest)
        self._usage_too = request.stream_options is not None and request.stream_options.include_usage
        self._started = time.perf_counter()
        self._events = asyncio.Queue[tuple[int, Progress | Piece | Fault]]()  # with the number of the job
        self._ended: dict[int, Generation] = {}  # answers that have ended, by the number of the job
        self._written = partial(written, reader.tokenizer)
        loop = asyncio.get_running_loop()
        kind = "text_completion"
        prefix = "cmpl"
        if self._chat:
            kind = "chat.completion.chunk" if request.stream else "chat.completion"
            prefix = "chatcmpl"
        self._head = {
            "id": f"{prefix}-{token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": reader.identity,
        }

        def tell(number: int, event: Progress | Piece | Fault) -> None:
            """Queue an event of a job; the worker's thread calls this."""
            loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

        self._jobs = [Job(order, partial(tell, number), request=self) for number, order in enumerate(orders)]
        worker.submit(self._jobs)

    async def _happenings(self) -> AsyncIterator[tuple[int, Progress | Piece]]:
        """Yield the jobs' events, each with its job's number, until all jobs have ended; raises a job's :class:`Fault`.

        If a job fails or the caller stops early, the other jobs are cancelled.
        """
        begun: set[int] = set()  # numbers of jobs that have sent a token
        try:
            while len(self._ended) < len(self._jobs):
                number, event = await self._events.get()
                if isinstance(event, Fault):
                    raise event
                if isinstance(event, Piece) and event.token and number not in begun:
                    begun.add(number)
                    self._metrics.first.observe(time.perf_counter() - self._started)
                if isinstance(event, Piece) and event.generation:
                    self._ended[number] = event.generation
                    self._metrics.count(self._jobs[number], event.generation)
                yield number, event
        finally:
            for job in self._jobs:
                job.cancelled = True

    async def whole(self) -> dict[str, Any]:
        """Return the JSON object of a response that is not streamed."""
        pieces: list[list[Piece]] = [[] for _ in self._jobs]
        async for number, event in self._happenings():
            if isinstance(event, Piece):
                pieces[number].append(event)
        choices = []
        for number, pieces_of_job in enumerate(pieces):
            text = "".join(piece.text for piece in pieces_of_job)
            content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choices.append(self._choice(number, pieces_of_job) | content)
        return self._head | {"choices": choices, "usage": self._usage()}

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events; the progress of reading a document is sent as comments, which clients ignore."""
        sent = [0 for _ in self._jobs]  # characters of the tokens that each job has sent
        try:
            if self._chat:
                for number in range(len(self._jobs)):
                    delta = {"role": "assistant", "content": ""}
                    yield self._chunk([self._choice(number, []) | {"delta": delta}])
            async for number, event in self._happenings():
                if isinstance(event, Progress):
                    yield f": read {event.done} of {event.total} tokens\n\n"
                    continue
                choice = self._choice(number, [event], sent[number])
                sent[number] += sum(len(token.text) for token in event.scored)
                # A piece may have no text, as while a stop text may be beginning; it is sent only for what else it has.
                if event.text or event.reason or choice["logprobs"] or "utaca" in choice:
                    if self._chat:
                        choice["delta"] = {"content": event.text} if event.text else {}
                    else:
                        choice["text"] = event.text
                    yield self._chunk([choice])
            if self._usage_too:
                yield self._chunk([], usage=self._usage())
            yield "data: [DONE]\n\n"
        except Fault as fault:
            yield f"data: {json.dumps(fault.body)}\n\n"

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        """A server-sent event with these choices."""
        body = {**self._head, "choices": choices, **more}
        return f"data: {json.dumps(body)}\n\n"

    def _choice(self, number: int, pieces: Sequence[Piece], sent: int = 0) -> dict[str, Any]:
        """A choice of the response, without its text, for the new ``pieces`` of a job.

        ``sent`` is the number of characters of the tokens sent before.
        """
        order = self._jobs[number].order
        scored: list[Scored] = []
        for piece in pieces:
            scored += piece.scored
        logprobs = None
        if order.logprobs is not None and scored:
            logprobs = self._chat_logprobs(order, scored) if self._chat else self._logprobs(sent, order, scored)
        reason = pieces[-1].reason if pieces else None
        choice = {"index": number, "finish_reason": reason, "logprobs": logprobs}
        details = self._details(order, pieces)
        if details:
            choice["utaca"] = details
        return choice

    def _details(self, order: Order, pieces: Sequence[Piece]) -> dict[str, Any]:
        """What a choice has under "utaca": the answer's sums, if the pieces have its end, and its trace if wanted."""
        details: dict[str, Any] = {}
        tokens = [piece.token for piece in pieces if piece.token]
        answer = pieces[-1].generation if pieces else None
        if answer:
            details = {
                "budget": order.options["budget"],
                "mean_selected_tokens": round(answer.mean_selected_tokens, 2),
                "attended_keys": round(answer.mean_attended_tokens, 2),
                "rollbacks": answer.rollbacks,
            }
        if order.trace and (tokens or answer):
            details["trace"] = [_traced(token, self._reader.settings.memory.block_size) for token in tokens]
        if order.trace and answer:
            details["places"] = _block_places(self._reader, order, answer)
        return details

    def _chat_logprobs(self, order: Order, scored: Sequence[Scored]) -> dict[str, Any]:
        """Log-probabilities of tokens in the format of chats."""

        def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
            text = self._written(token_id)
            # The text of a part of a character does not give the token's bytes.
            known_bytes = None if "\ufffd" in text else list(text.encode())
            return {"token": text, "logprob": logprob, "bytes": known_bytes}

        content = []
        for token in scored:
            best = [entry(token_id, logprob) for token_id, logprob in token.best[: order.logprobs]]
            content.append(entry(token.token, token.logprob) | {"top_logprobs": best})
        return {"content": content}

    def _logprobs(self, start: int, order: Order, scored: Sequence[Scored]) -> dict[str, Any]:
        """Log-probabilities of tokens in the format of completions; ``start`` is the first token's character offset."""
        lengths = [len(token.text) for token in scored[:-1]]
        return {
            "tokens": [self._written(token.token) for token in scored],
            "token_logprobs": [token.logprob for token in scored],
            "top_logprobs": [None if token.logprob is None else self._best(order, token) for token in scored],
            "text_offset": list(accumulate(lengths, initial=start)),
        }

    def _best(self, order: Order, scored: Scored) -> dict[str, float]:
        """The log-probabilities of the best tokens and of the token itself, by text.

        If two tokens have the same text, the better one counts.
        """
        best: dict[str, float] = {}
        # The best come first, so that the first of two with the same text counts. A prompt's first token, which has no
        # log-probability, does not come here.
        for token_id, logprob in [*scored.best[: order.logprobs], (scored.token, scored.logprob or 0.0)]:
            best.setdefault(self._written(token_id), logprob)
        return best

    def _usage(self) -> dict[str, Any]:
        """The numbers of tokens of all prompts and answers of the request."""
        prompt = sum(len(job.order.document) + len(job.order.question) for job in self._jobs)
        completion = sum(len(generation.trace) for generation in self._ended.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(job.cached for job in self._jobs)},
        }


def _traced(token: Token, block_size: int) -> dict[str, Any]:
    """A token of a trace, for JSON.

    ``blocks`` has the number of layers that retrieved a block, by the block's index; ``distrust`` is 1 minus the
    detector's probability of "correct".
    """
    rejected = token.tentative
    return {
        "text": token.text,
        "token": token.token,
        "logprob": token.logprob,
        "budget": token.k,
        "selected_tokens": token.retrieved * block_size,
        "attended_keys": token.attended,
        "distrust": None if token.gdm is None else round(1 - token.gdm[CORRECT], 4),
        "rolled_back": rejected
        and {
            "token": rejected.token,
            "budget": rejected.k,
            "selected_tokens": rejected.retrieved * block_size,
        },
        "blocks": Tally(chain.from_iterable(token.blocks)),
    }


def _block_places(reader: Reader, order: Order, generation: Generation) -> dict[int, tuple[int, int, int]]:
    """The places of the blocks that an answer retrieved, by the block's index.

    A place is the index of a message, and begin and end in it in characters. Of a block in several messages it is that
    in the first one; blocks in no message are left out.
    """
    layout = reader.settings.memory.layout
    retrieved: set[int] = set()
    for token in generation.trace:
        retrieved.update(chain.from_iterable(token.blocks))
    places = {}
    for block in retrieved:
        first = layout.first_token(block)
        inside = [place for place in order.places[first : first + layout.block_size] if place[0] >= 0]
        if inside:
            message, start, _ = inside[0]
            ends = [end for number, _, end in inside if number == message]
            places[block] = message, start, max(ends)
    return places
