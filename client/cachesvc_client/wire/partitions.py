"""Computes digests of the deciding factors: they say which entries exclude each other, and which environments
are the same."""

from __future__ import annotations

from collections.abc import Iterable

from .codec import canonical
from .digest import Digest
from .factors import FACTORS, Fingerprint


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
