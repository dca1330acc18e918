"""Test proxies and TLS as the environment configures them."""

from __future__ import annotations

import socket
import ssl

import pytest
from hostile_servers import INFO, answer, serve

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import (
    CacheSvcError,
    InvalidRequest,
    Unavailable,
    Untrusted,
)
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import (
    ResolveRequest,
)

NAME = Name.parse("team/bert")


def resolve_request() -> ResolveRequest:
    return ResolveRequest(NAME.namespace, NAME.name, {"torch": "2.13.0+cpu"})


def test_proxies_come_from_the_environment(monkeypatch):
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
        with serve(lambda sock, _: answer(sock, INFO)) as server:  # Requests to loopback never use a proxy.
            monkeypatch.delenv("no_proxy")
            Remote(server.url, "secret").info()
        assert len(proxy.requests) == 1


def test_https_through_a_proxy_that_refuses_is_an_error(monkeypatch):
    with serve(lambda sock, _: answer(sock, status=407)) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        with pytest.raises(Unavailable, match="407"):
            Remote("https://registry.example", "secret", retries=0).info()
    assert proxy.requests[0].method == "CONNECT"
    assert "authorization" not in proxy.requests[0].headers


def failure(scheme: str = "https") -> CacheSvcError:
    """Ask a registry that is behind the proxy of the environment, and return why it failed."""
    with pytest.raises(CacheSvcError) as caught:
        Remote(f"{scheme}://registry.example", timeout=5, retries=0).info()
    return caught.value


@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "All_Proxy"])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("socks5h://user:s3cret?@127.0.0.1:1", "a SOCKS proxy"),
        ("SOCKS4://127.0.0.1:1", "a SOCKS proxy"),
        ("https://user:s3cret@127.0.0.1:1", "a proxy of https://"),
        ("quic://127.0.0.1:1", "a proxy of quic://"),
        ("http://:0", "no address of a proxy"),
        ("http://host:99999", "no address of a proxy"),
    ],
)
def test_a_proxy_that_is_not_spoken_to_is_named_with_its_variable(monkeypatch, variable, value, what):
    monkeypatch.setenv(variable, value)
    error = failure()
    assert isinstance(error, InvalidRequest) and str(error).startswith(f"{variable}: {what}")
    assert "set https_proxy to http://" in error.hint and "no_proxy" in error.hint
    assert "s3cret" not in str(error) + error.hint


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("general", [True, False])
def test_a_failure_of_the_proxy_is_not_blamed_on_the_registry(monkeypatch, scheme, general):
    variable = "ALL_PROXY" if general else f"{scheme.upper()}_PROXY"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = unused.getsockname()[1]
    for host, said in ((f"127.0.0.1:{closed}", "refused"), ("proxy.invalid:3128", "the name is not known")):
        monkeypatch.setenv(variable, host)
        error = failure(scheme)
        assert str(error).startswith(f"the proxy {host} of {variable}: ") and said in str(error)
        assert error.hint.endswith(f"check {variable}") and "CACHESVC_URL" not in error.hint


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_password_says_where_it_belongs(monkeypatch, scheme):
    with serve(lambda sock, _: answer(sock, status=407)) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(Unavailable, match="status 407") as caught:
            Remote(f"{scheme}://registry.example", retries=0).info()
    assert "user:password@" in caught.value.hint


def test_what_is_no_proxy_is_not_taken_for_the_registry(monkeypatch):
    """A port of SOCKS or TLS closes, or answers what is not HTTP, where it is asked for a tunnel."""
    for says in (b"", b"\x15\x03\x03\x00\x02\x02\x50" * 9):
        with serve(lambda sock, _, says=says: sock.sendall(says)) as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            assert str(failure()).startswith(f"the proxy 127.0.0.1:{proxy.port} of https_proxy: ")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Make a certificate for localhost that is signed by itself."""
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
def test_private_authorities_are_trusted_if_configured(monkeypatch, certificate, variable):
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


def test_a_missing_bundle_of_authorities_is_an_error(monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/absent/ca.pem")
    with pytest.raises(InvalidRequest, match="REQUESTS_CA_BUNDLE"):
        Remote("https://localhost:1").info()


def plain_answer(sock: socket.socket) -> socket.socket:
    """Answer the first bytes, as a plain server answers what is not HTTP.

    A reader of lines would wait for ever for the end of a TLS greeting in which, by chance, no byte is a line
    feed."""
    sock.recv(1)
    answer(sock, INFO)
    return sock


def test_tls_to_a_plain_server_is_an_error():
    with (
        serve(lambda sock, _: answer(sock, INFO), wrap=plain_answer) as server,
        pytest.raises(Unavailable, match="TLS"),
    ):
        Remote(f"https://localhost:{server.port}", timeout=3, retries=0).info()
