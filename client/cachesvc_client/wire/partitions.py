"""Computes digests of the deciding factors: they say which entries exclude each other, and which environments
are the same. And says which of the entries that fit one environment decides whether a target is warm
there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .codec import canonical
from .digest import Digest
from .factors import FACTORS, Fingerprint


class PublishedAt(NamedTuple):
    """Says how new the head of an entry is; the newest is the highest. ``second``: when the registry accepted
    it, by the registry's clock, since those of builders differ by days. ``sequence``: the signed one, which
    decides between heads of one second."""

    second: int
    sequence: int


class Offered(NamedTuple):
    """Describes an entry that an environment is offered. ``lane``: empty or ``None`` for the trunk."""

    entry: Digest
    target: str
    model: Digest | None
    at: PublishedAt
    lane: str | None = None


def newest_first(at: PublishedAt, entry: Digest) -> tuple[int, int, Digest]:
    """Return the key that sorts entries by age, the newest first: registry, coverage, nodes and ``warm``
    have no other order."""
    return -at.second, -at.sequence, entry


def _newest(rows: Iterable[Offered]) -> Offered:
    return min(rows, key=lambda row: (not row.lane, *newest_first(row.at, row.entry)))


def newest_of_targets(rows: Iterable[Offered]) -> dict[str, Offered]:
    """Return by target the entry that decides whether it is warm, of those that one environment is offered:
    the newest. A lane's entry comes before the trunk's."""
    of_target: dict[str, list[Offered]] = {}
    for row in rows:
        of_target.setdefault(row.target, []).append(row)
    return {target: _newest(some) for target, some in of_target.items()}


def of_older_models(rows: Iterable[Offered]) -> frozenset[Digest]:
    """Return the entries whose target has a newer entry of another model, of those that one environment is
    offered. Neither the trunk nor a lane makes an entry of the other old, nor does an entry without a
    model."""
    models: dict[tuple[str, str], list[Offered]] = {}
    for row in rows:
        if row.model is not None:
            models.setdefault((row.target, row.lane or ""), []).append(row)
    older: set[Digest] = set()
    for of_target in models.values():
        newest = _newest(of_target).model
        older.update(row.entry for row in of_target if row.model != newest)
    return frozenset(older)


def partition(fingerprint: Fingerprint, scopes: Iterable[str]) -> Digest:
    """Returns the digest of the deciding factors. Entries of different partitions never replace each
    other."""
    all_scopes = {"any", *scopes}
    values = {
        factor.name: fingerprint[factor.name]
        for factor in FACTORS
        if factor.decider == "cachesvc" and factor.scope in all_scopes and factor.name in fingerprint
    }
    return Digest.of(canonical({"scopes": sorted(all_scopes), "factors": values}))


def known_partition(fingerprint: Fingerprint) -> Digest:
    """Returns the digest of the deciding factors that every process knows from its start on. It omits
    the factors that may be unknown then, and that a process takes from the entry."""
    optional = {factor.name for factor in FACTORS if factor.absent_mine == "accept"}
    known_facts = {name: value for name, value in fingerprint.items() if name not in optional}
    return partition(known_facts, ("gpu", "host"))


def environment(mine: Fingerprint, theirs: Fingerprint, scopes: Iterable[str]) -> Digest:
    """Returns the partition of the environment ``mine``, seen from an entry: the factors that an environment
    does not know, and may take from the entry, have the values of the entry. So a service that has not loaded
    torch yet, and knows no number of threads, has the same environment before and after."""
    return partition(completed(mine, theirs), scopes)


def completed(mine: Fingerprint, theirs: Fingerprint) -> Fingerprint:
    """Returns the environment ``mine`` with the factors of an entry that it does not know, and may take from
    the entry: an image without a compiler has the entry's compiler."""
    from_entry = {
        factor.name: theirs[factor.name]
        for factor in FACTORS
        if factor.absent_mine == "accept" and factor.name in theirs and factor.name not in mine
    }
    return {**mine, **from_entry}
