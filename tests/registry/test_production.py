"""Test the same server over PostgreSQL, Redis and S3, named in a settings file: only settings differ."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import boto3
import pytest
from registry_making import FINGERPRINT, Server, make, ok, refused

from cachesvc.hot.short_cache import FRESH_SECONDS
from cachesvc.hot.store import MAX_SECONDS
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import Unavailable
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.protocol import ResolveRequest
from tests.services.ceph import Gateway
from tests.services.process import free_port


def test_publish_to_download_works_by_a_settings_file(
    tmp_path: Path, database: str, redis_url: str, gateway: Gateway, bucket_at_gateway: str
) -> None:
    config = tmp_path / "cachesvc.toml"
    config.write_text(
        f'database = "{database}"\nredis = "{redis_url}"\nbucket = "{bucket_at_gateway}"\n'
        f'bucket_prefix = "eu"\nbucket_endpoint = "{gateway.endpoint}"\n'
    )
    server = Server(tmp_path / "data", ["--config", str(config)], gateway.variables).start()
    try:
        api = server.api()
        assert ok(api.http.get("/readyz"))["ready"]
        first = make(server.key, content=secrets.token_bytes(9 << 20))
        second = make(server.key, content=b"better")
        ok(api.publish(first))
        refused(api.publish(second), 409, "head_conflict")
        ok(api.publish(second, first.revision))
        [revision_row] = ok(api.resolve())["revisions"]
        assert revision_row["revision"] == second.revision
        assert revision_row["pack_url"].startswith(f"{gateway.endpoint}/{bucket_at_gateway}/eu/packs/u-")
        assert api.fetch(revision_row["pack_url"]).content == second.pack
        part = api.pack(first.revision, Range="bytes=1000000-8999999")
        assert (part.status_code, part.content) == (206, first.pack[1_000_000:9_000_000])
        ok(api.http.post("/v1/gc"))
        page = ok(api.http.get("/v1/entries", params={"gpu": "none", "dtype": "x", "torch": "2"}))
        assert page == {"rows": []}
        assert [row["revision"] for row in ok(api.http.get("/v1/entries"))["rows"]] == [second.revision]
        assert ok(api.http.get("/v1/stats"))["revisions"] == 2
        assert ok(api.http.get("/v1/gc"))["revisions"] == 0
        page = ok(api.http.post("/v1/fsck?deep=true"))
        assert (page["checked"], page["findings"]) == (2, [])
        assert ok(api.http.post(f"/v1/fsck?cursor={page['next']}")) == {"findings": [], "checked": 3}
        ok(api.http.put(f"/v1/revisions/{first.revision}/pin", json={"why": "kept"}))
        refused(api.http.delete(f"/v1/revisions/{first.revision}"), 422, "invalid", "pinned")
        for text in ("\x00", "a\x00"):
            refused(api.http.get("/v1/entries", params={"target": text}), 422, "invalid")
            refused(api.http.get("/v1/audit", params={"subject": text}), 422, "invalid")
            refused(api.http.delete("/v1/signers", params={"namespace": "*", "key": text}), 404, "not_found")
            refused(api.http.delete("/v1/tokens/t%00"), 404, "not_found")
        server.kill()
        server.start()
        assert "token" not in server.ready
        assert ok(server.api().resolve())["revisions"][0]["revision"] == second.revision
        client = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
        objects = client.list_objects_v2(Bucket=bucket_at_gateway)["Contents"]
        assert all(item["Key"].startswith("eu/packs/u-") for item in objects)
    finally:
        server.stop()
    assert not (server.data / "index.sqlite3").exists()


@pytest.mark.parametrize(
    ("settings", "by_link", "from_store"),
    [
        ({}, True, True),
        ({"BUCKET_PUBLIC_ENDPOINT": f"http://127.0.0.1:{free_port()}"}, True, False),
        ({"DOWNLOADS": "registry"}, False, False),
    ],
    ids=["link", "link-to-a-store-out-of-reach", "no-links"],
)
def test_clients_get_packs_from_the_store_or_else_from_the_registry(
    tmp_path: Path,
    database: str,
    gateway: Gateway,
    bucket_at_gateway: str,
    settings: dict[str, str],
    by_link: bool,
    from_store: bool,
) -> None:
    settings = {
        "DATABASE": database,
        "BUCKET": bucket_at_gateway,
        "BUCKET_ENDPOINT": gateway.endpoint,
        **settings,
    }
    variables = {f"CACHESVC_SERVER_{name}": value for name, value in settings.items()}
    server = Server(tmp_path / "data", env={**gateway.variables, **variables}).start()
    try:
        publication = make(server.key, content=secrets.token_bytes(2 << 20))
        ok(server.api().publish(publication))
        with Remote(server.url, server.token) as remote:
            request = ResolveRequest(Namespace("team"), ShortName("bert"), FINGERPRINT)
            [row] = remote.resolve(request).revisions
            assert row.pack_url.startswith("http://") == by_link
            assert b"".join(remote.downloads.fetch(row, publication.manifest.pack)) == publication.pack
            assert (
                b"".join(remote.downloads.fetch(row, publication.manifest.pack, 1_000_000))
                == publication.pack[1_000_000:]
            )
            server.kill()
            if from_store:
                assert b"".join(remote.downloads.fetch(row, publication.manifest.pack)) == publication.pack
            else:
                with pytest.raises(Unavailable):
                    list(remote.downloads.fetch(row, publication.manifest.pack))
    finally:
        if server.process.poll() is None:
            server.stop()


def test_two_replicas_share_publications_and_revocations(
    tmp_path: Path, database: str, redis_url: str, gateway: Gateway, bucket_at_gateway: str
) -> None:
    """A publication at one replica is visible at the other in a moment, though both remember answers. A token
    that one replica revokes is refused by the other within 5 s: Redis holds nothing about tokens."""
    variables = {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": database,
        "CACHESVC_SERVER_REDIS": redis_url,
        "CACHESVC_SERVER_BUCKET": bucket_at_gateway,
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
    }
    one = Server(tmp_path / "one", env=variables).start()
    two = Server(tmp_path / "two", env=variables).start()
    try:
        assert set(two.ready) == {"url"}  # There is no second admin and no second key.
        here, there = one.api(), two.api(one.token)
        head = None
        for number in range(3):
            publication = make(one.key, content=b"%d" % number)
            ok((here if number % 2 else there).publish(publication, head))
            head = publication.revision
            time.sleep(2 * FRESH_SECONDS)
            for api in (here, there):
                [row] = ok(api.resolve())["revisions"]
                assert row["revision"] == head
                assert api.fetch(row["pack_url"]).content == publication.pack
        token = ok(here.http.post("/v1/tokens", json={"label": "a", "role": "read", "namespace": "team"}))
        reader = two.api(token["secret"])
        ok(reader.resolve())
        ok(here.http.delete(f"/v1/tokens/{token['token']}"))
        time.sleep(MAX_SECONDS)
        refused(reader.resolve(), 401, "unauthenticated")
    finally:
        statuses = [server.stop() for server in (one, two)]
    assert statuses == [0, 0]
