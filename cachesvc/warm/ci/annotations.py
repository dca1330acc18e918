"""Say what CI systems show beside a line of the spec: each target that is not warm. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..report.merged import MergedReport
from ..report.read import RunReport

Level = Literal["error", "warning"]
_MAX_MESSAGE = 2000
"""Characters of one message, at most; the report has all."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Holds one message. ``file``: relative to the repository, empty where no file of it is meant. ``line``:
    counted from 1, ``None`` where no line is known."""

    level: Level
    title: str
    message: str
    file: str = ""
    line: int | None = None


def annotate(report: MergedReport, repository: Path) -> list[Annotation]:
    """Return an annotation for each target of a run that is not warm; errors first.

    A target that failed is an error; one that is cold or was cancelled is a warning, because a changed model
    is cold. Of several runs, each has annotated its own targets: what is left are runners without a report,
    and the sum. ``repository``: the folder of the checkout, with which files are compared.
    """
    if report.only is not None:
        return sorted(_of_run(report.only, repository), key=lambda one: one.level)
    listed = [
        Annotation("error", f"no report of {runner}", "its job failed, or did not keep the report")
        for runner in report.absent
    ]
    if report.exit_status:
        listed.append(Annotation("error", "cachesvc warm", report.summary()))
    return listed


def _of_run(run: RunReport, repository: Path) -> list[Annotation]:
    if run.error is not None:
        file = _in_repository(run.error.file, repository)
        line = run.error.line if file else None
        return [Annotation("error", "cachesvc warm", run.error.text[:_MAX_MESSAGE], file, line)]
    assert run.head is not None
    file = _in_repository(run.head.spec, repository)
    return [
        Annotation(
            "error" if outcome.status == "failed" else "warning",
            f"{outcome.target} is {outcome.status}",
            "; ".join(outcome.reasons)[:_MAX_MESSAGE] or "no reason is known",
            file,
            run.head.line_of(outcome.target) if file else None,
        )
        for outcome in run.outcomes
        if not outcome.good
    ]


def _in_repository(spec: str, repository: Path) -> str:
    """Return the path of the spec as the repository has it; empty if it lies elsewhere."""
    path = os.path.realpath(spec) if spec else ""
    root = os.path.realpath(repository)
    return os.path.relpath(path, root) if path.startswith(root.rstrip(os.sep) + os.sep) else ""
