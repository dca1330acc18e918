"""The same server over PostgreSQL and S3: only settings differ."""

from __future__ import annotations

import secrets
from pathlib import Path

from registry_making import Server, make, ok, refused


def test_the_whole_path_over_postgresql_and_s3(tmp_path: Path, database: str, s3_endpoint: str) -> None:
    import boto3

    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    session = boto3.session.Session("test", "test", region_name="us-east-1")
    session.client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket="packs")
    config = tmp_path / "cachesvc.toml"
    config.write_text(
        f'database = "{database}"\nbucket = "packs"\nbucket_prefix = "eu"\n'
        f'bucket_endpoint = "{s3_endpoint}"\n'
    )
    server = Server(tmp_path / "data", ["--config", str(config)], {**keys, "NO_PROXY": "127.0.0.1"}).start()
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
        listed = session.client("s3", endpoint_url=s3_endpoint).list_objects_v2(Bucket="packs")["Contents"]
        assert all(item["Key"].startswith("eu/packs/u-") for item in listed)
    finally:
        server.stop()
    assert not (server.data / "index.sqlite3").exists()
