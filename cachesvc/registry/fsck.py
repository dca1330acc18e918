"""Index against store, in both directions; and the repair of what is found.

Checking changes nothing. A repair looks again, and does nothing if the finding does not hold any more: what
was uploaded, collected or repaired meanwhile is no damage.
"""

from __future__ import annotations

import re

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc_client.wire.admin import Finding, FsckPage, Repaired
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unavailable, Untrusted

from .answers import forget_answers
from .audit import note
from .context import Registry
from .inventory import verified

PREFIX = "packs/"
_STORE = "store"
_PAGE = 500
MAX_FINDINGS = 5000
"""Orphans of one check, about; the next check finds more."""
_DEEP_BYTES = 512 << 20
"""Of packs that are read for one page: a request has to end."""
_CURSOR = re.compile(r"[0-9a-f]{64}|store")
_KEY = re.compile(r"packs/[a-z0-9][a-z0-9._-]{0,199}")


def check(registry: Registry, by: Token, cursor: str | None = None, deep: bool = False) -> FsckPage:
    """One page: revisions against their objects, by digest; then the store's objects against the index, in a
    page of their own.

    ``deep``: packs are read and hashed again, and envelopes verified; otherwise presence and size count.
    """
    demand(by, Action.admin, ANY)
    if cursor is not None and not _CURSOR.fullmatch(cursor):
        raise InvalidRequest(f"cursor: {cursor[:80]!r}", "send the one of the page before")
    if cursor == _STORE:
        return _store(registry)
    with registry.index.read() as unit:
        rows = unit.inventory.packs(f"sha256:{cursor}" if cursor else "", _PAGE)
    findings: list[Finding] = []
    read = checked = 0
    for revision, *_, size in rows:
        finding = _judged(registry, revision, deep)
        findings += [finding] if finding else []
        checked, read = checked + 1, read + size
        if deep and read > _DEEP_BYTES:
            break
    done = checked == len(rows) and len(rows) < _PAGE
    return FsckPage(tuple(findings), checked, _STORE if done else rows[checked - 1][0].hex)


def repair(registry: Registry, by: Token, finding: Finding) -> Repaired:
    """Repairs it, if it still holds: an orphan is deleted; a revision without its bytes is forgotten, with
    its whole entry if it is the head, so that the next ``warm`` compiles it anew."""
    demand(by, Action.admin, ANY)
    if finding.revision is None:
        return _delete_orphan(registry, by, finding.key)
    again = _judged(registry, finding.revision, deep=finding.problem in ("digest", "envelope"))
    if again is None:
        return Repaired(False)
    with registry.index.write() as unit:
        row = unit.inventory.revision(finding.revision)
        if row is None:
            return Repaired(False)
        # What is damaged is held for nobody.
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
        told = {"problem": again.problem, "entry": row.entry, "revisions": len(keys)}
        note(registry, unit, by, "fsck.repair", row.namespace, row.revision, **told)
    forget_answers(registry, row.namespace)
    return Repaired(True)


def _judged(registry: Registry, revision: Digest, deep: bool) -> Finding | None:
    """The first thing that is wrong with a revision, by what index and store say now."""
    with registry.index.read() as unit:
        row = unit.inventory.revision(revision)
        place = unit.entries.place(revision)
        envelope = unit.inventory.envelope(revision) if deep else None
    if row is None or place is None:
        return None
    fix = "forget the entry: the next warm compiles it anew" if row.head else "forget the revision"
    problem = _problem(registry, place.key, row.pack, row.pack_size, deep)
    if problem is None and envelope is not None:
        problem = _altered(revision, row.signer, envelope, row.pack)
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
    try:
        found = registry.blobs.size(key)
        if found != size:
            return "size", f"{found} bytes in the store, {size} in the index"
        if deep:
            digest = Digest.of_chunks(registry.blobs.open(key))
            if digest != pack:
                return "digest", f"{digest} in the store, {pack} in the index"
    except NotFound:
        return "missing", "its object is not in the store"
    return None


def _altered(revision: Digest, signer: str, envelope: bytes, pack: Digest) -> tuple[str, str] | None:
    try:
        if verified(revision, signer, envelope).manifest.pack.digest == pack:
            return None
        return "envelope", "the index names another pack than the signed manifest"
    except Untrusted as error:
        return "envelope", str(error)[:200]


def _store(registry: Registry) -> FsckPage:
    """Objects that the index does not know. Rows come before bytes, so what is listed first and has no row
    then has lost it."""
    findings: list[Finding] = []
    checked = 0
    held: list[tuple[str, int]] = []
    for facts in registry.blobs.list(PREFIX):
        checked += 1
        held.append((facts.key, facts.size))
        if len(held) == _PAGE:
            findings += _orphans(registry, held)
            held = []
        if len(findings) >= MAX_FINDINGS:
            break
    findings += _orphans(registry, held)
    return FsckPage(tuple(findings), checked)


def _orphans(registry: Registry, held: list[tuple[str, int]]) -> list[Finding]:
    with registry.index.read() as unit:
        known = unit.objects.known([key for key, _ in held])
    return [
        Finding("orphan", key, f"{size} bytes that the index does not know", "delete the object")
        for key, size in held
        if key not in known
    ]


def _delete_orphan(registry: Registry, by: Token, key: str) -> Repaired:
    if not _KEY.fullmatch(key):
        raise InvalidRequest(f"key: {key[:80]!r}", "send the finding as it was answered")
    with registry.index.read() as unit:
        if unit.objects.known([key]):
            return Repaired(False)
    try:
        size = registry.blobs.size(key)
    except NotFound:
        return Repaired(False)
    # A key is drawn anew for each upload and its row comes first: none can appear for this one.
    registry.blobs.delete(key)
    with registry.index.write() as unit:
        note(registry, unit, by, "fsck.repair", ANY, key, problem="orphan", bytes=size)
    return Repaired(True)
