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
        listed = session.client("s3", endpoint_url=s3_endpoint).list_objects_v2(Bucket="packs")["Contents"]
        assert all(item["Key"].startswith("eu/packs/u-") for item in listed)
    finally:
        server.stop()
    assert not (server.data / "index.sqlite3").exists()
