"""An OCI registry that is reached by HTTPS leads a client to plain HTTP: nothing is sent there."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cachesvc.cli.oci.transfer import SendOptions, receive, send
from cachesvc.oci.calls import Calls
from cachesvc.oci.credentials import Credentials, CredentialSource
from cachesvc.oci.distribution import Repository
from cachesvc.oci.reference import Reference
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.http.origin import Origin, parse_networks, split_url
from cachesvc_client.wire.errors import CacheSvcError, ProtocolMismatch, Untrusted
from tests.oci.bundles import config, make_bundle
from tests.oci.lying_registry import LyingRegistry, answer, lying_registry
from tests.services.certificate import certificate

USER = CredentialSource(Credentials("ci", "secret"), "the test")
TOKEN = json.dumps({"token": "t0k3n"}).encode()


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def secure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LyingRegistry]:
    """A registry behind HTTPS, with a certificate that the client trusts."""
    chain, private = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, private)
    with lying_registry(context) as registry:
        yield registry


@pytest.fixture
def plain() -> Iterator[LyingRegistry]:
    """What listens without TLS, and has whatever it is asked for."""
    with lying_registry() as registry:
        yield registry


def origin_of(registry: LyingRegistry) -> Origin:
    return split_url(f"https://{registry.address}", "the registry")[0]


def repository(registry: LyingRegistry, source: CredentialSource = USER) -> Repository:
    return Repository(Calls(origin_of(registry), "team/bert", source, parse_networks("127.0.0.0/8")))


def pull(registry: LyingRegistry, place: Path, key: SigningKey) -> object:
    return receive(config(place, key), repository(registry), "v1", place / "into", None, "image")


def push(registry: LyingRegistry, place: Path, key: SigningKey) -> None:
    bundle = make_bundle(place, key)
    send(config(place, key), str(bundle), repository(registry), "v1", "team/bert", SendOptions())


def move(part: str, where: Callable[[str], str], status: int = 307) -> Callable[..., bool]:
    """Return a lie that redirects what has a part in its path."""

    def lie(handler: BaseHTTPRequestHandler) -> bool:
        return part in handler.path and answer(handler, status, Location=where(handler.path))

    return lie


def refused(call: Callable[..., object], *arguments: object) -> CacheSvcError:
    with pytest.raises((Untrusted, ProtocolMismatch)) as error:
        call(*arguments)
    assert "secret" not in str(error.value) and len(str(error.value).splitlines()) <= 2
    return error.value


SPELLINGS = (
    "http://{plain}{path}",
    "HTTP://{plain}{path}",
    "hTtp://user:word@{plain}{path}",
    "\thttp://{plain}{path}",
    "http://{secure}{path}",
)
"""Ways to write an address of plain HTTP."""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_registry_moves_its_blobs_to_plain_http(
    secure: LyingRegistry, plain: LyingRegistry, tmp_path: Path, key: SigningKey, spelling: str
) -> None:
    push(secure, tmp_path, key)
    plain.blobs.update(secure.blobs)
    written = spelling.replace("{plain}", plain.address).replace("{secure}", secure.address)
    secure.lies.append(move("/blobs/", lambda path: written.replace("{path}", path)))
    refused(pull, secure, tmp_path, key)
    assert plain.requests == []
    assert not (tmp_path / "into").exists() or not any((tmp_path / "into").iterdir())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_registry_moves_its_manifests_to_plain_http(
    secure: LyingRegistry, plain: LyingRegistry, tmp_path: Path, key: SigningKey, status: int
) -> None:
    push(secure, tmp_path, key)
    plain.manifests.update(secure.manifests)
    secure.lies.append(move("/manifests/", lambda path: f"http://{plain.address}{path}", status))
    refused(pull, secure, tmp_path, key)
    assert plain.requests == []


def test_a_registry_moves_its_blobs_to_plain_http_by_a_second_step(
    secure: LyingRegistry, plain: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    push(secure, tmp_path, key)
    plain.blobs.update(secure.blobs)
    secure.lies += [
        move("/store/", lambda path: f"http://{plain.address}{path.replace('store', 'v2')}"),
        move("/blobs/", lambda path: path.replace("/v2/", "/store/")),
    ]
    refused(pull, secure, tmp_path, key)
    assert plain.requests == []


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_registry_names_a_realm_of_plain_http(
    secure: LyingRegistry, plain: LyingRegistry, tmp_path: Path, key: SigningKey, spelling: str
) -> None:
    written = spelling.replace("{plain}", plain.address).replace("{secure}", secure.address)
    realm = written.replace("{path}", "/token").strip()

    def demand(handler: BaseHTTPRequestHandler) -> bool:
        return answer(handler, 401, b"{}", WWW_Authenticate=f'Bearer realm="{realm}",service="s"')

    secure.lies.append(demand)
    plain.lies.append(lambda handler: answer(handler, 200, TOKEN))
    refused(pull, secure, tmp_path, key)
    refused(push, secure, tmp_path, key)
    assert plain.requests == []
    assert [who for _, _, who in secure.requests] == [None] * len(secure.requests)


def test_a_realm_moves_the_question_for_a_token_to_plain_http(
    secure: LyingRegistry, plain: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    """The realm itself is of HTTPS; what it redirects has the credentials."""

    def demand(handler: BaseHTTPRequestHandler) -> bool:
        challenge = f'Bearer realm="https://{secure.address}/token"'
        return "/token" not in handler.path and answer(handler, 401, b"{}", WWW_Authenticate=challenge)

    secure.lies += [demand, move("/token", lambda path: f"http://{plain.address}{path}")]
    plain.lies.append(lambda handler: answer(handler, 200, TOKEN))
    refused(pull, secure, tmp_path, key)
    assert plain.requests == []


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_registry_moves_an_upload_to_plain_http(
    secure: LyingRegistry, plain: LyingRegistry, tmp_path: Path, key: SigningKey, method: str
) -> None:
    """At its beginning, or where its bytes are sent."""

    def lie(handler: BaseHTTPRequestHandler) -> bool:
        where = f"http://{plain.address}{handler.path}"
        status = 202 if method == "POST" else 307
        return handler.command == method and answer(handler, status, Location=where)

    secure.lies.append(lie)
    refused(push, secure, tmp_path, key)
    assert plain.requests == []


def test_a_network_that_breaks_tls_has_no_client_try_plain_http(
    plain: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    """It answers at the port of HTTPS without TLS, and has all that is asked for."""
    with pytest.raises(CacheSvcError):
        pull(plain, tmp_path, key)
    assert plain.requests == []
    assert Reference.parse("registry.example/team/bert:v1").origin().scheme == "https"
