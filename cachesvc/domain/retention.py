"""What is kept and what may go. Policy is pure and takes ``now`` (seconds of UTC)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from cachesvc_client.wire.digest import Digest

DAY = 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """Keeps the ``revisions`` newest of each entry, and everything younger than ``days``."""

    revisions: int = 10
    days: int = 30

    def __post_init__(self) -> None:
        if self.revisions < 1 or self.days < 0:
            raise ValueError("retention: at least 1 revision and 0 days")


@dataclass(frozen=True, slots=True)
class RevisionAge:
    """What retention needs to know of a revision."""

    entry: Digest
    revision: Digest
    sequence: int
    published: int
    is_head: bool


def expired(revisions: Iterable[RevisionAge], policy: Retention, now: float) -> list[RevisionAge]:
    """Those that the policy lets go. A head is never among them."""
    ordered = sorted(revisions, key=lambda row: (row.entry, -row.sequence))
    gone: list[RevisionAge] = []
    for _, group in groupby(ordered, key=lambda row: row.entry):
        gone += [
            row
            for rank, row in enumerate(group)
            if rank >= policy.revisions and not row.is_head and row.published < now - policy.days * DAY
        ]
    return gone


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
