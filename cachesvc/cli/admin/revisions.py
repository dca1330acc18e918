"""``cachesvc admin revisions | quarantine``; ``revisions rollback`` is in `republish`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from cachesvc.console.columns import REVISION_COLUMNS
from cachesvc.console.output import (
    Apply,
    AsJson,
    Form,
    Output,
    print_json,
    show_facts,
    show_line,
    show_plan,
    show_record,
    show_table,
)
from cachesvc.queries.matching import entries_in, is_pattern
from cachesvc.queries.registry_calls import complete_digest
from cachesvc.schema.entries import (
    MAX_DESCENDANTS,
    Descendant,
    ProvenanceRecord,
    Reason,
    RevisionDifference,
    RevisionRecord,
    Withheld,
)
from cachesvc_client.console.documents import present
from cachesvc_client.console.listing import Columns, digest_text, moment, name_text
from cachesvc_client.console.tables import bytes_text, time_text
from cachesvc_client.queries.names import Connection
from cachesvc_client.queries.provenance import proof_facts, provenance_facts
from cachesvc_client.wire.compare import ancestor_withdrawn, signer_revoked
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.manifest.provenance import read_statement
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.text import count_text

from ..arguments import RevisionId, parse_option
from ..group import Group
from . import admin
from .connection import connect

revisions = typer.Typer(cls=Group, no_args_is_help=True, help="List, show, compare, pin, delete, roll back.")
quarantines = typer.Typer(cls=Group, no_args_is_help=True, help="Revisions that are not offered.")
admin.add_typer(revisions, name="revisions")
admin.add_typer(quarantines, name="quarantine")

_WITHHELD: Columns = {
    "revision": lambda row: digest_text(row.revision),
    "name": name_text,
    "target": lambda row: row.target,
    "since": lambda row: moment(row.since),
    "from": lambda row: f"environment {digest_text(row.environment)}" if row.environment else "everybody",
    "why": lambda row: row.why,
}
_DESCENDANTS: Columns = {
    "revision": lambda row: digest_text(row.revision),
    "name": name_text,
    "target": lambda row: row.target,
}


@revisions.command("list")
def list_revisions(
    context: typer.Context,
    entry: Annotated[
        str, typer.Argument(help="An entry, or the name of entries, such as namespace/name; patterns too.")
    ],
    as_json: AsJson = False,
    output: Output = Form.table,
) -> None:
    """List the revisions of an entry, or of all entries under a name, newest first."""
    with connect(context) as registry:
        if "/" in entry or is_pattern(entry):
            found = [
                (
                    f"{name_text(row)} {row.target}, entry {digest_text(row.entry)}:",
                    _lines(registry, row.entry),
                )
                for row in entries_in(registry, entry)
            ]
        else:
            found = [("", _lines(registry, complete_digest(registry, "entry", entry)))]
    if as_json or output is not Form.table:
        show_table([row for _, rows in found for row in rows], REVISION_COLUMNS, as_json, output=output)
        return
    for title, rows in found:
        if title:
            show_line(title)
        show_table(rows, REVISION_COLUMNS, False)


def _lines(registry: Connection, entry: Digest) -> tuple[RevisionRecord, ...]:
    return registry.rows(f"/v1/entries/{entry}/revisions", RevisionRecord)


@revisions.command("show")
def show_revision(context: typer.Context, revision: RevisionId, as_json: AsJson = False) -> None:
    """Show one revision."""
    with connect(context) as registry:
        row = _revision(registry, revision)
        provenance = _provenance(registry, row)
    if as_json:
        print_json({**present(row), "provenance": provenance})
        return
    facts: list[tuple[str, object]] = [
        ("revision", row.revision),
        ("entry", row.entry),
        ("name", name_text(row)),
        ("target", row.target),
        ("is the head", "yes" if row.head else "no"),
        ("published", f"{time_text(row.published)} by {row.published_by}"),
        ("signer", row.signer),
        ("withheld", _withheld_text(row)),
        ("pack", f"{row.pack}, {bytes_text(row.pack_size)}, {count_text(row.files, 'file')}"),
        ("expires", time_text(row.expires)),
        ("last used", time_text(row.last_used)),
        ("pinned", time_text(row.pinned)),
        ("quarantined", " ".join(filter(None, [time_text(row.quarantined), row.why]))),
    ]
    facts += [*_build_facts(row, provenance), *proof_facts(provenance.proof)]
    facts += [(name, value) for name, value in sorted(row.fingerprint.items())]
    facts += [(f"measured {name}", duration_text(value)) for name, value in sorted(row.measured.items())]
    show_facts(facts, row, False)


@revisions.command("diff")
def diff(context: typer.Context, first: RevisionId, second: RevisionId, as_json: AsJson = False) -> None:
    """Show what differs between two revisions: facts and files."""
    with connect(context) as registry:
        one, two = complete_digest(registry, "revision", first), complete_digest(registry, "revision", second)
        difference = registry.call("GET", f"/v1/revisions/{one}/difference/{two}", None, RevisionDifference)
    if as_json:
        print_json(difference)
        return
    columns: Columns = {
        "what": lambda row: row.what,
        digest_text(one): lambda row: _fact_text(row.what, row.before),
        digest_text(two): lambda row: _fact_text(row.what, row.after),
    }
    show_table(difference.facts, columns, False, "no fact differs")
    for change in difference.files:
        mark = "+" if not change.before else "-" if not change.after else "~"
        show_line(f"{mark} {change.what}")
    show_line(
        f"files: {difference.files_added} added, {difference.files_removed} removed, "
        f"{difference.files_changed} changed, {difference.files_same} the same"
    )


def _fact_text(what: str, text: str | None) -> str:
    """Return the value of a fact as people read it: durations with a unit, times as times."""
    if not text:
        return "-"
    try:
        if what.startswith("measured."):
            return duration_text(float(text))
        if what == "statement.sequence":  # milliseconds of UTC
            return time_text(int(text) // 1000)
    except ValueError:
        pass
    return digest_text(text) if text.startswith("sha256:") else text.replace("'", "").strip("[]")


@revisions.command("pin")
def pin(
    context: typer.Context,
    revision: RevisionId,
    why: Annotated[str, typer.Option(help="For the audit log.")] = "",
    as_json: AsJson = False,
) -> None:
    """Keep a revision, and its entry, from retention, eviction and deletion."""
    with connect(context) as registry:
        key = complete_digest(registry, "revision", revision)
        reason = parse_option(lambda: Reason(why), "--why")
        row = registry.call("PUT", f"/v1/revisions/{key}/pin", reason, RevisionRecord)
    show_record(row, REVISION_COLUMNS, as_json)


@revisions.command("unpin")
def unpin(context: typer.Context, revision: RevisionId, as_json: AsJson = False) -> None:
    """Unpin a revision."""
    with connect(context) as registry:
        key = complete_digest(registry, "revision", revision)
        row = registry.call("DELETE", f"/v1/revisions/{key}/pin", None, RevisionRecord)
    show_record(row, REVISION_COLUMNS, as_json)


@revisions.command("delete")
def delete_revision(
    context: typer.Context, revision: RevisionId, apply: Apply = False, as_json: AsJson = False
) -> None:
    """Delete one revision that is no head."""
    with connect(context) as registry:
        row = _revision(registry, revision)
        if row.head or row.pinned:
            what = "is the head of its entry" if row.head else "is pinned"
            fix = "delete the entry, or roll it back first" if row.head else "unpin it first"
            raise InvalidRequest(f"revision {digest_text(row.revision)} {what}", fix)
        if apply:
            registry.tell("DELETE", f"/v1/revisions/{row.revision}")
    summary = f"delete revision {digest_text(row.revision)}, {bytes_text(row.pack_size)}"
    show_plan([row], REVISION_COLUMNS, applied=apply, as_json=as_json, summary=summary)


@quarantines.command("list")
def list_quarantine(context: typer.Context, as_json: AsJson = False, output: Output = Form.table) -> None:
    """List what is not offered: by an operator, or where hosts found it inert."""
    with connect(context) as registry:
        show_table(registry.rows("/v1/quarantine", Withheld), _WITHHELD, as_json, output=output)


@quarantines.command("set")
def set_quarantine(
    context: typer.Context,
    revision: RevisionId,
    why: Annotated[str, typer.Option(help="The reason, for those who do not get it.")],
    namespace: Annotated[
        str | None,
        typer.Option("-n", "--namespace", help="The namespace of a revision that is not here any more."),
    ] = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Offer the bytes of a revision to nobody, on every replica within 5 s, and take them at no commit, also
    when the revision is deleted; services compile for themselves. What was made with it is withheld too."""
    place = parse_option(lambda: Namespace(namespace), "--namespace") if namespace else ""
    where = f"?namespace={place}" if place else ""
    reason = parse_option(lambda: Reason(why), "--why")
    with connect(context) as registry:
        key = complete_digest(registry, "revision", revision)
        rows = _known(registry, key)
        reached: Sequence[Descendant] = ()
        if apply:
            row = registry.call("PUT", f"/v1/revisions/{key}/quarantine{where}", reason, RevisionRecord)
            rows, reached = [row] if rows else [], row.descendants or ()
    here = "and what was made with it" if rows else "which is not here, from every commit"
    summary = f"withhold revision {digest_text(key)}, {here}"
    more = {"descendants": reached}
    show_plan(rows, REVISION_COLUMNS, applied=apply, as_json=as_json, summary=summary, more=more)
    if reached and not as_json:
        show_descendants(reached)


