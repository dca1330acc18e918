"""Define statistics, collections and repairs."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from .mirrors import MirrorState

FORECAST_DAYS = 30
"""Days of which the starts count in the forecast of what a collection makes cold."""
PROBLEMS = ("missing", "size", "digest", "envelope", "orphan")
"""Kinds of disagreement between index and store, see `Finding`."""


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
    the most expensive first. ``kept``: what the policies keep, where they remove nothing."""

    removals: tuple[Removal, ...]
    revisions: int
    bytes: int
    objects: int
    cold: tuple[ColdForecast, ...] = ()
    going_cold: int = 0
    cold_days: int = 0
    kept: str = ""


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
