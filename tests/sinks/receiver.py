"""A web server on loopback that takes webhooks, as it is told to: it fails, waits, hangs, or takes them."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class Got(NamedTuple):
    """A request; `taken` is whether the answer was a 2xx."""

    path: str
    headers: dict[str, str]
    body: bytes
    taken: bool

    @property
    def events(self) -> list[dict[str, Any]]:
        content = json.loads(self.body)
        return content if isinstance(content, list) else [content]


class Answer(NamedTuple):
    status: int = 204
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False  # never answers


class Receiver:
    """Gives the answers that are in `script`, one by one, then 204 for ever. Use it as a context."""

    def __init__(self, *, wrap: Callable[[Any], Any] = lambda sock: sock) -> None:
        self.got: list[Got] = []
        self.script: deque[Answer] = deque()
        self._ending = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._take(self)

            def log_message(self, *_message: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.socket = wrap(self._server.socket)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def taken(self) -> list[dict[str, Any]]:
        """The events of all requests that were answered with 2xx."""
        return [event for got in list(self.got) if got.taken for event in got.events]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_problem: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        answer = self.script.popleft() if self.script else Answer()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.got.append(Got(request.path, headers, body, taken=200 <= answer.status < 300 and not answer.hang))
        if answer.hang:
            self._ending.wait()
            return
        request.send_response(answer.status)
        for name, value in answer.headers:
            request.send_header(name, value)
        if answer.status != 204:
            request.send_header("Content-Length", "2")
        request.end_headers()
        if answer.status != 204:
            request.wfile.write(b"no")
