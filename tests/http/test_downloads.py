"""Test downloads from servers that redirect, cut, lie, or have no ranges."""

from __future__ import annotations

import socket

import pytest
from hostile_servers import DATA, DIGEST, Request, answer, ranged, serve

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    Corrupt,
    Forbidden,
    NotFound,
    ProtocolMismatch,
    Unavailable,
)
from cachesvc_client.wire.manifest.records import PackRecord
from cachesvc_client.wire.requests.protocol import (
    ResolvedRevision,
    pack_path,
)


def collect(chunks, into: bytearray) -> None:
    for chunk in chunks:
        into += chunk


def test_packs_of_another_origin_and_redirects_get_no_token():
    with (
        serve(ranged) as other,
        serve(lambda sock, _: answer(sock, None, 307, Location=other.url + "/pack?signature=x")) as server,
    ):
        remote = Remote(server.url, "secret")
        assert b"".join(remote.downloads.download("/v1/revisions/r/pack", 0, len(DATA))) == DATA
        assert (
            b"".join(remote.downloads.download(other.url + "/pack", 100, len(DATA), pack=DIGEST))
            == DATA[100:]
        )
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    for request in other.requests:
        assert "authorization" not in request.headers
        assert "if-range" not in request.headers
    assert other.requests[0].path == "/pack?signature=x"


def test_if_a_link_fails_the_registry_sends_the_rest():
    revision, pack = Digest.of(b"revision"), PackRecord(DIGEST, len(DATA))

    def refused(sock: socket.socket, _request: Request) -> bool:
        return answer(sock, None, 403)

    def cut_then_refused(sock: socket.socket, request: Request) -> bool:
        return answer(sock, None, 403) if "range" in request.headers else ranged(sock, request, most=70_000)

    def of_other_size(sock: socket.socket, request: Request) -> bool:
        return ranged(sock, request, data=DATA[:-1])

    for respond, tries, rest in (
        (refused, 1, None),
        (of_other_size, 1, None),
        (cut_then_refused, 2, f"bytes=70000-{len(DATA) - 1}"),
    ):
        with serve(respond) as store, serve(ranged) as server, Remote(server.url, "secret") as remote:
            resolved = ResolvedRevision(
                DIGEST, revision, "", DIGEST, len(DATA), store.url + "/pack?signature=x"
            )
            assert b"".join(remote.downloads.fetch(resolved, pack)) == DATA
        assert len(store.requests) == tries
        [own] = server.requests
        assert own.path == f"/v1/revisions/{revision}/pack"
        assert own.headers["authorization"] == "Bearer secret"
        assert own.headers.get("range") == rest


def test_the_registry_is_not_asked_for_bytes_that_the_store_sent():
    pack = PackRecord(DIGEST, len(DATA))
    with serve(ranged) as store, serve(ranged) as server, Remote(server.url, "secret") as remote:
        resolved = ResolvedRevision(DIGEST, DIGEST, "", DIGEST, len(DATA), store.url + "/pack")
        assert b"".join(remote.downloads.fetch(resolved, pack, 10)) == DATA[10:]
        own = ResolvedRevision(DIGEST, DIGEST, "", DIGEST, len(DATA), pack_path(DIGEST))
        assert b"".join(remote.downloads.fetch(own, pack)) == DATA
    assert len(store.requests) == len(server.requests) == 1


def test_a_redirect_loop_ends():
    with (
        serve(lambda sock, _: answer(sock, None, 307, Location="/again")) as server,
        pytest.raises(Unavailable, match="redirects"),
    ):
        list(Remote(server.url, "secret", retries=0).downloads.download("/pack", 0, 5))
    assert [request.headers.get("authorization") for request in server.requests] == [
        "Bearer secret",
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    "url", ["//evil.example/x", "file:///etc/passwd", "http://user:pw@host/", "http://a b/", ""]
)
def test_malformed_pack_urls_are_refused(url):
    with pytest.raises(ProtocolMismatch):
        list(Remote("http://127.0.0.1:9").downloads.download(url, 0, 5))


