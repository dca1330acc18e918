"""Show what a command did or would do: tables, JSON, plans that wait for ``--apply``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any

import typer

from cachesvc_client.console import answers, listing
from cachesvc_client.console.listing import Columns, print_facts, print_listing
from cachesvc_client.wire.errors import printable


class _Command:
    """The command that runs in this process. Its answer in JSON has its name."""

    name = ""


def _note_command(context: typer.Context, value: bool) -> bool:
    _Command.name = context.command_path.partition(" ")[2]
    return value


AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_note_command,
        help="JSON on stdout; an error is JSON on stderr (docs/reference/json.md).",
    ),
]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without, the plan is printed.")]


class Form(str, Enum):
    """How a listing is printed."""

    table = "table"
    wide = "wide"
    json = "json"
    csv = "csv"


Output = Annotated[
    Form,
    typer.Option(
        "--output", "-o", help="wide: all columns, on a narrow terminal too; json; csv: times in UTC."
    ),
]

_PAST = {
    "delete": "deleted",
    "end": "ended",
    "publish": "published",
    "refuse": "refused",
    "remove": "removed",
    "restore": "restored",
    "revoke": "revoked",
    "roll": "rolled",
    "run": "ran",
    "send": "sent",
    "sign": "signed",
    "tag": "tagged",
    "withhold": "withheld",
}
"""The first words of what plans say, and of what deeds say."""


def show_line(text: str, *, err: bool = False) -> None:
    """Prints one line, on stdout or (``err``) on stderr. Parts of it come from registries and go to a
    terminal: what is not printable becomes ``?``."""
    typer.echo(printable(text), err=err)


def form_of(output: Form, as_json: bool) -> listing.Form:
    """Return how a listing is printed that has both ``--output`` and ``--json``."""
    return "json" if as_json else output.value


def show_table(
    rows: Sequence[Any],
    columns: Columns,
    as_json: bool,
    if_empty: str = "none",
    output: Form = Form.table,
) -> None:
    """Prints a table with headings, or an answer in JSON with ``rows``, or CSV; where there are no rows, the
    line ``if_empty``. A table fits the terminal: columns that are needed less are left out, and named on
    stderr."""
    print_listing(_Command.name, rows, columns, form_of(output, as_json), if_empty)


def show_facts(facts: Iterable[tuple[str, object]], record: object, as_json: bool) -> None:
    """Prints a line for each known fact of one thing, or ``record`` as JSON."""
    if as_json:
        print_json(record)
    else:
        print_facts(facts)


def print_json(value: object, form: str = "") -> None:
    """Print the answer of the command that runs: its ``format``, and the fields of a record or a mapping.
    ``form``: which of its answers, if it has several."""
    answers.print_json(f"{_Command.name} {form}".rstrip(), value)


def show_record(row: Any, columns: Columns, as_json: bool) -> None:
    """Prints one thing that a command changed: a table of one row, or its fields as JSON."""
    if as_json:
        print_json(row)
    else:
        show_table([row], columns, False)


def show_plan(
    rows: Sequence[Any],
    columns: Columns,
    *,
    applied: bool,
    as_json: bool,
    summary: str,
    more: Mapping[str, object] | None = None,
) -> None:
    """Prints what a destructive command would do, or has done if ``applied``. ``summary``: begins with the
    verb. ``more``: further fields of the answer in JSON."""
    sentence = plan_text(summary, applied)
    if as_json:
        print_json({"applied": applied, "summary": sentence, "rows": rows, **(more or {})})
        return
    if rows:
        show_table(rows, columns, False)
    show_line(sentence)
    if not applied:
        show_line("nothing was changed; --apply does it", err=True)


def plan_text(summary: str, applied: bool) -> str:
    """Returns what a command would do (``would delete 3 entries``), or has done if ``applied`` (``deleted 3
    entries``). A summary that begins with no verb is a plan by its first word."""
    verb, space, rest = summary.partition(" ")
    if verb not in _PAST:
        return summary if applied else f"plan: {summary}"
    return (_PAST[verb] if applied else f"would {verb}") + space + rest
