"""Test tokens, roles, lanes and the form of every error, against a real server process."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from registry_making import FINGERPRINT, Api, Server, make, ok, refused

from cachesvc.door.declared import MAX_COMMIT_BYTES, MAX_RESOLVE_BYTES, MAX_SMALL_BYTES
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import from_wire
from cachesvc_client.wire.requests.reports import MAX_REPORT_BYTES


def new_token(server: Server, role: str, namespace: str = "team", **more: Any) -> Api:
    body = {"label": "test", "role": role, "namespace": namespace, **more}
    return server.api(ok(server.api().http.post("/v1/tokens", json=body))["secret"])


NONE = Digest.of(b"none")
ROUTES = [
    ("GET", "/v1/whoami"),
    ("GET", "/v1/heads"),
    ("GET", "/v1/trust/update"),
    ("GET", "/v1/trust/1.root.json"),
    ("GET", "/v1/trust/state"),
    ("PUT", "/v1/trust/root"),
    ("PUT", "/v1/trust/targets"),
    ("POST", "/v1/trust/keys"),
    ("POST", "/v1/resolve"),
    ("GET", f"/v1/entries/{NONE}"),
    ("GET", f"/v1/revisions/{NONE}/pack"),
    ("HEAD", f"/v1/revisions/{NONE}/pack"),
    ("POST", "/v1/uploads"),
    ("PUT", "/v1/uploads/u-1/pack"),
    ("POST", "/v1/uploads/u-1/commit"),
    ("DELETE", "/v1/uploads/u-1"),
    ("POST", "/v1/bundles"),
    ("GET", "/v1/namespaces/team/names"),
    ("GET", "/v1/namespaces/team/entries"),
    ("GET", "/v1/namespaces/team/environments?name=x"),
    ("GET", "/v1/namespaces/team/wanted?name=x"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("DELETE", "/v1/tokens/t-1"),
    ("GET", "/v1/signers"),
    ("POST", "/v1/signers"),
    ("POST", "/v1/gc"),
    ("GET", "/v1/gc"),
    ("PUT", "/v1/tokens/t-1/expiry"),
    ("POST", "/v1/tokens/t-1/rotation"),
    ("DELETE", "/v1/signers"),
    ("GET", "/v1/revocations"),
    ("POST", "/v1/revocations"),
    ("POST", "/v1/revocations/plan"),
    ("GET", "/v1/namespaces"),
    ("PUT", "/v1/namespaces/team/policy"),
    ("PUT", "/v1/namespaces/team/require"),
    ("GET", "/v1/audit"),
    ("POST", "/v1/fsck"),
    ("POST", "/v1/fsck/repair"),
    ("GET", "/v1/entries"),
    ("GET", "/v1/misses"),
    ("GET", f"/v1/entries/{NONE}/revisions"),
    ("DELETE", f"/v1/entries/{NONE}"),
    ("GET", "/v1/digests/entry/abcd"),
    ("GET", f"/v1/revisions/{NONE}"),
    ("DELETE", f"/v1/revisions/{NONE}"),
    ("GET", f"/v1/revisions/{NONE}/envelope"),
    ("GET", f"/v1/revisions/{NONE}/provenance"),
    ("GET", f"/v1/revisions/{NONE}/difference/{NONE}"),
    ("PUT", f"/v1/revisions/{NONE}/pin"),
    ("DELETE", f"/v1/revisions/{NONE}/pin"),
    ("PUT", f"/v1/revisions/{NONE}/quarantine"),
    ("GET", "/v1/quarantine"),
    ("GET", "/v1/stats"),
    ("POST", "/v1/reports"),
    ("POST", "/v1/peers"),
    ("POST", "/v1/claims"),
    ("POST", "/v1/claims/renew"),
    ("POST", "/v1/claims/release"),
    ("DELETE", f"/v1/revisions/{NONE}/quarantine"),
    ("GET", "/v1/publishers"),
    ("POST", "/v1/publishers"),
    ("DELETE", "/v1/publishers/p-1"),
    ("GET", "/v1/webhooks"),
    ("POST", "/v1/webhooks"),
    ("POST", "/v1/webhooks/w-1/test"),
    ("DELETE", "/v1/webhooks/w-1"),
]


def test_the_list_of_routes_is_complete(api: Api) -> None:
    document = ok(api.http.get("/openapi.json"))
    documented = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if path not in ("/", "/healthz", "/readyz", "/metrics", "/v1/info", "/v1/oidc/token")
    }
    assert len(documented) == len(ROUTES)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", [None, "csv_wrong", "é"])
def test_no_route_opens_without_a_token(server: Server, method: str, path: str, token: str | None) -> None:
    client = server.api(None).http
    headers = {"Authorization": f"Bearer {token}".encode("latin-1")} if token else {}
    answer = client.request(
        method, path, headers=headers, content=b"{" if method in ("POST", "PUT") else None
    )
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        refused(answer, 401, "unauthenticated", "cachesvc login")


def test_a_stranger_cannot_make_the_server_read_a_body(server: Server) -> None:
    """The server refuses while the client still has the body to send."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(b"POST /v1/resolve HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n{")
        assert b"401" in line.recv(4096).split(b"\r\n")[0]


def test_a_stranger_gets_the_same_refusal_for_every_size_of_body(server: Server) -> None:
    refused(server.api(None).http.post("/v1/resolve", content=b" " * (5 << 20)), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/v1/claims", MAX_SMALL_BYTES),
        ("/v1/reports", MAX_REPORT_BYTES),
        ("/v1/uploads/{upload}/commit", MAX_COMMIT_BYTES),
    ],
)
def test_each_route_has_its_own_limit_of_a_body(api: Api, key: SigningKey, path: str, limit: int) -> None:
    path = path.format(upload=ok(api.begin(make(key)))["upload"])
    json_body = {"Content-Type": "application/json"}
    refused(api.http.post(path, content=b" " * limit, headers=json_body), 422, "invalid")
    over = b" " * (limit + 1)
    refused(api.http.post(path, content=over, headers=json_body), 413, "too_large", str(limit))
    refused(api.http.post(path, content=iter([over[:-1], b" "]), headers=json_body), 413, "too_large")


