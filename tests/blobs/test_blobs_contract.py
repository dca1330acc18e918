"""Test every backend and every wrapper with one contract."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cachesvc.blobs import testing
from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.oci import OciBlobStore
from cachesvc.blobs.s3 import S3BlobStore
from cachesvc.blobs.store import BlobStore
from cachesvc.blobs.wrappers import Metered, Retrying, Verifying
from cachesvc_client.wire.errors import NotFound, StorageFull, Unavailable
from tests.conftest import new_bucket
from tests.services.ceph import Gateway

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


@pytest.fixture
def bucket(s3_endpoint: str) -> str:
    return new_bucket(s3_endpoint, KEYS)


@pytest.fixture(
    params=[
        *("local", "verifying", "retrying", "metered", "all"),
        *(pytest.param(name, marks=pytest.mark.servers) for name in ("s3", "s3-prefix")),
        *(pytest.param(name, marks=pytest.mark.services) for name in ("ceph", "oci")),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "ceph":
        gateway = request.getfixturevalue("gateway")
        bucket = request.getfixturevalue("bucket_at_gateway")
        return S3BlobStore(bucket, "some/where", gateway.endpoint, **gateway.client)
    if request.param == "oci":
        return OciBlobStore(f"{request.getfixturevalue('oci_registry')}/packs/{secrets.token_hex(6)}")
    if request.param in ("s3", "s3-prefix"):
        prefix = "some/where" if request.param == "s3-prefix" else ""
        endpoint = request.getfixturevalue("s3_endpoint")
        return S3BlobStore(request.getfixturevalue("bucket"), prefix, endpoint, **KEYS)
    local = LocalBlobStore(tmp_path)
    wrapped = {
        "local": local,
        "verifying": Verifying(local),
        "retrying": Retrying(local),
        "metered": Metered(local),
        "all": Metered(Retrying(Verifying(local))),
    }
    return wrapped[request.param]


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds(store: BlobStore, check) -> None:
    testing.run(store, check)


@pytest.mark.parametrize("check", testing.LINK_CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_links_holds(gateway: Gateway, bucket_at_gateway: str, check) -> None:
    store = S3BlobStore(bucket_at_gateway, "some/where", gateway.endpoint, **gateway.client)
    testing.run_links(store, store, check)


def test_the_contract_detects_links_that_anybody_can_forge(s3_endpoint: str, bucket: str) -> None:
    """moto checks no signature."""
    store = S3BlobStore(bucket, "", s3_endpoint, **KEYS)
    with pytest.raises(AssertionError, match="instead of a refusal"):
        testing.run_links(store, store, testing.links_are_not_forged)


def test_links_name_the_public_endpoint(s3_endpoint: str, bucket: str) -> None:
    store = S3BlobStore(bucket, "eu", s3_endpoint, "https://packs.example:8443", **KEYS)
    store.put("a", [b"x"])
    link = store.link("a", 60)
    assert link.startswith(f"https://packs.example:8443/{bucket}/eu/a?")


def test_the_contract_detects_a_store_that_shows_partial_objects(tmp_path: Path) -> None:
    class Halves(LocalBlobStore):
        def put(self, key, chunks) -> int:
            path = tmp_path / "objects" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                return sum(out.write(chunk) for chunk in chunks)

    for check in (testing.shows_nothing_before_it_is_whole, testing.forgets_what_broke_off):
        with pytest.raises(AssertionError):
            testing.run(Halves(tmp_path), check)


def test_two_prefixes_of_a_bucket_are_separate(s3_endpoint: str, bucket: str) -> None:
    one, two = (S3BlobStore(bucket, prefix, s3_endpoint, **KEYS) for prefix in ("one", "two"))
    one.put("a", [b"1"])
    assert list(two.list()) == []
    with pytest.raises(NotFound):
        two.open("a")


def test_an_absent_bucket_is_unavailable_in_one_line(s3_endpoint: str, bucket: str) -> None:
    absent = S3BlobStore(bucket + "-absent", "", s3_endpoint, **KEYS)
    nobody = S3BlobStore(bucket, "", "http://127.0.0.1:9", **KEYS)
    for store in (absent, nobody):
        with pytest.raises(Unavailable) as error:
            store.check()
        assert "\n" not in str(error.value)
        assert "bucket" in str(error.value)


def test_a_put_that_broke_off_leaves_no_parts_in_s3(s3_endpoint: str, bucket: str) -> None:
    import boto3

    store = S3BlobStore(bucket, "", s3_endpoint, **KEYS)

    def chunks() -> Iterator[bytes]:
        yield b"x" * (20 << 20)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        store.put("a", chunks())
    client = boto3.client("s3", endpoint_url=s3_endpoint, **KEYS)
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


@pytest.mark.services
@pytest.mark.parametrize("prefix", ["", "some/where", "a b/+ü%"])
def test_a_small_put_works_without_boto3(
    gateway: Gateway, bucket_at_gateway: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store checks signatures, so it would refuse a put with a wrong one."""
    store = S3BlobStore(bucket_at_gateway, prefix, gateway.endpoint, **gateway.client)
    monkeypatch.setattr(store._s3, "put_object", None)
    data = os.urandom(300_000)
    assert store.put("a", [data[:1000], data[1000:]]) == len(data)
    monkeypatch.undo()
    assert b"".join(store.open("a")) == data


