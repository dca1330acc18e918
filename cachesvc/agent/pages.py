"""Serves an agent's health and metrics over HTTP, on loopback unless the operator says otherwise."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator

from cachesvc_client.wire.errors import InvalidRequest

from .measures import Measures

STALLED_SECONDS = 1800.0
"""Seconds without a step of the loop, from which on the agent is not healthy: longer than any download that
still brings bytes, which is a step, and than any pause after failures."""
_MAX_REQUESTS = 8
"""Number of requests that are answered at the same time; further ones wait."""


class _Pages(http.server.BaseHTTPRequestHandler):
    """Answers GET of ``/metrics``, ``/healthz`` and ``/readyz``."""

    timeout = 5.0
    server_version = "cachesvc-node"
    sys_version = ""
    measures: Measures

    def do_GET(self) -> None:
        """Answers one request, and closes the connection."""
        measures = self.measures
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, measures.text(), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/healthz":
            alive = time.monotonic() - measures.alive_at < STALLED_SECONDS
            self._answer(200 if alive else 503, "ok\n" if alive else "the agent's loop does not go on\n")
        elif path == "/readyz":
            ready = measures.ready
            self._answer(200 if ready else 503, "ok\n" if ready else "nothing is listed yet\n")
        else:
            self._answer(404, "GET /metrics, /healthz or /readyz\n")

    def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: probes come every few seconds."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[_Pages]) -> None:
        self._places = threading.BoundedSemaphore(_MAX_REQUESTS)
        super().__init__(address, handler)

    def process_request(self, request: object, client_address: object) -> None:
        self._places.acquire()
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._places.release()

    def handle_error(self, *_: object) -> None:
        """Says nothing of a connection that breaks."""


@contextlib.contextmanager
def serve_pages(measures: Measures, host: str, port: int) -> Iterator[int]:
    """Serves the pages for the length of the block; yields the port. Raises ``InvalidRequest`` for an address
    at which this process cannot listen."""
    handler = type("Pages", (_Pages,), {"measures": measures})
    try:
        server = _Server((host, port), handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"--listen {host}:{port}: {reason}", "name another address") from None
    thread = threading.Thread(target=server.serve_forever, name="cachesvc-node-pages", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
