"""Defines the ancestors of a revision: the revisions whose code can be in it.

An ancestor is each revision that was installed in the process that compiled, or in a process of its job,
whether a compiler used its files or not: restored code ran there, and what ran decides what is compiled. So
is each revision whose files are published again: the head that a publication joins, and the one that an
operator tags or rolls back to. The ancestors of an ancestor are ancestors too, and are named with it, so
that no one has to follow a chain. What a process compiles that restored nothing, as of ``cachesvc warm``,
has none. Whose own code is hostile can omit its own ancestors: a list is worth what its signer is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from ..digest import Digest
from ..names import Namespace

if TYPE_CHECKING:
    from .records import Manifest

MAX_ANCESTORS = 1000
"""Largest number of ancestors of one revision; a publication that has more is refused."""
_SIGNER = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")


@dataclass(frozen=True, slots=True)
class Ancestor:
    """Names a revision by the digest of its manifest. ``namespace`` and ``signer``: what it was accepted as
    where it was installed, so that a revoked key is found though the revision is gone."""

    revision: Digest
    namespace: Namespace
    signer: str

    def __post_init__(self) -> None:
        if not _SIGNER.fullmatch(self.signer):
            raise ValueError(f"signer: {self.signer[:60]!r}")


class SignedRevision(Protocol):
    """Declares what is read of a revision that becomes an ancestor."""

    @property
    def manifest(self) -> Manifest:
        """Return the manifest, which was checked."""

    @property
    def revision(self) -> Digest:
        """Return the digest of the manifest."""

    @property
    def signer(self) -> str:
        """Return the text of the key that signed the manifest."""


def line_of(revision: SignedRevision) -> tuple[Ancestor, ...]:
    """Return a revision as an ancestor, and then its ancestors."""
    manifest = revision.manifest
    itself = Ancestor(revision.revision, manifest.statement.namespace, str(revision.signer))
    return (itself, *(manifest.ancestors or ()))


def in_order(ancestors: Iterable[Ancestor]) -> tuple[Ancestor, ...]:
    """Return each ancestor once, in the one order that a manifest may have: by digest. Of two that name one
    revision the first counts."""
    by_revision: dict[Digest, Ancestor] = {}
    for one in ancestors:
        by_revision.setdefault(one.revision, one)
    return tuple(by_revision[revision] for revision in sorted(by_revision))


def check_ancestors(ancestors: Sequence[Ancestor]) -> None:
    """Raise ``ValueError`` for too many ancestors, and for another order than `in_order` makes."""
    if len(ancestors) > MAX_ANCESTORS:
        raise ValueError(f"ancestors: {len(ancestors)}, more than the {MAX_ANCESTORS} allowed")
    if any(one.revision >= other.revision for one, other in pairwise(ancestors)):
        raise ValueError("ancestors: not in the order of their digests, each once")
