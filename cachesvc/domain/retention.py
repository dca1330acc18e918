"""Decide what is kept and what is deleted. ``now`` is an argument, in seconds of UTC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from cachesvc_client.wire.admin import Policy
from cachesvc_client.wire.digest import Digest

DAY = 86_400
"""Seconds of a day."""
FRESH_SECONDS = 3600
"""Seconds after a publication or an offer in which a revision is not evicted: a start may be about to use
it."""
CHEAP_SECONDS = 10.0
"""Seconds of compilation below which all compilations count as equally cheap, as do unmeasured ones."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A policy that keeps the ``revisions`` newest of each entry, and everything younger than ``days``.

    ``unused_days``: days after which an entry that was offered to nobody is deleted whole. ``keep_bytes``:
    bytes above which the least useful revisions are evicted. ``None``: without a bound.
    """

    revisions: int = 10
    days: int = 30
    unused_days: int | None = None
    keep_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.revisions < 1 or self.days < 0:
            raise ValueError("retention: at least 1 revision and 0 days")

    def of(self, policy: Policy) -> Retention:
        """Returns this policy with the bounds of a namespace's own policy in place of its own."""
        return Retention(
            self.revisions if policy.keep_revisions is None else policy.keep_revisions,
            self.days if policy.keep_days is None else policy.keep_days,
            self.unused_days if policy.unused_days is None else policy.unused_days,
            self.keep_bytes if policy.keep_bytes is None else policy.keep_bytes,
        )


@dataclass(frozen=True, slots=True)
class RevisionAge:
    """What retention needs to know of a revision. ``compile_seconds``: seconds that it saves one start."""

    entry: Digest
    revision: Digest
    sequence: int
    published: int
    is_head: bool
    last_used: int | None = None
    pinned: bool = False
    size: int = 0
    compile_seconds: float = 0.0

    @property
    def touched(self) -> int:
        """When it was last published or offered, in seconds of UTC."""
        return max(self.published, self.last_used or 0)


def expired(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Returns the revisions that the policy does not keep; never a head or a pinned revision."""
    ordered = sorted(revisions, key=lambda row: (row.entry, -row.sequence))
    removable: list[RevisionAge] = []
    for _, group in groupby(ordered, key=lambda row: row.entry):
        removable += [
            row
            for rank, row in enumerate(group)
            if rank >= policy.revisions
            and not row.is_head
            and not row.pinned
            and row.published < now - policy.days * DAY
        ]
    return removable


def unused(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Returns the heads of entries that nobody was offered for ``unused_days`` and without a pinned
    revision."""
    if policy.unused_days is None:
        return []
    rows = list(revisions)
    pinned = {row.entry for row in rows if row.pinned}
    oldest = now - policy.unused_days * DAY
    return [row for row in rows if row.is_head and row.touched < oldest and row.entry not in pinned]


def evicted(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Returns what to evict, in order, until no more than ``keep_bytes`` are left: first revisions that are
    no heads, then heads, with which their entries are deleted.

    Within each group the order is by idle seconds for each second of compilation. Pinned revisions stay, with
    the head of their entry, and so do fresh ones.
    """
    rows = list(revisions)
    excess = sum(row.size for row in rows) - (policy.keep_bytes or 0)
    if policy.keep_bytes is None or excess <= 0:
        return []
    fresh = now - FRESH_SECONDS
    # The whole entry is deleted with its head: what protects another revision protects the head too.
    protected = {row.entry for row in rows if row.pinned or (not row.is_head and row.touched >= fresh)}
    free = [
        row
        for row in rows
        if row.touched < fresh and not row.pinned and not (row.is_head and row.entry in protected)
    ]
    free.sort(key=lambda row: (row.is_head, -_idleness(row, now), row.revision))
    removable: list[RevisionAge] = []
    for row in free:
        if excess <= 0:
            break
        removable.append(row)
        excess -= row.size
    return removable


def _idleness(row: RevisionAge, now: float) -> float:
    return (now - row.touched) / max(row.compile_seconds, CHEAP_SECONDS)


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What the index knows of one object of the blob store.

    ``leased_until`` protects it beyond references: during its upload, and after its last reference was
    deleted, for as long as a download that began before may last.
    """

    key: str
    state: str
    leased_until: int
    referenced: bool


def collectable(facts: ObjectFacts, now: float) -> bool:
    """Returns whether the object may be marked ``deleting``, or is marked and may be deleted."""
    return not facts.referenced and (facts.state == "deleting" or facts.leased_until < now)
