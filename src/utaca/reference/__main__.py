"""Serve the reference model over HTTP: ``python -m utaca.reference --port 8000``."""

from __future__ import annotations

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from utaca.errors import UserError
from utaca.reference.app import MODEL, respond
from utaca.terminal import print_any_letter


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = respond(self.command, self.path.partition("?")[0], body)
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


def main() -> None:
    print_any_letter()
    parser = argparse.ArgumentParser(prog="python -m utaca.reference", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0: a free one (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        with server(arguments.host, arguments.port) as running:
            print(f"{MODEL} at http://{arguments.host}:{running.server_address[1]}/v1", flush=True)
            running.serve_forever()
    except UserError as fault:
        print(fault, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
