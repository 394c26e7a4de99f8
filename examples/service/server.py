"""HTTP in front of the engine: POST /v1/generate {"prompt": text, "max_tokens": n}, GET /healthz."""

from __future__ import annotations

import dataclasses
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .engine import Engine, Overloaded

MAX_BODY_BYTES = 1 << 20
MAX_NEW_TOKENS = 256


class Server(ThreadingHTTPServer):
    """One thread a connection; the engine's workers do the arithmetic."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], engine: Engine) -> None:
        super().__init__(address, Handler)
        self.engine = engine


class Handler(BaseHTTPRequestHandler):
    """A request. Anything malformed is answered with 400, a full queue with 503."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one segment a response, not one a header
    server: Server

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(200, {"status": "ok"})
        else:
            self._answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        if self.path != "/v1/generate":
            self.close_connection = True
            self._answer(404, {"error": "no such path"})
            return
        try:
            prompt, new_tokens = self._parse()
        except (ValueError, RecursionError) as error:
            self.close_connection = True
            self._answer(400, {"error": str(error)})
            return
        try:
            future = self.server.engine.submit(prompt, new_tokens)
        except Overloaded:
            self._answer(503, {"error": "the queue is full"})
            return
        self._answer(200, dataclasses.asdict(future.result()))

    def _parse(self) -> tuple[str, int]:
        length = int(self.headers.get("Content-Length", "-1"))
        if not 0 <= length <= MAX_BODY_BYTES:
            raise ValueError(f"Content-Length must be given, and at most {MAX_BODY_BYTES}")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise ValueError("the body must be a JSON object")
        prompt, new_tokens = body.get("prompt"), body.get("max_tokens", 16)
        if not isinstance(prompt, str):
            raise ValueError("prompt must be a string")
        if not isinstance(new_tokens, int) or not 1 <= new_tokens <= MAX_NEW_TOKENS:
            raise ValueError(f"max_tokens must be an integer from 1 to {MAX_NEW_TOKENS}")
        return prompt, new_tokens

    def _answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line a request would only be noise here."""