def test_a_download_starts_at_zero_or_at_an_offset():
    with serve(ranged) as server:
        remote = Remote(server.url)
        assert b"".join(remote.downloads.download("/pack", 0, len(DATA))) == DATA
        assert b"".join(remote.downloads.download("/pack", 1000, len(DATA), pack=DIGEST)) == DATA[1000:]
        assert list(remote.downloads.download("/pack", len(DATA), len(DATA))) == []
    assert "range" not in server.requests[0].headers
    assert server.requests[1].headers["range"] == f"bytes=1000-{len(DATA) - 1}"
    assert server.requests[1].headers["if-range"] == f'"{DIGEST}"'
    assert len(server.requests) == 2


def test_a_cut_download_continues_where_it_stopped():
    with serve(lambda sock, request: ranged(sock, request, most=300_000)) as server:
        assert b"".join(Remote(server.url).downloads.download("/pack", 0, len(DATA))) == DATA
    starts = [int(request.headers["range"][6:].split("-")[0]) for request in server.requests[1:]]
    assert starts == sorted(set(starts))
    assert starts


def test_a_download_without_any_bytes_gives_up():
    with serve(lambda sock, request: ranged(sock, request, most=0)) as server, pytest.raises(Unavailable):
        list(Remote(server.url).downloads.download("/pack", 0, len(DATA)))
    assert len(server.requests) == 3


def test_a_server_without_ranges_sends_the_whole_pack():
    with serve(lambda sock, _: answer(sock, raw=DATA)) as server:
        assert b"".join(Remote(server.url).downloads.download("/pack", 1000, len(DATA))) == DATA[1000:]


@pytest.mark.parametrize(
    "lie",
    [
        {"Content_Range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}"},
        {"Content_Range": f"bytes 1000-{len(DATA) - 1}/{len(DATA) * 2}"},
        {"Content_Range": "bytes */5"},
        {},
    ],
)
def test_wrong_ranges_are_refused(lie):
    with (
        serve(lambda sock, _: answer(sock, status=206, raw=DATA[1000:], **lie)) as server,
        pytest.raises(Corrupt),
    ):
        list(Remote(server.url).downloads.download("/pack", 1000, len(DATA)))


def test_more_or_fewer_bytes_than_promised_are_refused():
    for size in (len(DATA) - 1, len(DATA) + 1):
        with serve(ranged) as server, pytest.raises(Corrupt, match="expected"):
            list(Remote(server.url).downloads.download("/pack", 0, size))

    def more(sock, _):
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"%x\r\n%b\r\n" % (len(DATA), DATA) + b"3\r\nabc\r\n0\r\n\r\n")

    received = bytearray()
    with serve(more) as server, pytest.raises(Corrupt, match="more than"):
        collect(Remote(server.url).downloads.download("/pack", 0, len(DATA)), received)
    assert received == DATA  # The client received not one byte beyond the promised size.


def test_a_missing_pack_is_an_error():
    expired = serve(lambda sock, _: answer(sock, raw=b"<Error/>", status=403, api=None))
    with expired as other, pytest.raises(NotFound, match="resolve once more"):
        list(Remote("http://127.0.0.1:9").downloads.download(other.url + "/pack", 0, 5))
    error = {"error": {"code": "forbidden", "message": "no", "hint": ""}}
    with serve(lambda sock, _: answer(sock, error, 403)) as server, pytest.raises(Forbidden):
        list(Remote(server.url).downloads.download("/pack", 0, 5))


def test_an_abandoned_download_closes_its_connection():
    with serve(ranged) as server, Remote(server.url) as remote:
        stream = remote.downloads.download("/pack", 0, len(DATA))
        next(stream)
        stream.close()
        assert b"".join(remote.downloads.download("/pack", 0, len(DATA))) == DATA
    assert server.connections == 2
