"""What operators look at: entries by what they are, their lines of revisions, what differs, sums."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from cachesvc.domain.access import ANY, Action, Token, demand, may
from cachesvc.domain.difference import difference, facets
from cachesvc.index.inventory import Search
from cachesvc.index.unit import Unit
from cachesvc_client.bundle.check import Verified, check_envelope
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.wire import codec
from cachesvc_client.wire.admin import (
    EntryPage,
    EntryRecord,
    RevisionDifference,
    RevisionRecord,
    Stats,
    Withheld,
)
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError, Corrupt, InvalidRequest, NotFound

from .context import Registry

WITHHELD = 5000
RANKED = 100
PAGE_BYTES = 4 << 20
"""Of one page of entries: what a publisher may put into a fingerprint is bounded, but not small."""
_DESCRIBED = 100
_CURSOR = re.compile(r"(\d{1,18})\.([0-9a-f]{64})")
_BEGINNING = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})")

_log = logging.getLogger("cachesvc.registry")


def search_entries(
    registry: Registry, by: Token, search: Search, cursor: str | None, limit: int
) -> EntryPage:
    """A page of the entries that match, newest first, as far as the token sees them.

    ``search.namespace`` ``*``: all that the token may read. Entries that come or go meanwhile may be missed;
    none is answered twice.
    """
    namespace = by.namespace if search.namespace == ANY else search.namespace
    demand(by, Action.read, namespace)
    lanes = search.lanes
    if by.lane is not None:
        seen = ("", str(by.lane))
        lanes = seen if lanes is None else tuple(lane for lane in lanes if lane in seen)
    if search.dtype or search.shape:
        describe(registry, most=_DESCRIBED)
    narrowed = replace(search, namespace=namespace, lanes=lanes)
    with registry.index.read() as unit:
        rows = unit.inventory.search(narrowed, _after(cursor), limit + 1)
    page = _within(rows[:limit], PAGE_BYTES)
    last = page[-1] if len(page) < len(rows) else None
    return EntryPage(tuple(page), f"{last.published}.{last.entry.hex}" if last else None)


def list_revisions(registry: Registry, by: Token, entry: Digest) -> list[RevisionRecord]:
    """The line of an entry, newest first. Raises ``NotFound``, also for what the token may not see."""
    with registry.index.read() as unit:
        rows = unit.inventory.revisions(entry)
    if not rows or not may(by, Action.read, rows[0].namespace, rows[0].lane):
        raise NotFound(f"entry {entry} does not exist")
    return rows


def get_revision(registry: Registry, by: Token, revision: Digest) -> RevisionRecord:
    """One revision. Raises ``NotFound``, also for what the token may not see."""
    with registry.index.read() as unit:
        return seen(unit, by, revision)


def get_envelope(registry: Registry, by: Token, revision: Digest) -> bytes:
    """The exact bytes that were published. Raises ``NotFound``."""
    with registry.index.read() as unit:
        seen(unit, by, revision)
        envelope = unit.inventory.envelope(revision)
    if envelope is None:
        raise _absent(revision)
    return envelope


def compare_revisions(registry: Registry, by: Token, first: Digest, second: Digest) -> RevisionDifference:
    """What differs between two. Both are verified again: the index is not taken at its word."""
    manifests = []
    for revision in (first, second):
        with registry.index.read() as unit:
            row = seen(unit, by, revision)
            envelope = unit.inventory.envelope(revision)
        if envelope is None:
            raise _absent(revision)
        manifests.append(verified(revision, row.signer, envelope).manifest)
    return difference(*manifests)


def complete(registry: Registry, by: Token, kind: str, text: str) -> Digest:
    """The entry or revision whose digest begins so (at least 4 hex digits). Raises ``NotFound``,
    ``InvalidRequest`` if there are several."""
    match = _BEGINNING.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"{kind}: {text[:80]!r}", "give its digest, or 4 or more of its first hex digits"
        )
    with registry.index.read() as unit:
        found = [
            digest
            for digest in unit.inventory.starting_with(kind, f"sha256:{match[1]}", 20)
            if _visible(unit, by, kind, digest)
        ]
    if not found:
        raise NotFound(f"{kind} {match[1]} does not exist", "see: cachesvc admin entries list")
    if len(found) > 1:
        shown = ", ".join(digest.hex[:16] for digest in found[:5])
        raise InvalidRequest(f"{kind} {match[1]}: {len(found)} begin so", f"give more digits: {shown}")
    return found[0]


def list_withheld(registry: Registry, by: Token) -> list[Withheld]:
    """What is not offered, to anybody or to some environments; the newest first, at most ``WITHHELD``."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.inventory.withheld(by.namespace, WITHHELD)