@quarantines.command("release")
def release(context: typer.Context, revision: RevisionId, as_json: AsJson = False) -> None:
    """Offer a revision again, where an operator or reports withheld it or its bytes."""
    with connect(context) as registry:
        key = complete_digest(registry, "revision", revision)
        registry.tell("DELETE", f"/v1/revisions/{key}/quarantine")
        try:
            row = registry.call("GET", f"/v1/revisions/{key}", None, RevisionRecord)
        except NotFound:
            show_line(f"revision {digest_text(key)} was deleted; it may be published again", err=True)
            return
    show_record(row, REVISION_COLUMNS, as_json)


def _known(registry: Connection, key: Digest) -> list[RevisionRecord]:
    """Return the revision of that digest, if it is here."""
    try:
        return [registry.call("GET", f"/v1/revisions/{key}", None, RevisionRecord)]
    except NotFound:
        return []


def _revision(registry: Connection, text: str) -> RevisionRecord:
    return registry.call(
        "GET", f"/v1/revisions/{complete_digest(registry, 'revision', text)}", None, RevisionRecord
    )


def _provenance(registry: Connection, row: RevisionRecord) -> ProvenanceRecord:
    """Return who built a revision."""
    return registry.call("GET", f"/v1/revisions/{row.revision}/provenance", None, ProvenanceRecord)


