"""Decide what is kept and what is deleted. ``now`` is an argument, in seconds of UTC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cachesvc.schema.namespaces import Policy
from cachesvc_client.wire.digest import Digest

DAY = 86_400
"""Seconds of a day."""
FRESH_SECONDS = 3600
"""Seconds after a publication or an offer in which a revision is not evicted: a start may be about to use
it."""
CHEAP_SECONDS = 10.0
"""Seconds of compilation below which all compilations count as equally cheap, as do unmeasured ones."""
DEAR_SECONDS = 3600.0
"""Seconds of compilation above which all compilations count as equally dear: publishers state the seconds, so
no statement keeps a revision for ever."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A policy that keeps the ``revisions`` newest of each entry, and everything younger than ``days``.

    ``unused_days``: days after which an entry that was offered to no one is deleted whole. ``keep_bytes``:
    bytes above which the least useful revisions are evicted. ``lane_days``: as ``unused_days``, for the
    entries of lanes. ``older_model_days``: days after which an entry is deleted whole that a newer model
    replaced, and that no start used since. ``None``: without a bound.
    """

    revisions: int = 10
    days: int = 30
    unused_days: int | None = None
    keep_bytes: int | None = None
    lane_days: int | None = None
    older_model_days: int | None = None

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
            self.lane_days,
            self.older_model_days,
        )

    def days_unused(self, lane: str) -> int | None:
        """Returns the days without an offer after which an entry of ``lane`` is deleted; the trunk is the
        empty lane. ``None``: never."""
        bounds = [self.unused_days, self.lane_days if lane else None]
        return min((days for days in bounds if days is not None), default=None)

    @property
    def fewest_days_unused(self) -> int | None:
        """The days without an offer after which an entry of any lane is deleted at the earliest."""
        return self.days_unused("any")


@dataclass(frozen=True, slots=True)
class RevisionAge:
    """What retention needs to know of a revision. ``compile_seconds``: seconds that it saves one start, as
    its publisher states them. ``lane``: empty for the trunk. ``newer``: how many revisions of its entry are
    newer."""

    entry: Digest
    revision: Digest
    published: int
    is_head: bool
    last_used: int | None = None
    pinned: bool = False
    size: int = 0
    compile_seconds: float = 0.0
    lane: str = ""
    newer: int = 0

    @property
    def touched(self) -> int:
        """When it was last published or offered, in seconds of UTC."""
        return max(self.published, self.last_used or 0)


def expired(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Returns the revisions that the policy does not keep, each entry's newest first; never a head or a
    pinned revision."""
    removable = [
        row
        for row in revisions
        if row.newer >= policy.revisions
        and not row.is_head
        and not row.pinned
        and row.published < now - policy.days * DAY
    ]
    return sorted(removable, key=lambda row: (row.entry, row.newer))


def unused(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Returns the heads of entries that no one was offered for the policy's days of their lane, and that have
    no pinned revision."""
    rows = list(revisions)
    pinned = {row.entry for row in rows if row.pinned}
    return [
        row
        for row in rows
        if row.is_head
        and row.entry not in pinned
        and (days := policy.days_unused(row.lane)) is not None
        and row.touched < now - days * DAY
    ]


def evicted(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Returns what to evict, in order, until no more than ``keep_bytes`` are left: lanes first, then the
    trunk, and the trunk only for its own bytes. So no lane evicts the trunk.

    Of the lanes, the one that holds most is next, so what one lane states of its revisions decides nothing
    over another's. Pinned revisions stay, with the head of their entry, and so do fresh ones.
    """
    if policy.keep_bytes is None:
        return []
    trunk: list[RevisionAge] = []
    lanes: dict[str, list[RevisionAge]] = {}
    for row in revisions:
        (lanes.setdefault(row.lane, []) if row.lane else trunk).append(row)
    of_trunk = sum(row.size for row in trunk)
    of_lanes = {lane: sum(row.size for row in rows) for lane, rows in lanes.items()}
    orders = {lane: iter(_eviction_order(rows, now)) for lane, rows in lanes.items()}
    removable: list[RevisionAge] = []
    excess = of_trunk + sum(of_lanes.values()) - policy.keep_bytes
    while excess > 0 and orders:
        lane = max(orders, key=lambda each: (of_lanes[each], each))
        next_row = next(orders[lane], None)
        if next_row is None:
            del orders[lane]
            continue
        removable.append(next_row)
        of_lanes[lane] -= next_row.size
        excess -= next_row.size
    excess = of_trunk - policy.keep_bytes
    for row in _eviction_order(trunk, now):
        if excess <= 0:
            break
        removable.append(row)
        excess -= row.size
    return removable


def _eviction_order(rows: list[RevisionAge], now: float) -> list[RevisionAge]:
    """Returns the revisions of one lane that may be evicted: first those that are no heads, then heads, with
    which their entries are deleted; within each group by idle seconds for each second of compilation."""
    fresh = now - FRESH_SECONDS
    # The whole entry is deleted with its head: what protects another revision protects the head too.
    protected = {row.entry for row in rows if row.pinned or (not row.is_head and row.touched >= fresh)}
    free = [
        row
        for row in rows
        if row.touched < fresh and not row.pinned and not (row.is_head and row.entry in protected)
    ]
    return sorted(free, key=lambda row: (row.is_head, -_idleness(row, now), row.revision))


def _idleness(row: RevisionAge, now: float) -> float:
    # The form of the comparison makes NaN cheap: publishers send the numbers.
    seconds = row.compile_seconds if row.compile_seconds > CHEAP_SECONDS else CHEAP_SECONDS
    return (now - row.touched) / min(seconds, DEAR_SECONDS)


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
