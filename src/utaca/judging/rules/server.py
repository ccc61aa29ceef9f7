"""Serve the rules over HTTP by the OpenAI protocol: ``utaca serve-rules``."""

import json
import re
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from utaca.errors import UserError
from utaca.judging.rules import tasks
from utaca.settings.checks import EMBEDDED

_TASK = re.compile(r"```json\n(.*?)\n```", re.DOTALL)
_READY = '{"ready": true}'
_UNABLE = "I can only write a biography, label tokens or score an answer, given as a JSON block with its task."


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The chat completion for the last fenced task of the user's messages, or for a client that asks for readiness."""
    blocks = [block for each in messages if each["role"] == "user" for block in _TASK.findall(each["content"])]
    try:
        content = json.dumps(tasks.answer(json.loads(blocks[-1])), ensure_ascii=False)
    except (IndexError, ValueError, KeyError, TypeError):
        content = _READY if _READY in messages[-1]["content"] else _UNABLE
    read, written = sum(len(each["content"].split()) for each in messages), len(content.split())
    return {
        "id": "chatcmpl-rules", "object": "chat.completion", "created": 0, "model": EMBEDDED,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/v1/models":
            return self._send(404, _error(f"there is no {self.path}"))
        self._send(200, {"object": "list", "data": [{"id": EMBEDDED, "object": "model", "owned_by": "utaca"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0] != "/v1/chat/completions":
            return self._send(404, _error(f"there is no {self.path}"))
        try:
            request = json.loads(body)
            if request["model"] != EMBEDDED:
                return self._send(404, _error(f"there is no model {request['model']}; this server has {EMBEDDED}"))
            completion = complete(request["messages"])
        except (ValueError, LookupError, TypeError, AttributeError):
            return self._send(400, _error("the body must be a JSON object with model and messages"))
        self._send(200, completion)

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged."""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


def run(host: str, port: int) -> None:
    """Serve until interrupted (Ctrl-C); port 0 means any free port."""
    try:
        server = ThreadingHTTPServer((host, port), _Handler)
    except OSError as fault:
        raise UserError(f"--host {host} --port {port} cannot be listened on ({fault.strerror})") from fault
    with suppress(KeyboardInterrupt), server:
        print(f"{EMBEDDED} at http://{host}:{server.server_address[1]}/v1", flush=True)
        server.serve_forever()
