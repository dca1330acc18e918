"""``cachesvc admin stats | gc | fsck | migrate``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from cachesvc.console.output import Apply, AsJson, print_json, show_facts, show_line, show_plan, show_table
from cachesvc.queries.matching import check_namespace
from cachesvc.queries.registry_calls import path_with_query
from cachesvc.schema.mirrors import MirrorState
from cachesvc.schema.upkeep import CollectPlan, Finding, FsckPage, Repaired, Stats
from cachesvc_client.console.listing import Columns, digest_text, moment, name_text
from cachesvc_client.console.tables import aligned, bytes_text, environment_label
from cachesvc_client.queries.names import Connection
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import InvalidRequest, NotWarm
from cachesvc_client.wire.text import count_text

from ..arguments import parse_namespace
from . import admin
from .connection import connect


@dataclass(frozen=True, slots=True)
class Collected:
    """The answer to ``POST /v1/gc``: counts of what a collection removed."""

    revisions: int
    uploads: int
    objects: int
    entries: int = 0


_COLD_LINES = 20
"""Environments that go cold of which a line tells, at most."""
_USAGE: Columns = {
    "entry": lambda row: digest_text(row.entry),
    "name": name_text,
    "target": lambda row: row.target,
    "bytes": lambda row: bytes_text(row.bytes),
    "head": lambda row: digest_text(row.head) if row.head else "",
    "since": lambda row: moment(row.published) if row.head else "",
    "hits": lambda row: row.hit,
    "before": lambda row: row.hit_before,
    "saved": lambda row: duration_text(row.saved),
    "to compile": lambda row: duration_text(row.compile_seconds),
    "last used": lambda row: moment(row.last_used),
}
_REMOVALS: Columns = {
    "what": lambda row: "entry" if row.whole else "revision",
    "digest": lambda row: digest_text(row.entry if row.whole else row.revision),
    "name": name_text,
    "target": lambda row: row.target,
    "size": lambda row: bytes_text(row.bytes),
    "why": lambda row: row.why,
}
_FINDINGS: Columns = {
    "problem": lambda row: row.problem,
    "object": lambda row: row.key,
    "revision": lambda row: digest_text(row.revision),
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
    """Show what the registry holds, its reported outcomes, and the entries that are first by disuse, by bytes
    and by seconds saved."""
    of_namespace = parse_namespace(namespace) if namespace else None
    with connect(context) as registry:
        answer = registry.call(
            "GET", path_with_query("/v1/stats", namespace=of_namespace, top=str(top)), None, Stats
        )
        if of_namespace is not None and not answer.entries:
            check_namespace(registry, of_namespace)
    if as_json:
        print_json(answer)
        return
    starts = ", ".join(f"{count} {state}" for state, count in answer.starts.items() if count)
    facts: list[tuple[str, object]] = [
        ("namespaces", answer.namespaces),
        ("names", answer.names),
        ("entries", answer.entries),
        ("revisions", f"{answer.revisions}, {bytes_text(answer.bytes)}"),
        ("starts", starts or "none reported"),
        ("saved", duration_text(answer.saved)),
        ("spent compiling", duration_text(answer.spent)),
    ]
    if answer.mirror is not None:
        facts += _mirror_facts(answer.mirror)
    show_facts(facts, None, False)
    for title, rows in (
        ("not used for the longest", answer.coldest),
        ("heaviest", answer.heaviest),
        ("most seconds saved", answer.dearest),
    ):
        if rows:
            typer.echo(f"\n{title}:")
            show_table(rows, _USAGE, False)
    if answer.coldest or answer.heaviest:
        typer.echo(
            "\nhits are of the head: a publication or a rollback begins at 0. before: of older revisions."
            "\nlast used lags: a use is written down after six hours at the latest."
        )


def _mirror_facts(mirror: MirrorState) -> list[tuple[str, object]]:
    looked = "never" if mirror.lag is None else f"{duration_text(mirror.lag)} ago"
    behind = f", {mirror.behind} heads are not mirrored" if mirror.behind else ""
    return [
        ("mirrors", mirror.upstream),
        ("last look", f"{looked}{behind}" + (f": {mirror.why}" if mirror.why else "")),
        ("packs here", f"{mirror.packs}, {bytes_text(mirror.bytes)}"),
    ]


@admin.command("gc")
def gc(
    context: typer.Context,
    apply: Apply = False,
    unless_cold: Annotated[
        bool,
        typer.Option(
            "--unless-cold", help="Remove nothing if starts of the last 30 days would go cold; exit status 9."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what retention, eviction and collection would remove, why, and which starts that would make cold;
    --apply runs them."""
    with connect(context) as registry:
        plan = registry.call("GET", "/v1/gc", None, CollectPlan)
        refused = unless_cold and plan.going_cold > 0
        apply = apply and not refused
        collected = registry.call("POST", "/v1/gc", None, Collected) if apply else None
    more = plan.revisions - len(plan.removals)
    summary = f"remove {count_text(plan.revisions, 'revision or entry', 'revisions or entries')}"
    summary += f" ({bytes_text(plan.bytes)})"
    summary += f", and delete {count_text(plan.objects, 'object')}" + (
        f"; {more} are not shown" if more else ""
    )
    if collected is not None:
        summary = (
            f"removed {count_text(collected.revisions, 'revision')} "
            f"({count_text(collected.entries, 'whole entry', 'whole entries')}) "
            f"and {count_text(collected.uploads, 'upload')}, "
            f"deleted {count_text(collected.objects, 'object')}"
        )
    show_plan(
        plan.removals,
        _REMOVALS,
        applied=apply,
        as_json=as_json,
        summary=summary,
        more={
            "revisions": plan.revisions,
            "bytes": plan.bytes,
            "objects": plan.objects,
            "collected": collected,
            "cold": plan.cold,
            "going_cold": plan.going_cold,
            "cold_days": plan.cold_days,
            "kept": plan.kept,
        },
    )
    if plan.kept and not as_json:
        show_line(f"the policies keep what there is: {plan.kept} (see: namespaces set)", err=True)
    _warn_of_cold(plan, applied=apply)
    if refused:
        raise NotWarm(
            f"{count_text(plan.going_cold, 'environment')} would go cold, so nothing was removed",
            "pin their revisions, change the policy, or leave --unless-cold out",
        )


