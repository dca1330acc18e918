"""Plan what services wanted and compiled: which targets of a spec to build here, the dearest first.

The registry says what starts compiled, by target and environment. A builder makes entries for its own
environment only, so what other environments wanted is listed with the reason, for whoever builds there.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachesvc.schema.wanted import WantedAnswer, WantedTarget
from cachesvc_client.console.tables import aligned
from cachesvc_client.wire.compare import Mismatch, compare
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.names import Lane, Name
from cachesvc_client.wire.text import count_text

from .spec.plan import Job

if TYPE_CHECKING:
    from cachesvc_client.http.registry import Remote

FORMAT = "cachesvc.warm.missing/1"
"""Name and version of the JSON form of this plan."""
SHOWN = 50
"""Lines of each list that the text shows, at most."""


@dataclass(slots=True)
class WantedJob:
    """A job, and the starts that would have been spared by its entry. ``seconds``: that they compiled,
    together: starts times the seconds that each lost. ``environments``: number of them. ``perhaps``: whether
    some of these starts did not say of which target they were. ``notes``: what else is to be known."""

    job: Job
    starts: int = 0
    seconds: float = 0.0
    environments: int = 0
    perhaps: bool = False
    notes: dict[str, None] = field(default_factory=dict)

    def count(self, row: WantedTarget) -> None:
        """Add the starts of a row."""
        self.starts += row.starts
        self.seconds += row.spent
        self.environments += 1
        self.perhaps |= row.target is None
        if row.entry is not None:
            why = f": {row.why}" if row.why else ""
            self.notes[f"an entry fits there and starts compile all the same{why}"] = None


@dataclass(frozen=True, slots=True)
class NotHere:
    """What services wanted and this run does not make. ``why``: what keeps it from that."""

    row: WantedTarget
    why: str


@dataclass(frozen=True, slots=True)
class MissingPlan:
    """What to build here, the dearest first. ``elsewhere``: what this environment cannot build, and what the
    spec does not have. ``unwanted``: targets of the spec that nobody wanted here. ``more``: number of rows
    that the registry left out."""

    wanted: tuple[WantedJob, ...]
    elsewhere: tuple[NotHere, ...]
    unwanted: tuple[str, ...]
    more: int = 0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs in their order."""
        return tuple(one.job for one in self.wanted)

    def lines(self, name: Name) -> list[str]:
        """Return the plan for a terminal."""
        total = len(self.wanted) + len(self.unwanted)
        lines = [f"{name}: {len(self.wanted)} of {count_text(total, 'target')} are wanted here"]
        rows = [
            (
                one.job.label,
                count_text(one.starts, "start"),
                f"{one.seconds:.0f} s compiled",
                count_text(one.environments, "environment"),
                "; ".join([*(["perhaps: some named no model"] if one.perhaps else []), *one.notes]),
            )
            for one in self.wanted[:SHOWN]
        ]
        lines += aligned(rows, "  ").splitlines()
        if self.unwanted:
            lines.append(f"not wanted here: {', '.join(self.unwanted[:SHOWN])}")
        if self.elsewhere:
            lines.append("not made by this run:")
            lines += aligned(map(_elsewhere_row, self.elsewhere[:SHOWN]), "  ").splitlines()
        left_out = self.more + max(0, len(self.elsewhere) - SHOWN) + max(0, len(self.wanted) - SHOWN)
        return lines + ([f"{left_out} more are not shown"] if left_out else [])

    def document(self, name: Name) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        return {
            "format": FORMAT,
            "name": str(name),
            "rows": [
                {
                    "target": str(one.job.label),
                    "starts": one.starts,
                    "spent_seconds": round(one.seconds, 3),
                    "environments": one.environments,
                    "perhaps": one.perhaps,
                    "notes": list(one.notes),
                }
                for one in self.wanted
            ],
            "elsewhere": [
                {
                    "target": None if one.row.target is None else str(one.row.target),
                    "starts": one.row.starts,
                    "spent_seconds": one.row.spent,
                    "environment": str(one.row.environment),
                    "facts": dict(one.row.facts),
                    "why": one.why,
                }
                for one in self.elsewhere
            ],
            "unwanted": list(self.unwanted),
            "more": self.more,
        }


def ask_wanted(remote: Remote, name: Name, lane: Lane | None, days: int) -> WantedAnswer:
    """Ask the registry what services of ``name`` wanted in the last ``days``. Raises what ``Remote.call``
    raises."""
    query = {"name": name.name, "tag": name.tag, "days": days, **({"lane": lane} if lane else {})}
    path = f"/v1/namespaces/{name.namespace}/wanted?{urllib.parse.urlencode(query)}"
    return remote.call("GET", path, None, WantedAnswer)


def plan_missing(
    jobs: Sequence[Job], answer: WantedAnswer, here: Callable[[Job], Fingerprint]
) -> MissingPlan:
    """Return which of the jobs services wanted in environments that an entry built here fits.

    ``here`` returns the environment of the processes that compile a job, with the job's own variables. A
    start that did not say of which target it was counts for each job of a device that it may be of. Pure.
    """
    wanted = {job.label: WantedJob(job) for job in jobs}
    elsewhere: list[NotHere] = []
    for row in answer.rows:
        matching = [job for job in jobs if row.target in (None, job.target)]
        if not matching:
            elsewhere.append(NotHere(row, "the spec has no such target"))
            continue
        reasons = {job.label: refusal(row, job, here(job)) for job in matching}
        fitting = [job for job in matching if not reasons[job.label]]
        for job in fitting:
            wanted[job.label].count(row)
        if not fitting:
            elsewhere.append(NotHere(row, reasons[matching[0].label]))
    order = sorted(
        (one for one in wanted.values() if one.starts), key=lambda one: (-one.seconds, -one.starts)
    )
    unwanted = tuple(str(one.job.label) for one in wanted.values() if not one.starts)
    return MissingPlan(tuple(order), tuple(elsewhere), unwanted, answer.more)


def refusal(row: WantedTarget, job: Job, here: Fingerprint) -> str:
    """Return why what this environment builds of a job does not fit the environment of a row; an empty text
    if it fits, by all that is known before it is built."""
    if not row.fingerprint:
        return "its facts are not known any more: its next start brings them"
    on_gpu = job.spec.device.startswith("cuda")
    if on_gpu and "gpu" not in here:
        return "this builder has no GPU"
    verdict = compare(row.fingerprint, here, ("gpu",) if on_gpu else ("host",))
    if not isinstance(verdict, Mismatch):
        return ""
    first = verdict.differences[0]
    return f"{first.factor}: {first.mine} there, {first.theirs} on this builder"


def _elsewhere_row(one: NotHere) -> tuple[str, ...]:
    facts = one.row.facts
    device = facts.get("gpu") or f"cpu {facts.get('cpu_isa', '')}".rstrip()
    where = f"{device}, torch {facts.get('torch', '-')}"
    return (
        one.row.target or "(target not known)",
        count_text(one.row.starts, "start"),
        f"{one.row.spent:.0f} s compiled",
        f"for {where}",
        one.why,
    )
