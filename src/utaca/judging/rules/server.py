"""The rules over HTTP by the OpenAI protocol: ``utaca serve-rules``."""

from __future__ import annotations

import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from utaca.errors import UserError
from utaca.judging.rules.tasks import complete
from utaca.settings.checks import EMBEDDED


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": EMBEDDED, "object": "model", "created": 0, "owned_by": "utaca"}]}
        if self.path.partition("?")[0] != "/v1/models":
            return self._refuse(404, f"there is no {self.path}")
        self._send(200, listed)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0] != "/v1/chat/completions":
            return self._refuse(404, f"there is no {self.path}")
        try:
            request = json.loads(body)
            if request["model"] != EMBEDDED:
                return self._refuse(404, f"the model {request['model']} does not exist; this server has {EMBEDDED}")
            if request.get("stream"):
                return self._refuse(400, "answers are not streamed")
            completion = complete(request["messages"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._refuse(400, "the body must be a JSON object with model and messages")
        self._send(200, completion)

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged."""


def server(host: str, port: int) -> ThreadingHTTPServer:
    """A bound server, its ``serve_forever`` not yet running; port 0 takes a free one."""
    try:
        return ThreadingHTTPServer((host, port), _Handler)
    except OSError as fault:
        raise UserError(f"--host {host} --port {port} cannot be listened on ({fault.strerror})") from fault


def run(host: str, port: int) -> None:
    """Serve until the user interrupts."""
    with suppress(KeyboardInterrupt), server(host, port) as running:
        print(f"{EMBEDDED} at http://{host}:{running.server_address[1]}/v1", flush=True)
        running.serve_forever()
