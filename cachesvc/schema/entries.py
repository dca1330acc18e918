"""Define entries and revisions as operators see and change them.

Times are seconds of UTC, sizes are bytes. The field ``next`` of a page is the cursor of the following page,
and ``None`` on the last page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.manifest.proof import Proof
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

MAX_PAGE = 1000
"""Largest number of rows of one page."""
MAX_WHY = 300
"""Largest number of characters of an operator's reason."""
MAX_DESCENDANTS = 1000
"""Descendants that an answer names, at most."""


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Describes an entry and its head, for operators. ``last_used``: time at which the head was last offered
    to a start, exact to a few hours. ``pinned``: time since which the head is pinned. ``dtypes`` and
    ``shapes`` are those of the inputs. ``signer``: the key that signed the head."""

    entry: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    revision: Digest
    sequence: int
    published: int
    pack_size: int
    files: int
    fingerprint: dict[str, FactorValue] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    lane: Lane | None = None
    model: Digest | None = None
    last_used: int | None = None
    pinned: int | None = None
    quarantined: int | None = None
    dtypes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    signer: str = ""


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Lists entries, the newest first."""

    rows: tuple[EntryRecord, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Descendant:
    """Names a revision that was made with another one (``wire.manifest.ancestors``)."""

    revision: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """Describes one revision and the entry that it belongs to. ``head`` says whether it is the head of the
    entry. ``builder`` and ``source_ref``: those of its provenance, as they were checked at its commit.
    ``signer_revoked``: reason for which its signer was revoked, perhaps an empty one; ``None`` if it was
    not. ``withdrawn_ancestor``: the digest of an ancestor that was withdrawn, a space, and the reason;
    ``None`` if none was. ``descendants``: in the answer to a quarantine, what it reaches beside the revision,
    at most ``MAX_DESCENDANTS``."""

    revision: Digest
    entry: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    head: bool
    sequence: int
    published: int
    published_by: str
    signer: str
    pack: Digest
    pack_size: int
    files: int
    fingerprint: dict[str, FactorValue] = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    measured: dict[str, float] = field(default_factory=dict)
    lane: Lane | None = None
    expires: int | None = None
    last_used: int | None = None
    pinned: int | None = None
    quarantined: int | None = None
    why: str = ""
    builder: str | None = None
    source_ref: str | None = None
    signer_revoked: str | None = None
    withdrawn_ancestor: str | None = None
    descendants: tuple[Descendant, ...] | None = None


@dataclass(frozen=True, slots=True)
class ProvenanceRecord:
    """Shows who built a revision. ``statement``: the in-toto statement that was signed with it; ``None`` if
    it has none. ``accepted``: whether this registry accepted the builder at the commit. ``proof``: on what
    the revision was shown to work; ``None`` if no one has proven it."""

    revision: Digest
    statement: dict[str, Any] | None = None
    accepted: bool = False
    proof: Proof | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Describes one difference of two revisions: ``what`` is ``before`` in the first and ``after`` in the
    second. An empty text means that it is absent."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RevisionDifference:
    """Describes what differs between two revisions. It names some hundred files at most, and counts all of
    them."""

    first: Digest
    second: Digest
    facts: tuple[Change, ...]
    files: tuple[Change, ...]
    files_added: int = 0
    files_removed: int = 0
    files_changed: int = 0
    files_same: int = 0


@dataclass(frozen=True, slots=True)
class Reason:
    """Holds an operator's reason for an action: one printable line."""

    why: str = ""

    def __post_init__(self) -> None:
        if len(self.why) > MAX_WHY or not self.why.isprintable():
            raise ValueError(f"why: at most {MAX_WHY} printable characters")


@dataclass(frozen=True, slots=True)
class Withheld:
    """Describes a revision that the registry does not offer: to anybody, by an operator (``environment`` is
    ``None``), or to one environment, because its hosts reported the revision as inert."""

    revision: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    since: int
    why: str
    environment: Digest | None = None