def stats(registry: Registry, by: Token, namespace: str, top: int) -> Stats:
    """Sums, and the first ``top`` entries by each order."""
    namespace = by.namespace if namespace == ANY else namespace
    demand(by, Action.admin, namespace)
    with registry.index.read() as unit:
        held = unit.namespaces.all(namespace)
        starts, saved, spent = unit.inventory.starts(namespace)
        ranked = {
            by: tuple(unit.inventory.ranked(namespace, by, top)) for by in ("coldest", "heaviest", "dearest")
        }
        names = unit.inventory.named(namespace)
    return Stats(
        namespaces=len(held),
        names=names,
        entries=sum(row.entries for row in held),
        revisions=sum(row.revisions for row in held),
        bytes=sum(row.bytes for row in held),
        starts=starts,
        saved=round(saved, 3),
        spent=round(spent, 3),
        **ranked,
    )


def describe(registry: Registry, most: int | None = None) -> int:
    """Writes down by what entries are found that an older replica made; how many. ``most``: at least so many
    are done, if there are."""
    done = 0
    while most is None or done < most:
        with registry.index.read() as unit:
            rows = unit.inventory.undescribed(_DESCRIBED)
        if not rows:
            break
        with registry.index.write() as unit:
            for entry, revision, signer, envelope in rows:
                try:
                    dtypes, shapes = facets(verified(revision, signer, envelope).manifest.workload)
                except CacheSvcError as error:
                    _log.warning("entry %s is not found by its inputs: %s", entry, error)
                    dtypes, shapes = (), ()
                unit.inventory.describe(entry, dtypes, shapes)
        done += len(rows)
    return done


def seen(unit: Unit, by: Token, revision: Digest) -> RevisionRecord:
    """The revision, if the token may read it. Raises ``NotFound``."""
    row = unit.inventory.revision(revision)
    if row is None or not may(by, Action.read, row.namespace, row.lane):
        raise _absent(revision)
    return row


def verified(revision: Digest, signer: str, envelope: bytes) -> Verified:
    """What the index holds of a revision, checked as at its commit; whether it has expired since does not
    matter. Raises ``Untrusted``, ``Corrupt``."""
    try:
        trusted = [PublicKey(signer)]
    except ValueError as error:
        raise Corrupt(f"revision {revision}: the index names no signer: {error}") from None
    checked = check_envelope(envelope, trusted=trusted, expected=None, now=0)
    if checked.revision != revision:
        raise Corrupt(f"revision {revision}: the index holds the envelope of {checked.revision}")
    return checked


def _absent(revision: Digest) -> NotFound:
    return NotFound(f"revision {revision} does not exist")


def _visible(unit: Unit, by: Token, kind: str, digest: Digest) -> bool:
    rows = unit.inventory.revisions(digest) if kind == "entry" else [unit.inventory.revision(digest)]
    return any(row is not None and may(by, Action.read, row.namespace, row.lane) for row in rows)


def _within(rows: list[EntryRecord], most: int) -> list[EntryRecord]:
    """As many of the first rows as fit, and at least one."""
    size = 0
    for place, row in enumerate(rows):
        size += len(codec.canonical(row))
        if place and size > most:
            return rows[:place]
    return rows


def _after(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidRequest(f"cursor: {cursor[:100]!r}", "send the one of the page before")
    return int(match[1]), f"sha256:{match[2]}"
