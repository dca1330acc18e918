"""A registry of OCI images in this process, which lies as a test tells it."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from cachesvc.oci.reference import Reference
from cachesvc_client.wire.digest import Digest

Lie = Callable[[BaseHTTPRequestHandler], bool]
"""Answers a request and returns true, or returns false to leave it to the honest registry."""


@dataclass
class LyingRegistry:
    """The state of the registry. ``lies``: asked in order, before the honest answer."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    lies: list[Lie] = field(default_factory=list)
    address: str = ""

    def reference(self, name: str = "team/bert", tag: str = "v1") -> Reference:
        return Reference.parse(f"{self.address}/{name}:{tag}")

    def asked(self, method: str) -> list[str]:
        """Return the paths of the requests of a method."""
        return [path for one, path, _ in self.requests if one == method]


def answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    body: bytes = b"",
    *,
    length: int | None = None,
    **headers: str,
) -> bool:
    """Send an answer. ``length``: another one than the body's; then the connection ends."""
    handler.send_response(status)
    for name, text in headers.items():
        handler.send_header(name.replace("_", "-"), text)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
    if length is not None:
        handler.close_connection = True
    return True


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing: a client that refuses an answer hangs up."""


@contextmanager
def lying_registry(tls: ssl.SSLContext | None = None) -> Iterator[LyingRegistry]:
    """Serve an empty registry on loopback, with ``tls`` over HTTPS."""
    state = LyingRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_request(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.requests.append((self.command, self.path, self.headers.get("Authorization")))
            if not any(lie(self) for lie in state.lies):
                _honest(self, state)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = handle_request

        def log_message(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.address = f"127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()


def _honest(handler: BaseHTTPRequestHandler, state: LyingRegistry) -> None:
    parts = urlsplit(handler.path)
    kind, _, name = parts.path.rpartition("/")
    if handler.command == "POST":
        answer(handler, 202, Location=f"{parts.path}one")
    elif handler.command == "PUT" and kind.endswith("/uploads"):
        [digest] = parse_qs(parts.query)["digest"]
        good = Digest.of(handler.body) == digest
        if good:
            state.blobs[digest] = handler.body
        answer(handler, 201 if good else 400)
    elif handler.command == "PUT":
        digest = str(Digest.of(handler.body))
        for key in (name, digest):
            state.manifests[key] = (handler.headers["Content-Type"], handler.body)
        answer(handler, 201)
    elif kind.endswith("/manifests") and name in state.manifests:
        media_type, body = state.manifests[name]
        answer(handler, 200, body, Content_Type=media_type)
    elif kind.endswith("/blobs") and name in state.blobs:
        _send_blob(handler, state.blobs[name])
    else:
        answer(handler, 404, b'{"errors":[{"code":"UNKNOWN","message":"not here"}]}')


def _send_blob(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    part = handler.headers.get("Range")
    if not part:
        answer(handler, 200, body)
        return
    start, end = map(int, part.removeprefix("bytes=").split("-"))
    answer(handler, 206, body[start : end + 1], Content_Range=f"bytes {start}-{end}/{len(body)}")