@pytest.mark.parametrize(
    ("statuses", "etag", "expected"),
    [
        ([], None, ["PUT alone"]),
        ([], '"of another kind"', ["PUT alone", "HEAD boto3"]),
        ([503], None, ["PUT alone", "PUT boto3"]),
        ([0], None, ["PUT alone", "PUT boto3"]),
        ([500, 503], None, ["PUT alone", "PUT boto3", "PUT boto3"]),
    ],
)
def test_a_small_put_that_fails_is_repeated_by_boto3(
    statuses: list[int], etag: str | None, expected: list[str]
) -> None:
    with _store(statuses, etag) as (endpoint, requests):
        assert S3BlobStore("bucket", "", endpoint, **KEYS).put("a", [b"whole"]) == 5
    assert requests == expected


def test_a_refused_small_put_is_reported_as_boto3_reports_it() -> None:
    with (
        _store([403] * 9, None) as (endpoint, _),
        pytest.raises(Unavailable, match="PutObject was refused: SignatureDoesNotMatch"),
    ):
        S3BlobStore("bucket", "", endpoint, **KEYS).put("a", [b"whole"])


@contextmanager
def _store(statuses: list[int], etag: str | None) -> Iterator[tuple[str, list[str]]]:
    """Serve an S3 of one object, whose first answers to puts have these statuses (0: hang up).

    Return its address and the list of its requests with their senders. The server refuses what is not signed,
    or differs from what was signed."""
    requests: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["x-amz-content-sha256"] == hashlib.sha256(body).hexdigest()
            assert "content-md5;" in self.headers["Authorization"]
            md5 = hashlib.md5(body)
            assert self.headers["Content-MD5"] == base64.b64encode(md5.digest()).decode()
            self._note()
            status = statuses.pop(0) if statuses else 200
            if not status:
                self.close_connection = True
                return
            error = b"<Error><Code>SignatureDoesNotMatch</Code></Error>" if status == 403 else b""
            self._answer(status, error, etag or f'"{md5.hexdigest()}"')

        def do_HEAD(self) -> None:
            self._note()
            self._answer(200, b"12345", "")

        def _note(self) -> None:
            requests.append(
                f"{self.command} {'boto3' if 'amz-sdk-invocation-id' in self.headers else 'alone'}"
            )

        def _answer(self, status: int, body: bytes, tag: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", tag)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def test_a_local_store_deletes_the_rest_of_a_killed_put(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path)
    store.put("kept", [b"x"])
    if (child := os.fork()) == 0:

        def chunks() -> Iterator[bytes]:
            yield b"y" * 100
            os.kill(os.getpid(), 9)

        store.put("lost", chunks())
    os.waitpid(child, 0)
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    again = LocalBlobStore(tmp_path)
    assert again.sweep() == 1
    assert [facts.key for facts in again.list()] == ["kept"]


def test_a_full_disk_of_a_local_store_is_storage_full_and_leaves_nothing(tmp_path: Path) -> None:
    import resource
    import signal

    store = LocalBlobStore(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(StorageFull, match="make room"):
            store.put("big", (b"x" * 300_000 for _ in range(10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(store.list()) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_local_store_whose_folder_is_gone_is_unavailable(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "blobs")
    (tmp_path / "blobs" / "tmp").rmdir()
    with pytest.raises(Unavailable, match="tmp"):
        store.check()
    with pytest.raises(Unavailable):
        store.put("a", [b"x"])


@pytest.mark.parametrize("token", [None, "of-a-session+/="])
@pytest.mark.parametrize(
    ("endpoint", "bucket", "prefix"),
    [
        (None, "packs", "some/where"),
        (None, "packs.with.dots", ""),
        ("http://127.0.0.1:9", "packs", "ünder a+b"),
        ("https://s3.example:8443/base", "packs", "eu"),
    ],
)
def test_links_are_equal_to_boto3s(endpoint: str | None, bucket: str, prefix: str, token: str | None) -> None:
    keys = {**KEYS, "region_name": "eu-west-1", "aws_session_token": token}
    store = S3BlobStore(bucket, prefix, endpoint, **keys)
    key = "packs/u-0123456789abcdef-01"
    for _ in range(5):  # Both links name the second in which they were made.
        boto3s = store._public.generate_presigned_url("get_object", Params=store._at(key), ExpiresIn=77)
        if store.link(key, 77) == boto3s:
            break
    else:
        pytest.fail(f"{store.link(key, 77)} is not {boto3s}")
