"""Defines reports on the wire: the outcome of one start of one process, and the registry's answer."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from ..digest import Digest
from ..factors import FactorValue
from ..names import LATEST, Lane, Namespace, ShortName, Tag
from .protocol import MAX_RESOLVED

REPORT_FORMAT = "cachesvc.report/1"
"""Format of the reports that client and registry exchange."""
STATES = ("hit", "partial", "inert", "miss", "unused")
"""Outcomes of a start, see docs/concepts.md."""
MAX_REPORT_BYTES = 128 << 10
"""Largest number of bytes of a report."""
MAX_COUNT = 1_000_000
"""Largest count that a report may hold."""
MAX_SECONDS = 10_000_000.0
"""Largest number of seconds that a report may hold: four months."""
MAX_COLD = 8
"""Largest number of names, and of models, that the report of a cold start holds."""
_NODE = re.compile(r"[0-9a-f]{32}")
"""Matches the identity of a node."""
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
"""Matches the name of a kind."""


@dataclass(frozen=True, slots=True)
class KindWork:
    """Counts the work that one kind cost a start, in spite of what was restored."""

    compilations: int = 0
    tuning_runs: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_count("compilations", self.compilations)
        _check_count("tuning_runs", self.tuning_runs)
        _check_seconds("seconds", self.seconds)


@dataclass(frozen=True, slots=True)
class RevisionReport:
    """Reports the outcome of one revision. ``used``: how many of its ``files`` were used. ``saved``: seconds,
    against the builder's first call; negative if the start took longer."""

    revision: Digest
    state: str
    files: int = 0
    used: int = 0
    saved: float | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state: {self.state[:40]!r}; one of {', '.join(STATES)}")
        _check_count("files", self.files)
        _check_count("used", self.used)
        if self.saved is not None:
            _check_seconds("saved", abs(self.saved))


@dataclass(frozen=True, slots=True)
class EarlierReport:
    """Holds what a start reported before: ``revisions`` and ``kinds`` of that `ReportRequest`."""

    revisions: tuple[RevisionReport, ...] = ()
    kinds: dict[str, KindWork] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.revisions) > MAX_RESOLVED or len(self.kinds) > 16:
            raise ValueError(f"replaces: at most {MAX_RESOLVED} revisions and 16 kinds")


@dataclass(frozen=True, slots=True)
class ColdName:
    """Names what a start asked for, and was offered nothing of. ``tag``: the first that it asked for."""

    namespace: Namespace
    name: ShortName
    tag: Tag = LATEST
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Reports a start that restored nothing and compiled. ``models``: hashes of the models that it compiled,
    as far as the client knows them; the targets of other environments are found by them."""

    names: tuple[ColdName, ...]
    models: tuple[Digest, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.names) <= MAX_COLD or len(set(self.names)) != len(self.names):
            raise ValueError(f"names: 1 to {MAX_COLD}, each once")
        if len(self.models) > MAX_COLD:
            raise ValueError(f"models: at most {MAX_COLD}")


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Reports one start of one process. It names no person and no machine: ``node`` is 32 hex digits that
    mean nothing to others, and ``why`` names the factors and the components of keys that differed, without
    their values. It has no time: the registry's clock counts.

    ``fingerprint``: the fingerprint of the resolve. ``replaces``: the last report of this start; the registry
    counts this report instead of that one. ``cold``: of a start that has no ``revisions``, what it wanted.
    """

    node: str
    fingerprint: dict[str, FactorValue]
    revisions: tuple[RevisionReport, ...]
    kinds: dict[str, KindWork] = field(default_factory=dict)
    why: tuple[str, ...] = ()
    replaces: EarlierReport | None = None
    format: str = REPORT_FORMAT
    cold: ColdStart | None = None

    def __post_init__(self) -> None:
        if self.format != REPORT_FORMAT:
            raise ValueError(f"format: {self.format[:60]!r}; {REPORT_FORMAT} is read")
        if not _NODE.fullmatch(self.node):
            raise ValueError("node: 32 hex digits")
        if (self.cold is None) != (0 < len(self.revisions) <= MAX_RESOLVED) or (self.cold and self.revisions):
            raise ValueError(f"revisions: 1 to {MAX_RESOLVED}, or cold and none")
        if len({row.revision for row in self.revisions}) != len(self.revisions):
            raise ValueError("revisions: each once")
        if len(self.kinds) > 16 or not all(map(_KIND.fullmatch, self.kinds)):
            raise ValueError("kinds: at most 16, by name")
        if len(self.fingerprint) > 64 or not all(map(_is_short, self.fingerprint.items())):
            raise ValueError(
                "fingerprint: at most 64 factors of at most 1000 printable texts of 200 characters"
            )
        if len(self.why) > 8 or not all(len(text) <= 200 and text.isprintable() for text in self.why):
            raise ValueError("why: at most 8 printable texts of 200 characters")


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """Answers a report. ``counted``: number of revisions that were counted. ``quarantined``: revisions that
    this environment is not offered any more."""

    counted: int
    quarantined: tuple[Digest, ...] = ()


def _check_count(what: str, value: int) -> None:
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"{what}: 0 to {MAX_COUNT}")


def _check_seconds(what: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise ValueError(f"{what}: a finite number of seconds, at most {MAX_SECONDS:.0f}")


def _is_short(item: tuple[str, FactorValue]) -> bool:
    name, value = item
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    number = isinstance(value, int) and abs(value) > 1 << 53
    return (
        not number
        and len(texts) <= 1000
        and all(len(text) <= 200 and text.isprintable() for text in (name, *texts))
    )
