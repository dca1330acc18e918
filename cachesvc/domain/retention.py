"""What is kept and what may go. Policy is pure and takes ``now`` (seconds of UTC)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from cachesvc_client.wire.admin import Policy
from cachesvc_client.wire.digest import Digest

DAY = 86_400
FRESH_SECONDS = 3600
"""What was published or offered within so long is never evicted: somebody is about to use it."""
CHEAP_SECONDS = 10.0
"""Compilations that took less are all equally cheap; so are those that nobody measured."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Keeps the ``revisions`` newest of each entry, and everything younger than ``days``.

    ``unused_days``: entries that nobody was offered for so long go whole. ``keep_bytes``: above it the least
    worth is evicted. ``None``: without a bound.
    """

    revisions: int = 10
    days: int = 30
    unused_days: int | None = None
    keep_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.revisions < 1 or self.days < 0:
            raise ValueError("retention: at least 1 revision and 0 days")

    def of(self, policy: Policy) -> Retention:
        """This, where the namespace's own policy does not say otherwise."""
        return Retention(
            self.revisions if policy.keep_revisions is None else policy.keep_revisions,
            self.days if policy.keep_days is None else policy.keep_days,
            self.unused_days if policy.unused_days is None else policy.unused_days,
            self.keep_bytes if policy.keep_bytes is None else policy.keep_bytes,
        )


@dataclass(frozen=True, slots=True)
class RevisionAge:
    """What retention needs to know of a revision. ``compile_seconds``: that it saves whoever has it."""

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
        """When it was last of use, as far as is known."""
        return max(self.published, self.last_used or 0)


def expired(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Those that the policy lets go. A head is never among them, nor what is pinned."""
    ordered = sorted(revisions, key=lambda row: (row.entry, -row.sequence))
    gone: list[RevisionAge] = []
    for _, group in groupby(ordered, key=lambda row: row.entry):
        gone += [
            row
            for rank, row in enumerate(group)
            if rank >= policy.revisions
            and not row.is_head
            and not row.pinned
            and row.published < now - policy.days * DAY
        ]
    return gone


def unused(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """The heads of entries that nobody was offered for ``unused_days`` and of which nothing is pinned."""
    if policy.unused_days is None:
        return []
    rows = list(revisions)
    held = {row.entry for row in rows if row.pinned}
    oldest = now - policy.unused_days * DAY
    return [row for row in rows if row.is_head and row.touched < oldest and row.entry not in held]


def evicted(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """What goes, in this order, until no more than ``keep_bytes`` are left: first the revisions that nobody
    is offered any more, then heads, which take their entry along.

    Among each, what has lain idle for long and was cheap to compile goes first: idle seconds for each second
    of compilation. Pinned revisions stay, with the head of their entry, and so does what is fresh.
    """
    rows = list(revisions)
    excess = sum(row.size for row in rows) - (policy.keep_bytes or 0)
    if policy.keep_bytes is None or excess <= 0:
        return []
    fresh = now - FRESH_SECONDS
    # A head takes along what is left of its entry: what holds another revision holds it too.
    held = {row.entry for row in rows if row.pinned or (not row.is_head and row.touched >= fresh)}
    free = [
        row
        for row in rows
        if row.touched < fresh and not row.pinned and not (row.is_head and row.entry in held)
    ]
    free.sort(key=lambda row: (row.is_head, -_idleness(row, now), row.revision))
    gone: list[RevisionAge] = []
    for row in free:
        if excess <= 0:
            break
        gone.append(row)
        excess -= row.size
    return gone


def _idleness(row: RevisionAge, now: float) -> float:
    return (now - row.touched) / max(row.compile_seconds, CHEAP_SECONDS)


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What the index knows of one object of the blob store.

    ``leased_until`` protects it beyond references: while it is uploaded, and after its last reference
    went, for as long as a download that began before may last.
    """

    key: str
    state: str
    leased_until: int
    referenced: bool


def collectable(facts: ObjectFacts, now: float) -> bool:
    """Whether the object may be marked ``deleting``, or has been and may be deleted."""
    return not facts.referenced and (facts.state == "deleting" or facts.leased_until < now)
