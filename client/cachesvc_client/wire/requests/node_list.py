"""Defines the list that a node's agent keeps of one name and tag: what the registry offers there.

The list is not signed, and says nothing that is not checked again: whoever reads it takes its rows as hints,
and decides by the signed envelopes that the rows name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .. import codec
from ..digest import Digest
from ..factors import FactorValue
from ..names import Lane, Name, Tag, Target
from ..partitions import PublishedAt, newest_first

LIST_FORMAT = "cachesvc.node-list/1"
"""Format of the lists that this client writes and reads."""
MAX_LIST_BYTES = 32 << 20
"""Largest number of bytes of a list."""


@dataclass(frozen=True, slots=True)
class ListedRevision:
    """Describes a revision that the registry offers. ``fingerprint``: its place in the list's fingerprints.
    ``sequence``: of its statement. ``published``: when the registry accepted it, in seconds of UTC.
    ``keys``: the compilers' own keys of the graphs that it holds."""

    entry: Digest
    revision: Digest
    target: Target
    pack: Digest
    pack_size: int
    sequence: int
    published: int
    fingerprint: int
    scopes: tuple[str, ...] = ()
    model: Digest | None = None
    keys: tuple[str, ...] = ()

    @property
    def at(self) -> PublishedAt:
        """Return how new the revision is."""
        return PublishedAt(self.published, self.sequence)


@dataclass(frozen=True, slots=True)
class NodeList:
    """Holds what a registry offers under one name and tag. Its age is that of its file."""

    url: str
    name: str
    tag: Tag
    revisions: tuple[ListedRevision, ...] = ()
    fingerprints: tuple[dict[str, FactorValue], ...] = ()
    format: str = LIST_FORMAT

    def __post_init__(self) -> None:
        if self.format != LIST_FORMAT:
            raise ValueError(f"format {self.format[:60]!r}: this client reads {LIST_FORMAT}")
        if any(not 0 <= row.fingerprint < len(self.fingerprints) for row in self.revisions):
            raise ValueError("a revision names a fingerprint that is not in the list")

    @classmethod
    def parse(cls, data: bytes) -> NodeList:
        """Parses the bytes of a list. Raises ``ValueError``."""
        return codec.build(cls, codec.parse_json(data, limit=MAX_LIST_BYTES, what="the node's list"))

    def encode(self) -> bytes:
        """Returns the bytes of the list."""
        return codec.canonical(self)


def list_key(url: str, name: Name, lane: Lane | None = None) -> Digest:
    """Names the list of a registry's name and tag; ``lane``: `None` for the trunk."""
    return Digest.of(codec.canonical(["cachesvc.node-list", url, str(name), str(lane or "")]))


def sorted_rows(rows: Iterable[ListedRevision]) -> list[ListedRevision]:
    """Return revisions by their age, the newest first."""
    return sorted(rows, key=lambda row: newest_first(row.at, row.entry))
