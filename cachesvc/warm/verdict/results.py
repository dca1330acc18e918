"""Define what comes of a target: the verdict, its numbers, and the row of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cachesvc_client.wire import codec

from ..worker.phase import Compared, GraphBreak, Observation
from ..worker.steady import Faster, Steady

STATUSES = ("warm", "fresh", "cold", "failed", "cancelled")
"""What may come of a target."""
GOOD = STATUSES[:2]
_IN_MANIFEST = ("compile", "first_call", "steady", "eager_first", "eager_steady", "restored_first")
"""Names of the numbers that a manifest's ``measured`` holds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says whether an entry is warm: a fresh process that restored it compiled, tuned and added nothing, and
    its outputs are right. ``reasons``: why not, in words."""

    warm: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Numbers:
    """Holds seconds, summed over the input sets; ``None`` was not measured (scripts have no eager run).

    ``compile``: what the cold first calls took above steady ones. ``steady`` and ``eager_steady`` are medians
    of calls that one process made in turn; ``steady_spread`` and ``eager_spread`` hold them with their
    quartiles. ``faster``: which of the two is faster by more than these quartiles. ``break_even``: the number
    of calls after which compiling here has paid for itself against eager; ``restored_break_even``: the same
    for a process that restored the entry. Both are ``None`` unless compiled calls are faster.
    """

    compile: float | None = None
    first_call: float | None = None
    steady: float | None = None
    eager_first: float | None = None
    eager_steady: float | None = None
    restored_first: float | None = None
    steady_spread: Steady | None = None
    eager_spread: Steady | None = None
    speed_up: float | None = None
    faster: Faster = ""
    break_even: int | None = None
    restored_break_even: int | None = None

    @classmethod
    def from_manifest(cls, measured: Mapping[str, float]) -> Numbers:
        """Return the numbers that a manifest's ``measured`` holds."""
        return codec.build(cls, {name: measured[name] for name in _IN_MANIFEST if name in measured})

    def for_manifest(self) -> dict[str, float]:
        """Return a manifest's ``measured``: the numbers that were measured."""
        values = {name: getattr(self, name) for name in _IN_MANIFEST}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Share:
    """Counts one kind's files of an entry, before compression: as the builder left them (*before*) and as
    they are published (*after* finalising and trimming). ``emitted``: files that the compiler of a restored
    process writes out of the entry."""

    files_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    bytes_after: int = 0
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Describes what came of one target: one row of the report.

    ``status``: *warm* (compiled, proven, delivered; in a check: proven), *fresh* (the registry has it),
    *cold* (a check found no entry, or one that does not save the work), *failed*, *cancelled*.
    ``replays``: until the cache settled, and one more for the verdict. ``revision``: the revision that was
    published. ``bundle``: the file that was written. ``error_status``: the exit status of an error that was
    not the target's.
    """

    target: str
    status: str
    reasons: tuple[str, ...] = ()
    numbers: Numbers = field(default_factory=Numbers)
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    kinds: dict[str, Share] = field(default_factory=dict)
    pack_bytes: int = 0
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[str, ...] = ()
    compared: dict[str, Compared] = field(default_factory=dict)
    observed: Observation | None = None
    replays: int = 0
    finalised: bool = False
    revision: str = ""
    bundle: str = ""
    notes: tuple[str, ...] = ()
    trace: str = ""
    error_status: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Return whether the target is warm, or was already."""
        return self.status in GOOD
