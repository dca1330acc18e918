"""Fill an index of any size in bulk: with rows as commits make them, without the bytes of their packs.

Each name has ``PER_NAME`` entries: two targets in two environments, of which :data:`FINGERPRINT` fits one.
Every revision has the envelope of one signed manifest: a resolve sends envelopes and does not read them.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cachesvc.index.tables import metadata
from cachesvc_client.bundle.pack import SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target
from cachesvc_client.wire.partitions import partition

PER_NAME = 4
NAMES = 100
"""The number of names of one namespace."""
FINGERPRINT: dict[str, Any] = {
    "schema": 1,
    "torch": "2.13.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "gpu": "NVIDIA H200",
    "capability": "9.0",
    "python_abi": "cpython-311",
    "platform": "linux-x86_64",
    "cpu_isa": "avx512",
    "cpu_flags": ["avx", "avx2", "avx512f", "fma"],
    "libc": "2.36",
}
ELSEWHERE = {**FINGERPRINT, "torch": "2.11.0", "gpu": "NVIDIA A100", "capability": "8.0"}
SCOPES = ("gpu", "host")


def place(number: int) -> tuple[str, str]:
    """Return the namespace and the name of the ``number``-th name."""
    return f"team-{number // NAMES}", f"model/{number}"


def envelope() -> bytes:
    """Return the envelope of a small model on a GPU."""
    files = [SourceFile("triton", f"0/{_id('file', n)[7:33]}/kernel.cubin", b"%d" % n) for n in range(4)]
    contents = write_pack(files, io.BytesIO())
    statement = Statement(Namespace("team-0"), ShortName("model/0"), Target("model/bf16/default"), 1)
    workload = Workload(model=Digest.of(b"model"))
    manifest = Manifest(
        statement, contents.pack, contents.frames, contents.files, FINGERPRINT, workload, SCOPES
    )
    return SigningKey.generate().sign(manifest)


@dataclass(frozen=True)
class Fill:
    """Holds the size of a filled index: ``entries`` rows of each table, the ``seconds`` of the fill, and the
    ``bytes`` of the database afterwards."""

    entries: int
    seconds: float
    bytes: int


def fill_sqlite(path: Path, entries: int) -> Fill:
    """Fill a database with the newest schema that nobody has open."""
    import sqlite3

    began = time.perf_counter()
    with _without_indexes(sa.URL.create("sqlite", database=str(path))):
        connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-500000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        for table, columns, rows in _tables(entries):
            marks = ",".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {table} ({','.join(columns)}) VALUES ({marks})", rows)
        connection.execute("COMMIT")
        connection.close()
    return Fill(entries, round(time.perf_counter() - began, 1), path.stat().st_size)


def fill_postgresql(url: str, entries: int) -> Fill:
    """Fill a database by COPY."""
    import psycopg

    began = time.perf_counter()
    with _without_indexes(url), psycopg.connect(url) as connection, connection.cursor() as cursor:
        for table, columns, rows in _tables(entries):
            with cursor.copy(f"COPY {table} ({','.join(columns)}) FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        size_row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return Fill(entries, round(time.perf_counter() - began, 1), size_row[0] if size_row else 0)


@contextmanager
def _without_indexes(url: sa.URL | str) -> Iterator[None]:
    """Drop the indexes other than the keys, and make them again when the block ends: the fill takes a tenth
    of the time."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    indexes = [index for name in TABLES for index in metadata.tables[name].indexes]
    with engine.begin() as connection:
        for index in indexes:
            index.drop(connection)
    yield
    with engine.begin() as connection:
        for index in indexes:
            index.create(connection)
        connection.execute(sa.text("ANALYZE"))
    engine.dispose()


_SIGNER = "ed25519:bench"
"""The signer of all revisions. A registry withholds those of a signer that it does not know."""
TABLES = ("namespaces", "signers", "objects", "entries", "revisions")
"""The filled tables, in the order that foreign keys need."""


def _tables(entries: int) -> Iterator[tuple[str, tuple[str, ...], Iterator[tuple[Any, ...]]]]:
    """Yield (table, columns, rows).

    Rows come in the order of their keys, which are digests: a B-tree that is filled in random order is
    slow."""
    now = int(time.time())
    namespaces = -(-entries // (PER_NAME * NAMES))
    yield "namespaces", ("namespace", "created"), ((place(n * NAMES)[0], now) for n in range(namespaces))
    yield "signers", _words("namespace key label created"), iter([("*", _SIGNER, "", now)])
    yield (
        "objects",
        ("key", "digest", "size", "state", "leased_until"),
        ((_key(n), _id("pack", n), 74_000, "live", now) for n in sorted(range(entries), key=_key)),
    )
    yield (
        "entries",
        _words(
            "entry namespace lane name tag target partition workload model"
            " head head_sequence published dtypes shapes"
        ),
        (_entry(n, now) for n in sorted(range(entries), key=lambda n: _id("entry", n))),
    )
    yield (
        "revisions",
        _words(
            "revision entry sequence envelope signer pack pack_key pack_size files"
            " fingerprint scopes measured published published_by last_used"
        ),
        _revisions(entries, now),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _entry(n: int, now: int) -> tuple[Any, ...]:
    namespace, name = place(n // PER_NAME)
    where = _PARTITIONS[n % 2]
    target = f"model/{'bf16' if n % PER_NAME < 2 else 'f32'}/default"
    model = _id("model", n // PER_NAME)
    identity = (_id("entry", n), namespace, "", name, "latest", target, where, _id("workload", n), model)
    return (*identity, _id("revision", n), now * 1000, now - n % 100_000, " bf16 ", " 1x128 ")


def _revisions(entries: int, now: int) -> Iterator[tuple[Any, ...]]:
    sealed = envelope()
    facts = [json.dumps(fingerprint) for fingerprint in (FINGERPRINT, ELSEWHERE)]
    rest = (json.dumps(SCOPES), json.dumps({"compile": 21.0, "first_call": 21.1}))
    for n in sorted(range(entries), key=lambda n: _id("revision", n)):
        what = (_id("revision", n), _id("entry", n), now * 1000, sealed, _SIGNER, _id("pack", n))
        where = (_key(n), 74_000, 4, facts[n % 2], *rest)
        yield (*what, *where, now - n % 100_000, "t-bench", now)


def _key(n: int) -> str:
    return f"packs/u-{_id('key', n)[7:39]}-0"


@functools.cache
def _spread(what: str) -> int:
    return int.from_bytes(hashlib.sha256(what.encode()).digest(), "big") | 1


def _id(what: str, n: int) -> str:
    """Return an id that is spread as digests are and made in a tenth of the time: for a million entries,
    digests would take most of the fill."""
    return f"sha256:{(n + 1) * _spread(what) % (1 << 256):064x}"


_PARTITIONS = [partition(factors, SCOPES) for factors in (FINGERPRINT, ELSEWHERE)]
