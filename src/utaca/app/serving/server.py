"""The HTTP server: its routes, its errors, and how it starts and ends."""

import asyncio
import hmac
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from utaca import pages
from utaca.app import words
from utaca.app.choices import choose, detectors
from utaca.app.documents import read_content
from utaca.app.questions import example, limit, understands
from utaca.app.serving.protocol import Fault, ServerSettings, check_model, parse
from utaca.app.serving.replies import Metrics, Reply
from utaca.app.serving.worker import Worker
from utaca.errors import UserError
from utaca.listening import bound, is_loopback, refused, url
from utaca.machine import free_memory
from utaca.readers.load import Reader
from utaca.settings.schema import OWN

BODY = 32 << 20
"""Most bytes of a request's body."""
MISDIRECTED = 421
"""Status of a request whose Host header names another machine."""
GRACE_S = 10.0
"""Seconds that unfinished answers have to end after the signal that stops the server."""
KEY = re.compile(r"[!-~]+")
"""What an API key may be made of: printable ASCII without spaces, as HTTP headers carry it."""


class Server(uvicorn.Server):
    """The HTTP server of a reader; on SIGTERM or SIGINT, it takes no more requests, and answers end or get an error.

    ``sockets`` are those of its address, as :func:`utaca.listening.bound` gives them; None: it takes the address of the
    settings. Raises :class:`UserError` if the address cannot be taken, if no client could send the API key, if the
    default decoding options are invalid, or if the reader reads a document once for each budget, which answers to many
    clients cannot share.
    """

    def __init__(
        self, reader: Reader, settings: ServerSettings, sockets: Sequence[socket.socket] | None = None
    ) -> None:
        check_key(settings.api_key)
        if reader.settings.memory.prefill_budget == OWN:
            raise UserError(
                "reader.memory.prefill_budget=-1 reads a document once for each budget, but a server reads each "
                "document only once; set reader.memory.prefill_budget to a number of blocks, such as 16"
            )
        self.reader = reader
        self.settings = settings
        self.address = ""
        room = settings.room if settings.room is not None else _half_of_free(reader)
        self.worker = Worker(reader, room, settings.parallel, settings.saved)
        self.metrics = Metrics(self.worker)
        self.created = int(time.time())
        self.choice = choose(reader, budget=settings.budget, policy=settings.policy, trigger=settings.trigger)
        self.html = pages.fill("utaca.app.serving", "page.html", self._shown())
        # One at a time: reading a PDF or a web page takes the time of the thread that answers.
        self._files = asyncio.Semaphore(1)
        self._sockets = bound(settings.host, settings.port) if sockets is None else list(sockets)
        self.local = all(is_loopback(own.getsockname()[0]) for own in self._sockets)
        options = {"log_level": "warning", "access_log": False, "lifespan": "off", "ws": "none"}
        # A client that neither sends nor reads further must not keep an ending server.
        options["timeout_graceful_shutdown"] = 2 * GRACE_S
        super().__init__(uvicorn.Config(self.application(), settings.host, settings.port, **options))

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until :meth:`end` or a signal."""
        super().run(self._sockets if sockets is None else sockets)

    def _shown(self) -> dict[str, Any]:
        """What the page at / shows and offers."""
        reader = self.reader
        trigger = str(self.choice.trigger)
        offered = [*map(words.detector, detectors(reader.identity)), *words.TRIGGERS]
        if self.choice.trigger.kind == "detector" and trigger not in [each.name for each in offered]:
            # The server was started with the file of a detector.
            offered.insert(0, words.detector(trigger))
        return {
            "model": self.settings.name,
            "about": understands(reader.settings, "It"),
            "note": self.choice.note,
            "example": asdict(example(reader.settings)),
            "budget": self.choice.budget,
            "block": reader.settings.memory.block_size,
            "longest": self.settings.max_new_tokens,
            "trigger": trigger,
            "triggers": [asdict(each) for each in offered],
            "why": words.WHY,
            "locked": bool(self.settings.api_key),
        }

    def application(self) -> Starlette:
        """The application: routes, error handlers, and on loopback the check of the Host header."""
        routes = [
            Route("/", self.page),
            Route("/document", self.document, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/chat/completions", partial(self.complete, chat=True), methods=["POST"]),
            Route("/v1/completions", partial(self.complete, chat=False), methods=["POST"]),
        ]
        # Against DNS rebinding: a web page of another site must not reach a server on loopback by the site's name.
        guards = [Middleware(_OwnHost, server=self)] if self.local else []
        return Starlette(
            routes=routes,
            middleware=guards,
            exception_handlers={Fault: self.fault, HTTPException: self.fault, Exception: self.fault},
        )

    async def fault(self, request: Request, error: Exception) -> Response:
        """The response to an error, in OpenAI's format; counts it in the metrics."""
        if isinstance(error, HTTPException):
            sentence = f"{request.method} {request.scope['path']}: {error.detail}"
            error = Fault(sentence, error.status_code, headers=error.headers)
        elif not isinstance(error, Fault):
            error = Fault(f"the request failed ({type(error).__name__}); the server's log says more", 500, "failed")
        # A path that a client makes up is not a label of a metric: the number of labels would have no bound.
        is_known_path = error.status not in (404, MISDIRECTED) and not request.path_params
        self.metrics.requests.labels(request.scope["path"] if is_known_path else "", error.status).inc()
        # 503: overloaded or ending; the client should try again after a second.
        headers = error.headers | ({"Retry-After": "1"} if error.status == 503 else {})
        return JSONResponse(error.body, error.status, headers)

    async def page(self, _request: Request) -> Response:
        """The page at /, on which a user asks in the browser."""
        # No other site may show the page in a frame. This part of the content security policy must be in a header; the
        # rest is in the page's HTML.
        return HTMLResponse(self.html, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    async def document(self, request: Request) -> Response:
        """The text of a file, and sentences on what was left out of it; the page asks for them.

        The body is the file, ``name`` in the query is its name. Raises :class:`Fault` if the file cannot be read.
        """
        self._authorise(request)
        name = request.query_params.get("name", "")
        if not name.strip():
            raise Fault("the file has no name; add it to the address, as in /document?name=report.pdf", param="name")
        content = await _body(request, "application/octet-stream")
        notes: list[str] = []
        try:
            async with self._files:
                text = await run_in_threadpool(read_content, content, name, notes.append)
        except UserError as error:
            raise Fault(str(error)) from None
        self.metrics.requests.labels(request.url.path, 200).inc()
        return JSONResponse({"text": text, "notes": notes})

    async def health(self, _request: Request) -> Response:
        """Whether the worker runs: status 200, or 503 if it has ended."""
        alive = self.worker.is_alive()
        return JSONResponse({"status": "ok" if alive else "ended"}, 200 if alive else 503)

    async def show_metrics(self, _request: Request) -> Response:
        """The metrics in the text form of Prometheus."""
        return PlainTextResponse(generate_latest(self.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def models(self, request: Request) -> Response:
        """The list of models, or the model that the path names; raises :class:`Fault` for a model of another name."""
        self._authorise(request)
        model = {"id": self.settings.name, "object": "model", "created": self.created, "owned_by": "utaca"}
        name = request.path_params.get("name", "").rstrip("/")
        if not name:
            return JSONResponse({"object": "list", "data": [model]})
        check_model(name, self.settings)
        return JSONResponse(model)

    def _authorise(self, request: Request) -> None:
        """Raise :class:`Fault` unless the request has the API key, if the server has one."""
        if not self.settings.api_key:
            return
        scheme, _, key = request.headers.get("authorization", "").strip().partition(" ")
        # The time that this comparison takes says nothing of the key.
        is_right = hmac.compare_digest(key.strip().encode(), self.settings.api_key.encode())
        if scheme.lower() != "bearer" or not is_right:
            sentence = "the API key is missing or wrong; send Authorization: Bearer KEY"
            raise Fault(sentence, 401, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    async def complete(self, request: Request, *, chat: bool) -> Response:
        """Answer a request for completions, streamed or whole; ``chat``: a chat request, else a plain one."""
        self._authorise(request)
        body = await _body(request)
        wanted, orders = await run_in_threadpool(parse, self.reader, self.settings, body, chat=chat)
        reply = Reply(self.reader, self.worker, self.metrics, wanted, orders)
        if wanted.stream:
            # X-Accel-Buffering: a proxy (nginx) should pass on each event immediately.
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            response: Response = StreamingResponse(reply.stream(), media_type="text/event-stream", headers=headers)
        else:
            whole = asyncio.ensure_future(reply.whole())
            # The body was received, so only the end of the connection can follow.
            client_left = asyncio.ensure_future(request.receive())
            # If the client left, nobody gets the response; status 499 (nginx's for this case) is only counted.
            try:
                await asyncio.wait([whole, client_left], return_when=asyncio.FIRST_COMPLETED)
                response = JSONResponse(await whole) if whole.done() else Response(status_code=499)
            finally:
                whole.cancel()
                client_left.cancel()
        self.metrics.requests.labels(request.url.path, response.status_code).inc()
        return response

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End the server at SIGTERM and SIGINT, in place of uvicorn's own handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.end)
        yield

    def end(self) -> None:
        """Stop taking connections; give unfinished answers GRACE_S seconds to end, or none at the second call."""
        self.worker.close(0 if self.should_exit else GRACE_S)
        self.should_exit = True

    async def startup(self, sockets: Any = None) -> None:
        """Start the worker, and print the address."""
        await super().startup(sockets)
        if not self.should_exit:
            self.worker.start()
            self.address = url(self.settings.host, self._sockets[0].getsockname()[1])
            if not self.settings.api_key and not self.local:
                print("UTACA_API_KEY is not set: whoever reaches this machine can ask.", flush=True)
            print(
                f"{self.settings.name} answers at {self.address}/v1, with a page at {self.address}; Ctrl+C ends it.",
                flush=True,
            )


async def _body(request: Request, wanted: str = "application/json") -> bytes:
    """Read the body of a request; raises :class:`Fault` if it is not of the type ``wanted``, or longer than BODY."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        sentence = f"the body is compressed (Content-Encoding: {coding}); send it uncompressed"
        raise Fault(sentence, 415, "compressed", headers={"Accept-Encoding": "identity"})
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != wanted:
        raise Fault(f"the body is of type {kind or 'unknown'}; send it with Content-Type: {wanted}")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY:
                raise Fault(f"the body is longer than {BODY >> 20} MiB; shorten the document", 413, "body_too_large")
    except ClientDisconnect:
        raise Fault("the client left", 499) from None
    return bytes(body)


class _OwnHost:
    """Refuse requests whose Host header does not name this machine."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or send an error."""
        request = Request(scope, receive)
        host = request.headers.get("host", "")
        name = re.sub(r":\d*$", "", host)
        # HTTP/1.0, which health checks may use and no browser does, needs no Host header.
        needs_no_host = "host" not in request.headers and scope["http_version"] == "1.0"
        if needs_no_host or is_loopback(name) or name.lower() == self._server.settings.host.lower():
            return await self._app(scope, receive, send)
        fault = Fault(
            f"the Host header {host!r} does not name this machine; use {self._server.address}, or start the server "
            "with --host 0.0.0.0",
            MISDIRECTED,
            "wrong_host",
        )
        response = await self._server.fault(request, fault)
        return await response(scope, receive, send)


def check_key(key: str) -> None:
    """Raise :class:`UserError` if no client could send a key; "" is none."""
    if key and not KEY.fullmatch(key):
        raise UserError(
            "UTACA_API_KEY has a space, a line break or a character that is not ASCII, so clients cannot send it; use "
            "printable ASCII characters without spaces"
        )


def _half_of_free(reader: Reader) -> int:
    """Half of the free bytes of the memory in which the reader's documents lie; half of 8 GiB if that is unknown."""
    device = reader.device
    if device.type == "cuda" and reader.settings.memory.storage == "device":
        return torch.cuda.mem_get_info(device)[0] // 2
    return (free_memory() or 8 << 30) // 2


def serve(reader: Reader, settings: ServerSettings, sockets: Sequence[socket.socket] | None = None) -> None:
    """Serve a reader until SIGTERM or SIGINT; arguments and errors are those of :class:`Server`."""
    logging.basicConfig(format="%(message)s")
    server = Server(reader, settings, sockets)
    for note in (server.choice.note, limit(reader.settings)):
        if note:
            print(note, flush=True)
    try:
        server.run()
    except OSError as error:  # another process took the port after it was bound here
        raise UserError(refused(settings.host, settings.port, error)) from error
    if server.worker.is_alive():
        server.worker.join()
