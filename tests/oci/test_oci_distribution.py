"""Test the client of a registry with one that refuses, breaks off and lies."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from cachesvc.cli.oci.transfer import SendOptions, receive, send
from cachesvc.oci.credentials import Credentials, CredentialSource, find_credentials
from cachesvc.oci.descriptors import MAX_MANIFEST_BYTES, OCI_INDEX, Descriptor, index
from cachesvc.oci.distribution import Repository
from cachesvc.oci.reference import Reference
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    Forbidden,
    InvalidRequest,
    NotFound,
    ProtocolMismatch,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
    Untrusted,
)

from .bundles import config
from .lying_registry import Lie, LyingRegistry, answer

USER = CredentialSource(Credentials("ci", "secret"), "test")


def push(
    registry: LyingRegistry, bundle: Path, key: SigningKey, source: CredentialSource | None = None
) -> Any:
    repository = Repository.of(registry.reference(), source)
    return send(config(bundle.parent, key), str(bundle), repository, "v1", "team/bert", SendOptions())


def pull(
    registry: LyingRegistry, folder: Path, key: SigningKey, source: CredentialSource | None = None
) -> Any:
    repository = Repository.of(registry.reference(), source)
    return receive(config(folder, key), repository, "v1", folder / "into", None, str(registry.reference()))


def matching(method: str, text: str, act: Lie) -> Lie:
    """Return a lie about the requests of a method whose path has a text."""
    return lambda handler: handler.command == method and text in handler.path and act(handler)


def test_a_bundle_goes_and_comes_and_a_second_push_sends_no_blob(
    liar: LyingRegistry, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    push(liar, bundle, key)
    [row] = pull(liar, tmp_path, key)
    assert row.path.read_bytes() == bundle.read_bytes()
    sent = len(liar.asked("POST"))
    push(liar, bundle, key)
    assert sent == 3 and len(liar.asked("POST")) == sent


def test_a_push_that_broke_off_goes_on_where_it_was(
    liar: LyingRegistry, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    manifests = matching("PUT", "/manifests/", lambda handler: answer(handler, 403))
    liar.lies.append(manifests)
    with pytest.raises(Forbidden, match=r"status 403 .*may not do this"):
        push(liar, bundle, key)
    blobs = len(liar.asked("POST"))
    assert not liar.manifests, "nothing is visible"
    liar.lies.remove(manifests)
    push(liar, bundle, key)
    assert len(liar.asked("POST")) == blobs
    assert pull(liar, tmp_path, key)


STATUSES: list[tuple[int, type[CacheSvcError]]] = [
    (401, ProtocolMismatch),
    (403, Forbidden),
    (404, NotFound),
    (413, TooLarge),
    (418, ProtocolMismatch),
    (429, TooMany),
    (500, Unavailable),
    (503, Unavailable),
    (302, ProtocolMismatch),
]


@pytest.mark.parametrize(("status", "error"), STATUSES)
def test_each_refusal_is_one_line_that_names_the_reference(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey, status: int, error: type[CacheSvcError]
) -> None:
    body = json.dumps({"errors": [{"code": "X", "message": "two\nlines\x1b[31m"}]}).encode()
    liar.lies.append(lambda handler: answer(handler, status, body))
    with pytest.raises(error) as caught:
        pull(liar, tmp_path, key)
    text = str(caught.value)
    assert text.isprintable() and liar.address in text and text.endswith(")")


def test_a_registry_that_is_not_there_is_named(tmp_path: Path, key: SigningKey) -> None:
    with pytest.raises(Unavailable, match=r"127.0.0.1:1: connection refused \(is the registry running"):
        pull(LyingRegistry(address="127.0.0.1:1"), tmp_path, key)


def test_an_oversized_manifest_and_html_are_refused(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey
) -> None:
    liar.manifests["v1"] = ("application/vnd.oci.image.manifest.v1+json", b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(TooLarge, match=f"more than the {MAX_MANIFEST_BYTES} bytes"):
        pull(liar, tmp_path, key)
    liar.manifests["v1"] = ("text/html", b"<html>a login page</html>")
    with pytest.raises(InvalidRequest, match="'text/html' is neither a manifest"):
        pull(liar, tmp_path, key)


def blob_path(registry: LyingRegistry, media_type: str) -> str:
    value = json.loads(registry.manifests["v1"][1])
    return next(row["digest"] for row in value["layers"] if row["mediaType"] == media_type)


PACK = "application/vnd.cachesvc.pack.v1"


def test_a_truncated_blob_is_refused(
    liar: LyingRegistry, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    push(liar, bundle, key)
    digest = blob_path(liar, PACK)
    short = liar.blobs[digest][:-1]
    liar.lies.append(matching("GET", f"/blobs/{digest}", lambda handler: answer(handler, 200, short)))
    with pytest.raises(Corrupt, match="bytes are offered"):
        pull(liar, tmp_path, key)
    assert not list(tmp_path.glob("into/*"))


def test_a_transfer_that_breaks_off_is_resumed(
    liar: LyingRegistry, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    push(liar, bundle, key)
    digest = blob_path(liar, PACK)
    whole = liar.blobs[digest]

    def cut(handler: BaseHTTPRequestHandler) -> bool:
        liar.lies.clear()
        return answer(handler, 200, whole[:1000], length=len(whole))

    liar.lies.append(matching("GET", f"/blobs/{digest}", cut))
    [row] = pull(liar, tmp_path, key)
    assert row.path.read_bytes() == bundle.read_bytes()
    assert len([path for path in liar.asked("GET") if digest in path]) == 2


def test_a_redirect_to_a_store_gets_no_credentials(
    liar: LyingRegistry, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    liar.lies.append(demand("Basic realm=x", USER.credentials.basic))  # type: ignore[union-attr]
    push(liar, bundle, key, USER)
    digest = blob_path(liar, PACK)
    liar.lies[:] = [
        matching("GET", "/elsewhere", lambda handler: answer(handler, 200, liar.blobs[digest])),
        matching(
            "GET", f"/blobs/{digest}", lambda handler: answer(handler, 307, Location="/elsewhere?sig=1")
        ),
        *liar.lies,
    ]
    pull(liar, tmp_path, key, USER)
    assert [who for _, path, who in liar.requests if "elsewhere" in path] == [None]


def demand(challenge: str, header: str) -> Lie:
    """Return a lie that refuses requests without a header of authorization."""

    def refuse(handler: BaseHTTPRequestHandler) -> bool:
        if handler.headers.get("Authorization") == header or "/token" in handler.path:
            return False
        return answer(handler, 401, b"{}", WWW_Authenticate=challenge)

    return refuse


def test_a_token_of_the_realm_opens_the_repository(
    liar: LyingRegistry, bundle: Path, key: SigningKey, tmp_path: Path
) -> None:
    challenge = f'Bearer realm="http://{liar.address}/token",service="reg",scope="repository:team/bert:pull"'
    token = json.dumps({"token": "t0k3n"}).encode()
    liar.lies += [
        demand(challenge, "Bearer t0k3n"),
        matching("GET", "/token", lambda handler: answer(handler, 200, token)),
    ]
    push(liar, bundle, key, USER)
    assert pull(liar, tmp_path, key, USER)
    [(path, who)] = {(path, who) for _, path, who in liar.requests if "/token" in path}
    assert path == "/token?service=reg&scope=repository%3Ateam%2Fbert%3Apull"
    assert who == "Basic " + base64.b64encode(b"ci:secret").decode()


@pytest.mark.parametrize("source", [None, USER])
@pytest.mark.parametrize("scheme", ["basic", "bearer"])
def test_wrong_credentials_and_none_are_one_line_with_what_to_do(
    liar: LyingRegistry, tmp_path: Path, key: SigningKey, source: CredentialSource | None, scheme: str
) -> None:
    bearer = f'Bearer realm="http://{liar.address}/token"'
    liar.lies += [
        demand("Basic realm=x" if scheme == "basic" else bearer, "nothing"),
        matching("GET", "/token", lambda handler: answer(handler, 401, b"{}")),
    ]
    with pytest.raises(Unauthenticated, match=f"docker login {liar.address}, or --username") as error:
        pull(liar, tmp_path, key, source)
    assert "secret" not in str(error.value)
    assert len(liar.requests) < 4, "credentials are not tried again and again"


@pytest.mark.parametrize(
    ("challenge", "answered", "error"),
    [
        ("", b"", ProtocolMismatch),
        ("Negotiate abc", b"", ProtocolMismatch),
        ('Bearer realm="file:///etc/passwd"', b"", ProtocolMismatch),
        ('Bearer realm="REALM"', b"no JSON", ProtocolMismatch),
        ('Bearer realm="REALM"', b'{"token": "two\\r\\nlines"}', ProtocolMismatch),
        ('Bearer realm="REALM"', b'{"token": 7}', ProtocolMismatch),
        ('Bearer realm="http://169.254.169.254/latest"', b"", Untrusted),
        ('Bearer realm="http://10.255.255.1/token"', b"", Untrusted),
    ],
)
def test_a_hostile_challenge_leads_nowhere(
    liar: LyingRegistry,
    tmp_path: Path,
    key: SigningKey,
    challenge: str,
    answered: bytes,
    error: type[CacheSvcError],
) -> None:
    challenge = challenge.replace("REALM", f"http://{liar.address}/token")
    liar.lies += [
        demand(challenge, "nothing"),
        matching("GET", "/token", lambda handler: answer(handler, 200, answered)),
    ]
    with pytest.raises(error):
        pull(liar, tmp_path, key, USER)


def test_credentials_do_not_go_over_plain_http_to_another_machine() -> None:
    """The name leads to loopback here, and is not loopback's."""
    from cachesvc.oci.authorization import Authorization

    repository = Repository.of(Reference.parse("registry.test:5000/a"), USER, plain_http=True)
    authorization: Authorization = repository.calls._authorization
    with pytest.raises(InvalidRequest, match="plain HTTP"):
        authorization.answer("Basic realm=x")
    assert authorization.header is None


