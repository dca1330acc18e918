"""Test that each fault around the registry gives an exit status and one line that names the place and the way
out."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.auth
import pytest
from registry_making import Server, make, ok, refused
from test_serve import failed_start

from cachesvc.bootstrap import open_registry
from cachesvc.settings import read_settings
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.errors import CacheSvcError
from tests import mounts
from tests.conftest import new_bucket, new_database
from tests.services.ceph import Gateway
from tests.services.postgresql import postgresql_server
from tests.services.process import absent, free_port
from tests.services.redis import redis_server

HOUR = timedelta(hours=1)


def error_of_start(folder: Path, **settings: Any) -> CacheSvcError | None:
    """Return the error with which ``cachesvc serve`` would end under these settings."""
    try:
        with open_registry(read_settings(data=folder, **settings), prove_bucket=True):
            return None
    except CacheSvcError as error:
        return error


def assert_one_line(error: CacheSvcError | None, status: int, *words: str) -> None:
    assert error is not None
    assert error.exit_status == status, error
    assert "\n" not in str(error) and error.hint
    for word in words:
        assert word in str(error), (word, str(error))


# The database.


def test_an_unusable_database_is_reported(tmp_path: Path, postgresql: str) -> None:
    import psycopg

    def connect(database: str) -> Any:
        return psycopg.connect(f"{postgresql}/{database}", autocommit=True)

    with connect("postgres") as connection:
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        connection.execute("CREATE ROLE lowly LOGIN")
        owned, standby = (new_database(postgresql).rpartition("/")[2] for _ in range(2))
        connection.execute(f"ALTER DATABASE {standby} SET default_transaction_read_only = on")
    other = new_database(postgresql)
    with psycopg.connect(other) as connection:
        connection.execute("CREATE TABLE namespaces (of_somebody_else int)")
    server = postgresql.partition("@")[2]
    for url, words in (
        (f"postgresql://me:hunter2@127.0.0.1:{free_port()}/x", ("Connection refused", "setting database")),
        ("postgresql://me:hunter2@nowhere.invalid/x", ("nowhere.invalid", "setting database")),
        (f"{postgresql}/none", ('database "none" does not exist', "create the database")),
        (f"postgresql://nobody@{server}/{owned}", ('role "nobody" does not exist', "create the user")),
        (f"postgresql://lowly@{server}/{owned}", ("permission denied for schema public", "CREATE")),
        (f"{postgresql}/{standby}", ("read-only", "name the primary")),
    ):
        error = error_of_start(tmp_path, database=url)
        assert_one_line(error, 6, *words)
        assert "hunter2" not in str(error)
    assert_one_line(
        error_of_start(tmp_path, database=other), 2, "is not a database of cachesvc", "namespaces"
    )
    assert_one_line(error_of_start(tmp_path, database="postgresql://me:hunter2@host:port/x"), 2, "not a URL")
    assert error_of_start(tmp_path, database=f"{postgresql}/{owned}") is None


@pytest.mark.services
def test_a_wrong_password_is_reported(tmp_path: Path) -> None:
    """The PostgreSQL server of this test asks for a password."""
    import psycopg

    with postgresql_server(password="right") as url:
        wrong = url.replace(":right@", ":hunter2@")
        error = error_of_start(tmp_path, database=f"{wrong}/postgres")
        assert_one_line(error, 6, "password authentication failed", "user and password")
        assert "hunter2" not in str(error)
        assert_one_line(
            error_of_start(tmp_path, database=url.replace(":right@", "@") + "/postgres"),
            6,
            "no password supplied",
        )
        with psycopg.connect(f"{url}/postgres") as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert error_of_start(tmp_path, database=f"{url}/postgres") is None


def test_a_primary_that_becomes_a_standby_is_unavailable_for_writes(
    own_server: Server, database: str
) -> None:
    """Reads go on. Writes fail with a clear error, and go on when the server is a primary again."""
    import psycopg

    own_server.env["CACHESVC_SERVER_DATABASE"] = url = database
    server = own_server.start()
    publication = make(server.key)
    ok(server.api().publish(publication))

    def standby(state: str) -> None:
        base, _, name = url.rpartition("/")
        with psycopg.connect(f"{base}/postgres", autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {state}")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )

    standby("on")
    assert len(ok(server.api().resolve())["revisions"]) == 1
    refused(server.api().begin(publication), 503, "unavailable", "read-only", "name the primary")
    standby("off")
    ok(server.api().publish(make(server.key, name="other")))


# The bucket.


@pytest.fixture
def bucket(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return the settings of a bucket whose policy forbids the named actions."""
    for name, value in gateway.variables.items():
        monkeypatch.setenv(name, value)

    def made(*forbidden: str) -> dict[str, str]:
        import boto3

        name = new_bucket(gateway.endpoint, gateway.client)
        arn = f"arn:aws:s3:::{name}"
        rules = [
            {
                "Effect": "Deny",
                "Principal": {"AWS": ["*"]},
                "Action": [f"s3:{action}"],
                "Resource": [arn if action == "ListBucket" else f"{arn}/*"],
            }
            for action in forbidden
        ]
        if rules:
            policy = json.dumps({"Version": "2012-10-17", "Statement": rules})
            client = boto3.client("s3", endpoint_url=gateway.endpoint, **gateway.client)
            client.put_bucket_policy(Bucket=name, Policy=policy)
        return {"bucket": name, "bucket_endpoint": gateway.endpoint}

    return made


