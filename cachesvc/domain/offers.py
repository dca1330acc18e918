"""Decide whether a revision is offered to anybody."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cachesvc_client.wire.compare import (
    Difference,
    ancestor_difference,
    revoked_difference,
    withdrawn_difference,
)
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import CLEAN
from cachesvc_client.wire.manifest.requirement import Requirement

CACHED_REQUIREMENTS = 64
"""Requirements of namespaces whose parsed form is cached: each of 4096 heads is held to its namespace's."""


@dataclass(frozen=True, slots=True)
class OfferFacts:
    """Holds what decides whether a revision is offered.

    ``lane``: empty or ``None`` for the trunk. ``quarantined``: since when an operator withholds it.
    ``require``: what the namespace requires of builders. ``signer_removed``: the namespace accepts the
    signer's key no more. ``revoked_why``: the reason for which the key was revoked there, perhaps an empty
    one; ``None`` if it was not. ``withdrawn_ancestor``: the digest of an ancestor that was withdrawn, a
    space, and the reason; ``None`` if none was.
    """

    revision: Digest
    lane: str | None
    quarantined: int | None
    quarantine_why: str | None
    builder: str | None
    source_ref: str | None
    require: str | None
    signer_removed: bool
    revoked_why: str | None
    withdrawn_ancestor: str | None


def withheld(row: OfferFacts) -> Difference | None:
    """Returns why a revision is offered to no one; ``None`` if it is offered. A lane is not held to what the
    namespace requires of its trunk."""
    if row.revoked_why is not None:
        return revoked_difference(row.revision, row.revoked_why)
    if row.quarantined is not None:
        return withdrawn_difference(row.revision, row.quarantine_why or "")
    if row.withdrawn_ancestor is not None:
        return ancestor_difference(row.revision, row.withdrawn_ancestor)
    if row.signer_removed:
        return withdrawn_difference(row.revision, "its signer was removed")
    if row.require is None or row.lane:
        return None
    # The files of the checkout were held to it at the commit, and the index does not repeat what they were.
    difference = _requirement(row.require).difference(row.builder, row.source_ref, CLEAN)
    if difference is None:
        return None
    return withdrawn_difference(row.revision, f"{difference}; the namespace requires {row.require}")


_requirement = functools.lru_cache(CACHED_REQUIREMENTS)(Requirement)
