"""Show the reports of one run of `warm`, or of several as one, as text, Markdown and JSON. Pure but for
reading."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachesvc_client.console.tables import environment_label
from cachesvc_client.wire.errors import InvalidRequest, NotFound, NotWarm

from . import render as report
from .env_matrix import EnvironmentMatrix, EnvironmentReport
from .read import RunReport, read_report
from .render import FORMAT, escape


@dataclass(frozen=True, slots=True)
class MergedReport:
    """Holds the reports of runs on one name, at least one of them or one of ``absent``: the runners that must
    have reported and have not."""

    runs: tuple[RunReport, ...]
    absent: tuple[str, ...] = ()

    @property
    def only(self) -> RunReport | None:
        """Return the run, if it is a single one: then the report is its own, with all of its numbers."""
        return self.runs[0] if len(self.runs) == 1 and not self.absent else None

    @property
    def exit_status(self) -> int:
        """Return the exit status of the only run; of several, 0 if all is warm, else 9."""
        if self.only:
            return self.only.exit_status
        failed = self.absent or any(run.exit_status for run in self.runs)
        return NotWarm.exit_status if failed else self.matrix().exit_status

    def matrix(self, declared: Iterable[str] = ()) -> EnvironmentMatrix:
        """Return the grid: each environment, with the declared targets, or those that any of the runs has."""
        names = {run.head.name: None for run in self.runs if run.head}
        targets = tuple(declared) or tuple(
            dict.fromkeys(outcome.target for run in self.runs for outcome in run.outcomes)
        )
        rows = [_row(run) for run in self.runs if run.head]
        errors = {run.runner: run.error.text for run in self.runs if run.error}
        rows.sort(key=lambda row: (row.label, row.file))
        name = next(iter(names), "warm")
        return EnvironmentMatrix(name, targets, tuple(rows), self.absent, errors)

    def summary(self) -> str:
        """Return one line."""
        if self.only is None:
            return self.matrix().summary()
        return _summary(self.only)

    def text(self) -> str:
        """Return the report for a log."""
        if self.only is None:
            return self.matrix().text()
        if self.only.head is None:
            return self.summary()
        return "\n".join(report.lines(self.only.head, self.only.outcomes))

    def markdown(self) -> str:
        """Return the report for a job's summary or a pull request; of several runs, each one's own report is
        folded below the grid."""
        if self.only is not None:
            return _markdown(self.only)
        parts = [self.matrix().markdown()]
        for run in self.runs:
            inner = "\n".join(f"##{line}" if line.startswith("#") else line for line in _lines(run))
            parts.append(
                f"<details><summary>{_html(f'{run.runner}: {_summary(run)}')}</summary>\n\n{inner}\n\n"
                "</details>\n"
            )
        return "\n".join(parts)

    def short_markdown(self) -> str:
        """Return what fits where `markdown` is too long: the grid and what is not warm."""
        return self.matrix().markdown()

    def document(self) -> dict[str, Any]:
        """Return the JSON form: the only run's own, or the grid with every run's own by its runner."""
        if self.only is not None:
            return _document(self.only)
        return {**self.matrix().document(), "runs": {run.runner: _document(run) for run in self.runs}}

    def outputs(self) -> dict[str, str]:
        """Return what later steps of a CI job use, each as one line; objects and lists as JSON."""
        outcomes = [outcome for run in self.runs for outcome in run.outcomes]
        good = sum(outcome.good for outcome in outcomes)
        revisions = {run.runner: _revisions(run) for run in self.runs}
        published = [digest for by_target in revisions.values() for digest in by_target.values()]
        return {
            "warm": json.dumps(self.exit_status == 0),
            "exit-status": str(self.exit_status),
            "targets": str(len(outcomes)),
            "targets-warm": str(good),
            "targets-failed": str(len(outcomes) - good),
            "revision": published[0] if len(published) == 1 else "",
            "revisions": json.dumps(revisions[self.only.runner] if self.only else revisions),
        }


def merge_reports(places: Iterable[Path], runners: Sequence[str] = ()) -> MergedReport:
    """Read reports: files, or folders with ``*.json``. ``runners``: names, without ``.json``, that must be
    among them.

    Raises ``NotFound`` if there is none and none is required, and ``InvalidRequest`` for a file that is no
    report, for two of one runner, and for reports on different names.
    """
    places = list(places)
    folders = {place: sorted(place.glob("*.json")) for place in places if place.is_dir()}
    runs = tuple(read_report(file) for place in places for file in folders.get(place, [place]))
    names = {run.head.name: run.runner for run in runs if run.head}
    if len(names) > 1:
        listed = ", ".join(f"{name} ({runner})" for name, runner in names.items())
        raise InvalidRequest(f"reports on different names: {listed[:300]}", "merge those of one name")
    present = [run.runner for run in runs]
    for runner in present:
        if present.count(runner) > 1:
            raise InvalidRequest(f"two reports of {runner}", "give each runner's report a name of its own")
    if not runs and not runners:
        listed = ", ".join(map(str, places))
        raise NotFound(f"{listed}: no report (*.json)", "cachesvc warm SPEC --json > FOLDER/RUNNER.json")
    return MergedReport(runs, tuple(runner for runner in runners if runner not in present))


def merge_environments(
    folder: Path, name: str, targets: Sequence[str], runners: Sequence[str] = ()
) -> EnvironmentMatrix:
    """Return the grid of the reports of a folder, each of which must have these targets.

    Raises what `merge_reports` raises, and ``InvalidRequest`` for reports on another name.
    """
    merged = merge_reports([folder], runners)
    built = next((run.head.name for run in merged.runs if run.head), name)
    if built != name:
        raise InvalidRequest(f"{folder}: a report on {built[:200]}, and this run is about {name}")
    return merged.matrix(targets)


def _row(run: RunReport) -> EnvironmentReport:
    assert run.head is not None
    return EnvironmentReport(
        run.runner,
        environment_label(run.head.environment),
        {outcome.target: outcome.status for outcome in run.outcomes},
        {outcome.target: "; ".join(outcome.reasons)[:500] for outcome in run.outcomes},
    )


def _summary(run: RunReport) -> str:
    return f"nothing was warmed: {run.error.text}" if run.error else report.summary(run.outcomes)


def _lines(run: RunReport) -> list[str]:
    return _markdown(run).splitlines()


def _markdown(run: RunReport) -> str:
    if run.head is None:
        return f"# Warm report\n\n- {escape(_summary(run))}\n"
    return report.markdown(run.head, run.outcomes)


def _document(run: RunReport) -> dict[str, Any]:
    if run.head is not None:
        return report.document(run.head, run.outcomes)
    assert run.error is not None
    return {"format": FORMAT, "warm": False, "exit_status": run.exit_status, "error": run.error.text}


def _revisions(run: RunReport) -> dict[str, str]:
    return {outcome.target: outcome.revision for outcome in run.outcomes if outcome.revision}


def _html(text: str) -> str:
    """Return text for an element of HTML within Markdown; it notifies nobody."""
    return html.escape(" ".join(text.splitlines())).replace("@", "@&#8203;")
