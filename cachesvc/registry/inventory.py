"""Show operators entries by their properties, lines of revisions, differences and sums."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from cachesvc.domain.access import ANY, Action, Token, demand, may
from cachesvc.domain.days import DayOfStarts, each_day
from cachesvc.domain.difference import difference
from cachesvc.domain.retention import DAY
from cachesvc.index.entries.namespaces import Totals
from cachesvc.index.entries.search import Search
from cachesvc.index.unit import Unit
from cachesvc.schema.entries import EntryPage, RevisionDifference, RevisionRecord, Withheld
from cachesvc.schema.mirrors import MirrorState
from cachesvc.schema.upkeep import Stats, Usage
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust.accept import Acceptance, Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, NotFound

from .context import Registry

WITHHELD = 5000
"""Withheld revisions that are listed, at most."""
RANKED = 100
"""Entries of each ranking, at most."""
ORDERS = ("coldest", "heaviest", "dearest")
"""Orders of rankings: unused for longest, largest, saved most."""
_CURSOR = re.compile(r"(\d{1,18})\.([0-9a-f]{64})")
_BEGINNING = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})")

_log = logging.getLogger("cachesvc.registry")


def search_entries(
    registry: Registry, by: Token, search: Search, cursor: str | None, limit: int
) -> EntryPage:
    """Returns a page of the entries that match, newest first, as far as the token sees them.

    ``search.namespace`` ``*``: all that the token may read. An entry that is made or deleted meanwhile may be
    missing; no entry is on two pages.
    """
    namespace = by.namespace if search.namespace == ANY else search.namespace
    demand(by, Action.read, namespace)
    lanes = search.lanes
    if by.lane is not None:
        readable = ("", str(by.lane))
        lanes = readable if lanes is None else tuple(lane for lane in lanes if lane in readable)
    narrowed = replace(search, namespace=namespace, lanes=lanes)
    with registry.index.read() as unit:
        page, more = unit.inventory.search(narrowed, _after(cursor), limit)
    last = page[-1] if more and page else None
    return EntryPage(tuple(page), f"{last.published}.{last.entry.hex}" if last else None)


def list_revisions(registry: Registry, by: Token, entry: Digest) -> list[RevisionRecord]:
    """Returns the revisions of an entry, newest first. Raises ``NotFound``, also for what the token may not
    see."""
    with registry.index.read() as unit:
        rows = unit.inventory.revisions(entry)
    if not rows or not may(by, Action.read, rows[0].namespace, rows[0].lane):
        raise NotFound(f"entry {entry} does not exist")
    return rows


def get_revision(registry: Registry, by: Token, revision: Digest) -> RevisionRecord:
    """Returns one revision. Raises ``NotFound``, also for what the token may not see."""
    with registry.index.read() as unit:
        return readable_revision(unit, by, revision)


def get_envelope(registry: Registry, by: Token, revision: Digest) -> bytes:
    """Returns the exact bytes that were published. Raises ``NotFound``."""
    with registry.index.read() as unit:
        readable_revision(unit, by, revision)
        envelope = unit.inventory.envelope(revision)
    if envelope is None:
        raise absent(revision)
    return envelope


def read_revision(registry: Registry, by: Token, revision: Digest) -> Accepted:
    """Returns what a revision says of itself. Verifies it again: the index is not trusted. Raises
    ``NotFound``, also for what the token may not see, ``Untrusted``, ``Corrupt``."""
    with registry.index.read() as unit:
        row = readable_revision(unit, by, revision)
        envelope = unit.inventory.envelope(revision)
    if envelope is None:
        raise absent(revision)
    return verify_revision(revision, row.signer, envelope)


def compare_revisions(registry: Registry, by: Token, first: Digest, second: Digest) -> RevisionDifference:
    """Returns what differs between two revisions. Verifies both again: the index is not trusted."""
    return difference(*(read_revision(registry, by, revision).manifest for revision in (first, second)))


def complete(registry: Registry, by: Token, kind: str, text: str) -> Digest:
    """Returns the entry or revision whose digest begins with ``text``, at least 4 hex digits. Raises
    ``NotFound``, ``InvalidRequest`` if there are several."""
    match = _BEGINNING.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{kind}: {text[:80]!r}", "give its digest, or 4 or more of its first hex digits"
        )
    with registry.index.read() as unit:
        digests = [
            digest
            for digest in unit.inventory.starting_with(kind, f"sha256:{match[1]}", 20)
            if _visible(unit, by, kind, digest)
        ]
    if not digests:
        raise NotFound(f"{kind} {match[1]} does not exist", "see: cachesvc admin entries list")
    if len(digests) > 1:
        shown = ", ".join(digest.hex[:16] for digest in digests[:5])
        raise InvalidRequest(f"{kind} {match[1]}: {len(digests)} begin so", f"give more digits: {shown}")
    return digests[0]


def list_withheld(registry: Registry, by: Token) -> list[Withheld]:
    """Returns what is withheld from everybody or from some environments; the newest first, at most
    ``WITHHELD``."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.withheld.listing(by.namespace, WITHHELD)


