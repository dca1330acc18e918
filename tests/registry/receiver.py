"""Run an HTTP server on loopback that receives events, and answers as a test says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """``answer``: the status of the answers, or *silence*, *drip*, *endless*, *elsewhere* (a redirect to
    ``location``). ``requests``: (headers, body) of those that came, in order."""

    answer: int | str = 204
    location: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return the events that came."""
        return [json.loads(body) for _, body in self.requests]

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def wait(self, count: int, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while len(self.requests) < count and time.monotonic() < until:
            time.sleep(0.02)
        assert len(self.requests) >= count, self.types()


def verifies(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Return whether a delivery is signed with the secret, as Standard Webhooks has it. Written by its
    specification, and not with the code under test."""
    key = base64.b64decode(secret.split("_", 1)[1])
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split(" ")


@contextmanager
def running_receiver(**facts: Any) -> Iterator[Receiver]:
    receiver = Receiver(**facts)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            if receiver.answer == "silence":
                receiver.over.wait(30)
            elif receiver.answer == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not receiver.over.wait(0.05):
                    self.wfile.write(b"X-A: b\r\n")
            elif receiver.answer == "endless":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while not receiver.over.is_set():
                    self.wfile.write(b"x" * 65536)
            elif receiver.answer == "elsewhere":
                self.send_response(307)
                self.send_header("Location", receiver.location)
                self.end_headers()
            else:
                self.send_response(int(receiver.answer))
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # the sender has gone away, which is what some tests are about

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook?of=team"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.over.set()
        server.shutdown()
        server.server_close()