def test_open_routes_identify_the_service(server: Server) -> None:
    api = server.api(None)
    assert ok(api.http.get("/healthz")) == {"status": "ok"}
    assert ok(api.http.get("/readyz")) == {
        "ready": True,
        "writable": True,
        "parts": {"index": "ok", "blobs": "ok", "hot": "ok"},
    }
    info = ok(api.http.get("/v1/info"))
    assert (info["service"], info["api"]) == ("cachesvc", 1)


def test_each_role_has_its_rights(server: Server, key: SigningKey) -> None:
    publication = make(key, name="roles")
    ok(server.api().publish(publication))
    reader, writer = new_token(server, "read"), new_token(server, "write")
    stranger = new_token(server, "write", "elsewhere")
    for one in (reader, writer):
        assert len(ok(one.resolve(name="roles"))["revisions"]) == 1
        assert one.pack(publication.revision).content == publication.pack
        for method, path, body in (
            ("GET", "/v1/tokens", None),
            ("POST", "/v1/tokens", {"label": "x", "role": "read", "namespace": "team"}),
            ("POST", "/v1/signers", {"namespace": "team", "key": key.public}),
            ("POST", "/v1/gc", None),
        ):
            refused(one.http.request(method, path, json=body), 403, "forbidden", "may not admin")
    refused(reader.begin(publication), 403, "forbidden", "read in team", "may not write in namespace team")
    ok(writer.begin(publication))
    refused(stranger.begin(publication), 403, "forbidden", "write in elsewhere")
    refused(stranger.resolve(name="roles"), 403, "forbidden")
    refused(stranger.pack(publication.revision), 404, "not_found")
    refused(stranger.http.get(f"/v1/entries/{publication.manifest.entry}"), 404, "not_found")
    refused(stranger.http.get("/v1/namespaces/team/names"), 403, "forbidden")
    assert ok(reader.http.get("/v1/whoami"))["role"] == "read"


