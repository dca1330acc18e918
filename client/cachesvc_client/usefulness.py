"""What really happened after an install: the usefulness of a start, with reasons and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .observe import Observation
from .restore import Installed
from .wire.factors import Difference, Facts
from .wire.protocol import Rejected

State = Literal["hit", "partial", "inert", "miss", "unused"]


@dataclass(frozen=True, slots=True)
class RevisionUse:
    """One installed revision; ``used``: its keys or kernels that the compilers really took."""

    name: str
    target: str
    revision: str
    files: int
    bytes: int
    used: int


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """One component of PyTorch's own keys that differs, in words."""

    component: str
    here: str
    entry: str


@dataclass(frozen=True, slots=True)
class Report:
    """``state``: *hit* (restored files were used, nothing was compiled), *partial* (used, and something
    was compiled), *inert* (something was compiled, the installed files were not used), *miss* (nothing
    was there to install), *unused* (nothing was compiled, nothing used).

    ``differences``: of an inert or partial start, the factors in which it differs from the nearest installed
    entry and that can be why, the most important first. ``facts``: what this process is and asked for, by the
    factor table, if it was not a plain hit: ``explain --here`` reads them.

    ``seconds``: ``wait`` (of the compile for the restore), ``hooks`` (inside ours, without the wait),
    ``compile`` (inside Inductor), and the restore's steps. ``saved``: the builder's first call less what
    was spent here, for the revisions that were used; ``None`` if it was not measured.
    """

    state: State
    reasons: tuple[str, ...]
    observed: Observation
    revisions: tuple[RevisionUse, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    differences: tuple[Difference, ...] = ()
    facts: Facts = field(default_factory=dict)
    bytes_moved: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    saved: float | None = None

    @property
    def compilations(self) -> int:
        """0 is what the product promises on a hit."""
        return self.observed.compilations

    @property
    def line(self) -> str:
        """One line for a log."""
        seen = self.observed
        text = (
            f"{self.state}: {seen.compilations} compilations, {seen.tuning_runs} tuning runs, "
            f"{sum(use.used for use in self.revisions)} artifacts of {len(self.revisions)} revisions used"
        )
        return f"{text}; {self.reasons[0]}" if self.reasons else text


def uses(
    installed: Sequence[Installed], used_paths: set[str], used_keys: set[str]
) -> tuple[RevisionUse, ...]:
    """Which revisions the compilers took something from, by path of a host kernel and by cache key."""
    made = []
    for entry in installed:
        statement = entry.manifest.statement
        paths = {record.path for record in entry.manifest.files}
        keys = {part for path in paths for part in path.split("/")[:-1]}
        made.append(
            RevisionUse(
                name=str(statement.full_name),
                target=str(statement.target),
                revision=str(entry.revision),
                files=entry.files,
                bytes=entry.bytes,
                used=len(paths & used_paths) + len(keys & used_keys),
            )
        )
    return tuple(made)


def judge(observed: Observation, revisions: Sequence[RevisionUse]) -> State:
    """The state, from what was counted: compilations, tuning runs and compiler processes."""
    if any(revision.used for revision in revisions):
        return "hit" if observed.clean else "partial"
    if observed.clean:
        return "unused"
    return "inert" if revisions else "miss"
