"""Find the entries that a newer model replaced, and that no start has used since.

A start does not restore them (`partitions.of_older_models`), and a service that was rolled back finds them by
their keys. So they stay for some days after the last start that used them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachesvc.domain.offers import withheld
from cachesvc.domain.retention import DAY, RevisionAge
from cachesvc.index.entries.heads import Candidate, Heads, Place
from cachesvc.index.unit import Unit
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.partitions import Offered, of_older_models

from ..resolve import MAX_CANDIDATES


def unused_older_models(
    unit: Unit, now: float, days: int, only: Namespace | None = None
) -> dict[Namespace, list[RevisionAge]]:
    """Return by namespace the heads of entries whose target has had a newer entry of another model for
    ``days``, for the same environment, and that no start used for as long. ``only``: of one namespace.

    What is withheld, in one environment or in all, or has expired replaces none. An entry with a
    pinned revision stays.
    """
    before = int(now - days * DAY)
    found: dict[Namespace, list[RevisionAge]] = {}
    for place in unit.ages.with_older_models(before, only):
        heads = [
            row for row in Heads(unit.connection).newest(place, MAX_CANDIDATES) if _counts(row, place, now)
        ]
        older = of_older_models(
            Offered(row.entry, f"{row.slot.target} {row.slot.partition}", row.model, row.at) for row in heads
        )
        idle = [
            row for row in heads if row.entry in older and max(row.at.second, row.last_used or 0) < before
        ]
        newer = {row.entry: _entries_of_newer_models(row, heads) for row in idle}
        revisions: dict[Digest, list[RevisionAge]] = {}
        for age in unit.ages.of_entries(sorted({*newer, *(one for some in newer.values() for one in some)})):
            revisions.setdefault(age.entry, []).append(age)
        for row in idle:
            own = revisions.get(row.entry, [])
            replaced = _replaced_at(row, [age for one in newer[row.entry] for age in revisions.get(one, [])])
            used = max((age.touched for age in own), default=now)
            if max(used, replaced) < before and not any(age.pinned for age in own):
                found.setdefault(place.namespace, []).extend(age for age in own if age.is_head)
    return found


def _counts(row: Candidate, place: Place, now: float) -> bool:
    """Return whether a head is offered to every environment that it fits."""
    valid = row.expires is None or row.expires > now
    return valid and (row.lane or None) == place.lane and not row.withheld and withheld(row) is None


def _entries_of_newer_models(row: Candidate, heads: Sequence[Candidate]) -> list[Digest]:
    return [
        other.entry
        for other in heads
        if other.slot[1:3] == row.slot[1:3] and other.model not in (None, row.model) and other.at > row.at
    ]


def _replaced_at(row: Candidate, newer: Sequence[RevisionAge]) -> float:
    """Return when the first revision of a newer model was published after ``row``, as far as it is kept."""
    return min((age.published for age in newer if age.published >= row.at.second), default=float("inf"))
