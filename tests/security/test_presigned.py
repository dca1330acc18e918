"""Links to the store, of a registry with packs in Ceph's S3: whoever has one tries to get or change more than
the one pack, and to keep the link for longer than it says (that: `cachesvc.blobs.testing`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from registry_making import Publication, Server, make, ok, refused

from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import CacheSvcError
from tests.conftest import new_bucket
from tests.services.ceph import Gateway

LINK_SECONDS = 120
Kept: TypeAlias = tuple[Publication, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gateway: Gateway) -> Iterator[Server]:
    store = {
        **gateway.variables,
        "CACHESVC_SERVER_BUCKET": new_bucket(gateway.endpoint, gateway.client),
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
    }
    with Server(tmp_path_factory.mktemp("registry") / "data", env=store).running() as made:
        yield made


@pytest.fixture(scope="module")
def stranger() -> Iterator[httpx.Client]:
    """Somebody who was handed a link, and has no token."""
    with httpx.Client(timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def kept(server: Server) -> Kept:
    """One revision with its link, for all attacks that change nothing."""
    return published(server, "kept")


def published(server: Server, name: str, namespace: str = "team") -> Kept:
    """Publish a revision; return it with the link that a resolve gives."""
    made, api = make(server.key, namespace=namespace, name=name, content=name.encode()), server.api()
    ok(api.publish(made))
    [row] = ok(api.resolve(namespace=namespace, name=name))["revisions"]
    return made, str(row["pack_url"])


def test_a_link_that_was_handed_on_gives_one_pack_and_not_for_long(
    server: Server, stranger: httpx.Client
) -> None:
    made, link = published(server, "one")
    _, others = published(server, "one", "other")
    assert stranger.get(link).content == made.pack
    asked = parse_qs(urlsplit(link).query)
    assert asked["X-Amz-Expires"] == [str(LINK_SECONDS)]
    mine, theirs = urlsplit(link).path, urlsplit(others).path
    bucket = "/" + mine.split("/")[1]
    paths = [theirs, f"{mine}/../{theirs.rpartition('/')[2]}", bucket, f"{bucket}/", f"{mine}/", f"{mine}%00"]
    for path in paths:
        assert stranger.get(link.replace(mine, path)).status_code in (400, 403), path


@pytest.mark.parametrize(
    "more",
    [
        "acl",
        "uploads",
        "tagging",
        "versionId=null",
        "partNumber=1",
        "response-content-type=text/html",
        "list-type=2",
    ],
)
def test_nothing_can_be_added_to_a_link(kept: Kept, stranger: httpx.Client, more: str) -> None:
    _, link = kept
    assert stranger.get(f"{link}&{more}").status_code in (400, 403)
    base, query = link.split("?")
    assert stranger.get(f"{base}?{more}&{query}").status_code in (400, 403)


def test_a_link_to_read_writes_nothing(kept: Kept, stranger: httpx.Client) -> None:
    made, link = kept
    source = {"x-amz-copy-source": urlsplit(link).path}
    for method in ("PUT", "POST", "DELETE", "PATCH", "OPTIONS"):
        for more in ({}, source, {"X-HTTP-Method-Override": "PUT", "X-Amz-Acl": "public-read"}):
            answer = stranger.request(method, link, content=b"swapped", headers=more)
            assert answer.status_code >= 400, (method, answer.text)
    for suffix in ("&uploads", "&delete", "&uploadId=1&partNumber=1"):
        for method in ("PUT", "POST"):
            assert stranger.request(method, link + suffix, content=b"swapped").status_code >= 400
    override = {"X-HTTP-Method-Override": "DELETE", "X-HTTP-Method": "DELETE"}
    assert stranger.get(link, headers=override).content == made.pack
    assert stranger.get(link).content == made.pack


@pytest.mark.parametrize(
    "part", ["bytes=0-0,2-3", "bytes=5-1", "bytes=-0", "bytes=0-99999999999", "lines=0-1"]
)
def test_a_range_of_a_link_leads_out_of_no_pack(kept: Kept, stranger: httpx.Client, part: str) -> None:
    made, link = kept
    answer = stranger.get(link, headers={"Range": part})
    assert answer.status_code in (200, 206, 400, 416), answer.text
    assert answer.status_code >= 400 or made.pack.startswith(answer.content), "bytes of the pack alone"


def test_a_quarantine_gives_no_more_links_and_no_pack(server: Server, stranger: httpx.Client) -> None:
    """A link that was given before ends by itself; the registry gives the pack to no reader from then on."""
    made, link = published(server, "bad")
    reader = ok(server.api().http.post("/v1/tokens", json=_reader()))["secret"]
    path = f"/v1/revisions/{made.revision}/pack"
    ok(server.api().http.put(f"/v1/revisions/{made.revision}/quarantine", json={"why": "it is wrong"}))
    assert ok(server.api(reader).resolve(name="bad"))["revisions"] == []
    refused(server.api(reader).http.get(path), 404, "not_found", "it is wrong")
    assert int(parse_qs(urlsplit(link).query)["X-Amz-Expires"][0]) <= LINK_SECONDS
    refused(stranger.get(f"{server.url}{path}?{urlsplit(link).query}"), 401, "unauthenticated")


def test_an_upload_takes_no_bytes_after_its_commit(server: Server) -> None:
    """Neither from its own token nor from another one: what was committed stays, byte for byte."""
    made, api = make(server.key, name="final", content=b"final"), server.api()
    upload = ok(api.begin(made))["upload"]
    ok(api.put(upload, made.pack))
    ok(api.commit(upload, made))
    [row] = ok(api.resolve(name="final"))["revisions"]
    other = ok(api.http.post("/v1/tokens", json={**_reader(), "role": "write"}))["secret"]
    swapped = made.pack[:-1] + bytes([made.pack[-1] ^ 1])
    for again in (server.api(other), api):
        assert again.put(upload, swapped).status_code >= 400
        assert again.http.delete(f"/v1/uploads/{upload}").status_code in (204, 404)
    assert httpx.get(row["pack_url"], trust_env=False).content == made.pack
    assert ok(api.http.post("/v1/fsck?deep=true"))["findings"] == []


def _reader() -> dict[str, object]:
    return {"label": "reader", "role": "read", "namespace": "team"}


def test_a_link_is_for_its_own_host_time_and_scope(kept: Kept, stranger: httpx.Client) -> None:
    """Its time made longer, its key's scope another one, its signature in a header, another host."""
    made, link = kept
    asked = {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    base, key = link.split("?")[0], asked["X-Amz-Credential"]
    for changed in (
        {"X-Amz-Expires": "604800"},
        {"X-Amz-Expires": "-1"},
        {"X-Amz-Date": "20991231T235959Z"},
        {"X-Amz-Credential": key.replace("/s3/", "/iam/")},
        {"X-Amz-SignedHeaders": ""},
        {"X-Amz-SignedHeaders": "host;range"},
        {"X-Amz-Algorithm": "AWS4-HMAC-SHA1"},
        {"X-Amz-Signature": asked["X-Amz-Signature"].upper()},
        {"X-Amz-Signature": ""},
    ):
        answer = stranger.get(f"{base}?{urlencode({**asked, **changed})}")
        assert answer.status_code in (400, 403), (changed, answer.text)
    signature = f"SignedHeaders=host, Signature={asked['X-Amz-Signature']}"
    header = f"{asked['X-Amz-Algorithm']} Credential={key}, {signature}"
    signed = {"Authorization": header, "X-Amz-Date": asked["X-Amz-Date"]}
    assert stranger.get(base, headers=signed).status_code in (400, 403)
    for host in ("elsewhere.example", "127.0.0.1:1", urlsplit(link).netloc + ".evil.example"):
        assert stranger.get(link, headers={"Host": host}).status_code >= 400, host
    assert stranger.get(link).content == made.pack


def test_a_link_stands_in_no_log(gateway: Gateway, tmp_path: Path) -> None:
    """Neither in the registry's, of each request, nor in what a client says of a store that fails."""
    store = {
        **gateway.variables,
        "CACHESVC_SERVER_BUCKET": new_bucket(gateway.endpoint, gateway.client),
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
        "CACHESVC_SERVER_LOG": "json",
    }
    server = Server(tmp_path / "data", env=store).start()
    made, link = published(server, "logged")
    api = server.api()
    assert api.http.get(f"/v1/revisions/{made.revision}/pack").status_code in (200, 302, 303, 307)
    said = [api.http.get(path).text for path in ("/metrics", "/v1/audit", f"/v1/revisions/{made.revision}")]
    with Remote(server.url, server.token) as remote:
        gone = link.replace(urlsplit(link).netloc, "127.0.0.1:9")
        with pytest.raises(CacheSvcError) as failed:
            b"".join(remote.downloads.download(gone, 0, len(made.pack)))
    said += [str(failed.value), repr(failed.value), *server.end()]
    assert any('"path"' in line for line in said)
    secrets = (*parse_qs(urlsplit(link).query)["X-Amz-Signature"], "X-Amz-Signature")
    assert not [line for line in said if any(secret in line for secret in secrets)]
