"""Show what a run of `warm` does and came to, on a terminal and in files. Parts of it come from models."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cachesvc_client.wire.errors import StorageFull, printable

if TYPE_CHECKING:
    from cachesvc.warm.context import OnStep
    from cachesvc.warm.report.head import ReportHead
    from cachesvc.warm.spec.plan import Job
    from cachesvc.warm.verdict.results import Outcome

STDOUT = Path("-")
"""Path that stands for standard output."""


def echo(text: str, *, err: bool = False) -> None:
    """Print text of which a terminal obeys nothing."""
    typer.echo(printable_lines(text), err=err)


def printable_lines(text: str) -> str:
    """Return text without what a terminal obeys beside the end of a line: parts of it come from models."""
    return "\n".join(map(printable, text.split("\n")))


def write(option: str, path: Path, text: str) -> None:
    """Write what an option asks for into a file, or to stdout. Raises ``StorageFull``."""
    if path == STDOUT:
        echo(text.rstrip("\n"))
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageFull(f"{option} {path}: {error.strerror or error}") from None


@contextmanager
def progress(jobs: Sequence[Job]) -> Iterator[OnStep]:
    """Show a live line for each target on a terminal, and else a plain line for each step; both on stderr."""
    if sys.stderr.isatty():
        with _live(jobs) as show_step:
            yield show_step
        return
    begin, lock = time.monotonic(), threading.Lock()

    def print_step(job: Job, step: str) -> None:
        with lock:
            echo(f"[{time.monotonic() - begin:6.1f} s] {job.label}: {step}", err=True)

    yield print_step


@contextmanager
def _live(jobs: Sequence[Job]) -> Iterator[OnStep]:
    """Show a live line for each target."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from cachesvc.warm.verdict.results import STATUSES

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[step]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as shown:
        rows = {job.label: shown.add_task(job.label, start=False, total=1, step="") for job in jobs}

        def show_step(job: Job, step: str) -> None:
            shown.start_task(rows[job.label])
            shown.update(rows[job.label], step=step, completed=int(step in STATUSES))

        yield show_step


def print_report(head: ReportHead, outcomes: Sequence[Outcome]) -> None:
    """Print the report: on a terminal as a table."""
    from cachesvc.warm.report import render as reports

    if not sys.stdout.isatty():
        for line in reports.lines(head, outcomes):
            echo(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, table = Console(), Table(box=None, pad_edge=False)
    for column in reports.TERMINAL_COLUMNS:
        table.add_column(column, justify="left" if column in ("target", "status") else "right")
    for line in reports.head_lines(head):
        echo(line)
    for outcome in filter(reports.is_measured, outcomes):
        cells = reports.cells(outcome)
        style = "green" if outcome.good else "red"
        row = [
            Text(cells[column], style if column == "status" else "") for column in reports.TERMINAL_COLUMNS
        ]
        table.add_row(*row)
    if table.rows:
        console.print(table)
    for outcome in outcomes:
        if not reports.is_measured(outcome):
            console.print(Text(f"{outcome.target}: {outcome.status}", "" if outcome.good else "red"))
        for line in reports.details(outcome):
            text = printable_lines(f"{outcome.target}: {line}")
            console.print(Text(text, "" if outcome.good else "red"))
    for line in reports.tail_lines(head, outcomes):
        console.print(Text(printable_lines(line), "bold"), soft_wrap=True)


def print_traces(outcomes: Sequence[Outcome]) -> None:
    """Print the tracebacks of failures on stderr."""
    for outcome in outcomes:
        if outcome.trace:
            echo(f"--- {outcome.target}\n{outcome.trace}", err=True)
