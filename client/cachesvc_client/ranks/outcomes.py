"""Brings the outcomes of the ranks of one job on one node together, so that one line can say how it started.

Each rank leaves its outcome in a folder of the job (`ranks.job_folder`):

    <folder>/outcome-<n>.json   the outcome of rank n
    <folder>/said-<hex>         what was said about all ranks, so that one of them says it
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..wire.codec import canonical
from ..wire.digest import Digest
from .job import Job
from .job_folder import lives, put_file, read_json


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """Says how one rank started.

    ``process``: its id (`job_folder`). ``state``: as a report has it. ``restored``: the number of restored
    revisions. ``reason``: the first reason why it is no hit, or an empty text.
    """

    rank: int
    process: str
    state: str
    restored: int
    compilations: int
    tuning_runs: int
    compiler_processes: int
    reason: str

    @property
    def clean(self) -> bool:
        """Return whether the rank compiled and tuned nothing, and started no compiler."""
        return not (self.compilations or self.tuning_runs or self.compiler_processes)


def exchange(folder: Path, job: Job, own: RankOutcome) -> tuple[RankOutcome, ...]:
    """Leave this rank's outcome in ``folder``, and return those of all ranks in their order; empty while a
    rank has left none. Outcomes of processes that ended do not count. Raises ``OSError``."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    put_file(folder, f"outcome-{own.rank}.json", json.dumps(asdict(own)).encode())
    outcomes = [own if rank == own.rank else _read(folder, rank) for rank in range(job.world)]
    known = tuple(outcome for outcome in outcomes if outcome is not None)
    return known if len(known) == job.world else ()


def first_to_say(folder: Path, outcomes: Sequence[RankOutcome]) -> bool:
    """Return whether no rank has said these outcomes yet; then the caller says them. The same outcomes of
    another run, which other processes left, are others. Raises ``OSError``."""
    name = Digest.of(canonical([line(outcomes), *(outcome.process for outcome in outcomes)])).hex[:32]
    try:
        handle = os.open(folder / f"said-{name}", os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    os.close(handle)
    return True


def line(outcomes: Sequence[RankOutcome]) -> str:
    """Return how the job started, in words."""
    compiled = [outcome for outcome in outcomes if not outcome.clean or outcome.state != "hit"]
    if not compiled:
        return f"all {len(outcomes)} ranks: hit: nothing compiled"
    first = compiled[0]
    counts = f"{first.compilations} compilations, {first.tuning_runs} tuning runs"
    why = f": {first.reason}" if first.reason else ""
    number = f"{len(compiled)} of {len(outcomes)} ranks are no hit"
    return f"{number}; rank {first.rank}: {first.state}, {counts}{why}"


def _read(folder: Path, rank: int) -> RankOutcome | None:
    message = read_json(folder / f"outcome-{rank}.json")
    try:
        outcome = RankOutcome(**message) if message is not None else None
        return outcome if outcome is not None and lives(outcome.process) else None
    except (TypeError, AttributeError):  # not what this release writes
        return None
