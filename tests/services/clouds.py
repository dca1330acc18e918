"""What the emulators of clouds share: their folders, and servers before them that a test makes lie."""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

STORES = Path(__file__).parents[2] / ".torch" / "stores"
Headers = dict[str, str]
Change = Callable[[str, Headers, bytes], tuple[Headers, bytes]]


def installed(store: str) -> Path:
    """Return the folder of what the tests of a store need, its packages in ``site``, or skip the test; `make
    test-stores` installs it."""
    if not (STORES / store / ".ready").exists():
        message = f"no emulator here: make test-stores STORES={store} installs it"
        pytest.fail(message) if os.environ.get("CACHESVC_TEST_STORES") == "required" else pytest.skip(message)
    return STORES / store


@dataclass
class Lies:
    """What the relay changes. Each function gets the method, the headers and the body, and returns both, or
    raises OSError: then the relay hangs up. ``cut``: it does so after so many bytes of an answer."""

    asked: Change = lambda _, headers, body: (headers, body)
    answered: Change = lambda _, headers, body: (headers, body)
    cut: int | None = None


def send(
    handler: BaseHTTPRequestHandler, status: int, headers: Headers, body: bytes, cut: int | None = None
) -> None:
    handler.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            handler.send_header(name, value)
    length = headers.get("content-length", "0") if handler.command == "HEAD" else str(len(body))
    handler.send_header("Content-Length", length)
    handler.end_headers()
    handler.wfile.write(body[:cut])
    if cut is not None and cut < len(body):
        handler.close_connection = True


def server_context(chain: Path, private: Path) -> ssl.SSLContext:
    """Return the TLS of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, private)
    return context


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
