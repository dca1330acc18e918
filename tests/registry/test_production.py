"""The same server over PostgreSQL, Redis and S3, named in a settings file: only settings differ."""

from __future__ import annotations

import secrets
from pathlib import Path

import boto3
from registry_making import Server, make, ok, refused

from tests.services.ceph import Gateway


def test_the_whole_path_by_a_settings_file(
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
        [found] = ok(api.resolve())["revisions"]
        assert found["revision"] == second.revision
        assert api.http.get(found["pack_url"]).content == second.pack
        part = api.pack(first.revision, Range="bytes=1000000-8999999")
        assert (part.status_code, part.content) == (206, first.pack[1_000_000:9_000_000])
        ok(api.http.post("/v1/gc"))
        server.kill()
        server.start()
        assert "token" not in server.ready
        assert ok(server.api().resolve())["revisions"][0]["revision"] == second.revision
        client = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
        listed = client.list_objects_v2(Bucket=bucket_at_gateway)["Contents"]
        assert all(item["Key"].startswith("eu/packs/u-") for item in listed)
    finally:
        server.stop()
    assert not (server.data / "index.sqlite3").exists()
