"""Test an older release beside a newer one, as in a rolling upgrade: the newer one has migrated the database.

There is no newer release yet, so the test itself has the steps of one: what a release of the same generation
may do (ADR 22)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from registry_making import Server, make, ok, refused

STEPS = (
    "ALTER TABLE entries ADD COLUMN colour TEXT",
    "ALTER TABLE namespaces ADD COLUMN region VARCHAR(20) DEFAULT 'eu' NOT NULL",
    "ALTER TABLE revisions ADD COLUMN joules FLOAT",
    "CREATE TABLE labels (revision VARCHAR(71) REFERENCES revisions(revision) ON DELETE CASCADE, label TEXT)",
    "CREATE INDEX ix_entries_colour ON entries (colour)",
    "UPDATE alembic_version SET version_num = '0900'",
)
ROWS = (
    "INSERT INTO labels SELECT revision, 'blue' FROM revisions",
    'UPDATE revisions SET measured = \'{"compile": 1.5, "joules": 3.5}\'',
    'UPDATE audit SET details = \'{"role": "admin", "colour": "red"}\'',
)


@contextlib.contextmanager
def database(server: Server) -> Iterator[Any]:
    url = server.env.get("CACHESVC_SERVER_DATABASE")
    if url is None:
        with contextlib.closing(sqlite3.connect(server.data / "index.sqlite3", timeout=20)) as connection:
            yield connection
            connection.commit()
    else:
        import psycopg

        with psycopg.connect(url) as connection:
            yield connection


def test_the_older_release_goes_on_and_starts_again(own_column_server: Server) -> None:
    server = own_column_server.start()
    key, api = server.key, server.api()
    old = make(key)
    ok(api.publish(old))
    with database(server) as connection:
        for statement in (*STEPS, *ROWS):
            connection.execute(statement)
    uses_every_table(server, old)
    lines = server.end()
    assert not any("schema" in line for line in lines), "the server was running before"
    server.start()
    uses_every_table(server, make(key, name="another"))
    warnings = [line for line in server.end() if "WARNING" in line]
    assert len(warnings) == 1 and "the database has schema 0900, of a newer cachesvc" in warnings[0]
    result = subprocess.run(
        [sys.executable, "-m", "cachesvc", "admin", "--local", "--data", str(server.data), "migrate"],
        env={**os.environ, **server.env},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (0, "the schema is up to date\n")
    assert "0900" in result.stderr


def test_a_token_with_a_role_of_the_newer_release_is_refused(own_column_server: Server) -> None:
    """The older release does not guess the rights of that role; all other tokens go on."""
    server = own_column_server.start()
    creation = ok(
        server.api().http.post("/v1/tokens", json={"label": "new", "role": "read", "namespace": "*"})
    )
    with database(server) as connection:
        connection.execute(f"UPDATE tokens SET role = 'prune' WHERE token = '{creation['token']}'")
    refused(server.api(creation["secret"]).http.get("/v1/whoami"), 503, "unavailable", "'prune'", "upgraded")
    assert ok(server.api().http.get("/v1/whoami"))["role"] == "admin"


def uses_every_table(server: Server, first: Any) -> None:
    """Use everything that touches rows: publish, resolve, download, report, retention, fsck, deletion."""
    api, key = server.api(), server.key
    ok(api.publish(first))
    second = make(key, name=first.manifest.statement.name, content=b"second")
    ok(api.publish(second, first.revision))
    name = str(second.manifest.statement.name)
    [row] = ok(api.resolve(name=name))["revisions"]
    assert api.fetch(row["pack_url"]).content == second.pack
    report = {
        "node": "0" * 32,
        "fingerprint": dict(second.manifest.fingerprint),
        "revisions": [{"revision": second.revision, "state": "hit", "saved": 1.0}],
    }
    ok(api.http.post("/v1/reports", json=report))
    assert ok(api.http.get("/v1/entries", params={"name": name}))["rows"][0]["revision"] == second.revision
    assert ok(api.http.get("/v1/stats"))["starts"]["hit"] >= 1
    assert ok(api.http.get("/v1/audit"))["rows"]
    ok(api.http.put("/v1/namespaces/team/policy", json={"keep_days": 40}))
    ok(api.http.post("/v1/gc"))
    assert ok(api.http.post("/v1/fsck?deep=true"))["findings"] == []
    ok(api.http.delete(f"/v1/revisions/{first.revision}"))
    ok(api.http.delete(f"/v1/entries/{second.manifest.entry}"))
    refused(api.resolve(name=name), 404, "not_found")
