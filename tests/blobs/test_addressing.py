"""Test stores that take a bucket's name in the host alone, or in the path alone: found out at the start.

In front of moto's S3 stands a proxy to which every host is such a store's, as DNS would have it."""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from cachesvc.blobs import testing
from cachesvc.blobs.s3 import Addressing, S3BlobStore
from cachesvc.bootstrap import open_registry
from cachesvc.settings import read_settings
from cachesvc_client.wire.errors import CacheSvcError
from tests.conftest import new_bucket

pytestmark = pytest.mark.servers
ENDPOINT = "http://s3.test"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
FORBIDDEN = b"<Error><Code>%s</Code><Message>m</Message></Error>"


@contextmanager
def store_that_takes(form: Addressing, s3: str, code: bytes) -> Iterator[str]:
    """Serve a proxy whose store refuses the other form; the one that takes paths ignores the host."""

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = urlsplit(self.path)
            in_host, _, _ = (asked.hostname or "").removesuffix("s3.test").partition(".")
            if form == "virtual" and not in_host:
                return self.send(403, FORBIDDEN % code, {})
            bucket = f"/{in_host}" if form == "virtual" else ""
            upstream = http.client.HTTPConnection(urlsplit(s3).netloc)
            target = f"{bucket}{asked.path}" + (f"?{asked.query}" if asked.query else "")
            headers = {name: text for name, text in self.headers.items() if name != "Host"}
            upstream.request(self.command, target, body, headers)
            reply = upstream.getresponse()
            self.send(reply.status, reply.read(), dict(reply.headers))

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

        def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response_only(status)
            for name, text in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                    self.send_header(name, text)
            length = headers.get("Content-Length") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name = new_bucket(s3_endpoint, KEYS)
    for variable, value in zip(
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"), KEYS.values(), strict=True
    ):
        monkeypatch.setenv(variable, value)
    return name


def error_of_start(folder: Path, **settings: str) -> CacheSvcError | None:
    try:
        with open_registry(read_settings(data=folder, **settings), prove_bucket=True):
            return None
    except CacheSvcError as error:
        return error


@pytest.mark.parametrize("code", [b"SecondLevelDomainForbidden", b"InvalidRequest", b"NoSuchBucket", b""])
def test_a_registry_starts_over_a_store_that_takes_the_host_alone(
    tmp_path: Path, s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch, code: bytes
) -> None:
    with store_that_takes("virtual", s3_endpoint, code) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        named = {"bucket": bucket, "bucket_endpoint": ENDPOINT}
        assert error_of_start(tmp_path, **named) is None
        assert error_of_start(tmp_path, **named, bucket_addressing="virtual") is None
        error = error_of_start(tmp_path, **named, bucket_addressing="path")
        # What has no known code may pass: the registry starts, and is not ready.
        assert (error.exit_status if error else 0) == (0 if code == b"InvalidRequest" else 6)
        if code == b"SecondLevelDomainForbidden":
            assert error is not None and "set bucket_addressing to virtual" in str(error)


def test_objects_and_links_go_to_the_host(
    s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_that_takes("virtual", s3_endpoint, b"PathStyleDomainForbidden") as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        store = S3BlobStore(bucket, "some/where", ENDPOINT, "https://packs.example", **KEYS)
        store.check()
        testing.run(store, testing.CHECKS[0])
        store.put("a", [b"x" * (9 << 20)])
        assert sum(map(len, store.open("a"))) == 9 << 20
        assert store.link("a", 60).startswith(f"https://{bucket}.packs.example/some/where/a?")


def test_a_store_that_takes_paths_is_never_asked_for_another_bucket(
    tmp_path: Path, s3_endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To an absent bucket in a host that it does not know, such a store answers with a list of buckets."""
    with store_that_takes("path", s3_endpoint, b"") as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        assert error_of_start(tmp_path, bucket=bucket, bucket_endpoint=ENDPOINT) is None
        absent = f"absent-{secrets.token_hex(4)}"
        error = error_of_start(tmp_path, bucket=absent, bucket_endpoint=ENDPOINT)
        assert error is not None and "NoSuchBucket" in str(error) and error.exit_status == 6
        forced = {"bucket": bucket, "bucket_endpoint": ENDPOINT, "bucket_addressing": "virtual"}
        error = error_of_start(tmp_path, **forced)
        assert error is not None and error.exit_status == 6