def test_an_upload_belongs_to_its_token(server: Server, key: SigningKey) -> None:
    publication = make(key, name="own")
    one, two = new_token(server, "write"), new_token(server, "write")
    upload = ok(one.begin(publication))["upload"]
    refused(two.put(upload, publication.pack), 404, "not_found")
    ok(one.put(upload, publication.pack))
    refused(two.commit(upload, publication), 404, "not_found")
    refused(two.http.delete(f"/v1/uploads/{upload}"), 404, "not_found")
    assert ok(one.commit(upload, publication))["created"]


def test_a_token_of_a_lane_cannot_change_the_trunk(server: Server, key: SigningKey) -> None:
    lane = new_token(server, "write", lane="pr-7")
    trunk, mine = make(key, name="laned"), make(key, name="laned", lane="pr-7")
    other = make(key, name="laned", lane="pr-8")
    ok(server.api().publish(trunk))
    ok(server.api().publish(other))
    refused(lane.begin(trunk), 403, "forbidden", "lane pr-7")
    refused(lane.begin(other), 403, "forbidden")
    upload = ok(lane.begin(mine))["upload"]
    ok(lane.put(upload, trunk.pack))
    refused(lane.commit(upload, trunk), 422, "invalid", "signed for the trunk, uploaded to pr-7")
    ok(lane.publish(mine))
    assert ok(lane.resolve(name="laned"))["revisions"][0]["revision"] == trunk.revision
    assert ok(lane.resolve(name="laned", lane="pr-7"))["revisions"][0]["revision"] == mine.revision
    refused(lane.resolve(name="laned", lane="pr-8"), 403, "forbidden")
    refused(lane.pack(other.revision), 404, "not_found")
    entries = ok(lane.http.get("/v1/namespaces/team/entries", params={"name": "laned"}))
    assert {row["revision"] for row in entries} == {trunk.revision, mine.revision}


def test_an_admin_of_a_namespace_rules_there_and_nowhere_else(server: Server, key: SigningKey) -> None:
    admin = new_token(server, "admin", "ruled")
    token_row = ok(
        admin.http.post("/v1/tokens", json={"label": "ci", "role": "write", "namespace": "ruled", "days": 3})
    )
    assert token_row["expires"] == token_row["created"] + 3 * 86_400
    assert {row["namespace"] for row in ok(admin.http.get("/v1/tokens"))} == {"ruled"}
    assert not any("secret" in row for row in ok(admin.http.get("/v1/tokens")))
    for namespace in ("team", "*"):
        body = {"label": "x", "role": "read", "namespace": namespace}
        refused(admin.http.post("/v1/tokens", json=body), 403, "forbidden")
        refused(
            admin.http.post("/v1/signers", json={"namespace": namespace, "key": key.public}), 403, "forbidden"
        )
    refused(admin.http.post("/v1/gc"), 403, "forbidden")
    root = ok(server.api().http.get("/v1/whoami"))["token"]
    refused(admin.http.delete(f"/v1/tokens/{root}"), 404, "not_found")


def test_a_token_expires_unless_the_request_says_never(server: Server) -> None:
    api = server.api().http
    body = {"label": "x", "role": "read", "namespace": "team"}
    creation = ok(api.post("/v1/tokens", json=body))
    assert creation["expires"] == creation["created"] + 90 * 86_400
    assert "expires" not in ok(api.post("/v1/tokens", json={**body, "never": True}))
    path = f"/v1/tokens/{creation['token']}/expiry"
    for unclear in ({}, {"days": None}, {"never": False}, {"days": 1, "never": True}):
        refused(api.put(path, json=unclear), 422, "invalid", "days")
    assert "expires" not in ok(api.put(path, json={"never": True}))
    assert ok(server.api(creation["secret"]).http.get("/v1/whoami"))["role"] == "read"
    ok(api.put(path, json={"days": 0}))
    refused(server.api(creation["secret"]).http.get("/v1/whoami"), 401, "unauthenticated", "expired")


def test_a_revoked_token_is_refused_at_once_by_this_replica(server: Server) -> None:
    revoked_token = new_token(server, "read")
    token = ok(revoked_token.http.get("/v1/whoami"))["token"]
    assert server.api().http.delete(f"/v1/tokens/{token}").status_code == 204
    refused(revoked_token.http.get("/v1/whoami"), 401, "unauthenticated", "revoked")
    assert token not in {row["token"] for row in ok(server.api().http.get("/v1/tokens"))}
    refused(server.api().http.delete("/v1/tokens/t-none"), 404, "not_found")


