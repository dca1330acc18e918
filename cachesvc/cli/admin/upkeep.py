"""``cachesvc admin stats | gc | fsck | migrate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cachesvc_client.commands.tables import bytes_text
from cachesvc_client.wire.admin import CollectPlan, Finding, FsckPage, Repaired, Stats
from cachesvc_client.wire.errors import InvalidRequest

from . import admin
from .desk import (
    Apply,
    AsJson,
    Desk,
    desk,
    namespace_of,
    path,
    place,
    planned,
    say_json,
    seconds,
    short,
    show,
    show_facts,
    when,
)


@dataclass(frozen=True, slots=True)
class _Collected:
    """What a collection answers."""

    revisions: int
    uploads: int
    objects: int
    entries: int = 0


_USAGE: dict[str, Callable[[Any], object]] = {
    "entry": lambda row: short(row.entry),
    "name": place,
    "target": lambda row: row.target,
    "bytes": lambda row: bytes_text(row.bytes),
    "hits": lambda row: row.hit,
    "saved": lambda row: seconds(row.saved),
    "to compile": lambda row: seconds(row.compile_seconds),
    "last used": lambda row: when(row.last_used),
}
_REMOVALS: dict[str, Callable[[Any], object]] = {
    "what": lambda row: "entry" if row.whole else "revision",
    "digest": lambda row: short(row.entry if row.whole else row.revision),
    "name": place,
    "target": lambda row: row.target,
    "size": lambda row: bytes_text(row.bytes),
    "why": lambda row: row.why,
}
_FINDINGS: dict[str, Callable[[Any], object]] = {
    "problem": lambda row: row.problem,
    "object": lambda row: row.key,
    "revision": lambda row: short(row.revision),
    "what": lambda row: row.said,
    "repair": lambda row: row.repair,
}


@admin.command("stats")
def stats(
    context: typer.Context,
    namespace: Annotated[str | None, typer.Argument(help="Without: all.")] = None,
    top: Annotated[int, typer.Option(min=0, max=100, help="Rows of each list.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what the registry holds, what came of it, and the coldest, heaviest and dearest entries."""
    asked = namespace_of(namespace) if namespace else None
    with desk(context) as at:
        found = at.call("GET", path("/v1/stats", namespace=asked, top=str(top)), None, Stats)
    if as_json:
        say_json(found)
        return
    starts = ", ".join(f"{count} {state}" for state, count in found.starts.items() if count)
    facts: list[tuple[str, object]] = [
        ("namespaces", found.namespaces),
        ("names", found.names),
        ("entries", found.entries),
        ("revisions", f"{found.revisions}, {bytes_text(found.bytes)}"),
        ("starts", starts or "none reported"),
        ("saved", seconds(found.saved)),
        ("spent compiling", seconds(found.spent)),
    ]
    show_facts(facts, None, False)
    for title, rows in (
        ("not used for the longest", found.coldest),
        ("heaviest", found.heaviest),
        ("most seconds saved", found.dearest),
    ):
        if rows:
            typer.echo(f"\n{title}:")
            show(rows, _USAGE, False)


@admin.command("gc")
def gc(context: typer.Context, apply: Apply = False, as_json: AsJson = False) -> None:
    """Show what retention, eviction and collection would remove, and why; --apply runs them."""
    with desk(context) as at:
        plan = at.call("GET", "/v1/gc", None, CollectPlan)
        done = at.call("POST", "/v1/gc", None, _Collected) if apply else None
    if as_json:
        say_json({"applied": apply, "plan": plan, **({"collected": done} if done else {})})
        return
    more = plan.revisions - len(plan.removals)
    told = f"remove {plan.revisions} revisions or entries ({bytes_text(plan.bytes)})"
    told += f", delete {plan.objects} objects" + (f"; {more} are not shown" if more else "")
    if done is not None:
        told = (
            f"removed {done.revisions} revisions ({done.entries} whole entries) and {done.uploads} uploads, "
            f"deleted {done.objects} objects"
        )
    planned(plan.removals, _REMOVALS, applied=apply, as_json=False, summary=told)


@admin.command("fsck")
def fsck(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every pack and hash it again; verify envelopes.")
    ] = False,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Check index against store in both directions; --apply repairs what is found.

    Exit status 1 if there is damage that was not repaired.
    """
    checked = 0
    findings: list[Finding] = []
    with desk(context) as at:
        for page in _checked(at, deep):
            checked += page.checked
            findings += page.findings
        repaired = sum(
            at.call("POST", "/v1/fsck/repair", finding, Repaired).done for finding in findings if apply
        )
    summary = f"{checked} checked, {len(findings)} to repair"
    if apply and findings:
        summary = f"{checked} checked, {repaired} of {len(findings)} repaired, the rest needs no repair now"
    if findings or as_json:
        planned(findings, _FINDINGS, applied=apply, as_json=as_json, summary=summary)
    else:
        typer.echo(f"{checked} checked, nothing is wrong")
    if findings and not apply:
        raise typer.Exit(1)


@admin.command("migrate")
def migrate(context: typer.Context, apply: Apply = False, as_json: AsJson = False) -> None:
    """Bring the database's schema up to date. Needs --local: no server may have been started by then."""
    if not context.obj.local:
        raise InvalidRequest("migrate works on the database itself", "cachesvc admin --local migrate")
    from cachesvc.bootstrap import migrate_index
    from cachesvc.settings import read_settings

    settings = read_settings(context.obj.config, data=context.obj.data)
    steps = migrate_index(settings, apply=apply)
    summary = f"{len(steps)} steps" if steps else "the schema is up to date"
    columns: dict[str, Callable[[Any], object]] = {
        "step": lambda row: row["step"],
        "what": lambda row: row["what"],
    }
    rows = [{"step": step, "what": what} for step, what in steps]
    if not rows and not as_json:
        typer.echo(summary)
        return
    planned(rows, columns, applied=apply, as_json=as_json, summary=summary)


def _checked(at: Desk, deep: bool) -> Iterator[FsckPage]:
    cursor: str | None = None
    while True:
        page = at.call("POST", path("/v1/fsck", cursor=cursor, deep=deep), None, FsckPage)
        yield page
        cursor = page.next
        if cursor is None:
            return