def _build_facts(row: RevisionRecord, record: ProvenanceRecord) -> list[tuple[str, object]]:
    """Return who built a revision, for people."""
    try:
        provenance = read_statement(record.statement, row.pack) if record.statement else None
    except ValueError as error:
        return [("built by", f"the statement cannot be read: {error}")]
    facts: list[tuple[str, object]] = [*provenance_facts(provenance)]
    if provenance is not None and provenance.vouched:
        accepted = "by this registry, at the commit" if record.accepted else "no: do not rely on the builder"
        facts.insert(1, ("builder accepted", accepted))
    return [fact for fact in facts if fact[0] not in ("target", "lane")]


def _withheld_text(row: RevisionRecord) -> str:
    if row.signer_revoked is not None:
        return f"its {signer_revoked(row.signer_revoked)}"
    return ancestor_withdrawn(row.withdrawn_ancestor) if row.withdrawn_ancestor else ""


def show_descendants(rows: Sequence[Descendant], applied: bool = True) -> None:
    """Print what a withdrawal reaches through ancestors."""
    least = "at least " if len(rows) == MAX_DESCENDANTS else ""
    state = "withheld too" if applied else "would be withheld too"
    show_line(f"{state}: {least}{count_text(len(rows), 'revision')} made with it")
    show_table(rows, _DESCENDANTS, False)
