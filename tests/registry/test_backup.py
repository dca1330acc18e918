"""Test the backup and restore of docs/operate.md by the commands on that page, while the registry serves and
clients publish."""

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
from registry_making import Publication, Server, make, ok

from cachesvc_client.bundle.seal import SigningKey
from tests.conftest import new_bucket, new_database
from tests.services.ceph import Gateway

DOCUMENT = Path(__file__).parents[2] / "docs" / "operate.md"


def run_block_below(title: str, **variables: str) -> None:
    """Run the ``sh`` block below a heading of the page, with its variables."""
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
    """Publishes entries, one after the other, until the test stops it."""

    def __init__(self, server: Server, key: SigningKey) -> None:
        self.done: list[Publication] = []
        self._server, self._key, self._over = server, key, threading.Event()

    def one(self) -> Publication:
        publication = make(
            self._key,
            target=f"t{len(self.done)}",
            content=secrets.token_bytes(20_000),
            model=b"%d" % len(self.done),
        )
        ok(self._server.api().publish(publication))
        self.done.append(publication)
        return publication

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


def repair_all_findings(server: Server) -> list[str]:
    """Repair every finding of a deep check in both directions, and return the problems."""
    problems, cursor = [], None
    while True:
        path = "/v1/fsck?deep=true" + (f"&cursor={cursor}" if cursor else "")
        page = ok(server.api().http.post(path))
        for row in page["findings"]:
            problems.append(row["problem"])
            assert ok(server.api().http.post("/v1/fsck/repair", json=row))
        cursor = page.get("next")
        if cursor is None:
            return problems


def assert_offered_whole(server: Server, publications: list[Publication]) -> None:
    """Assert that the registry offers each publication, with its bytes."""
    offered = {row["revision"]: row for row in ok(server.api().resolve())["revisions"]}
    for one in publications:
        assert server.api().fetch(offered[one.revision]["pack_url"]).content == one.pack


def test_sqlite_is_backed_up_while_it_serves(tmp_path: Path, own_server: Server) -> None:
    server = own_server.start()
    publisher = Publisher(server, server.key)
    for _ in range(5):
        publisher.one()
    before = list(publisher.done)
    with publisher.busy():
        run_block_below("Back up one machine", DATA=str(server.data), BACKUP=str(tmp_path / "backup"))
    assert len(publisher.done) > len(before), "nothing was published meanwhile"
    server.stop()
    shutil.rmtree(server.data)
    run_block_below("Restore one machine", DATA=str(server.data), BACKUP=str(tmp_path / "backup"))
    server.start()
    # A client published this revision while the copy was made.
    assert set(repair_all_findings(server)) <= {"orphan", "unknown"}
    assert repair_all_findings(server) == []
    assert_offered_whole(server, before)
    assert server.key.public == publisher._key.public
    publisher.one()  # The token from before the backup, and the key.


def token(server: Server, label: str) -> dict[str, str]:
    request = {"label": label, "role": "read", "namespace": "team"}
    token_row: dict[str, str] = ok(server.api().http.post("/v1/tokens", json=request))
    return token_row


def sync_to_bucket(gateway: Gateway, source: str, target: str) -> None:
    """Copy a folder to the bucket as `aws s3 sync` does."""
    client = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=source):
        for row in page.get("Contents", ()):
            body = client.get_object(Bucket=source, Key=row["Key"])["Body"].read()
            client.put_object(Bucket=target, Key=row["Key"], Body=body)


@pytest.fixture
def production(own_server: Server, gateway: Gateway) -> Callable[[str, str], Server]:
    """Return the server over a database and a bucket."""

    def over(database: str, bucket: str) -> Server:
        own_server.env = {
            **gateway.variables,
            "CACHESVC_SERVER_DATABASE": database,
            "CACHESVC_SERVER_BUCKET": bucket,
            "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
        }
        return own_server.start()

    return over


def test_postgresql_and_a_bucket_are_backed_up_while_they_serve(
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
        run_block_below("Back up PostgreSQL and a bucket", DATABASE=database, DUMP=dump)
        sync_to_bucket(gateway, bucket, copy)
    assert len(publisher.done) > len(before), "nothing was published meanwhile"
    late = token(server, "late")
    ok(server.api().http.delete(f"/v1/tokens/{leaked['token']}"))
    server.stop()

    restored = new_database(postgresql)
    run_block_below("Restore PostgreSQL and a bucket", DATABASE=restored, DUMP=dump)
    production(restored, copy)
    assert set(repair_all_findings(server)) <= {"orphan", "unknown"}
    assert repair_all_findings(server) == []
    assert_offered_whole(server, before)
    assert server.api(late["secret"]).resolve().status_code == 401  # This token was made after the backup.
    # This token was revoked after the backup, so an operator has to revoke it again.
    ok(server.api(leaked["secret"]).resolve())
    publisher.one()


def test_the_other_order_of_backups_loses_publications_in_between(
    tmp_path: Path, production: Callable[[str, str], Server], postgresql: str, gateway: Gateway
) -> None:
    """The index must come first: it may know less than the store holds, and never more."""
    database, bucket = new_database(postgresql), new_bucket(gateway.endpoint, gateway.client)
    server = production(database, bucket)
    publisher = Publisher(server, server.key)
    publisher.one()
    copy, dump = new_bucket(gateway.endpoint, gateway.client), str(tmp_path / "index.dump")
    sync_to_bucket(gateway, bucket, copy)
    publisher.one()
    run_block_below("Back up PostgreSQL and a bucket", DATABASE=database, DUMP=dump)
    server.stop()
    restored = new_database(postgresql)
    run_block_below("Restore PostgreSQL and a bucket", DATABASE=restored, DUMP=dump)
    production(restored, copy)
    assert repair_all_findings(server) == ["missing"]
    assert repair_all_findings(server) == []
    assert_offered_whole(server, publisher.done[:1])


def test_a_node_that_saw_more_than_the_backup_does_not_go_back(tmp_path: Path, own_server: Server) -> None:
    """A restored registry looks like one that replays the past, so clients wait for newer revisions."""
    server = own_server.start()
    key, backup = server.key, tmp_path / "backup"
    old, new = make(key, content=b"old"), make(key, content=b"new")
    ok(server.api().publish(old))
    run_block_below("Back up one machine", DATA=str(server.data), BACKUP=str(backup))
    ok(server.api().publish(new, old.revision))

    def pull() -> tuple[int, str]:
        command = [sys.executable, "-m", "cachesvc_client", "pull", "team/bert", "--all", "--into", "bundles"]
        result = subprocess.run(
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
        return result.returncode, result.stderr

    assert pull()[0] == 0
    server.stop()
    shutil.rmtree(server.data)
    run_block_below("Restore one machine", DATA=str(server.data), BACKUP=str(backup))
    server.start()
    status, output = pull()
    assert (status, "is older than" in output) == (7, True), output
    again = make(key, content=b"new")  # The next `cachesvc warm` publishes a newer revision.
    ok(server.api().publish(again, old.revision))
    assert pull() == (0, "")