def _warn_of_cold(plan: CollectPlan, applied: bool) -> None:
    """Prints on stderr which starts a collection makes cold, where the table and JSON do not hide it."""
    if not plan.going_cold:
        return
    count = count_text(plan.going_cold, "environment")
    verb = "have no entry any more that their" if applied else "would lose the entry that their"
    show_line(f"warning: {count} {verb} starts used in the last {plan.cold_days} days:", err=True)
    rows = [
        (
            f"{name_text(row)} {row.target}",
            ", ".join(environment_label(dict(row.facts))[:2]),
            count_text(row.starts, "start"),
            f"{duration_text(row.compile_seconds)} each",
        )
        for row in plan.cold[:_COLD_LINES]
    ]
    for line in aligned(rows, "  ").splitlines():
        show_line(line, err=True)
    if plan.going_cold > len(rows):
        show_line(f"  and {plan.going_cold - len(rows)} more (--json)", err=True)


@admin.command("fsck")
def fsck(
    context: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every pack and hash it again; verify envelopes.")
    ] = False,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Check index against store in both directions; --apply repairs the damage.

    Exit status 1 if there is damage that was not repaired.
    """
    checked = 0
    findings: list[Finding] = []
    with connect(context) as registry:
        for page in _check_pages(registry, deep):
            checked += page.checked
            findings += page.findings
        repaired = sum(
            registry.call("POST", "/v1/fsck/repair", finding, Repaired).done for finding in findings if apply
        )
    summary = f"{checked} checked, {len(findings)} to repair"
    if apply and findings:
        summary = f"{checked} checked, {repaired} of {len(findings)} repaired, the rest needs no repair now"
    if findings or as_json:
        more = {"checked": checked, "repaired": repaired}
        show_plan(findings, _FINDINGS, applied=apply, as_json=as_json, summary=summary, more=more)
    else:
        show_line(f"{checked} checked, nothing is wrong")
    if findings and not apply:
        raise typer.Exit(1)


@admin.command("migrate")
def migrate(context: typer.Context, apply: Apply = False, as_json: AsJson = False) -> None:
    """Bring the database's schema up to date. Needs --local: no server may have been started by then."""
    if not context.obj.local:
        raise InvalidRequest("migrate works on the database itself", "cachesvc admin --local migrate")
    from cachesvc.bootstrap import migrate_index, require_registry
    from cachesvc.settings import read_settings

    settings = read_settings(context.obj.config, data=context.obj.data)
    require_registry(settings)
    steps = migrate_index(settings, apply=apply)
    summary = count_text(len(steps), "step") if steps else "the schema is up to date"
    columns: Columns = {
        "step": lambda row: row["step"],
        "what": lambda row: row["what"],
    }
    rows = [{"step": step, "what": what} for step, what in steps]
    if not rows and not as_json:
        show_line(summary)
        return
    show_plan(rows, columns, applied=apply, as_json=as_json, summary=summary)


def _check_pages(registry: Connection, deep: bool) -> Iterator[FsckPage]:
    cursor: str | None = None
    while True:
        page = registry.call("POST", path_with_query("/v1/fsck", cursor=cursor, deep=deep), None, FsckPage)
        yield page
        cursor = page.next
        if cursor is None:
            return
