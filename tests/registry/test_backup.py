"""docs/operate.md's backup and restore, by its own lines: while the registry serves and is published to."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from registry_making import Made, Server, make, ok

from cachesvc_client.bundle.seal import SigningKey
from tests.conftest import new_bucket, new_database
from tests.services.ceph import Gateway

DOCUMENT = Path(__file__).parents[2] / "docs" / "operate.md"


def lines_of(title: str, **variables: str) -> None:
    """Runs the ``sh`` block under a heading of the document, with its variables."""
    text = DOCUMENT.read_text()
    section = re.split(r"^#+ ", text.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    block = re.search(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block, f"no lines under {title!r}"
    programs = [Path(sys.executable).parent, *Path("/usr/lib/postgresql").glob("*/bin")]
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    subprocess.run(
        ["sh", "-euc", block[1]], env={**os.environ, "PATH": path, **variables}, check=True, timeout=120
    )


class Publisher:
    """Publishes entries, one after the other, until it is told to stop."""

    def __init__(self, server: Server, key: SigningKey) -> None:
        self.done: list[Made] = []
        self._server, self._key, self._over = server, key, threading.Event()

    def one(self) -> Made:
        made = make(
            self._key,
            target=f"t{len(self.done)}",
            content=secrets.token_bytes(20_000),
            model=b"%d" % len(self.done),
        )
        ok(self._server.api().publish(made))
        self.done.append(made)
        return made

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        def work() -> None:
            while not self._over.is_set():
                self.one()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)


def findings(server: Server) -> list[str]:
    """Of a deep check, both directions."""
    found, cursor = [], None
    while True:
        asked = "/v1/fsck?deep=true" + (f"&cursor={cursor}" if cursor else "")
        page = ok(server.api().http.post(asked))
        for row in page["findings"]:
            found.append(row["problem"])
            assert ok(server.api().http.post("/v1/fsck/repair", json=row))
        cursor = page.get("next")
        if cursor is None:
            return found


def whole(server: Server, made: list[Made]) -> None:
    """Each of them is offered, and has its bytes."""
    offered = {row["revision"]: row for row in ok(server.api().resolve())["revisions"]}
    for one in made:
        assert server.api().fetch(offered[one.revision]["pack_url"]).content == one.pack


def test_sqlite_while_it_serves(tmp_path: Path, own_server: Server) -> None:
    server = own_server.start()
    publisher = Publisher(server, server.key)
    for _ in range(5):
        publisher.one()
    before = list(publisher.done)
    with publisher.busy():
        lines_of("Back up one machine", DATA=str(server.data), BACKUP=str(tmp_path / "backup"))
    assert len(publisher.done) > len(before), "nothing was published meanwhile"
    server.stop()
    shutil.rmtree(server.data)
    lines_of("Restore one machine", DATA=str(server.data), BACKUP=str(tmp_path / "backup"))
    server.start()
    assert set(findings(server)) <= {"orphan", "unknown"}  # published while the copy was made
    assert findings(server) == []
    whole(server, before)
    assert server.key.public == publisher._key.public
    publisher.one()  # the token from before, and the key


def token(server: Server, label: str) -> dict[str, str]:
    request = {"label": label, "role": "read", "namespace": "team"}
    made: dict[str, str] = ok(server.api().http.post("/v1/tokens", json=request))
    return made


def copied(gateway: Gateway, source: str, target: str) -> None:
    """As `aws s3 sync` does it."""
    client = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=source):
        for row in page.get("Contents", ()):
            body = client.get_object(Bucket=source, Key=row["Key"])["Body"].read()
            client.put_object(Bucket=target, Key=row["Key"], Body=body)


@pytest.fixture
def production(own_server: Server, gateway: Gateway) -> Callable[[str, str], Server]:
    """The server over a database and a bucket."""

    def over(database: str, bucket: str) -> Server:
        own_server.env = {
            **gateway.variables,
            "CACHESVC_SERVER_DATABASE": database,
            "CACHESVC_SERVER_BUCKET": bucket,
            "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
        }
        return own_server.start()

    return over


def test_postgresql_and_a_bucket_while_it_serves(
    tmp_path: Path, production: Callable[[str, str], Server], postgresql: str, gateway: Gateway
) -> None:
    database, bucket = new_database(postgresql), new_bucket(gateway.endpoint, gateway.client)
    server = production(database, bucket)
    key, dump = server.key, str(tmp_path / "index.dump")
    publisher = Publisher(server, key)
    for _ in range(5):
        publisher.one()
    before, copy = list(publisher.done), new_bucket(gateway.endpoint, gateway.client)
    leaked = token(server, "leaked")
    with publisher.busy():
        lines_of("Back up PostgreSQL and a bucket", DATABASE=database, DUMP=dump)
        copied(gateway, bucket, copy)
    assert len(publisher.done) > len(before), "nothing was published meanwhile"
    late = token(server, "late")
    ok(server.api().http.delete(f"/v1/tokens/{leaked['token']}"))
    server.stop()

    restored = new_database(postgresql)
    lines_of("Restore PostgreSQL and a bucket", DATABASE=restored, DUMP=dump)
    production(restored, copy)
    assert set(findings(server)) <= {"orphan", "unknown"}
    assert findings(server) == []
    whole(server, before)
    assert server.api(late["secret"]).resolve().status_code == 401  # made after the backup
    ok(server.api(leaked["secret"]).resolve())  # revoked after the backup: has to be done again
    publisher.one()


def test_the_other_order_loses_what_was_published_in_between(
    tmp_path: Path, production: Callable[[str, str], Server], postgresql: str, gateway: Gateway
) -> None:
    """Why the index comes first: it may know less than the store holds, never more."""
    database, bucket = new_database(postgresql), new_bucket(gateway.endpoint, gateway.client)
    server = production(database, bucket)
    publisher = Publisher(server, server.key)
    publisher.one()
    copy, dump = new_bucket(gateway.endpoint, gateway.client), str(tmp_path / "index.dump")
    copied(gateway, bucket, copy)
    publisher.one()
    lines_of("Back up PostgreSQL and a bucket", DATABASE=database, DUMP=dump)
    server.stop()
    restored = new_database(postgresql)
    lines_of("Restore PostgreSQL and a bucket", DATABASE=restored, DUMP=dump)
    production(restored, copy)
    assert findings(server) == ["missing"]
    assert findings(server) == []
    whole(server, publisher.done[:1])


def test_a_node_that_saw_more_than_the_backup_holds_does_not_go_back(
    tmp_path: Path, own_server: Server
) -> None:
    """A restored registry looks like one that replays the past: clients wait for what is newer."""
    server = own_server.start()
    key, backup = server.key, tmp_path / "backup"
    old, new = make(key, content=b"old"), make(key, content=b"new")
    ok(server.api().publish(old))
    lines_of("Back up one machine", DATA=str(server.data), BACKUP=str(backup))
    ok(server.api().publish(new, old.revision))

    def pull() -> tuple[int, str]:
        command = [sys.executable, "-m", "cachesvc_client", "pull", "team/bert", "--all", "--into", "bundles"]
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "CACHESVC_URL": server.url,
                "CACHESVC_TOKEN": server.token,
                "CACHESVC_TRUSTED_KEYS": str(key.public),
                "CACHESVC_STORE": str(tmp_path / "store"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    assert pull()[0] == 0
    server.stop()
    shutil.rmtree(server.data)
    lines_of("Restore one machine", DATA=str(server.data), BACKUP=str(backup))
    server.start()
    status, said = pull()
    assert (status, "is older than" in said) == (7, True), said
    again = make(key, content=b"new")  # what the next `cachesvc warm` does
    ok(server.api().publish(again, old.revision))
    assert pull() == (0, "")