def test_only_signers_of_the_namespace_count(server: Server) -> None:
    own, api = SigningKey.generate(), server.api()
    publication = make(own, namespace="signed")
    refused(api.publish(publication), 403, "untrusted")
    ok(api.http.post("/v1/signers", json={"namespace": "signed", "key": own.public, "label": "ci"}))
    ok(api.http.post("/v1/signers", json={"namespace": "signed", "key": own.public}))
    assert ok(api.publish(publication))["created"]
    refused(api.publish(make(own, namespace="unsigned")), 403, "untrusted")
    reader = new_token(server, "read", "signed")
    assert {row["namespace"] for row in ok(reader.http.get("/v1/signers"))} == {"*", "signed"}


BAD_BODIES = [
    ("/v1/resolve", b"{", "body"),
    ("/v1/resolve", b"[]", "body"),
    ("/v1/resolve", b'{"namespace": "team"}', "body.name"),
    ("/v1/resolve", b'{"namespace": "Team", "name": "a", "fingerprint": {}}', "body.namespace"),
    ("/v1/resolve", b'{"namespace": "team", "name": "a", "fingerprint": {}, "tags": []}', "tags"),
    (
        "/v1/resolve",
        b'{"namespace": "team", "name": "a", "fingerprint": {"torch": 1.5}}',
        "fingerprint.torch",
    ),
    ("/v1/resolve", b'{"namespace": "team", "name": "a\\u0000", "fingerprint": {}}', "body.name"),
    ("/v1/uploads", b'{"namespace": "team", "name": "a", "size": "many"}', "body.size"),
    ("/v1/uploads/{upload}/commit", b'{"head": "x", "envelope": ""}', "body.head"),
    ("/v1/tokens", b'{"label": "x", "role": "king", "namespace": "team"}', "read, report, write, admin"),
    ("/v1/tokens", b'{"label": "", "role": "read", "namespace": "team"}', "label"),
    ("/v1/tokens", b'{"label": "x", "role": "read", "namespace": "A"}', "namespace"),
    ("/v1/tokens", b'{"label": "x", "role": "read"}', "body.namespace"),
    ("/v1/tokens", b'{"label": "x", "role": "read", "namespace": "team", "days": 0}', "days: 1 to"),
    ("/v1/tokens", b'{"label": "x", "role": "read", "namespace": "*", "days": 1, "never": true}', "never"),
    ("/v1/tokens", b'{"label": "x", "role": "admin", "namespace": "team", "lane": "pr-1"}', "lane"),
    ("/v1/signers", b'{"namespace": "team", "key": "ed25519:abc"}', "public key"),
    ("/v1/revocations", b'{"key": "ed25519:abc"}', "key: "),
    ("/v1/revocations", b'{"key": "*", "why": "two\\nlines"}', "why: "),
]


@pytest.mark.parametrize(("path", "body", "words"), BAD_BODIES)
def test_a_malformed_request_names_the_field(
    api: Api, key: SigningKey, path: str, body: bytes, words: str
) -> None:
    path = path.format(upload=ok(api.begin(make(key)))["upload"])
    answer = api.http.post(path, content=body, headers={"Content-Type": "application/json"})
    refused(answer, 422, "invalid", words)


def test_deep_and_wide_json_is_refused_without_a_crash(api: Api) -> None:
    for body in (b"[" * 200_000, b'{"a":' * 50_000, b'{"namespace": "\\ud800"}', b"\xff\xfe", b"NaN"):
        answer = api.http.post("/v1/resolve", content=body, headers={"Content-Type": "application/json"})
        refused(answer, 422, "invalid")


