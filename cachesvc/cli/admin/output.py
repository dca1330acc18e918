"""Show what a command did or would do: tables, JSON, plans that wait for ``--apply``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from cachesvc_client.commands.tables import aligned
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import printable

AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without, the plan is printed.")]

Columns = Mapping[str, Callable[[Any], object]]
"""The headings of a table, and how each cell is made of a row."""


def show_line(text: str, *, err: bool = False) -> None:
    """Prints one line, on stdout or (``err``) on stderr. Parts of it come from registries and go to a
    terminal: what is not printable becomes ``?``."""
    typer.echo(printable(text), err=err)


def show_table(rows: Sequence[Any], columns: Columns, as_json: bool, if_empty: str = "none") -> None:
    """Prints a table with headings, or the rows as JSON; where there are no rows, the line ``if_empty``."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        show_line(if_empty)
        return
    typer.echo(aligned([tuple(columns), *(tuple(cell(row) for cell in columns.values()) for row in rows)]))


def show_facts(facts: Iterable[tuple[str, object]], record: object, as_json: bool) -> None:
    """Prints a line for each known fact of one thing, or ``record`` as JSON."""
    if as_json:
        print_json(record)
        return
    typer.echo(aligned([(name, value) for name, value in facts if value not in (None, "")]))


def print_json(value: object) -> None:
    """Prints ``value`` as JSON, indented, with sorted keys."""
    typer.echo(json.dumps(codec.plain(value), indent=1, sort_keys=True))


def show_plan(rows: Sequence[Any], columns: Columns, *, applied: bool, as_json: bool, summary: str) -> None:
    """Prints what a destructive command would do, or has done if ``applied``."""
    if as_json:
        print_json({"applied": applied, "plan": list(rows), "summary": summary})
        return
    if rows:
        show_table(rows, columns, False)
    show_line(summary if applied else f"plan: {summary}")
    if not applied:
        show_line("nothing was changed; --apply does it", err=True)


def digest_text(digest: str | None) -> str:
    """Returns the first 12 hex digits of a digest: commands accept them in place of the whole."""
    return digest.removeprefix("sha256:")[:12] if digest else ""


def time_text(seconds: int | None) -> str:
    """Returns a time, in seconds of UTC, as text with minutes; nothing for ``None``."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def name_text(row: Any) -> str:
    """Returns the ``namespace/name:tag`` of a row, and its lane if it has one."""
    return f"{row.namespace}/{row.name}:{row.tag}" + _lane_text(row)


def name_and_lane(row: Any) -> str:
    """Returns the ``namespace/name`` of a row, and its lane if it has one."""
    return f"{row.namespace}/{row.name}" + _lane_text(row)


def _lane_text(row: Any) -> str:
    lane = getattr(row, "lane", None)
    return f" [{lane}]" if lane else ""
