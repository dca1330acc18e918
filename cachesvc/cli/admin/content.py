"""``cachesvc admin names | entries | revisions | quarantine``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cachesvc_client.commands.tables import bytes_text
from cachesvc_client.wire.admin import (
    EntryPage,
    EntryRecord,
    Reason,
    RevisionDifference,
    RevisionRecord,
    Withheld,
)
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest
from cachesvc_client.wire.names import Name, Namespace, ShortName, Tag
from cachesvc_client.wire.protocol import EntrySummary, NameSummary

from . import admin
from .desk import (
    Apply,
    AsJson,
    Desk,
    desk,
    digest_of,
    made,
    namespace_of,
    pages,
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

names = typer.Typer(no_args_is_help=True, help="What namespaces have entries under.")
entries = typer.Typer(no_args_is_help=True, help="Lines of revisions: search, show, delete.")
revisions = typer.Typer(no_args_is_help=True, help="List, show, compare, pin, delete, roll back.")
quarantines = typer.Typer(no_args_is_help=True, help="Revisions that are not offered.")
admin.add_typer(names, name="names")
admin.add_typer(entries, name="entries")
admin.add_typer(revisions, name="revisions")
admin.add_typer(quarantines, name="quarantine")

DAY = 86_400

Where = Annotated[
    str | None, typer.Argument(help="A namespace, namespace/name, or namespace/name:tag; without: all.")
]
Lanes = Annotated[list[str] | None, typer.Option("--lane", help="Only this lane. May be repeated.")]
Trunk = Annotated[bool, typer.Option("--trunk", help="Only the trunk (and the lanes that are named).")]
Model = Annotated[str | None, typer.Option(help="The beginning of a model hash.")]
Gpu = Annotated[str | None, typer.Option(help="A part of its name, such as H200.")]
Torch = Annotated[str | None, typer.Option(help="A version, or its beginning, such as 2.11.")]
Dtype = Annotated[str | None, typer.Option(help="Of an input, such as bfloat16.")]
Shape = Annotated[str | None, typer.Option(help="Of an input, such as 8x128.")]
TargetPart = Annotated[str | None, typer.Option(help="A part of the target.")]
Unused = Annotated[int | None, typer.Option(min=0, help="Offered to nobody for so many days.")]

_NAMES: dict[str, Callable[[Any], object]] = {
    "name": lambda row: f"{row.namespace}/{row.name}",
    "entries": lambda row: row.entries,
    "bytes": lambda row: bytes_text(row.bytes),
    "tags": lambda row: ", ".join(row.tags[:8]) + (" …" if len(row.tags) > 8 else ""),
}
_ENTRIES: dict[str, Callable[[Any], object]] = {
    "entry": lambda row: short(row.entry),
    "name": place,
    "target": lambda row: row.target,
    "torch": lambda row: row.fingerprint.get("torch", ""),
    "gpu": lambda row: row.fingerprint.get("gpu", row.fingerprint.get("cpu_isa", "")),
    "size": lambda row: bytes_text(row.pack_size),
    "published": lambda row: when(row.published),
    "used": lambda row: when(row.last_used),
    "head": lambda row: short(row.revision),
    "": lambda row: _marks(row),
}
_REVISIONS: dict[str, Callable[[Any], object]] = {
    "revision": lambda row: short(row.revision),
    "published": lambda row: when(row.published),
    "by": lambda row: row.published_by,
    "size": lambda row: bytes_text(row.pack_size),
    "files": lambda row: row.files,
    "used": lambda row: when(row.last_used),
    "expires": lambda row: when(row.expires),
    "": lambda row: " ".join(filter(None, ["head" if row.head else "", _marks(row)])),
}
_WITHHELD: dict[str, Callable[[Any], object]] = {
    "revision": lambda row: short(row.revision),
    "name": place,
    "target": lambda row: row.target,
    "since": lambda row: when(row.since),
    "from": lambda row: f"environment {short(row.environment)}" if row.environment else "everybody",
    "why": lambda row: row.why,
}


@names.command("list")
def list_names(context: typer.Context, namespace: str, as_json: AsJson = False) -> None:
    """List the names of a namespace with their tags."""
    with desk(context) as at:
        rows = at.rows(f"/v1/namespaces/{namespace_of(namespace)}/names", NameSummary)
    show(rows, _NAMES, as_json)


@entries.command("list")
def list_entries(
    context: typer.Context,
    where: Where = None,
    model: Model = None,
    gpu: Gpu = None,
    torch: Torch = None,
    dtype: Dtype = None,
    shape: Shape = None,
    target: TargetPart = None,
    lane: Lanes = None,
    trunk: Trunk = False,
    pinned: Annotated[bool, typer.Option("--pinned", help="Only those whose head is pinned.")] = False,
    unused_days: Unused = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows, at most; without: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """List or search entries, newest first."""
    query = _query(where, model, gpu, torch, dtype, shape, target, lane, trunk, unused_days)
    with desk(context) as at:
        show(list(pages(at, "/v1/entries", EntryPage, limit, pinned=pinned, **query)), _ENTRIES, as_json)


@entries.command("show")
def show_entry(context: typer.Context, entry: str, as_json: AsJson = False) -> None:
    """Show an entry: what it is for, what came of it, and its line of revisions."""
    with desk(context) as at:
        key = digest_of(at, "entry", entry)
        summary = at.call("GET", f"/v1/entries/{key}", None, EntrySummary)
        line = at.rows(f"/v1/entries/{key}/revisions", RevisionRecord)
    if as_json:
        say_json({"entry": summary, "revisions": line})
        return
    facts: list[tuple[str, object]] = [
        ("entry", summary.entry),
        ("name", place(line[0])),
        ("target", summary.target),
        ("scopes", ", ".join(summary.scopes)),
    ]
    facts += [(name, value) for name, value in sorted(summary.fingerprint.items()) if name != "cpu_flags"]
    facts += [(f"measured {name}", seconds(value)) for name, value in sorted(summary.measured.items())]
    show_facts(facts, None, False)
    for use in summary.usefulness:
        starts = ", ".join(
            f"{getattr(use, state)} {state}"
            for state in ("hit", "partial", "inert", "miss", "unused")
            if getattr(use, state)
        )
        about = use.facts.get("gpu") or use.facts.get("cpu_isa", "")
        typer.echo(f"starts on {about or short(use.environment)}: {starts}; {seconds(use.saved)} saved")
    show(line, _REVISIONS, False)


@entries.command("delete")
def delete_entries(
    context: typer.Context,
    where: Where = None,
    entry: Annotated[list[str] | None, typer.Option(help="This entry. May be repeated.")] = None,
    model: Model = None,
    gpu: Gpu = None,
    torch: Torch = None,
    dtype: Dtype = None,
    shape: Shape = None,
    target: TargetPart = None,
    lane: Lanes = None,
    trunk: Trunk = False,
    unused_days: Unused = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Delete the entries that match, with all their revisions. Pinned ones are left, and told."""
    query = _query(where, model, gpu, torch, dtype, shape, target, lane, trunk, unused_days)
    if not entry and not any(query.values()):
        raise InvalidRequest("that would be every entry", "name a namespace, or give --entry or a filter")
    with desk(context) as at:
        if entry:
            if any(query.values()):
                raise InvalidRequest("--entry stands alone", "give either entries or a search")
            rows = [_one(at, text) for text in entry]
        else:
            rows = list(pages(at, "/v1/entries", EntryPage, None, **query))
        failed = _delete(at, rows) if apply else []
    size = sum(row.pack_size for row in rows)
    summary = f"delete {len(rows) - len(failed)} entries, {bytes_text(size)} in their heads"
    planned(rows, _ENTRIES, applied=apply, as_json=as_json, summary=summary)
    for row, error in failed:
        typer.echo(f"not deleted: {short(row.entry)}: {error}", err=True)
    if failed:
        raise typer.Exit(failed[0][1].exit_status)


