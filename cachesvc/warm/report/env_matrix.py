"""Show the reports of several runners, one for each environment, as one grid. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachesvc_client.console.tables import aligned
from cachesvc_client.wire.errors import NotWarm

from ..verdict.results import GOOD
from .render import escape

MATRIX_FORMAT = "cachesvc.warm.matrix/1"
"""The ``format`` of the merged reports in JSON."""
MISSING = "missing"
"""Status of a target that a runner's report does not have."""


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """Holds what one runner reported. ``label``: torch, device and interpreter of its environment.
    ``statuses``: by target. ``reasons``: by target, why it is not warm."""

    file: str
    label: tuple[str, str, str]
    statuses: dict[str, str]
    reasons: dict[str, str]


@dataclass(frozen=True, slots=True)
class EnvironmentMatrix:
    """Holds the reports on one name, and the ``targets`` that each of them must have. ``absent``: runners
    that must have reported and have no report. ``errors``: by runner, why its run has no targets."""

    name: str
    targets: tuple[str, ...]
    environments: tuple[EnvironmentReport, ...]
    absent: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """Return 0 if every target is warm in every environment and every runner reported, else 9."""
        cells = len(self.targets) * len(self.environments)
        whole = self._warm == cells and not self.absent and not self.errors
        return 0 if whole else NotWarm.exit_status

    @property
    def _warm(self) -> int:
        return sum(self._status(row, target) in GOOD for row in self.environments for target in self.targets)

    @staticmethod
    def _status(row: EnvironmentReport, target: str) -> str:
        return row.statuses.get(target, MISSING)

    def summary(self) -> str:
        """Return one line: how many of the cells are warm, in how many environments."""
        total = len(self.targets) * len(self.environments)
        text = f"{self.name}: {self._warm} of {total} are warm, in {len(self.environments)} environments"
        text += f"; {len(self.errors)} runners without a target" if self.errors else ""
        return f"{text}; {len(self.absent)} runners without a report" if self.absent else text

    def rows(self) -> list[tuple[str, ...]]:
        """Return the grid: a head, and a row for each environment."""
        head = ("torch", "device", "python", *self.targets)
        return [
            head,
            *((*row.label, *(self._status(row, one) for one in self.targets)) for row in self.environments),
        ]

    def problems(self) -> list[str]:
        """Return a line for each target that is not warm, where and why, and for each absent report."""
        absent = [f"no report of {runner}: its job failed, or did not keep it" for runner in self.absent]
        errors = [f"{runner}: nothing was warmed: {text}" for runner, text in self.errors.items()]
        return (
            absent
            + errors
            + [
                f"{target} is {self._status(row, target)} on {', '.join(row.label[:2])} ({row.file})"
                + (f": {row.reasons[target]}" if row.reasons.get(target) else "")
                for row in self.environments
                for target in self.targets
                if self._status(row, target) not in GOOD
            ]
        )

    def text(self) -> str:
        """Return the grid for a terminal or a log."""
        parts = [self.summary(), *([aligned(self.rows(), "  ")] if self.environments else [])]
        return "\n".join([*parts, *self.problems()])

    def markdown(self) -> str:
        """Return the grid for a pull request or a job's summary."""
        head, *rows = self.rows()
        text = [f"# Warm report: {self.name}", "", self.summary() + ".", ""]
        if rows:
            text += ["| " + " | ".join(map(escape, head)) + " |", "|" + "---|" * len(head)]
            text += ["| " + " | ".join(map(escape, row)) + " |" for row in rows]
        if self.problems():
            text += ["", *(f"- {escape(line)}" for line in self.problems())]
        return "\n".join([*text, ""])

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        environments = [
            {
                "report": row.file,
                **dict(zip(("torch", "device", "python"), row.label, strict=True)),
                "targets": {target: self._status(row, target) for target in self.targets},
            }
            for row in self.environments
        ]
        warm = self.exit_status == 0
        document = {"format": MATRIX_FORMAT, "name": self.name, "warm": warm, "environments": environments}
        return {**document, "absent": list(self.absent), "errors": dict(self.errors)}
