"""Defines requests and answers of the API's routes for operators, version 1. `protocol` defines the others.

Times are seconds of UTC, sizes are bytes. The field ``next`` of a page is the cursor of the following page,
and ``None`` on the last page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .digest import Digest
from .factors import FactorValue
from .mirrors import MirrorState
from .names import Lane, Namespace, ShortName, Tag, Target
from .proof import Proof

MAX_PAGE = 1000
"""Largest number of rows of one page."""
MAX_WHY = 300
"""Largest number of characters of an operator's reason."""


BOUNDS = {
    "keep_revisions": (1, 1 << 20),
    "keep_days": (0, 36_600),
    "unused_days": (1, 36_600),
    "keep_bytes": (0, 1 << 60),
    "quota_bytes": (0, 1 << 60),
}
"""Least and greatest value of each bound of a policy. The greatest value is as good as no bound."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Defines what a namespace keeps. ``None`` means: as the registry's settings say, or without a bound.

    The collector keeps the ``keep_revisions`` newest revisions of each entry, and every revision that is
    younger than ``keep_days``. It removes an entry, its head included, that was not offered to anybody for
    ``unused_days``. Above ``keep_bytes`` the collector evicts revisions; above ``quota_bytes`` the registry
    refuses to publish.
    """

    keep_revisions: int | None = None
    keep_days: int | None = None
    unused_days: int | None = None
    keep_bytes: int | None = None
    quota_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name}: {least} to {most}")


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """Describes a namespace: its policy, how much its revisions hold, and what it requires of builders."""

    namespace: Namespace
    created: int
    entries: int
    revisions: int
    bytes: int
    policy: Policy
    require: str | None = None


@dataclass(frozen=True, slots=True)
class RequireRequest:
    """Sets what a namespace requires of the builders of its trunk (`requirement`); ``None``: nothing."""

    require: str | None = None


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Describes an entry and its head, for operators. ``last_used``: time at which the head was last offered
    to a start, exact to a few hours. ``pinned``: time since which the head is pinned. ``dtypes`` and
    ``shapes`` are those of the inputs. ``signer``: the key that signed the head; empty from an older
    registry."""

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


MAX_DESCENDANTS = 1000
"""Descendants that an answer names, at most."""


@dataclass(frozen=True, slots=True)
class Descendant:
    """Names a revision that was made with another one (``wire.ancestors``)."""

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
class Expiry:
    """Holds a time to live: either ``days`` from now (0: at once), or ``never``. The registry refuses one
    that says neither, or both."""

    days: int | None = None
    never: bool = False


@dataclass(frozen=True, slots=True)
class Rotation:
    """Asks for a new secret of a token. ``overlap_seconds``: how long the secret that it has stays valid."""

    overlap_seconds: int = 86_400


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


@dataclass(frozen=True, slots=True)
class Usage:
    """Describes the use of one entry, in the lists of :class:`Stats`. ``hit``, ``saved`` and
    ``compile_seconds`` are of its head, ``hit_before`` counts the hits of its earlier revisions: a new head
    begins at 0. ``published``: when the head was. ``last_used``: to six hours."""

    entry: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    bytes: int
    hit: int
    saved: float
    compile_seconds: float
    last_used: int
    head: Digest | None = None
    published: int = 0
    hit_before: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts what a registry holds and what its entries saved. ``starts``: number by state. ``saved`` and
    ``spent``: seconds, as far as services report. ``bytes``: of all revisions. ``coldest``: entries that were
    not used for the longest time. ``heaviest``: largest entries. ``dearest``: entries that saved most
    seconds. ``mirror``: absent for a registry that mirrors none."""

    namespaces: int
    names: int
    entries: int
    revisions: int
    bytes: int
    starts: dict[str, int]
    saved: float
    spent: float
    coldest: tuple[Usage, ...] = ()
    heaviest: tuple[Usage, ...] = ()
    dearest: tuple[Usage, ...] = ()
    mirror: MirrorState | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """Describes a revision that a collection would remove, and why. ``whole`` says that the entry goes too,
    with its head."""

    entry: Digest
    revision: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    bytes: int
    why: str
    whole: bool = False


FORECAST_DAYS = 30
"""Days of which the starts count in the forecast of what a collection makes cold."""


@dataclass(frozen=True, slots=True)
class ColdForecast:
    """Describes starts that a collection would make cold: those of one environment with an entry that it
    would remove whole. ``starts``: number of them that used the entry; ``last_seen``: the last one.
    ``compile_seconds``: that each will compile, as the publisher measured. ``facts``: those by which people
    recognise the environment. ``why``: why the entry would be removed."""

    entry: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    environment: Digest
    starts: int
    last_seen: int
    compile_seconds: float
    why: str
    facts: dict[str, str] = field(default_factory=dict)
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """Describes what a collection would remove. ``removals`` has the first of ``revisions``. ``objects``:
    number of objects that no revision names any more; these are deleted first. ``cold``: the first of
    ``going_cold`` pairs of an entry and an environment whose starts of the last ``cold_days`` used the entry,
    the most expensive first; a registry of an earlier release forecasts nothing, and ``cold_days`` is 0."""

    removals: tuple[Removal, ...]
    revisions: int
    bytes: int
    objects: int
    cold: tuple[ColdForecast, ...] = ()
    going_cold: int = 0
    cold_days: int = 0


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Describes one action of an operator. ``by``: a token's id, or ``console``. ``by_label``: the label of
    that token; empty if there is no such token any more."""

    id: int
    at: int
    by: str
    action: str
    namespace: str
    subject: str
    details: dict[str, str] = field(default_factory=dict)
    by_label: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Lists records of the audit log, the newest first."""

    rows: tuple[AuditRecord, ...]
    next: str | None = None


PROBLEMS = ("missing", "size", "digest", "envelope", "orphan")
"""Kinds of disagreement between index and store, see `Finding`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Describes something that index and store disagree about, and what repairs it.

    ``problem``: *missing* (the object of a revision is not in the store), *size* or *digest* (the object is
    another one), *envelope* (the row of the index does not verify), *orphan* (the index does not know the
    object).
    """

    problem: str
    key: str
    said: str
    repair: str
    revision: Digest | None = None

    def __post_init__(self) -> None:
        if self.problem not in PROBLEMS:
            raise ValueError(f"problem: {self.problem[:40]!r}; one of {', '.join(PROBLEMS)}")
        if (self.revision is None) != (self.problem == "orphan"):
            raise ValueError("revision: of every problem but an orphan")


@dataclass(frozen=True, slots=True)
class FsckPage:
    """Lists findings. ``checked``: number of revisions, or of objects of the store, that were checked."""

    findings: tuple[Finding, ...]
    checked: int
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Repaired:
    """Says whether a repair changed something. ``done`` is false if the finding does not hold any more, which
    is a success too."""

    done: bool