def _delete(at: Desk, rows: list[EntryRecord]) -> list[tuple[EntryRecord, CacheSvcError]]:
    failed = []
    for row in rows:
        try:
            at.tell("DELETE", path(f"/v1/entries/{row.entry}", head=row.revision))
        except CacheSvcError as error:
            if error.code not in ("not_found", "head_conflict", "invalid"):
                raise
            if error.code != "not_found":
                failed.append((row, error))
    return failed


@revisions.command("list")
def list_revisions(context: typer.Context, entry: str, as_json: AsJson = False) -> None:
    """List the revisions of an entry, newest first."""
    with desk(context) as at:
        key = digest_of(at, "entry", entry)
        show(at.rows(f"/v1/entries/{key}/revisions", RevisionRecord), _REVISIONS, as_json)


@revisions.command("show")
def show_revision(context: typer.Context, revision: str, as_json: AsJson = False) -> None:
    """Show one revision."""
    with desk(context) as at:
        row = _revision(at, revision)
    facts: list[tuple[str, object]] = [
        ("revision", row.revision),
        ("entry", row.entry),
        ("name", place(row)),
        ("target", row.target),
        ("is the head", "yes" if row.head else "no"),
        ("published", f"{when(row.published)} by {row.published_by}"),
        ("signer", row.signer),
        ("pack", f"{row.pack}, {bytes_text(row.pack_size)}, {row.files} files"),
        ("expires", when(row.expires)),
        ("last used", when(row.last_used)),
        ("pinned", when(row.pinned)),
        ("quarantined", " ".join(filter(None, [when(row.quarantined), row.why]))),
    ]
    facts += [(name, value) for name, value in sorted(row.fingerprint.items())]
    facts += [(f"measured {name}", seconds(value)) for name, value in sorted(row.measured.items())]
    show_facts(facts, row, as_json)


