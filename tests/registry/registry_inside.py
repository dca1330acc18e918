"""Run a registry in this process, with a clock that the test moves, over both columns of backends."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from registry_making import FINGERPRINT, Publication

from cachesvc.blobs.local import LocalBlobStore
from cachesvc.blobs.s3 import S3BlobStore
from cachesvc.blobs.store import BlobStore
from cachesvc.domain.access import ANY, Role, Token
from cachesvc.domain.retention import Retention
from cachesvc.hot.memory import MemoryHot
from cachesvc.index.engine import open_postgresql, open_sqlite
from cachesvc.index.unit import Index
from cachesvc.registry import answers, download, publish
from cachesvc.registry.context import Limits, Packs, Registry
from cachesvc.registry.trust import signers
from cachesvc.schema.access import SignerRecord
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.protocol import (
    BundleRequest,
    CommitAnswer,
    CommitRequest,
    ResolveAnswer,
    ResolveRequest,
    UploadRequest,
)
from tests.conftest import new_bucket, new_database
from tests.services.ceph import Gateway

START = 1_800_000_000
ROOT = Token("t-root", "test", Role.admin, ANY)
LIMITS = Limits(lease_seconds=100, grace_seconds=1000, retention=Retention(revisions=2, days=1))


class Clock:
    """Returns the seconds of UTC, also for the hot store; the test moves it."""

    def __init__(self) -> None:
        self.now = float(START)

    def __call__(self) -> float:
        return self.now


@dataclass
class Inside:
    registry: Registry
    key: SigningKey
    clock: Clock

    def begin(self, publication: Publication, token: Token = ROOT) -> str:
        statement = publication.manifest.statement
        request = UploadRequest(statement.namespace, statement.name, len(publication.pack), statement.lane)
        return publish.begin(self.registry, token, request).upload

    def put(self, upload: str, data: bytes, token: Token = ROOT) -> Any:
        chunks = (data[start : start + 50] for start in range(0, len(data), 50))
        return publish.receive(self.registry, token, upload, chunks)

    def commit(
        self, upload: str, publication: Publication, head: Digest | None = None, token: Token = ROOT
    ) -> CommitAnswer:
        return publish.commit(
            self.registry, token, upload, CommitRequest(publication.envelope.decode(), head)
        )

    def publish(self, publication: Publication, head: Digest | None = None) -> CommitAnswer:
        upload = self.begin(publication)
        self.put(upload, publication.pack)
        return self.commit(upload, publication, head)

    def bundle(
        self, publication: Publication, head: Digest | None = None, token: Token = ROOT
    ) -> CommitAnswer:
        statement = publication.manifest.statement
        request = BundleRequest(statement.namespace, statement.name, statement.lane, head)
        data = bundle_head(publication.envelope) + publication.pack
        chunks = (data[start : start + 500] for start in range(0, len(data), 500))
        return publish.bundle(self.registry, token, request, chunks)

    def answer(
        self, request: ResolveRequest, body: bytes = b"", *, registry: Registry | None = None
    ) -> bytes:
        """Answer one resolve request with the root token, as a batch of one. Raise the error that is the
        answer."""
        question = answers.Question(ROOT, request, body)
        [answer] = answers.answer_each(registry or self.registry, [question])
        if isinstance(answer, CacheSvcError):
            raise answer
        return bytes(answer.body)

    def resolve(self, name: str = "bert", **more: Any) -> ResolveAnswer:
        request = ResolveRequest(Namespace("team"), ShortName(name), FINGERPRINT, **more)
        # Nothing is remembered: the test moves its own clock, and the cache of answers has another clock.
        answer = self.answer(request, registry=replace(self.registry, own=MemoryHot()))
        return codec.build(ResolveAnswer, codec.parse_json(answer, limit=len(answer), what="the answer"))

    def pack(self, revision: Digest) -> bytes:
        pack = download.find_pack(self.registry, ROOT, revision)
        return b"".join(download.read_pack(self.registry, pack, 0, pack.size))

    def blobs(self) -> set[str]:
        return {facts.key for facts in self.registry.packs.blobs.list()}

    def referenced(self) -> set[str]:
        with self.registry.index.read() as unit:
            return {key for _, _, key, _, _ in unit.inventory.packs("", 10_000)}


class Column(Protocol):
    """Stands for one column of the table of backends in docs/architecture.md."""

    def open(self, folder: Path) -> tuple[Index, BlobStore]:
        """Open the backends of ``folder``; each call for a folder opens the same ones."""
        ...


class Embedded:
    def open(self, folder: Path) -> tuple[Index, BlobStore]:
        return open_sqlite(folder / "index.sqlite3"), LocalBlobStore(folder)


@dataclass(frozen=True)
class Production:
    """Uses ``server``, the URL of a PostgreSQL, and ``template``, a database there with the newest schema."""

    server: str
    template: str
    gateway: Gateway
    bucket: str

    def open(self, folder: Path) -> tuple[Index, BlobStore]:
        """Open the database, the bucket and the hot store of ``folder``; each call for a folder opens the
        same ones."""
        import psycopg

        name = "f" + hashlib.sha256(bytes(folder)).hexdigest()[:20]
        with psycopg.connect(f"{self.server}/postgres", autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                connection.execute(f"CREATE DATABASE {name} TEMPLATE {self.template}")
        blobs = S3BlobStore(self.bucket, name, self.gateway.endpoint, **self.gateway.client)
        return open_postgresql(f"{self.server}/{name}"), blobs


EMBEDDED = Embedded()


@contextlib.contextmanager
def inside(
    folder: Path, key: SigningKey, clock: Clock, limits: Limits = LIMITS, column: Column = EMBEDDED
) -> Iterator[Inside]:
    index, blobs = column.open(folder)
    registry = Registry(index, Packs(blobs), MemoryHot(clock=clock), limits, clock)
    signers.add_signer(registry, None, SignerRecord(ANY, key.public))
    try:
        yield Inside(registry, key, clock)
    finally:
        index.close()


COLUMNS = ["embedded", pytest.param("production", marks=pytest.mark.services)]


def production(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the variables of a server over real services, with a database and a bucket of its own."""
    gateway = request.getfixturevalue("gateway")
    return {
        **gateway.variables,
        "CACHESVC_SERVER_DATABASE": new_database(request.getfixturevalue("postgresql")),
        "CACHESVC_SERVER_REDIS": request.getfixturevalue("redis_url"),
        "CACHESVC_SERVER_BUCKET": new_bucket(gateway.endpoint, gateway.client),
        "CACHESVC_SERVER_BUCKET_PREFIX": "some/where",
        "CACHESVC_SERVER_BUCKET_ENDPOINT": gateway.endpoint,
    }
