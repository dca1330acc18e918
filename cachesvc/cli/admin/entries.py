"""``cachesvc admin names | entries``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from cachesvc_client.commands.documents import error_record
from cachesvc_client.commands.tables import bytes_text
from cachesvc_client.wire.admin import EntryPage, EntryRecord, RevisionRecord
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.protocol import EntrySummary
from cachesvc_client.wire.text import count_text

from ..group import Group
from . import admin, completion
from .arguments import EntryId, parse_namespace, parse_option
from .columns import ENTRY_COLUMNS, REVISION_COLUMNS
from .connection import Connection, all_pages, complete_digest, connect, path_with_query
from .matching import Place, all_names, is_pattern, matching_names, matching_places, namespaces_of
from .output import (
    Apply,
    AsJson,
    Columns,
    Form,
    Output,
    digest_text,
    name_text,
    print_json,
    show_facts,
    show_line,
    show_plan,
    show_table,
)

names = typer.Typer(cls=Group, no_args_is_help=True, help="What namespaces have entries under.")
entries = typer.Typer(cls=Group, no_args_is_help=True, help="Lines of revisions: search, show, delete.")
admin.add_typer(names, name="names")
admin.add_typer(entries, name="entries")

Where = Annotated[
    str | None,
    typer.Argument(
        help="A namespace, namespace/name, or namespace/name:tag; without: all.",
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

_NAMES: Columns = {
    "name": lambda row: f"{row.namespace}/{row.name}",
    "entries": lambda row: row.entries,
    "bytes": lambda row: bytes_text(row.bytes),
    "tags": lambda row: ", ".join(row.tags[:8]) + (" …" if len(row.tags) > 8 else ""),
}


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
        rows = all_names(registry) if where is None else matching_names(registry, where.rstrip("/"))
        exact = [row for row in rows if where in (row.namespace, f"{row.namespace}/{row.name}")]
    show_table(exact or rows, _NAMES, as_json, output=output)


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
    with connect(context) as registry:
        rows: list[EntryRecord] = []
        for place in _places(registry, where):
            query = _query(place, model, gpu, torch, dtype, shape, target, lane, trunk, unused_days)
            left = None if limit is None else limit - len(rows)
            rows += all_pages(registry, "/v1/entries", EntryPage, left, pinned=pinned, **query)
    show_table(rows, ENTRY_COLUMNS, as_json, "none that has all these facts", output)


@entries.command("show")
def show_entry(context: typer.Context, entry: EntryId, as_json: AsJson = False) -> None:
    """Show an entry: what it is for, its reported outcomes, and its revisions."""
    with connect(context) as registry:
        key = complete_digest(registry, "entry", entry)
        summary = registry.call("GET", f"/v1/entries/{key}", None, EntrySummary)
        revisions = registry.rows(f"/v1/entries/{key}/revisions", RevisionRecord)
    if as_json:
        print_json({"entry": summary, "revisions": revisions})
        return
    facts: list[tuple[str, object]] = [
        ("entry", summary.entry),
        ("name", name_text(revisions[0])),
        ("target", summary.target),
        ("scopes", ", ".join(summary.scopes)),
    ]
    facts += [(name, value) for name, value in sorted(summary.fingerprint.items()) if name != "cpu_flags"]
    facts += [(f"measured {name}", duration_text(value)) for name, value in sorted(summary.measured.items())]
    show_facts(facts, None, False)
    for use in summary.usefulness:
        starts = ", ".join(
            f"{getattr(use, state)} {state}"
            for state in ("hit", "partial", "inert", "miss", "unused")
            if getattr(use, state)
        )
        about = use.facts.get("gpu") or use.facts.get("cpu_isa", "")
        show_line(
            f"starts on {about or digest_text(use.environment)}: {starts}; {duration_text(use.saved)} saved"
        )
    show_table(revisions, REVISION_COLUMNS, False)


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
    query = _query(_parse_place(where), model, gpu, torch, dtype, shape, target, lane, trunk, unused_days)
    if not entry and not any(query.values()):
        raise InvalidRequest("that would be every entry", "name a namespace, or give --entry or a filter")
    with connect(context) as registry:
        if entry:
            if any(query.values()):
                raise InvalidRequest("--entry stands alone", "give either entries or a search")
            rows = [_entry(registry, text) for text in entry]
        else:
            rows = list(all_pages(registry, "/v1/entries", EntryPage, None, **query))
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


def _query(
    place: Place | None,
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
        "namespace": place and place.namespace,
        "name": place and place.name,
        "tag": place and place.tag,
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


def _parse_place(text: str | None) -> Place | None:
    if text is None:
        return None
    if "/" not in text:
        return Place(parse_namespace(text))
    name = parse_option(lambda: Name.parse(text))
    return Place(name.namespace, name.name, name.tag if ":" in text else None)


def _places(registry: Connection, text: str | None) -> list[Place | None]:
    """Return the places that a text means: the one of that very name, else those that match it. ``None`` is
    every place."""
    if text is None:
        return [None]
    if not is_pattern(text):
        place = _parse_place(text)
        if place and place.name is None and place.namespace in namespaces_of(registry):
            return [place]  # it may hold nothing
        query = _query(place, None, None, None, None, None, None, None, False, None)
        if any(True for _ in all_pages(registry, "/v1/entries", EntryPage, 1, **query)):
            return [place]
    return [*matching_places(registry, text)]


def entries_under(registry: Connection, text: str) -> list[EntryRecord]:
    """Return the entries of the names that ``text`` means. Raises ``NotFound`` if there are none."""
    rows: list[EntryRecord] = []
    for place in _places(registry, text):
        query = _query(place, None, None, None, None, None, None, None, False, None)
        rows += all_pages(registry, "/v1/entries", EntryPage, None, **query)
    return rows


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
