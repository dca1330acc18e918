"""``cachesvc admin names | entries``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cachesvc.console.columns import ENTRY_COLUMNS, NAME_COLUMNS
from cachesvc.console.output import Apply, AsJson, Form, Output, print_json, show_line, show_plan, show_table
from cachesvc.queries.inventory import print_entry, read_entry
from cachesvc.queries.matching import Place, entries_in, matching_places, names_in
from cachesvc.queries.registry_calls import all_pages, complete_digest, path_with_query
from cachesvc.schema.entries import EntryPage, EntryRecord, RevisionRecord
from cachesvc_client.console.documents import error_record
from cachesvc_client.console.listing import digest_text
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.queries.names import Connection, namespaces_of
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, NotFound
from cachesvc_client.wire.text import count_text

from .. import completion
from ..arguments import EntryId, begins_entry
from ..group import Group
from . import admin
from .connection import connect

names = typer.Typer(cls=Group, no_args_is_help=True, help="What namespaces have entries under.")
entries = typer.Typer(cls=Group, no_args_is_help=True, help="Lines of revisions: search, show, delete.")
admin.add_typer(names, name="names")
admin.add_typer(entries, name="entries")

Where = Annotated[
    str | None,
    typer.Argument(
        help="A namespace, namespace/name[:tag], or an entry's first digits; with a filter: all.",
        autocompletion=completion.names,
    ),
]
Search = Annotated[
    str | None,
    typer.Argument(
        help="A namespace, namespace/name[:tag], a part of a name, or a pattern; without: all.",
        autocompletion=completion.names,
    ),
]
Lanes = Annotated[list[str] | None, typer.Option("--lane", help="Only this lane. May be repeated.")]
Trunk = Annotated[bool, typer.Option("--trunk", help="Only the trunk (and the lanes that are named).")]
Model = Annotated[str | None, typer.Option(help="The beginning of a model hash.")]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu", "--device", help="A part of the GPU's name, or of the CPU's instruction set: H200, avx512."
    ),
]
Torch = Annotated[str | None, typer.Option(help="A version, or its beginning, such as 2.11.")]
Dtype = Annotated[str | None, typer.Option(help="Of an input, such as bfloat16.")]
Shape = Annotated[str | None, typer.Option(help="Of an input, such as 8x128.")]
TargetPart = Annotated[str | None, typer.Option(help="A part of the target.")]
Unused = Annotated[int | None, typer.Option(min=0, help="Offered to nobody for so many days.")]


@names.command("list")
def list_names(
    context: typer.Context,
    where: Annotated[
        str | None, typer.Argument(help="A namespace, a part of a name, or a pattern; without: all.")
    ] = None,
    as_json: AsJson = False,
    output: Output = Form.table,
) -> None:
    """List names with their tags."""
    with connect(context) as registry:
        rows = names_in(registry, where)
    show_table(rows, NAME_COLUMNS, as_json, output=output)


@entries.command("list")
def list_entries(
    context: typer.Context,
    where: Search = None,
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
    output: Output = Form.table,
) -> None:
    """List or search entries, newest first."""
    facts = _facts(model, gpu, torch, dtype, shape, target, lane, trunk, unused_days)
    with connect(context) as registry:
        rows = entries_in(registry, where, limit, pinned=pinned, **facts)
    show_table(rows, ENTRY_COLUMNS, as_json, "none that has all these facts", output)


@entries.command("show")
def show_entry(context: typer.Context, entry: EntryId, as_json: AsJson = False) -> None:
    """Show an entry: what it is for, its reported outcomes, and its revisions."""
    with connect(context) as registry:
        shown = read_entry(registry, entry)
    if as_json:
        print_json(shown)
    else:
        print_entry(shown)


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
    """Delete the entries that match, with all their revisions. Pinned entries stay; a
    line for each says so."""
    facts = _facts(model, gpu, torch, dtype, shape, target, lane, trunk, unused_days)
    if where is None and not entry and not any(facts.values()):
        raise InvalidRequest("that would be every entry", "name a namespace, or give --entry or a filter")
    with connect(context) as registry:
        ids = list(entry or ())
        if where is not None and not ids and _is_entry(registry, where):
            ids, where = [where], None
        if ids and (where is not None or any(facts.values())):
            raise InvalidRequest("an entry stands alone", "give either entries or a search")
        rows = [_entry(registry, text) for text in ids] if ids else _matching(registry, where, facts)
        failed = _delete(registry, rows) if apply else []
    size = sum(row.pack_size for row in rows)
    deleted = len(rows) - len(failed)
    heads = "its head" if deleted == 1 else "their heads"
    summary = f"delete {count_text(deleted, 'entry', 'entries')}, {bytes_text(size)} in {heads}"
    refused = [{"entry": row.entry, **error_record(error)} for row, error in failed]
    more = {"refused": refused}
    show_plan(rows, ENTRY_COLUMNS, applied=apply, as_json=as_json, summary=summary, more=more)
    for row, error in failed:
        show_line(f"not deleted: {digest_text(row.entry)}: {error}", err=True)
    if failed:
        raise typer.Exit(failed[0][1].exit_status)


def _is_entry(registry: Connection, where: str) -> bool:
    """Return whether a text is an entry's digest or its beginning, and no namespace."""
    return begins_entry(where) and (":" in where or where not in namespaces_of(registry))


def _matching(registry: Connection, where: str | None, facts: dict[str, object]) -> list[EntryRecord]:
    """Return the entries of that very place, which is no pattern and no part of a name: they will be deleted.
    Raise ``NotFound`` if there is none."""
    place = Place.parse(where) if where is not None else None
    query = {**(place.query() if place else {}), **facts}
    if rows := list(all_pages(registry, "/v1/entries", EntryPage, None, **query)):
        return rows
    if where is None or any(facts.values()):
        raise NotFound("no entry matches: nothing would be deleted", "see: cachesvc admin entries list")
    near = [] if where in namespaces_of(registry) else matching_places(registry, where)
    hint = f"did you mean {near[0].namespace}/{near[0].name}?" if near else ""
    raise NotFound(f"nothing is under {where[:80]}", hint)


def _delete(registry: Connection, rows: list[EntryRecord]) -> list[tuple[EntryRecord, CacheSvcError]]:
    failed = []
    for row in rows:
        try:
            registry.tell("DELETE", path_with_query(f"/v1/entries/{row.entry}", head=row.revision))
        except CacheSvcError as error:
            if error.code not in ("not_found", "head_conflict", "invalid"):
                raise
            if error.code != "not_found":
                failed.append((row, error))
    return failed


def _facts(
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
    since = None if unused_days is None else int(time.time()) - unused_days * 86_400
    return {
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


def _entry(registry: Connection, text: str) -> EntryRecord:
    """Returns an entry as a search does."""
    key = complete_digest(registry, "entry", text)
    revisions = registry.rows(f"/v1/entries/{key}/revisions", RevisionRecord)
    head = next((row for row in revisions if row.head), revisions[0])
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
