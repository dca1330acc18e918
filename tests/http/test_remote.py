"""Tests ``Remote`` against servers that are slow, broken, lying, or no registries."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time

import pytest
from hostile_servers import INFO, Request, answer, serve

from cachesvc_client.http import breaker, connection
from cachesvc_client.http.registry import Remote, parse_resolved
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    Forbidden,
    HeadConflict,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Untrusted,
)
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.protocol import (
    CommitRequest,
    InfoAnswer,
    NameSummary,
    ResolvedRevision,
    ResolveRequest,
    UploadAnswer,
    UploadRequest,
    pack_path,
)
from cachesvc_client.wire.records import PackRecord

NAME = Name.parse("team/bert")
DATA = bytes(range(256)) * 4096
DIGEST = Digest.of(DATA)


@pytest.fixture(autouse=True)
def no_proxy_and_short_pauses(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def resolve_request() -> ResolveRequest:
    return ResolveRequest(NAME.namespace, NAME.name, {"torch": "2.13.0+cpu"})


def collect(chunks, into: bytearray) -> None:
    for chunk in chunks:
        into += chunk


def upload() -> UploadAnswer:
    return UploadAnswer("u1", "/v1/uploads/u1/pack", 2_000_000_000)


def ranged(
    sock: socket.socket, request: Request, data: bytes = DATA, most: int | None = None, **headers: str
) -> bool:
    """Makes a file server that honours ranges; it sends at most ``most`` bytes and then cuts the
    connection."""
    start, status = 0, 200
    if "range" in request.headers:
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start, status = int(first), 206
        headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
    part = data[start:]
    answer(sock, status=status, raw=part[:most], length=len(part), **headers)
    return most is None or most >= len(part)


# Calls.


def test_keeps_the_connection_and_sends_token_and_version():
    with serve(lambda sock, _: answer(sock, INFO)) as server, Remote(server.url, "secret") as remote:
        assert remote.info() == InfoAnswer("cachesvc", "0.1.0", 1)
        remote.info()
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer secret"] * 2
    assert server.requests[0].headers["x-cachesvc-api"] == "1"
    assert server.connections == 1


def test_a_prefix_is_kept():
    with serve(lambda sock, _: answer(sock, INFO)) as server, Remote(server.url + "/cache/") as remote:
        remote.info()
    assert server.requests[0].path == "/cache/v1/info"


def test_resolve_gives_the_raw_bytes_and_their_record():
    with serve(lambda sock, _: answer(sock, {"revisions": [], "tag": "latest"})) as server:
        raw = Remote(server.url).resolve_bytes(resolve_request())
    assert parse_resolved(raw).tag == "latest"
    assert b'"torch":"2.13.0+cpu"' in server.requests[0].body


def test_listings():
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
        return False  # closes without having said so

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
        Remote(server.url).commit("u1", CommitRequest("{}"))
    error["error"]["code"] = "unauthenticated"
    with serve(lambda sock, _: answer(sock, error, 401)) as server, pytest.raises(Unauthenticated):
        Remote(server.url).whoami()
    assert len(server.requests) == 1


def test_retries_what_may_be_retried():
    def twice_down(sock, request):
        return answer(sock, None, 503, api=None) if request.number < 2 else answer(sock, INFO)

    with serve(twice_down) as server:
        assert Remote(server.url).info().api == 1
    with serve(twice_down) as server, pytest.raises(Unavailable, match="503"):
        Remote(server.url).begin_upload(UploadRequest(NAME.namespace, NAME.name, 5))
    assert len(server.requests) == 1


def test_retry_after_is_honoured_within_the_deadline():
    with (
        serve(lambda sock, _: answer(sock, None, 429, Retry_After="3")) as server,
        pytest.raises(Unavailable),
    ):
        Remote(server.url, timeout=1.0).info()
    assert len(server.requests) == 1  # three seconds are more than the call has


def test_the_breaker_opens_and_lets_one_try_through(monkeypatch):
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


def test_no_registry():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unavailable, match="refused"):
        Remote(f"http://127.0.0.1:{port}").info()
    with pytest.raises(Unavailable, match="not known"):
        Remote("http://registry.invalid", timeout=5).info()


@pytest.mark.parametrize(
    "drip", [b"", b"H", b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"]
)
def test_one_deadline_for_a_whole_call_however_it_drips(drip):
    """Sends single bytes, each of which would renew an ordinary socket timeout."""

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


def test_a_deadline_that_is_over_sends_nothing():
    with serve(lambda sock, _: answer(sock, INFO)) as server, pytest.raises(Unavailable):
        Remote(server.url).info(deadline=time.monotonic() - 1)
    assert not server.requests


# Somebody else's, or lying.


def test_no_registry_at_all():
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


@pytest.mark.parametrize(
    ("version", "fix"), [("2", "upgrade cachesvc-client"), ("0", "upgrade the registry")]
)
def test_another_version(version, fix):
    with (
        serve(lambda sock, _: answer(sock, INFO, api=version)) as server,
        pytest.raises(ProtocolMismatch, match=fix),
    ):
        Remote(server.url).info()


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"api": NaN}', b'{"api":1,"api":1}', b"[" * 100_000, b'{"service":1}']
)
def test_answers_that_are_no_records(raw):
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


def test_too_much():
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


def test_no_token_over_plain_http_to_another_machine():
    with pytest.raises(InvalidRequest, match="plain HTTP"):
        Remote("http://registry.example", "secret")
    Remote("http://registry.example")
    Remote("https://registry.example", "secret")


def test_no_token_to_a_loopback_name_that_leads_elsewhere(monkeypatch):
    """Distrusts the name: a hosts file or a name server may say anything about localhost."""
    with serve(lambda sock, _: answer(sock, INFO)) as server:
        monkeypatch.setattr(connection._Connection, "to_loopback", lambda _: False)
        with pytest.raises(InvalidRequest, match="not loopback"):
            Remote(f"http://localhost:{server.port}", "secret").info()
    assert not server.requests


@pytest.mark.parametrize("token", ["two words", "line\nX-Injected: 1", "ü"])
def test_a_malformed_token_is_not_shown(token):
    with pytest.raises(InvalidRequest) as caught:
        Remote("https://registry.example", token)
    assert token not in str(caught.value)


def test_calls_do_not_follow_redirects():
    with (
        serve(lambda sock, _: answer(sock, INFO)) as other,
        serve(lambda sock, _: answer(sock, None, 307, Location=other.url + "/v1/info")) as server,
        pytest.raises(ProtocolMismatch, match="redirects to"),
    ):
        Remote(server.url, "secret").info()
    assert not other.requests


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


def test_where_a_link_fails_the_registry_gives_the_rest():
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


def test_the_registry_is_not_asked_for_what_the_store_gave():
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
def test_pack_urls_that_are_none(url):
    with pytest.raises(ProtocolMismatch):
        list(Remote("http://127.0.0.1:9").downloads.download(url, 0, 5))


def test_an_upload_goes_to_the_registry_only(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(DATA)
    with pytest.raises(ProtocolMismatch, match="registry itself"):
        Remote("http://127.0.0.1:9", "secret").put_pack(
            UploadAnswer("u", "http://evil.example/x", 1), pack, len(DATA)
        )


# Packs.


def test_download_all_and_from_an_offset():
    with serve(ranged) as server:
        remote = Remote(server.url)
        assert b"".join(remote.downloads.download("/pack", 0, len(DATA))) == DATA
        assert b"".join(remote.downloads.download("/pack", 1000, len(DATA), pack=DIGEST)) == DATA[1000:]
        assert list(remote.downloads.download("/pack", len(DATA), len(DATA))) == []
    assert "range" not in server.requests[0].headers
    assert server.requests[1].headers["range"] == f"bytes=1000-{len(DATA) - 1}"
    assert server.requests[1].headers["if-range"] == f'"{DIGEST}"'
    assert len(server.requests) == 2


def test_a_cut_download_goes_on_where_it_stopped():
    with serve(lambda sock, request: ranged(sock, request, most=300_000)) as server:
        assert b"".join(Remote(server.url).downloads.download("/pack", 0, len(DATA))) == DATA
    starts = [int(request.headers["range"][6:].split("-")[0]) for request in server.requests[1:]]
    assert starts == sorted(set(starts))
    assert starts


def test_a_download_that_brings_nothing_gives_up():
    with serve(lambda sock, request: ranged(sock, request, most=0)) as server, pytest.raises(Unavailable):
        list(Remote(server.url).downloads.download("/pack", 0, len(DATA)))
    assert len(server.requests) == 3


def test_a_server_without_ranges():
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


def test_more_or_less_than_was_promised_is_refused():
    for size in (len(DATA) - 1, len(DATA) + 1):
        with serve(ranged) as server, pytest.raises(Corrupt, match="expected"):
            list(Remote(server.url).downloads.download("/pack", 0, size))

    def more(sock, _):
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"%x\r\n%b\r\n" % (len(DATA), DATA) + b"3\r\nabc\r\n0\r\n\r\n")

    received = bytearray()
    with serve(more) as server, pytest.raises(Corrupt, match="more than"):
        collect(Remote(server.url).downloads.download("/pack", 0, len(DATA)), received)
    assert received == DATA  # and not one byte of what came after


def test_a_pack_that_is_gone():
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


# Uploads.


def test_put_pack_streams_the_file(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(b"head" + DATA)
    stored = {"pack": DIGEST, "size": len(DATA)}
    with serve(lambda sock, _: answer(sock, stored)) as server, open(pack, "rb") as file:
        file.seek(4)
        assert Remote(server.url, "secret").put_pack(upload(), file, len(DATA)).pack == DIGEST
    assert server.requests[0].body == DATA
    assert server.requests[0].headers["content-length"] == str(len(DATA))
    assert "transfer-encoding" not in server.requests[0].headers


def test_a_refusal_during_an_upload_is_heard(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(b"\0" * (32 << 20))
    error = {"error": {"code": "too_large", "message": "more than the lease", "hint": ""}}

    def refuse(sock, _):
        answer(sock, error, 413, Connection="close")
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):  # as nginx does, so that the answer is not lost to a reset
            pass

    with serve(refuse, body=False) as server, pytest.raises(TooLarge, match="more than the lease"):
        Remote(server.url).put_pack(upload(), pack, 32 << 20)


def test_a_file_that_shrinks_is_not_uploaded(tmp_path):
    pack = tmp_path / "pack"
    pack.write_bytes(DATA)
    with serve(lambda sock, _: answer(sock, {})) as server, pytest.raises(Corrupt, match="early"):
        Remote(server.url).put_pack(upload(), pack, len(DATA) + 1)
    with (
        pytest.raises(CacheSvcError, match="No such file"),
        serve(lambda sock, _: answer(sock, {})) as server,
    ):
        Remote(server.url).put_pack(upload(), tmp_path / "absent", 5)


def test_abort_of_what_is_gone_is_a_success():
    error = {"error": {"code": "not_found", "message": "no upload u/1", "hint": ""}}
    with serve(lambda sock, _: answer(sock, error, 404)) as server:
        Remote(server.url).abort("u/1")
    assert server.requests[0].path == "/v1/uploads/u%2F1"


# Proxies, TLS, forks.


def test_proxies_from_the_environment(monkeypatch):
    with serve(lambda sock, _: answer(sock, INFO)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
        assert Remote("http://registry.example:81").info().api == 1
        request = proxy.requests[0]
        assert request.path == "http://registry.example:81/v1/info"
        assert request.headers["host"] == "registry.example:81"
        assert request.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
        monkeypatch.setenv("no_proxy", "example")
        with pytest.raises(Unavailable):
            Remote("http://registry.example:81", timeout=3, retries=0).info()
        with serve(lambda sock, _: answer(sock, INFO)) as server:  # loopback is never proxied
            monkeypatch.delenv("no_proxy")
            Remote(server.url, "secret").info()
        assert len(proxy.requests) == 1


def test_https_through_a_proxy_that_refuses(monkeypatch):
    with serve(lambda sock, _: answer(sock, status=407)) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        with pytest.raises(Unavailable, match="407"):
            Remote("https://registry.example", "secret", retries=0).info()
    assert proxy.requests[0].method == "CONNECT"
    assert "authorization" not in proxy.requests[0].headers


@pytest.mark.parametrize("value", ["socks5://127.0.0.1:1", "http://:0", "http://host:99999"])
def test_proxies_that_are_none(monkeypatch, value):
    monkeypatch.setenv("https_proxy", value)
    with pytest.raises(InvalidRequest, match="https_proxy"):
        Remote("https://registry.example").info()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Makes a certificate for localhost, signed by itself."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    authority = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(authority.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_private_authorities(monkeypatch, certificate, variable):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with serve(
        lambda sock, _: answer(sock, INFO), wrap=lambda sock: context.wrap_socket(sock, server_side=True)
    ) as server:
        url = f"https://localhost:{server.port}"
        with pytest.raises(Untrusted, match="certificate"):
            Remote(url, "secret").info()
        monkeypatch.setenv(variable, str(certificate / "cert.pem"))
        with Remote(url, "secret") as remote:
            remote.info()
            remote.info()
        with pytest.raises(Untrusted):
            Remote(f"https://127.0.0.1:{server.port}", "secret").info()
    assert len(server.requests) == 2


def test_a_bundle_of_authorities_that_is_not_there(monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/absent/ca.pem")
    with pytest.raises(InvalidRequest, match="REQUESTS_CA_BUNDLE"):
        Remote("https://localhost:1").info()


def test_tls_to_a_plain_server():
    with serve(lambda sock, _: answer(sock, INFO)) as server, pytest.raises(Unavailable, match="TLS"):
        Remote(f"https://localhost:{server.port}", timeout=3, retries=0).info()


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


def test_many_threads():
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


def test_probe_tells_the_skew_of_the_clocks():
    def handler(sock, request):
        if request.path.endswith("whoami"):
            return answer(sock, {"token": "t1", "role": "write", "namespace": "team"})
        return answer(sock, INFO, Date="Thu, 01 Jan 2026 00:00:00 GMT")

    with serve(handler) as server:
        probe = Remote(server.url, "secret").probe()
    assert probe.whoami is not None
    assert probe.whoami.role == "write"
    assert probe.skew == pytest.approx(time.time() - 1767225600, abs=30)