def test_a_bucket_with_all_rights_is_accepted(tmp_path: Path, bucket: Callable[..., dict[str, str]]) -> None:
    assert error_of_start(tmp_path, **bucket()) is None


@pytest.mark.parametrize("action", ["PutObject", "GetObject", "DeleteObject", "ListBucket"])
def test_a_bucket_without_rights_is_reported(
    tmp_path: Path, bucket: Callable[..., dict[str, str]], action: str
) -> None:
    settings = bucket(action)
    assert_one_line(
        error_of_start(tmp_path, **settings), 6, f"bucket {settings['bucket']}", action, "credentials may not"
    )


def test_an_absent_bucket_and_wrong_keys_are_reported(
    tmp_path: Path, bucket: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = bucket()
    assert_one_line(
        error_of_start(tmp_path, **{**settings, "bucket": "none-such"}),
        6,
        "none-such",
        "NoSuchBucket",
        "create it",
    )
    assert_one_line(
        error_of_start(tmp_path, **{**settings, "bucket": "No such!"}), 6, "No such!", "setting bucket"
    )
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    error = error_of_start(tmp_path, **settings)
    assert_one_line(error, 6, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY")
    assert "hunter2" not in str(error)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert_one_line(error_of_start(tmp_path, **settings), 6, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert_one_line(error_of_start(tmp_path, **settings), 6, "no credentials", "AWS_ACCESS_KEY_ID")


@pytest.mark.parametrize("shift", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_clock_that_differs_from_the_stores_is_reported(
    tmp_path: Path, bucket: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, shift: timedelta
) -> None:
    """This machine's clock signs the requests, and the gateway checks them by its own clock."""
    settings = bucket()
    real = botocore.auth.get_current_datetime

    def shifted(*arguments: Any, **named: Any) -> datetime:
        return real(*arguments, **named) + shift

    monkeypatch.setattr(botocore.auth, "get_current_datetime", shifted)
    assert_one_line(error_of_start(tmp_path, **settings), 6, "RequestTimeTooSkewed", "set it (NTP)")


@pytest.mark.parametrize(
    ("code", "status", "word"),
    [
        ("AuthorizationHeaderMalformed", 400, "AWS_DEFAULT_REGION"),
        ("ExpiredToken", 400, "renew them"),
        ("QuotaExceeded", 403, ""),
        ("SlowDown", 503, ""),
    ],
)
def test_errors_that_aws_has_and_ceph_has_not_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: int, word: str
) -> None:
    """The errors come from https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. A passing
    error ends no start."""
    answer = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    with _answering(status, answer) as endpoint:
        _some_keys(monkeypatch)
        error = error_of_start(tmp_path, bucket="b", bucket_endpoint=endpoint)
        if word:
            assert_one_line(error, 6, code, word)
        else:
            assert error is None


@pytest.mark.parametrize("status", [200, 301, 400, 403, 404, 405, 501])
def test_an_endpoint_that_is_no_s3_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with _answering(status, b"<html>hello</html>") as endpoint:
        _some_keys(monkeypatch)
        assert_one_line(
            error_of_start(tmp_path, bucket="b", bucket_endpoint=endpoint), 6, "S3", "bucket_endpoint"
        )


def test_a_store_that_is_down_ends_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store will be back; until then the registry is not ready, and says why."""
    _some_keys(monkeypatch)
    endpoint = f"http://127.0.0.1:{free_port()}"
    server = Server(tmp_path / "data", env={
        "CACHESVC_SERVER_BUCKET": "b", "CACHESVC_SERVER_BUCKET_ENDPOINT": endpoint
    }).start()  # fmt: skip
    answer = server.api(None).http.get("/readyz")
    assert answer.status_code == 503 and "bucket_endpoint" in answer.json()["parts"]["blobs"]
    [line] = [line for line in server.end() if "WARNING" in line]
    assert endpoint in line and "is the store running" in line


@contextlib.contextmanager
def _answering(status: int, body: bytes) -> Iterator[str]:
    """Serve one fixed answer, and return the URL of the web server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if status == 301:
                self.send_header("location", f"https://{self.headers['host']}{self.path}")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_HEAD = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _some_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# Redis.


@pytest.mark.services
def test_a_redis_that_refuses_the_password_is_reported_and_costs_no_time(tmp_path: Path) -> None:
    """The log names the setting and not the password, and no request waits for Redis."""
    with redis_server(None, "--requirepass", "right") as url:
        wrong = url.replace("redis://", "redis://:hunter2@")
        server = Server(tmp_path / "data", env={"CACHESVC_SERVER_REDIS": wrong}).start()
        ready = server.api(None).http.get("/readyz")
        assert ready.status_code == 200 and "setting redis" in ready.json()["parts"]["hot"]
        ok(server.api().publish(make(server.key)))
        lines = server.end()
    assert any("WARNING" in line and "setting redis" in line for line in lines)
    assert not any("hunter2" in line for line in [*lines, ready.text])


# The disk.


SMALL = 'mount -t tmpfs -o size=4m,mode=0700 none "$0"'
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'


def mounted(how: str, place: Path) -> list[str]:
    """Return the words before a command that make it see ``place`` in this way, and only that command.

    Read-only holds for root too."""
    shell = f'{how} && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell, str(place)]
    if shutil.which("unshare") is None:
        absent("unshare", "util-linux")
    attempt = subprocess.run([*words, "true"], capture_output=True, text=True)
    if attempt.returncode:
        # No package helps: a container's runtime, or the kernel, does not allow the mount.
        pytest.skip(f"no right to mount in a user namespace: {attempt.stderr.strip()[:200]}")
    return words


@pytest.fixture
def small_disk(own_server: Server) -> Server:
    """Start a server whose data folder is a disk of 4 MiB."""
    own_server.data.mkdir()
    own_server.before = mounted(SMALL, own_server.data)
    return own_server


def test_a_full_disk_stops_publications_and_nothing_else(small_disk: Server) -> None:
    server = small_disk.start()
    inside = Path(f"/proc/{server.process.pid}/root{server.data}")
    api = server.api()
    key = SigningKey.load(inside / "signing.key")
    publication = make(key, content=os.urandom(100_000))
    ok(api.publish(publication))
    large = make(key, name="large", content=os.urandom(5_000_000))
    upload = ok(api.begin(large))["upload"]
    refused(api.put(upload, large.pack), 507, "storage_full", "No space left", "make room")
    waiting = [ok(api.begin(make(key, name=f"n{number}")))["upload"] for number in range(3)]
    filler = inside / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    small = make(key, name="small")
    refused(api.put(waiting[0], small.pack), 507, "storage_full", "make room")
    refused(api.begin(small), 507, "storage_full", "read-only", "make room")
    [row] = ok(api.resolve())["revisions"]
    assert api.fetch(row["pack_url"]).content == publication.pack
    ready = api.http.get("/readyz")
    assert ready.status_code == 200 and "read-only" in ready.json()["parts"]["blobs"]
    assert (ready.json()["ready"], ready.json()["writable"]) == (True, False)
    filler.unlink()
    ok(api.publish(small))
    assert api.http.get("/readyz").json()["writable"] is True
    assert ok(api.http.post("/v1/fsck?deep=true"))["findings"] == []
    assert server.stop() == 0


@pytest.mark.parametrize("stopped", [True, False], ids=["restarted", "running"])
def test_an_operator_makes_room_on_a_full_disk(tmp_path: Path, stopped: bool) -> None:
    """The registry starts, answers and deletes on a disk without a free byte, and publishes again after."""
    data = tmp_path / "data"
    with mounts.tmpfs(data, "size=4m,mode=0700"):
        server = Server(data).start()
        key = SigningKey.load(data / "signing.key")
        large = make(key, name="large", content=os.urandom(1_000_000))
        entry = ok(server.api().publish(large))["entry"]
        if stopped:
            server.kill()
        _fill(data)
        if stopped:
            server.start()
        api = server.api()
        assert ok(api.http.get("/v1/stats"))["entries"] == 1
        assert ok(api.resolve(name="large"))["revisions"]
        ok(api.http.delete(f"/v1/entries/{entry}"))
        refused(api.begin(make(key, name="other")), 507, "storage_full", "read-only")
        assert ok(api.http.post("/v1/gc"))["objects"] == 1
        ok(api.publish(make(key, name="other")))
        lines = server.end()
    assert any("read-only until there is room" in line for line in lines)
    assert any("has room again" in line for line in lines)


def _fill(disk: Path) -> None:
    """Write until not a byte is left."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def test_a_disk_that_is_full_at_the_start_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    status, line = failed_start(data, before=mounted(SMALL.replace("4m", "64k"), data))
    assert status == 6 and "index.sqlite3" in line and "make room" in line


def test_a_read_only_data_folder_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    status, line = failed_start(data, before=mounted(READ_ONLY, data))
    assert (status, line) == (6, f"error: data folder {data}: not writable (name another with --data)")


def test_an_index_without_write_permission_is_reported(own_server: Server) -> None:
    own_server.start()
    own_server.stop()
    index = own_server.data / "index.sqlite3"
    status, line = failed_start(own_server.data, before=mounted(READ_ONLY, index))
    assert status == 6 and str(index) in line and "read-only" in line and "writable" in line


def test_a_damaged_index_is_reported(own_server: Server) -> None:
    own_server.start()
    own_server.stop()
    index = own_server.data / "index.sqlite3"
    index.write_bytes(secrets.token_bytes(1 << 16))
    status, line = failed_start(own_server.data)
    assert status == 2 and str(index) in line and "restore the backup" in line


def test_a_network_file_system_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachesvc.index import engine

    real = engine.filesystem_type
    mounts = f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:50 / {tmp_path} rw - nfs4 server:/x rw\n"
    monkeypatch.setattr(engine, "filesystem_type", lambda folder, _: real(folder, mounts))
    assert_one_line(
        error_of_start(tmp_path / "data"), 2, "network file system (nfs4)", "--data", "PostgreSQL"
    )
    assert not (tmp_path / "data" / "index.sqlite3").exists()


# Clocks of clients.


def test_a_publishers_clock_may_be_late_and_not_far_ahead(server: Server, key: SigningKey) -> None:
    """A sequence far ahead would stop everybody else from publishing over the entry; a late clock does no
    harm."""
    ahead = make(key, name="clock", sequence=int((time.time() + 3600) * 1000))
    message = refused(
        server.api().publish(ahead), 422, "invalid", "s in the future", "signing machine's clock"
    )
    # The server reads its clock later than this test did, by more than a second on a slow machine.
    [ahead_by] = re.findall(r"is (\d+) s in the future", message)
    assert 3540 < int(ahead_by) <= 3600
    behind = make(key, name="clock", sequence=int((time.time() - 86_400) * 1000))
    ok(server.api().publish(behind))
    late = make(key, name="clock", expires=int(time.time()) - 3600)
    refused(server.api().publish(late, behind.revision), 403, "untrusted", "expired", "set the clock")