def test_every_answer_has_one_form(server: Server, api: Api) -> None:
    refused(api.http.get("/v2/nothing"), 404, "not_found", "/v2/nothing", "openapi")
    answer = api.http.patch("/v1/resolve")
    refused(answer, 405, "invalid", "PATCH")
    assert answer.headers["allow"] == "POST"
    large = api.http.post("/v1/resolve", content=b" " * (5 << 20))
    refused(large, 413, "too_large", str(MAX_RESOLVE_BYTES))

    def chunks():
        for _ in range(5):
            yield b" " * (1 << 20)

    refused(api.http.post("/v1/resolve", content=chunks()), 413, "too_large")
    for answer in (
        large,
        api.http.get("/healthz"),
        api.http.get("/v2/nothing"),
        server.api(None).http.get("/v1/whoami"),
    ):
        assert answer.headers["x-cachesvc-api"] == "1"
        assert answer.headers["x-request-id"]
    assert api.http.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    strange = api.http.get("/healthz", headers={"X-Request-Id": 'a b"<'}).headers["x-request-id"]
    assert strange.isalnum()


def test_another_version_of_the_api_is_refused(api: Api) -> None:
    assert api.http.get("/v1/info", headers={"X-Cachesvc-Api": "1"}).status_code == 200
    answer = api.http.get("/v1/info", headers={"X-Cachesvc-Api": "2"})
    refused(answer, 426, "protocol", "'2'", "speaks 1")
    assert type(from_wire(answer.status_code, answer.json())).__name__ == "ProtocolMismatch"


