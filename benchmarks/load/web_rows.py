"""Add to a filled SQLite index what the web page shows beside entries: starts, what went cold, what is
withheld, what a collection would remove, tokens, signers, claims, the audit log."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .filling import ELSEWHERE, FINGERPRINT

ONE_NAMESPACE = "team-0"
"""The namespace that has all entries in the shape *one namespace*."""
DAY = 86_400
TOKENS, SIGNERS, CLAIMS, AUDIT = 1_000, 200, 150, 100_000
"""Rows of each of these lists."""
LANES = 1_000
"""Entries that are moved into lanes."""
COLD = 200
"""Pairs of revision and environment that went cold today; half of them are withheld."""
QUARANTINED = 100
"""Revisions that an operator withholds."""
OLD_LINES, OLD_REVISIONS = 100, 15
"""Entries that have more revisions than are kept, and how many older ones each has."""


def add_rows(path: Path, *, one_namespace: bool) -> None:
    """Add the rows to a database that nobody has open. ``one_namespace``: moves all entries into one."""
    now = int(time.time())
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-500000"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN")
    if one_namespace:
        connection.execute("UPDATE entries SET namespace = ?", (ONE_NAMESPACE,))
        connection.execute("DELETE FROM namespaces WHERE namespace <> ?", (ONE_NAMESPACE,))
    for statement, values in _statements(now):
        connection.execute(statement, values)
    for table, columns, rows in _tables(connection, now):
        marks = ",".join("?" * len(columns.split()))
        named = ",".join(columns.split())
        connection.executemany(f"INSERT INTO {table} ({named}) VALUES ({marks})", rows)
    connection.execute("COMMIT")
    connection.execute("ANALYZE")
    connection.close()


def _statements(now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    first = "SELECT entry FROM entries ORDER BY entry LIMIT ?"
    yield (
        f"UPDATE entries SET lane = 'pr-' || (rowid % 20) WHERE entry IN ({first})",
        (LANES,),
    )
    yield (
        "UPDATE revisions SET quarantined = ?, quarantine_why = 'bench' WHERE revision IN "
        "(SELECT revision FROM revisions ORDER BY revision LIMIT ?)",
        (now, QUARANTINED),
    )
    # Every second revision was offered to a start.
    yield "UPDATE revisions SET last_used = published WHERE rowid % 2 = 0", ()
    facts = json.dumps({name: FINGERPRINT[name] for name in ("gpu", "torch", "platform")})
    yield (
        "INSERT INTO usefulness (revision, environment, facts, hit, partial, inert, miss, unused, saved,"
        " spent, first_seen, last_seen, why) SELECT revision, ?, ?, rowid % 50, 0, 0, 1, 0,"
        " (rowid % 50) * 20.5, 21.0, ?, ?, '' FROM revisions",
        (_id("environment"), facts, now - DAY, now),
    )
    yield (
        "UPDATE usefulness SET inert = 5, hit = 0, quarantined = CASE rowid % 2 WHEN 0 THEN ? END WHERE"
        " revision IN (SELECT revision FROM revisions ORDER BY revision DESC LIMIT ?)",
        (now, COLD),
    )
    for node in ("a", "b"):
        yield (
            "INSERT INTO inert_hosts (revision, environment, token, node, seen)"
            " SELECT revision, environment, 't-bench', ?, ? FROM usefulness WHERE inert = 5",
            (node * 32, now),
        )
    yield (
        "INSERT INTO daily_starts (namespace, day, hit, partial, inert, miss, unused, saved, spent)"
        " WITH RECURSIVE days(day) AS (SELECT ? UNION ALL SELECT day - 1 FROM days LIMIT 30)"
        " SELECT namespace, day, 90, 2, 1, 7, 3, 1800.0, 140.0 FROM namespaces, days",
        (now // DAY,),
    )


def _tables(connection: sqlite3.Connection, now: int) -> Iterator[tuple[str, str, Iterator[Any]]]:
    namespaces = [row[0] for row in connection.execute("SELECT namespace FROM namespaces")]

    def namespace(n: int) -> str:
        return str(namespaces[n % len(namespaces)])

    yield (
        "environments",
        "namespace environment fingerprint seen",
        (
            (one, _id(f"environment{n or ''}"), json.dumps(facts), now)
            for one in namespaces
            for n, facts in enumerate((FINGERPRINT, ELSEWHERE))
        ),
    )
    yield (
        "tokens",
        "token secret_hash label role namespace lane created expires",
        (
            (f"t-{n}", _id(f"secret{n}")[7:], f"ci {n}", "write", namespace(n), "", now - n, now + 90 * DAY)
            for n in range(TOKENS)
        ),
    )
    yield (
        "signers",
        "namespace key label created",
        ((namespace(n), f"ed25519:bench{n}", f"ci {n}", now) for n in range(SIGNERS)),
    )
    yield (
        "claims",
        "key namespace name lane holder who token fence taken expires done",
        (
            (_id(f"claim{n}"), namespace(n), "model/0", "", "h" * 32, "ci", "t-0", 1, now, now + DAY, 0)
            for n in range(CLAIMS)
        ),
    )
    yield (
        "audit",
        "at by action namespace subject details",
        ((now - n, "t-0", "revision.pin", namespace(n), _id(f"subject{n}"), "{}") for n in range(AUDIT)),
    )
    old = now - 60 * DAY
    heads = connection.execute("SELECT * FROM revisions ORDER BY entry LIMIT ?", (OLD_LINES,))
    columns = [one[0] for one in heads.description]
    lines = [dict(zip(columns, row, strict=True)) for row in heads]
    yield (
        "revisions",
        " ".join(columns),
        (
            tuple(({**row, "revision": _id(f"{row['entry']}{n}"), "sequence": n, "published": old}).values())
            for row in lines
            for n in range(1, OLD_REVISIONS + 1)
        ),
    )


def _id(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
