"""A relay of HTTP that passes every request to a registry, and whose answers a test changes."""

from __future__ import annotations

import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Alter = Callable[[str, str, bytes], tuple[int, bytes] | None]
"""Gets method, path and the true body; returns the status and the body that are sent instead; ``None``: the
true ones."""
HEADERS = ("content-type", "authorization", "x-cachesvc-api", "range", "if-range")


@dataclass
class LyingRelay:
    """Holds what a test may change: ``alter``, ``to``, the address of the registry, and ``moved``, where it
    sends those who ask for the end of a path. ``seen`` counts the
    requests by method and path; ``secrets`` are the tokens that came."""

    to: str
    alter: Alter = lambda *_: None
    url: str = ""
    moved: dict[str, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    secrets: set[str] = field(default_factory=set)


@contextmanager
def lying_relay(to: str) -> Iterator[LyingRelay]:
    """Run a relay on loopback for the length of the block."""
    relay = LyingRelay(to)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            relay.seen[f"{self.command} {self.path.partition('?')[0]}"] += 1
            relay.secrets.add(self.headers.get("authorization", "").removeprefix("Bearer "))
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            sent = {name: value for name in HEADERS if (value := self.headers.get(name)) is not None}
            place = urllib.parse.urlsplit(relay.to)
            connection = HTTPConnection(place.hostname or "", place.port or 80, timeout=60)
            try:
                connection.request(self.command, self.path, body, sent)
                response = connection.getresponse()
                status, data = response.status, response.read()
                headers = {name: value for name, value in response.getheaders() if name.startswith("x-")}
                headers["content-type"] = response.getheader("content-type", "application/json")
                for name in ("etag", "content-range"):
                    if (value := response.getheader(name)) is not None:
                        headers[name] = value
            except OSError:
                self.close_connection = True
                return
            finally:
                connection.close()
            place_of = next((relay.moved[end] for end in relay.moved if self.path.endswith(end)), None)
            if place_of is not None:
                status, headers = 307, {**headers, "location": place_of}
            status, data = relay.alter(self.command, self.path, data) or (status, data)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    relay.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)
