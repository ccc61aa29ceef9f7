"""Serve the rules over HTTP by the OpenAI protocol: ``utaca serve-rules``."""

import json
import re
import sys
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from utaca.errors import UserError
from utaca.judging.rules import tasks
from utaca.listening import bound, url
from utaca.records.texts import parsed
from utaca.settings.checks import EMBEDDED

_TASK = re.compile(r"```json\n(.*?)\n```", re.DOTALL)
_READY = '{"ready": true}'
_UNABLE = "I can only write a biography, label tokens or score an answer, given as a JSON block with its task."
_MODELS = "/v1/models"
_CHAT = "/v1/chat/completions"
_ALLOWED = {_MODELS: "GET", _CHAT: "POST"}
_BODY = 32 << 20
"""Most bytes of a request's body."""


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer the last fenced task in the user's messages, as a chat completion.

    A client that asks for readiness gets that; any other conversation gets a sentence on what the rules can do.
    """
    texts = [_text(message.get("content")) for message in messages]
    blocks: list[str] = []
    for message, text in zip(messages, texts, strict=True):
        if message["role"] == "user":
            blocks += _TASK.findall(text)
    try:
        content = json.dumps(tasks.answer(json.loads(blocks[-1])), ensure_ascii=False)
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):  # no task, or a malformed one
        content = _READY if _READY in texts[-1] else _UNABLE
    # Tokens are counted as words.
    read = sum(len(text.split()) for text in texts)
    written = len(content.split())
    return {
        "id": "chatcmpl-rules", "object": "chat.completion", "created": 0, "model": EMBEDDED,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }  # fmt: skip


def _text(content: Any) -> str:
    """The text of a message's content, which is null, a text, or a list of text parts; TypeError for any other."""
    if isinstance(content, list):
        return "\n\n".join(part["text"] for part in content)
    if not isinstance(content, str | None):
        raise TypeError
    return content or ""


class _Handler(BaseHTTPRequestHandler):
    """Answers requests for the list of models and for chat completions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._known("GET"):
            self._send(200, {"object": "list", "data": [{"id": EMBEDDED, "object": "model", "owned_by": "utaca"}]})

    def do_POST(self) -> None:
        """Read the body, and send a chat completion or an error."""
        # The connection closes after an error before the body was read: what remains of the body would be taken for the
        # next request. A body of unknown length (Transfer-Encoding) is such an error.
        closes_anyway = self.close_connection
        self.close_connection = True
        length = self.headers.get("Content-Length", "" if "Transfer-Encoding" in self.headers else "0")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            return self.send_error(411, "send the body's length in Content-Length")
        if int(length) > _BODY:
            return self.send_error(413, f"the body is longer than {_BODY >> 20} MiB")
        body = self.rfile.read(int(length))
        self.close_connection = closes_anyway
        if not self._known("POST"):
            return None
        if self.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            return self.send_error(415, "the body is compressed; send it uncompressed")
        try:
            request = parsed(body.decode("utf-8-sig"), "the body", "send a JSON object")
            if request["model"] != EMBEDDED:
                name = str(request["model"])[:100]
                return self.send_error(404, f"there is no model {name!r}; this server has {EMBEDDED}")
            if request.get("stream") or request.get("n") not in (None, 1):
                return self.send_error(400, "this server sends one answer, and no streams; leave out stream and n")
            completion = complete(request["messages"])
        except UserError as error:
            return self.send_error(400, str(error))
        except (ValueError, LookupError, TypeError, AttributeError):
            return self.send_error(400, "the body must be a JSON object with model and messages of text")
        return self._send(200, completion)

    def _known(self, method: str) -> bool:
        """Whether the path that was asked for takes ``method``; if not, send the error."""
        allowed = self._allowed()
        if allowed == method:
            return True
        self.send_error(405 if allowed else 404)
        return False

    def _allowed(self) -> str | None:
        """The method of the path that was asked for, which may end in a slash; None if there is no such path."""
        # A request whose first line cannot be parsed has no path.
        return _ALLOWED.get(getattr(self, "path", "").partition("?")[0].rstrip("/"))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error in OpenAI's format; also those of the base class, as for an unknown method."""
        allowed = self._allowed()
        # The base class sends 501 for any other method, such as PUT; on a path that exists, 405 is right.
        if code == HTTPStatus.NOT_IMPLEMENTED and allowed:
            code = 405
            message = None
        headers = {"Allow": allowed} if code == 405 and allowed else {}
        # After these errors it may be unclear where the request ends, so that no other can follow it.
        self.close_connection = self.close_connection or code in (400, 411, 413, 414, 431, 501, 505)
        sentence = message or f"{self.command} {self.path[:100]}: {HTTPStatus(code).phrase}"
        kind = "server_error" if code >= 500 else "invalid_request_error"
        self._send(code, {"error": {"message": sentence, "type": kind, "param": None, "code": None}}, headers)

    def _send(self, status: int, answer: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send a response with ``answer`` as JSON, and with further ``headers``; to HEAD, the headers only."""
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnected is not an error of this server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def run(host: str, port: int) -> None:
    """Serve until interrupted (Ctrl-C); port 0 means any free port."""
    # A name such as localhost may have several addresses; the first one is served.
    first, *others = bound(host, port)
    for other in others:
        other.close()
    server = _Server(first.getsockname(), _Handler, bind_and_activate=False)
    # The server opens a socket of its own, in whose place the bound one is put.
    server.socket.close()
    server.socket = first
    server.server_activate()
    with suppress(KeyboardInterrupt), server:
        print(f"{EMBEDDED} at {url(host, server.socket.getsockname()[1])}/v1", flush=True)
        server.serve_forever()