def test_an_upload_that_leads_elsewhere_is_refused(
    liar: LyingRegistry, bundle: Path, key: SigningKey
) -> None:
    liar.lies.append(
        matching("POST", "", lambda handler: answer(handler, 202, Location="http://127.0.0.1:9/upload"))
    )
    with pytest.raises(ProtocolMismatch, match="credentials do not follow"):
        push(liar, bundle, key)


def test_the_registrys_own_list_of_referrers_is_read(liar: LyingRegistry) -> None:
    subject = Descriptor("a/b", Digest.of(b"subject"), 7)
    row = Descriptor("application/vnd.oci.image.manifest.v1+json", Digest.of(b"r"), 1, "a/type")
    rows = index([row]).data
    liar.lies.append(
        matching(
            "GET",
            f"/referrers/{subject.digest}",
            lambda handler: answer(handler, 200, rows, Content_Type=OCI_INDEX),
        )
    )
    assert Repository.of(liar.reference()).referrers(subject) == [row]
    liar.lies.clear()
    assert Repository.of(liar.reference()).referrers(subject) == []


def docker_config(folder: Path, value: object) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return {"DOCKER_CONFIG": str(folder)}


AUTH = base64.b64encode(b"ci:se:cret").decode()


@pytest.mark.parametrize(
    "name", ["example.com:5000", "https://example.com:5000", "https://example.com:5000/v2/"]
)
def test_credentials_are_read_where_docker_keeps_them(tmp_path: Path, name: str) -> None:
    environ = docker_config(tmp_path / "docker", {"auths": {"other.com": {}, name: {"auth": AUTH}}})
    assert find_credentials("example.com:5000", environ).credentials == Credentials("ci", "se:cret")
    assert find_credentials("example.com", environ).credentials is None
    home = docker_config(tmp_path / ".docker", {"auths": {name: {"auth": AUTH}}}) and {"HOME": str(tmp_path)}
    assert find_credentials("example.com:5000", home).credentials == Credentials("ci", "se:cret")
    assert find_credentials("example.com:5000", {}).origin == "no docker configuration"


def test_a_credential_helper_is_not_run_and_is_named(tmp_path: Path) -> None:
    for value in ({"credsStore": "desktop"}, {"credHelpers": {"example.com": "ecr-login"}}):
        source = find_credentials("example.com", docker_config(tmp_path / "docker", value))
        assert source.credentials is None and "credential helper" in source.origin


@pytest.mark.parametrize("auth", ["no base64", base64.b64encode(b"no colon").decode(), 7])
def test_a_malformed_configuration_is_named_and_shows_no_secret(tmp_path: Path, auth: object) -> None:
    environ = docker_config(tmp_path / "docker", {"auths": {"example.com": {"auth": auth}}})
    with pytest.raises(InvalidRequest, match=r"config.json: auths: example.com.*docker login") as error:
        find_credentials("example.com", environ)
    assert str(auth) not in str(error.value).replace("config.json", "") or auth == 7
    with pytest.raises(InvalidRequest, match=r"config\.json: not JSON"):
        find_credentials("example.com", docker_config(tmp_path / "docker", "{"))
    assert "secret" not in repr(USER) and "secret" not in repr(USER.credentials)
