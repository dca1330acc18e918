"""A hostile registry answers without end, compressed, or with links that split a request: the client ends in
time with one line, and sends nothing elsewhere."""

from __future__ import annotations

import gzip
import resource
import socket
import time

import pytest

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.requests.protocol import ResolvedRevision
from tests.http.hostile_servers import DATA, DIGEST, Handler, Request, answer, ranged, serve

HEAD = b"HTTP/1.1 200 OK\r\nX-Cachesvc-Api: 1\r\nTransfer-Encoding: chunked\r\n\r\n"


def endless(first: bytes, part: bytes) -> Handler:
    """Return a handler that sends ``first`` and then ``part`` for ever."""

    def respond(sock: socket.socket, _: Request) -> None:
        sock.sendall(first)
        while True:
            sock.sendall(part)

    return respond


ENDLESS = {
    "interim answers": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "interim answers with headers": endless(b"", b"HTTP/1.1 100 Continue\r\nX-A: b\r\n\r\n" * 100),
    "extensions of chunks": endless(HEAD, b"1;" + b"a" * 60_000 + b"\r\n \r\n"),
    "trailers": endless(HEAD + b"2\r\n{}\r\n0\r\n", b"X-A: b\r\n" * 100),
    "a line": endless(b"HTTP/1.1 200 ", b"a" * 60_000),
}


@pytest.mark.parametrize("handler", ENDLESS.values(), ids=ENDLESS)
def test_a_registry_answers_without_end(handler: Handler) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with serve(handler) as server:
        began = time.monotonic()
        with pytest.raises(CacheSvcError):
            Remote(server.url).info(deadline=began + 0.5)
        assert time.monotonic() - began < 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_registry_sends_a_compressed_bomb() -> None:
    bomb = gzip.compress(bytes(50 << 20), 6)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        serve(lambda sock, _: answer(sock, raw=bomb, Content_Encoding="gzip")) as server,
        pytest.raises(CacheSvcError, match="not JSON"),
    ):
        Remote(server.url).info()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10


@pytest.mark.parametrize(
    "pause", ["999999999999", "nan", "-5", "1e400", "1" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"]
)
def test_a_registry_has_a_client_wait_for_ever(pause: str) -> None:
    error = {"error": {"code": "unavailable", "message": "later", "hint": ""}}
    with serve(lambda sock, _: answer(sock, error, 503, Retry_After=pause)) as server:
        began = time.monotonic()
        with pytest.raises(CacheSvcError, match=r"later|no answer in time"):
            Remote(server.url).info(deadline=began + 1)
        assert time.monotonic() - began < 4
        assert len(server.requests) < 20


LINKS = (
    "http://registry/a\r\nX-Evil: 1",
    "/v1/x\r\nX-Evil: 1",
    "http://registry\\@evil/",
    "http://user:password@127.0.0.1/",
    "http://127.0.0.1:99999/",
    "http://registry/\0",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ftp://127.0.0.1/x",
    "//127.0.0.1/x",
)


@pytest.mark.parametrize("link", LINKS)
def test_a_registry_s_link_splits_a_request_or_names_another_protocol(link: str) -> None:
    """No such request is sent; the error is one printable line without the password."""
    with serve(ranged) as server:
        resolved = ResolvedRevision(DIGEST, Digest.of(b"revision"), "", DIGEST, len(DATA), link)
        with pytest.raises(CacheSvcError) as raised:
            b"".join(Remote(server.url, "secret").downloads.fetch(resolved, PackRecord(DIGEST, len(DATA))))
        assert server.requests == []
    assert str(raised.value).isprintable() and "password" not in str(raised.value)
