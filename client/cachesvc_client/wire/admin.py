"""Requests and answers of the API's routes for operators, version 1. See ``protocol`` for the rest.

Times are seconds of UTC, sizes bytes. A page's ``next`` is the cursor of the following one; ``None`` ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .digest import Digest
from .factors import FactorValue
from .names import Lane, Namespace, ShortName, Tag, Target

MAX_PAGE = 1000
"""Rows of one page, at most."""
MAX_WHY = 300


BOUNDS = {
    "keep_revisions": (1, 1 << 20),
    "keep_days": (0, 36_600),
    "unused_days": (1, 36_600),
    "keep_bytes": (0, 1 << 60),
    "quota_bytes": (0, 1 << 60),
}
"""Least and most of each bound of a policy. The most is as good as none."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a namespace keeps. ``None``: as the registry's settings say, or without a bound.

    ``keep_revisions`` newest of each entry and everything younger than ``keep_days`` are kept. An entry that
    was not offered to anybody for ``unused_days`` goes, its head included. Above ``keep_bytes`` collection
    evicts; above ``quota_bytes`` publishing is refused.
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
    """A namespace, and what its revisions hold."""

    namespace: Namespace
    created: int
    entries: int
    revisions: int
    bytes: int
    policy: Policy


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """An entry with its head, as operators see it. ``last_used``: when the head was last offered to a start,
    to a few hours. ``pinned``: since when its head is. ``dtypes`` and ``shapes``: of its inputs."""

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


@dataclass(frozen=True, slots=True)
class EntryPage:
    """Entries, newest first."""

    rows: tuple[EntryRecord, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """One revision and the entry that it belongs to. ``head``: it is what the entry answers."""

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


@dataclass(frozen=True, slots=True)
class Change:
    """``what`` is ``before`` in the first revision and ``after`` in the second; empty is absent."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RevisionDifference:
    """What differs between two revisions. Of files at most some hundred are named, all are counted."""

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
    """Why an operator did something: one printable line."""

    why: str = ""

    def __post_init__(self) -> None:
        if len(self.why) > MAX_WHY or not self.why.isprintable():
            raise ValueError(f"why: at most {MAX_WHY} printable characters")


@dataclass(frozen=True, slots=True)
class Expiry:
    """Either ``days`` from now (0: at once), or ``never``. One that says neither, or both, is refused."""

    days: int | None = None
    never: bool = False


@dataclass(frozen=True, slots=True)
class Withheld:
    """A revision that is not offered: by an operator to anybody (``environment`` is ``None``), or to one
    environment, because its hosts found it inert."""

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
    """One entry in the lists of :class:`Stats`."""

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


@dataclass(frozen=True, slots=True)
class Stats:
    """``starts`` by state; seconds that were ``saved`` and ``spent``, as far as services report. ``bytes``:
    of all revisions. ``coldest``: not used for the longest; ``heaviest``; ``dearest``: most seconds saved."""

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


@dataclass(frozen=True, slots=True)
class Removal:
    """What a collection would remove, and why. ``whole``: the entry goes, head and all."""

    entry: Digest
    revision: Digest
    namespace: Namespace
    name: ShortName
    tag: Tag
    target: Target
    bytes: int
    why: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """``removals``: the first of ``revisions``. ``objects``: that nothing names any more, deleted first."""

    removals: tuple[Removal, ...]
    revisions: int
    bytes: int
    objects: int


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One thing that an operator did. ``by``: a token's id, or ``console``."""

    id: int
    at: int
    by: str
    action: str
    namespace: str
    subject: str
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The log, newest first."""

    rows: tuple[AuditRecord, ...]
    next: str | None = None


PROBLEMS = ("missing", "size", "digest", "envelope", "orphan")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that index and store disagree about, and what repairs it.

    ``problem``: *missing* (a revision's object is not in the store), *size* or *digest* (it is another one),
    *envelope* (the index's own row does not verify), *orphan* (an object that the index does not know).
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
    """``checked``: revisions, or objects of the store."""

    findings: tuple[Finding, ...]
    checked: int
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Repaired:
    """``done``: false if the finding does not hold any more, which is a success too."""

    done: bool