@revisions.command("diff")
def diff(context: typer.Context, first: str, second: str, as_json: AsJson = False) -> None:
    """Show what differs between two revisions: facts and files."""
    with desk(context) as at:
        one, two = digest_of(at, "revision", first), digest_of(at, "revision", second)
        found = at.call("GET", f"/v1/revisions/{one}/difference/{two}", None, RevisionDifference)
    if as_json:
        say_json(found)
        return
    columns: dict[str, Callable[[Any], object]] = {
        "what": lambda row: row.what,
        short(one): lambda row: row.before or "-",
        short(two): lambda row: row.after or "-",
    }
    show(found.facts, columns, False, "no fact differs")
    for change in found.files:
        mark = "+" if not change.before else "-" if not change.after else "~"
        typer.echo(f"{mark} {change.what}")
    typer.echo(
        f"files: {found.files_added} added, {found.files_removed} removed, {found.files_changed} changed, "
        f"{found.files_same} the same"
    )


@revisions.command("pin")
def pin(
    context: typer.Context,
    revision: str,
    why: Annotated[str, typer.Option(help="For the audit log.")] = "",
    as_json: AsJson = False,
) -> None:
    """Keep a revision, and its entry, from retention, eviction and deletion."""
    with desk(context) as at:
        key = digest_of(at, "revision", revision)
        row = at.call("PUT", f"/v1/revisions/{key}/pin", made(lambda: Reason(why)), RevisionRecord)
    show([row], _REVISIONS, as_json)


@revisions.command("unpin")
def unpin(context: typer.Context, revision: str, as_json: AsJson = False) -> None:
    """Let go of a pinned revision."""
    with desk(context) as at:
        key = digest_of(at, "revision", revision)
        row = at.call("DELETE", f"/v1/revisions/{key}/pin", None, RevisionRecord)
    show([row], _REVISIONS, as_json)


