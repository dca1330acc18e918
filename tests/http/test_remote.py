"""Test ``Remote`` against servers that are slow, broken, lying, or no registries."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from hostile_servers import INFO, answer, serve

from cachesvc_client.http import breaker, connection
from cachesvc_client.http.registry import Remote, parse_resolved
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.wire.errors import (
    HeadConflict,
    InvalidRequest,
    ProtocolMismatch,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import (
    CommitRequest,
    InfoAnswer,
    NameSummary,
    ResolveRequest,
    UploadRequest,
)

NAME = Name.parse("team/bert")


def resolve_request() -> ResolveRequest:
    return ResolveRequest(NAME.namespace, NAME.name, {"torch": "2.13.0+cpu"})


# Calls.


def test_a_client_keeps_its_connection_and_sends_token_and_version():
    with serve(lambda sock, _: answer(sock, INFO)) as server, Remote(server.url, "secret") as remote:
        assert remote.info() == InfoAnswer("cachesvc", "0.1.0", 1)
        remote.info()
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer secret"] * 2
    assert server.requests[0].headers["x-cachesvc-api"] == "1"
    assert server.connections == 1


def test_a_path_prefix_of_the_url_is_kept():
    with serve(lambda sock, _: answer(sock, INFO)) as server, Remote(server.url + "/cache/") as remote:
        remote.info()
    assert server.requests[0].path == "/cache/v1/info"


def test_resolve_returns_the_raw_bytes_and_their_record():
    with serve(lambda sock, _: answer(sock, {"revisions": [], "tag": "latest"})) as server:
        raw, _ = Remote(server.url).resolve_bytes(resolve_request())
    assert parse_resolved(raw).tag == "latest"
    assert b'"torch":"2.13.0+cpu"' in server.requests[0].body


@pytest.mark.parametrize(("sent", "least"), [("0", 0), ("3", 3), (None, 5), ("-1", 5), ("1e9", 5), ("٣", 5)])
def test_an_answer_is_as_old_as_the_registry_says(sent: str | None, least: int):
    """An answer of a registry that does not say it is as old as one may be."""
    headers = {} if sent is None else {"Age": sent}
    with serve(lambda sock, _: answer(sock, {"revisions": []}, **headers)) as server:
        _, age = Remote(server.url).resolve_bytes(resolve_request())
    assert least <= age < least + 1


def test_listings_are_read_as_records():
    row = {"namespace": "team", "name": "bert", "tags": ["latest"], "entries": 1, "bytes": 5}
    with serve(lambda sock, _: answer(sock, [row])) as server:
        (summary,) = Remote(server.url).rows("/v1/namespaces/team/names", NameSummary)
    assert summary.name == "bert"
    with (
        serve(lambda sock, _: answer(sock, [{"namespace": "team"}])) as server,
        pytest.raises(ProtocolMismatch, match="row 0"),
    ):
        Remote(server.url).rows("/v1/namespaces/team/names", NameSummary)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced():
    def once(sock, _):
        answer(sock, INFO)
        return False  # The server closes without announcing it.

    with serve(once) as server, Remote(server.url, retries=0) as remote:
        for _ in range(3):
            assert remote.info().api == 1
    assert server.connections == 3


def test_errors_of_the_registry_are_raised_as_they_are():
    error = {"error": {"code": "head_conflict", "message": "the head is another", "hint": "publish again"}}
    with (
        serve(lambda sock, _: answer(sock, error, 409)) as server,
        pytest.raises(HeadConflict, match="publish again"),
    ):
        Uploads(Remote(server.url)).commit("u1", CommitRequest("{}"))
    error["error"]["code"] = "unauthenticated"
    with serve(lambda sock, _: answer(sock, error, 401)) as server, pytest.raises(Unauthenticated):
        Remote(server.url).whoami()
    assert len(server.requests) == 1


def test_safe_requests_are_repeated():
    def twice_down(sock, request):
        return answer(sock, None, 503, api=None) if request.number < 2 else answer(sock, INFO)

    with serve(twice_down) as server:
        assert Remote(server.url).info().api == 1
    with serve(twice_down) as server, pytest.raises(Unavailable, match="503"):
        Uploads(Remote(server.url)).begin(UploadRequest(NAME.namespace, NAME.name, 5))
    assert len(server.requests) == 1


def test_retry_after_is_honoured_within_the_deadline():
    with (
        serve(lambda sock, _: answer(sock, None, 429, Retry_After="3")) as server,
        pytest.raises(Unavailable),
    ):
        Remote(server.url, timeout=1.0).info()
    assert len(server.requests) == 1  # Three seconds are more than the call has.


def test_the_breaker_opens_and_lets_one_attempt_through(monkeypatch):
    down = threading.Event()
    down.set()

    def handler(sock, _):
        return answer(sock, None, 503, api=None) if down.is_set() else answer(sock, INFO)

    with serve(handler) as server:
        remote = Remote(server.url, retries=0)
        for _ in range(breaker.BREAKER_FAILURES):
            with pytest.raises(Unavailable, match="503"):
                remote.info()
        with pytest.raises(Unavailable, match="3 times in a row"):
            remote.info()
        assert len(server.requests) == 3
        monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + 60)
        down.clear()
        assert remote.info().api == 1
        assert remote.info().api == 1


# Slow, absent.


def test_an_absent_registry_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unavailable, match="refused"):
        Remote(f"http://127.0.0.1:{port}").info()
    with pytest.raises(Unavailable, match="not known"):
        Remote("http://registry.invalid", timeout=5).info()


@pytest.mark.parametrize(
    "drip", [b"", b"H", b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"]
)
def test_one_deadline_covers_a_whole_call_however_slowly_bytes_come(drip):
    """The server sends single bytes, each of which would renew an ordinary socket timeout."""

    def handler(sock, _):
        sock.sendall(drip)
        while drip:
            time.sleep(0.02)
            sock.sendall(b"a")
        time.sleep(30)

    with serve(handler) as server:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="in time"):
            Remote(server.url).info(deadline=began + 0.4)
        assert time.monotonic() - began < 5


def test_a_call_after_its_deadline_sends_nothing():
    with serve(lambda sock, _: answer(sock, INFO)) as server, pytest.raises(Unavailable):
        Remote(server.url).info(deadline=time.monotonic() - 1)
    assert not server.requests


# Servers that are no registries, or lie.


def test_a_server_that_is_no_registry_is_named_as_such():
    with (
        serve(lambda sock, _: answer(sock, raw=b"<html>", api=None)) as server,
        pytest.raises(ProtocolMismatch, match="CACHESVC_URL"),
    ):
        Remote(server.url).info()
    with (
        serve(lambda sock, _: sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as server,
        pytest.raises(ProtocolMismatch, match="HTTP"),
    ):
        Remote(server.url).info()


def test_the_line_for_what_a_proxy_answers_names_the_proxy_and_what_to_change():
    def too_large(sock, _):
        return answer(sock, raw=b"<html>413 Request Entity Too Large", status=413, api=None)

    with serve(too_large) as server, pytest.raises(TooLarge, match=r"a proxy .*client_max_body_size"):
        Uploads(Remote(server.url)).begin(UploadRequest(NAME.namespace, NAME.name, 5))
    assert len(server.requests) == 1
    for status in (502, 503, 504):

        def gone(sock, _, status=status):
            return answer(sock, raw=b"<html>Bad Gateway", status=status, api=None)

        with serve(gone) as server, pytest.raises(Unavailable, match=f"a proxy .*status {status}"):
            Remote(server.url).info()
        assert len(server.requests) == 3, "a proxy may choose another replica for the next try"


@pytest.mark.parametrize(
    ("version", "fix"), [("2", "upgrade cachesvc-client"), ("0", "upgrade the registry")]
)
def test_another_version_of_the_api_is_refused(version, fix):
    with (
        serve(lambda sock, _: answer(sock, INFO, api=version)) as server,
        pytest.raises(ProtocolMismatch, match=fix),
    ):
        Remote(server.url).info()


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"api": NaN}', b'{"api":1,"api":1}', b"[" * 100_000, b'{"service":1}']
)
def test_malformed_answers_are_refused(raw):
    with serve(lambda sock, _: answer(sock, raw=raw)) as server, pytest.raises(ProtocolMismatch):
        Remote(server.url).info()


def test_an_answer_cut_in_the_middle_is_retried():
    def handler(sock, request):
        if request.number == 0:
            answer(sock, raw=b'{"service":', length=500)
            return False
        return answer(sock, INFO)

    with serve(handler) as server:
        assert Remote(server.url).info().api == 1


def test_an_oversized_answer_is_refused():
    def endless(sock, _):
        sock.sendall(b"HTTP/1.1 200 OK\r\nX-Cachesvc-Api: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            sock.sendall(b"100000\r\n" + b" " * 0x100000 + b"\r\n")

    with serve(endless) as server, pytest.raises(TooLarge):
        Remote(server.url).info()
    with serve(lambda sock, _: answer(sock, raw=b"", length=1 << 40)) as server, pytest.raises(TooLarge):
        Remote(server.url).info()

    def headers(sock, _):
        sock.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            sock.sendall(b"X-A: b\r\n" * 1000)

    with serve(headers) as server, pytest.raises(ProtocolMismatch):
        Remote(server.url).info()


# The token.


def test_no_token_is_sent_over_plain_http_to_another_machine():
    with pytest.raises(InvalidRequest, match="plain HTTP"):
        Remote("http://registry.example", "secret")
    Remote("http://registry.example")
    Remote("https://registry.example", "secret")


def test_no_token_is_sent_to_a_loopback_name_that_leads_elsewhere(monkeypatch):
    """The client distrusts the name: a hosts file or a name server may map localhost to any address."""
    with serve(lambda sock, _: answer(sock, INFO)) as server:
        monkeypatch.setattr(connection._Connection, "to_loopback", lambda _: False)
        with pytest.raises(InvalidRequest, match="not loopback"):
            Remote(f"http://localhost:{server.port}", "secret").info()
    assert not server.requests


@pytest.mark.parametrize("token", ["two words", "line\nX-Injected: 1", "ü"])
def test_a_malformed_token_is_not_shown(token):
    with pytest.raises(InvalidRequest) as error:
        Remote("https://registry.example", token)
    assert token not in str(error.value)


def test_calls_do_not_follow_redirects():
    with (
        serve(lambda sock, _: answer(sock, INFO)) as other,
        serve(lambda sock, _: answer(sock, None, 307, Location=other.url + "/v1/info")) as server,
        pytest.raises(ProtocolMismatch, match="redirects to"),
    ):
        Remote(server.url, "secret").info()
    assert not other.requests


def test_a_forked_child_uses_connections_of_its_own():
    with serve(lambda sock, _: answer(sock, INFO)) as server, Remote(server.url) as remote:
        remote.info()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if remote.info().api == 1 else 1
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        remote.info()
    assert [request.connection for request in server.requests] == [0, 1, 0]


def test_many_threads_share_a_client():
    with serve(lambda sock, _: answer(sock, INFO)) as server, Remote(server.url) as remote:
        failed: list[Exception] = []

        def work() -> None:
            try:
                for _ in range(10):
                    remote.info()
            except Exception as error:  # noqa: BLE001
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(server.requests) == 80
    assert server.connections <= 16


def test_a_probe_returns_the_skew_of_the_clocks():
    def handler(sock, request):
        if request.path.endswith("whoami"):
            return answer(sock, {"token": "t1", "role": "write", "namespace": "team"})
        return answer(sock, INFO, Date="Thu, 01 Jan 2026 00:00:00 GMT")

    with serve(handler) as server:
        probe = Remote(server.url, "secret").probe()
    assert probe.whoami is not None
    assert probe.whoami.role == "write"
    assert probe.skew == pytest.approx(time.time() - 1767225600, abs=30)