def test_the_openapi_document_matches_the_answers(api: Api, key: SigningKey) -> None:
    """Real answers, successes and errors, match the schema that the document has for their status."""
    document = ok(api.http.get("/openapi.json"))
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    # A quarantine holds for the bytes, and other tests of this registry publish the usual ones.
    publication = make(key, name="open", content=b"open")
    statement = publication.manifest.statement
    begin = {"namespace": statement.namespace, "name": statement.name, "size": len(publication.pack)}
    upload = ok(api.http.post("/v1/uploads", json=begin))["upload"]
    resolve = {"namespace": "team", "name": "open", "fingerprint": {**FINGERPRINT, "torch": "0"}}
    other = make(key, name="open", target="other", content=b"other")
    entry, revision = publication.manifest.entry, {"revision": publication.revision}
    orphan = {"problem": "orphan", "key": "packs/u-none", "said": "", "repair": ""}
    calls = [
        ("get", "/healthz", {}, None, 200),
        ("get", "/readyz", {}, None, 200),
        ("get", "/v1/info", {}, None, 200),
        ("get", "/v1/whoami", {}, None, 200),
        ("post", "/v1/uploads", {}, begin, 201),
        ("put", "/v1/uploads/{upload}/pack", {"upload": upload}, publication.pack, 200),
        (
            "post",
            "/v1/uploads/{upload}/commit",
            {"upload": upload},
            {"envelope": publication.envelope.decode()},
            200,
        ),
        (
            "post",
            "/v1/uploads/{upload}/commit",
            {"upload": upload},
            {"envelope": other.envelope.decode()},
            422,
        ),
        ("post", "/v1/bundles", {}, b"no bundle", 422),
        ("post", "/v1/resolve", {}, resolve, 200),
        ("post", "/v1/resolve", {}, {**resolve, "fingerprint": FINGERPRINT}, 200),
        ("post", "/v1/resolve", {}, {**resolve, "name": "nowhere"}, 404),
        ("post", "/v1/resolve", {}, {}, 422),
        ("get", "/v1/entries/{entry}", {"entry": publication.manifest.entry}, None, 200),
        ("get", "/v1/revisions/{revision}/pack", {"revision": NONE}, None, 404),
        ("get", "/v1/namespaces/{namespace}/names", {"namespace": "team"}, None, 200),
        ("get", "/v1/namespaces/{namespace}/entries", {"namespace": "team"}, None, 200),
        ("post", "/v1/tokens", {}, {"label": "x", "role": "read", "namespace": "team", "days": 1}, 201),
        ("get", "/v1/tokens", {}, None, 200),
        ("get", "/v1/signers", {}, None, 200),
        ("post", "/v1/signers", {}, {"namespace": "team", "key": key.public}, 201),
        ("post", "/v1/gc", {}, None, 200),
        ("get", "/v1/gc", {}, None, 200),
        ("get", "/v1/tokens", {}, None, 200),
        ("put", "/v1/tokens/{token_id}/expiry", {"token_id": "t-none"}, {"days": 1}, 404),
        ("put", "/v1/tokens/{token_id}/expiry", {"token_id": "t-none"}, {"days": -1}, 422),
        ("post", "/v1/tokens/{token_id}/rotation", {"token_id": "t-none"}, {"overlap_seconds": 1}, 404),
        ("post", "/v1/tokens/{token_id}/rotation", {"token_id": "t-none"}, {"overlap_seconds": -1}, 422),
        ("get", "/v1/namespaces", {}, None, 200),
        ("put", "/v1/namespaces/{namespace}/policy", {"namespace": "kept"}, {"keep_days": 3}, 200),
        ("put", "/v1/namespaces/{namespace}/policy", {"namespace": "kept"}, {"keep_days": -3}, 422),
        ("put", "/v1/namespaces/{namespace}/policy", {"namespace": "kept"}, {"quota_bytes": 1 << 70}, 422),
        ("get", "/v1/entries", {}, None, 200),
        ("get", "/v1/misses", {}, None, 200),
        ("get", "/v1/entries/{entry}/revisions", {"entry": publication.manifest.entry}, None, 200),
        ("get", "/v1/digests/{kind}/{beginning}", {"kind": "entry", "beginning": entry[7:40]}, None, 200),
        ("get", "/v1/digests/{kind}/{beginning}", {"kind": "other", "beginning": entry}, None, 422),
        ("get", "/v1/revisions/{revision}", revision, None, 200),
        ("get", "/v1/revisions/{revision}/difference/{other}", {**revision, "other": NONE}, None, 404),
        (
            "get",
            "/v1/revisions/{revision}/difference/{other}",
            {**revision, "other": publication.revision},
            None,
            200,
        ),
        ("put", "/v1/revisions/{revision}/pin", revision, {"why": "x"}, 200),
        ("put", "/v1/revisions/{revision}/pin", revision, {"why": "\u0000"}, 422),
        ("delete", "/v1/revisions/{revision}/pin", revision, None, 200),
        ("put", "/v1/revisions/{revision}/quarantine", revision, {"why": "x"}, 200),
        ("get", "/v1/quarantine", {}, None, 200),
        ("get", "/v1/stats", {}, None, 200),
        ("get", "/v1/audit", {}, None, 200),
        ("post", "/v1/fsck", {}, None, 200),
        ("post", "/v1/fsck/repair", {}, orphan, 200),
        ("post", "/v1/fsck/repair", {}, {**orphan, "problem": "none"}, 422),
        ("post", "/v1/fsck/repair", {}, {**orphan, "problem": "missing"}, 422),
        ("delete", "/v1/revisions/{revision}", revision, None, 422),
    ]
    for method, path, parameters, body, status in calls:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = api.http.request(method, path.format(**parameters), **content)
        assert answer.status_code == status, (path, answer.text)
        documented = document["paths"][path][method]["responses"][str(status)]
        schema = documented["content"]["application/json"]["schema"]
        Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
        error = {"$ref": "#/components/schemas/ErrorAnswer", "components": document["components"]}
        assert Draft202012Validator(error).is_valid(answer.json()) == (status >= 400)
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    assert "binary" in text
    assert all("security" in document["paths"][path][method] for method, path, *_ in calls[3:])


def test_an_admin_may_collect(api: Api) -> None:
    assert set(ok(api.http.post("/v1/gc"))) == {"revisions", "uploads", "objects", "entries"}


def test_readers_and_publishers_work_at_once(server: Server, key: SigningKey) -> None:
    """Sixteen requests run at a time, with collection beside them: every answer is right, and none is an
    error."""
    from concurrent.futures import ThreadPoolExecutor

    api = server.api()
    ok(api.publish(make(key, name="busy", target="base")))

    def work(number: int) -> bool:
        if number % 8 == 0:
            ok(api.http.post("/v1/gc"))
        publication = make(key, name="busy", target=f"t{number}", content=b"%d" % number)
        ok(api.publish(publication))
        answer = ok(api.resolve(name="busy", entries=[publication.manifest.entry]))
        [row] = answer["revisions"]
        return (
            row["revision"] == publication.revision
            and api.pack(publication.revision).content == publication.pack
        )

    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(48)))
    print(f"48 publishes with resolve and download: {time.monotonic() - began:.1f} s")
    assert len(ok(api.resolve(name="busy"))["revisions"]) == 49
