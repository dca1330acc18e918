"""Start the two columns of backends, over which the same registry is measured, and the bare server beside
them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.hosts import ROOT, Failed, Registry, clean_environment, registry, running_process
from cachesvc.index.engine import open_postgresql, open_sqlite
from tests.services.ceph import Gateway, ceph_gateway
from tests.services.postgresql import postgresql_server
from tests.services.redis import redis_server

from .filling import Fill, fill_postgresql, fill_sqlite

PREFIX = "CACHESVC_SERVER_"


class Column(Protocol):
    """Holds the backends of registries."""

    name: str

    def fill_index(self, place: Path, entries: int) -> tuple[dict[str, str], Fill]:
        """Return the settings of a registry in the folder ``place`` whose index has so many entries."""
        ...


@dataclass(frozen=True)
class Embedded:
    """Uses SQLite and a folder."""

    name: str = "embedded"

    def fill_index(self, place: Path, entries: int) -> tuple[dict[str, str], Fill]:
        place.mkdir(parents=True)
        path = place / "index.sqlite3"
        open_sqlite(path).close()
        return {}, fill_sqlite(path, entries)


@dataclass
class Production:
    """Uses PostgreSQL, Redis and Ceph's S3; each registry has its own database and bucket, and all share one
    Redis database."""

    postgresql: str
    redis: str
    gateway: Gateway
    name: str = "production"
    made: int = 0

    def fill_index(self, place: Path, entries: int) -> tuple[dict[str, str], Fill]:
        place.mkdir(parents=True)
        self.made += 1
        bucket, database = f"packs-{self.made}", f"{self.postgresql}/bench{self.made}"
        self._create(f"bench{self.made}")
        self.s3().create_bucket(Bucket=bucket)
        open_postgresql(database).close()
        settings = {
            "database": database,
            "redis": f"{self.redis}/{self.made}",
            "bucket": bucket,
            "bucket_endpoint": self.gateway.endpoint,
        }
        return settings, fill_postgresql(database, entries)

    def s3(self) -> Any:
        """Return boto3 on the same S3."""
        import boto3

        return boto3.client("s3", endpoint_url=self.gateway.endpoint, **self.gateway.client)

    def _create(self, name: str) -> None:
        import psycopg

        with psycopg.connect(f"{self.postgresql}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())


@contextmanager
def column(name: str) -> Iterator[Embedded | Production]:
    """Start the backends for the length of the block. Raise ``Failed`` if one is not installed."""
    if name == "embedded":
        yield Embedded()
        return
    with ExitStack() as stack:
        servers = [start_server(stack, start()) for start in (postgresql_server, redis_server, ceph_gateway)]
        yield Production(*servers)


def start_server(stack: ExitStack, server: Any) -> Any:
    import pytest  # The tests' recipes say with this exception that a server is not installed.

    try:
        return stack.enter_context(server)
    except pytest.skip.Exception as error:
        raise Failed(str(error)) from None


@contextmanager
def serving(
    where: Embedded | Production, place: Path, entries: int = 0, **settings: str | int
) -> Iterator[tuple[Registry, Fill]]:
    """Run a registry in its own process over backends of its own, with an index of ``entries``."""
    named, fill = where.fill_index(place, entries)
    variables = {f"{PREFIX}{key.upper()}": str(value) for key, value in {**named, **settings}.items()}
    if isinstance(where, Production):
        variables |= where.gateway.variables
    with registry(place, **variables) as server:
        yield server, fill


@dataclass(frozen=True)
class Bare:
    """Is the running bare server: its address, its process, and the folder of its files."""

    url: str
    pid: int
    folder: Path


@contextmanager
def bare(folder: Path) -> Iterator[Bare]:
    """Run the bare server for the length of the block."""
    folder.mkdir()
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "benchmarks.load.bare", str(folder)]
    with open(folder / "log", "wb") as log:
        options: dict[str, Any] = {"cwd": ROOT, "stdout": log, "stderr": subprocess.STDOUT}
        with running_process(command, env=clean_environment(), **options) as process:
            while not ready.exists() or not ready.read_text():
                if process.poll() is not None:
                    raise Failed(f"the bare server ended:\n{(folder / 'log').read_text()[-3000:]}")
                time.sleep(0.05)
            yield Bare(json.loads(ready.read_text())["url"], process.pid, folder)
