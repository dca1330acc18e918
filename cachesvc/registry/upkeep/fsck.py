"""Check the index against the store, in both directions, and repair the damage.

A check changes nothing. A repair looks again, and does nothing if the damage is gone: what was uploaded,
collected or repaired meanwhile is no damage.
"""

from __future__ import annotations

import re

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.index.mirrors import ABSENT
from cachesvc.schema.upkeep import Finding, FsckPage, Repaired
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unavailable, Untrusted

from ..answers import forget_answers
from ..audit import note
from ..context import Registry
from ..inventory import verify_revision

PREFIX = "packs/"
"""Beginning of the keys of packs."""
_STORE = "store"
"""Cursor of the last page, which checks the store's objects against the index."""
_PAGE = 500
"""Rows of one page."""
MAX_FINDINGS = 5000
"""Orphans that one check reports, about; the next check reports more."""
_DEEP_BYTES = 512 << 20
"""Bytes of packs that a deep check reads for one page: a request has to end."""
_CURSOR = re.compile(r"[0-9a-f]{64}|store")
_KEY = re.compile(r"packs/[a-z0-9][a-z0-9._-]{0,199}")


def check(registry: Registry, by: Token, cursor: str | None = None, deep: bool = False) -> FsckPage:
    """Checks one page: revisions against their objects, by digest; the last page is the store's objects
    against the index.

    ``deep``: packs are read and hashed again, and envelopes verified; otherwise presence and size
    count.
    """
    demand(by, Action.admin, ANY)
    if cursor is not None and not _CURSOR.fullmatch(cursor):
        raise InvalidRequest(f"cursor: {cursor[:80]!r}", "send the cursor of the page before")
    if cursor == _STORE:
        return _store(registry)
    with registry.index.read() as unit:
        rows = unit.inventory.packs(f"sha256:{cursor}" if cursor else "", _PAGE)
    findings: list[Finding] = []
    read = checked = 0
    for revision, *_, size in rows:
        finding = _find_damage(registry, revision, deep)
        findings += [finding] if finding else []
        checked, read = checked + 1, read + size
        if deep and read > _DEEP_BYTES:
            break
    done = checked == len(rows) and len(rows) < _PAGE
    return FsckPage(tuple(findings), checked, _STORE if done else rows[checked - 1][0].hex)


def repair(registry: Registry, by: Token, finding: Finding) -> Repaired:
    """Repairs a finding if it still holds: deletes an orphan, or a revision without its bytes, with its whole
    entry if it is the head, so that the next ``warm`` compiles the entry anew."""
    demand(by, Action.admin, ANY)
    if finding.revision is None:
        return _delete_orphan(registry, by, finding.key)
    again = _find_damage(registry, finding.revision, deep=finding.problem in ("digest", "envelope"))
    if again is None:
        return Repaired(False)
    with registry.index.write() as unit:
        row = unit.inventory.revision(finding.revision)
        if row is None:
            return Repaired(False)
        # A pin does not protect a damaged revision.
        unit.inventory.pin(finding.revision, None)
        keys: list[str] | None
        if row.head:
            for other in unit.inventory.revisions(row.entry):
                unit.inventory.pin(other.revision, None)
            keys = unit.entries.remove_whole(row.entry, row.revision)
        else:
            key = unit.entries.remove(row.revision)
            keys = None if key is None else [key]
        if keys is None:
            raise Unavailable(f"revision {row.revision} was changed meanwhile", "check again")
        for key in keys:
            unit.objects.lease(key, registry.now + registry.limits.grace_seconds)
        details = {"problem": again.problem, "entry": row.entry, "revisions": len(keys)}
        note(registry, unit, by, "fsck.repair", row.namespace, row.revision, **details)
    forget_answers(registry, row.namespace)
    return Repaired(True)


def _find_damage(registry: Registry, revision: Digest, deep: bool) -> Finding | None:
    """Returns the first damage of a revision, by the present index and store; ``None`` if it has none."""
    with registry.index.read() as unit:
        row = unit.inventory.revision(revision)
        place = unit.pack_places.of_revision(revision)
        envelope = unit.inventory.envelope(revision) if deep else None
    if row is None or place is None:
        return None
    fix = "forget the entry: the next warm compiles it anew" if row.head else "forget the revision"
    problem = _problem(registry, place.key, row.pack, row.pack_size, deep)
    if problem is None and envelope is not None:
        problem = _check_envelope(revision, row.signer, envelope, row.pack)
    if problem is None:
        return None
    return Finding(
        problem[0],
        place.key,
        f"{row.namespace}/{row.name}:{row.tag} {row.target}: {problem[1]}",
        fix,
        revision,
    )


def _problem(registry: Registry, key: str, pack: Digest, size: int, deep: bool) -> tuple[str, str] | None:
    if key.startswith(ABSENT):  # a mirror gets it on the first demand
        return None
    try:
        stored = registry.packs.blobs.size(key)
        if stored != size:
            return "size", f"{stored} bytes in the store, {size} in the index"
        if deep:
            digest = Digest.of_chunks(registry.packs.blobs.open(key))
            if digest != pack:
                return "digest", f"{digest} in the store, {pack} in the index"
    except NotFound:
        return "missing", "its object is not in the store"
    return None


def _check_envelope(revision: Digest, signer: str, envelope: bytes, pack: Digest) -> tuple[str, str] | None:
    try:
        if verify_revision(revision, signer, envelope).manifest.pack.digest == pack:
            return None
        return "envelope", "the index names another pack than the signed manifest"
    except Untrusted as error:
        return "envelope", str(error)[:200]


def _store(registry: Registry) -> FsckPage:
    """Reports the objects that the index does not know. A row is older than its object, so an object without
    a row has lost it."""
    findings: list[Finding] = []
    checked = 0
    batch: list[tuple[str, int]] = []
    for facts in registry.packs.blobs.list(PREFIX):
        checked += 1
        batch.append((facts.key, facts.size))
        if len(batch) == _PAGE:
            findings += _orphans(registry, batch)
            batch = []
        if len(findings) >= MAX_FINDINGS:
            break
    findings += _orphans(registry, batch)
    return FsckPage(tuple(findings), checked)


def _orphans(registry: Registry, batch: list[tuple[str, int]]) -> list[Finding]:
    with registry.index.read() as unit:
        known = unit.objects.known([key for key, _ in batch])
    return [
        Finding("orphan", key, f"{size} bytes that the index does not know", "delete the object")
        for key, size in batch
        if key not in known
    ]


def _delete_orphan(registry: Registry, by: Token, key: str) -> Repaired:
    if not _KEY.fullmatch(key):
        raise InvalidRequest(f"key: {key[:80]!r}", "send the finding as it was answered")
    with registry.index.read() as unit:
        if unit.objects.known([key]):
            return Repaired(False)
    try:
        size = registry.packs.blobs.size(key)
    except NotFound:
        return Repaired(False)
    # Each upload has a new random key, and its row comes first: no row can appear for this key.
    registry.packs.blobs.delete(key)
    with registry.index.write() as unit:
        note(registry, unit, by, "fsck.repair", ANY, key, problem="orphan", bytes=size)
    return Repaired(True)