def stats(registry: Registry, by: Token, namespace: str, top: int) -> Stats:
    """Returns sums, and the first ``top`` entries by each order."""
    namespace = by.namespace if namespace == ANY else namespace
    demand(by, Action.admin, namespace)
    with registry.index.read() as unit:
        totals = unit.namespaces.totals(namespace)
        starts, saved, spent = unit.sums.starts(namespace)
        ranked = _rankings(unit, namespace, top)
        names = unit.sums.named(namespace)
        mirror = describe_mirror(registry, unit)
    return Stats(
        namespaces=totals.namespaces,
        names=names,
        entries=totals.entries,
        revisions=totals.revisions,
        bytes=totals.bytes,
        starts=starts,
        saved=round(saved, 3),
        spent=round(spent, 3),
        mirror=mirror,
        **ranked,
    )


def describe_mirror(registry: Registry, unit: Unit) -> MirrorState | None:
    """Returns how far a mirror is behind its upstream; ``None`` in a registry that mirrors none."""
    mirror = registry.mirror
    if mirror is None:
        return None
    packs, size = unit.mirrors.pack_totals()
    return MirrorState(
        mirror.upstream.url, mirror.lag(registry.clock()), mirror.behind, mirror.why, packs, size
    )


def totals(registry: Registry, by: Token) -> tuple[Totals, int]:
    """Returns what the admin's namespace holds, and how many names it has."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.namespaces.totals(by.namespace), unit.sums.named(by.namespace)


def ranking(registry: Registry, by: Token, order: str, top: int) -> list[Usage]:
    """Returns the first ``top`` entries of the admin's namespace by one of ``ORDERS``."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.sums.ranked(by.namespace, order, top)


def starts_by_day(registry: Registry, by: Token, days: int) -> list[DayOfStarts]:
    """Returns the starts of the admin's namespace on each of the last ``days`` days of UTC, today last."""
    demand(by, Action.admin, by.namespace)
    today = registry.now // DAY
    with registry.index.read() as unit:
        rows = unit.days.since(by.namespace, today - days + 1)
    return each_day(rows, today - days + 1, today)


def _rankings(unit: Unit, namespace: str, top: int) -> dict[str, tuple[Usage, ...]]:
    return {order: tuple(unit.sums.ranked(namespace, order, top)) for order in ORDERS}


def readable_revision(unit: Unit, by: Token, revision: Digest) -> RevisionRecord:
    """Returns the revision, if the token may read it. Raises ``NotFound``."""
    row = unit.inventory.revision(revision)
    if row is None or not may(by, Action.read, row.namespace, row.lane):
        raise absent(revision)
    return row


def verify_revision(revision: Digest, signer: str, envelope: bytes) -> Accepted:
    """Checks the envelope that the index has of a revision, as at its commit; it may have expired since.
    Raises ``Untrusted``, ``Corrupt``."""
    try:
        trusted = [PublicKey(signer)]
    except ValueError as error:
        raise Corrupt(f"revision {revision}: the index names no signer: {error}") from None
    verified = Acceptance(trusted).accept_signed(envelope, None, now=0)
    if verified.revision != revision:
        raise Corrupt(f"revision {revision}: the index holds the envelope of {verified.revision}")
    return verified


def absent(revision: Digest) -> NotFound:
    """Return the error for a revision that does not exist, or that a token may not see."""
    return NotFound(f"revision {revision} does not exist")


def _visible(unit: Unit, by: Token, kind: str, digest: Digest) -> bool:
    withdrawn_in = unit.withdrawals.namespace_of(digest) if kind == "revision" else None
    if withdrawn_in is not None and may(by, Action.admin, withdrawn_in):
        return True  # also if it was deleted: a release names it
    rows = unit.inventory.revisions(digest) if kind == "entry" else [unit.inventory.revision(digest)]
    return any(row is not None and may(by, Action.read, row.namespace, row.lane) for row in rows)


def _after(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest(f"cursor: {cursor[:100]!r}", "send the cursor of the page before")
    return int(match[1]), f"sha256:{match[2]}"
