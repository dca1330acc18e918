"""Test ``cachesvc serve`` over TLS, with the client that services use, and through a renewal of the
certificate."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from registry_making import Server
from test_serve import failed_start

from cachesvc.cli.serving.tls import Certificate
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import InvalidRequest, Untrusted
from tests.services.certificate import certificate


def served_serial(url: str) -> int:
    host, port = url.removeprefix("https://").split(":")
    return x509.load_pem_x509_certificate(
        ssl.get_server_certificate((host, int(port))).encode()
    ).serial_number


def test_only_clients_that_trust_the_certificate_connect(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, private = certificate(tmp_path)
    own_server.env = {
        "CACHESVC_SERVER_TLS_CERTIFICATE": str(chain),
        "CACHESVC_SERVER_TLS_KEY": str(private),
    }
    server = own_server.start()
    assert server.url.startswith("https://127.0.0.1:")
    with Remote(server.url, server.token) as remote, pytest.raises(Untrusted, match="SSL_CERT_FILE"):
        remote.whoami()
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    with Remote(server.url, server.token) as remote:
        assert remote.whoami().role == "admin"
    assert server.end() == []


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, own_server: Server) -> None:
    chain, private = certificate(tmp_path, serial=1)
    own_server.env = {
        "CACHESVC_SERVER_TLS_CERTIFICATE": str(chain),
        "CACHESVC_SERVER_TLS_KEY": str(private),
    }
    server = own_server.start()
    assert served_serial(server.url) == 1
    other_chain, other_private = certificate(tmp_path, "other", serial=2)
    other_chain.replace(chain)  # The renewal is half done: certificate and key do not belong together.
    time.sleep(11)
    assert served_serial(server.url) == 1
    other_private.replace(private)
    deadline = time.monotonic() + 30
    while served_serial(server.url) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    half, *_, whole = server.end()
    assert "the certificate from before stays" in half
    assert f"loaded the certificate in {chain}" in whole


@pytest.mark.parametrize("wrong", ["absent", "no certificate", "another key"])
def test_invalid_certificate_files_are_refused_first(tmp_path: Path, wrong: str) -> None:
    chain, private = certificate(tmp_path)
    if wrong == "absent":
        private.unlink()
    elif wrong == "no certificate":
        chain.write_text("hello")
    else:
        private = certificate(tmp_path, "other")[1]
    with pytest.raises(InvalidRequest, match="tls_certificate"):
        Certificate(chain, private)
    variables = {"CACHESVC_SERVER_TLS_CERTIFICATE": str(chain), "CACHESVC_SERVER_TLS_KEY": str(private)}
    status, line = failed_start(tmp_path / "data", **variables)
    assert status == 2 and str(chain) in line
    assert not (tmp_path / "data").exists()
