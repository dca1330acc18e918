"""Digests of the deciding factors: which entries exclude each other, and which environments are the same."""

from __future__ import annotations

from collections.abc import Iterable

from .codec import canonical
from .digest import Digest
from .factors import FACTORS, Fingerprint


def partition(fingerprint: Fingerprint, scopes: Iterable[str]) -> Digest:
    """The digest of the deciding factors: entries of different partitions never replace each other."""
    counted = {"any", *scopes}
    deciding = {
        factor.name: fingerprint[factor.name]
        for factor in FACTORS
        if factor.decider == "cachesvc" and factor.scope in counted and factor.name in fingerprint
    }
    return Digest.of(canonical({"scopes": sorted(counted), "factors": deciding}))


def known_partition(fingerprint: Fingerprint) -> Digest:
    """The digest of the deciding factors that every process knows from its start on: what may be unknown, and
    is taken from the entry then, is left out."""
    optional = {factor.name for factor in FACTORS if factor.absent_mine == "accept"}
    known = {name: value for name, value in fingerprint.items() if name not in optional}
    return partition(known, ("gpu", "host"))


def environment(mine: Fingerprint, theirs: Fingerprint, scopes: Iterable[str]) -> Digest:
    """The partition that ``mine`` is, seen from an entry: what an environment cannot tell, and may take from
    the entry, is the entry's. So a service that has not loaded torch yet, and knows no number of threads, is
    of the environment that it will be."""
    taken = {
        factor.name: theirs[factor.name]
        for factor in FACTORS
        if factor.absent_mine == "accept" and factor.name in theirs and factor.name not in mine
    }
    return partition({**mine, **taken}, scopes)