@revisions.command("delete")
def delete_revision(
    context: typer.Context, revision: str, apply: Apply = False, as_json: AsJson = False
) -> None:
    """Delete one revision that is no head."""
    with desk(context) as at:
        row = _revision(at, revision)
        if row.head or row.pinned:
            what = "is the head of its entry" if row.head else "is pinned"
            fix = "delete the entry, or roll it back first" if row.head else "unpin it first"
            raise InvalidRequest(f"revision {short(row.revision)} {what}", fix)
        if apply:
            at.tell("DELETE", f"/v1/revisions/{row.revision}")
    summary = f"delete revision {short(row.revision)}, {bytes_text(row.pack_size)}"
    planned([row], _REVISIONS, applied=apply, as_json=as_json, summary=summary)


@quarantines.command("list")
def list_quarantine(context: typer.Context, as_json: AsJson = False) -> None:
    """List what is not offered: by an operator, or where hosts found it inert."""
    with desk(context) as at:
        show(at.rows("/v1/quarantine", Withheld), _WITHHELD, as_json)


@quarantines.command("set")
def set_quarantine(
    context: typer.Context,
    revision: str,
    why: Annotated[str, typer.Option(help="Whoever does not get it reads this.")],
    as_json: AsJson = False,
) -> None:
    """Offer a revision to nobody, on every replica within 5 s; services compile for themselves."""
    with desk(context) as at:
        key = digest_of(at, "revision", revision)
        row = at.call("PUT", f"/v1/revisions/{key}/quarantine", made(lambda: Reason(why)), RevisionRecord)
    show([row], _REVISIONS, as_json)


@quarantines.command("release")
def release(context: typer.Context, revision: str, as_json: AsJson = False) -> None:
    """Offer a revision again, wherever an operator or reports withheld it."""
    with desk(context) as at:
        key = digest_of(at, "revision", revision)
        at.tell("DELETE", f"/v1/revisions/{key}/quarantine")
        row = at.call("GET", f"/v1/revisions/{key}", None, RevisionRecord)
    show([row], _REVISIONS, as_json)


def _query(
    where: str | None,
    model: str | None,
    gpu: str | None,
    torch: str | None,
    dtype: str | None,
    shape: str | None,
    target: str | None,
    lane: list[str] | None,
    trunk: bool,
    unused_days: int | None,
) -> dict[str, object]:
    namespace, name, tag = _where(where)
    since = None if unused_days is None else int(time.time()) - unused_days * DAY
    return {
        "namespace": namespace,
        "name": name,
        "tag": tag,
        "model": model,
        "gpu": gpu,
        "torch": torch,
        "dtype": dtype,
        "shape": shape,
        "target": target,
        "lane": lane or None,
        "trunk": trunk,
        "unused_since": since,
    }


def _where(text: str | None) -> tuple[Namespace | None, ShortName | None, Tag | None]:
    if text is None:
        return None, None, None
    if "/" not in text:
        return namespace_of(text), None, None
    name = made(lambda: Name.parse(text))
    return name.namespace, name.name, name.tag if ":" in text else None


def _one(at: Desk, text: str) -> EntryRecord:
    """The entry as a search would show it."""
    key = digest_of(at, "entry", text)
    line = at.rows(f"/v1/entries/{key}/revisions", RevisionRecord)
    head = next((row for row in line if row.head), line[0])
    return EntryRecord(
        entry=head.entry,
        namespace=head.namespace,
        name=head.name,
        tag=head.tag,
        target=head.target,
        revision=head.revision,
        sequence=head.sequence,
        published=head.published,
        pack_size=head.pack_size,
        files=head.files,
        fingerprint=head.fingerprint,
        measured=head.measured,
        lane=head.lane,
        last_used=head.last_used,
        pinned=head.pinned,
        quarantined=head.quarantined,
    )


def _revision(at: Desk, text: str) -> RevisionRecord:
    return at.call("GET", f"/v1/revisions/{digest_of(at, 'revision', text)}", None, RevisionRecord)


def _marks(row: Any) -> str:
    marks = ["pinned" if row.pinned else "", "quarantined" if row.quarantined else ""]
    return " ".join(filter(None, marks))
