"""Gather what the page of an entry shows."""

from __future__ import annotations

from typing import Any

from cachesvc.domain.access import Action, may
from cachesvc.registry import inventory, names
from cachesvc.schema.entries import RevisionRecord
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.queries.offer import will_trace
from cachesvc_client.queries.provenance import proof_facts, provenance_facts
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound, Untrusted
from cachesvc_client.wire.factors import BY_NAME
from cachesvc_client.wire.requests.reports import STATES

from . import paging, text
from .page import Viewer

FILES = 100
"""Files of a page."""
REVISIONS = 20
"""Revisions of a page."""
MEASURED = {
    "compile": "compile",
    "first_call": "first call",
    "steady": "steady call",
    "eager_first": "first call, eager",
    "eager_steady": "steady call, eager",
    "restored_first": "first call, restored",
}
"""What a builder measures, in the order and words of the page."""


def entry_context(
    viewer: Viewer, entry: Digest, revision: Digest | None, files_from: int, revisions_from: int
) -> dict[str, Any]:
    """Returns what the template of an entry needs: of ``revision``, or of the head. Raises ``NotFound``, also
    for what the token may not see."""
    summary = names.get_entry(viewer.registry, viewer.token, entry)
    rows = inventory.list_revisions(viewer.registry, viewer.token, entry)
    shown = next((row for row in rows if row.revision == (revision or summary.revision)), None)
    if shown is None:
        raise NotFound(f"entry {text.digest_text(entry)} has no such revision", "it may have been collected")
    verified, refused = _verify(viewer, shown.revision)
    files = verified.manifest.files if verified else ()
    file_part = paging.part(viewer.request, files, files_from, "files", FILES)
    revision_part = paging.part(viewer.request, rows, revisions_from, "revisions", REVISIONS)
    return {
        "shown": shown,
        "changeable": may(viewer.token, Action.admin, shown.namespace),
        **_facts(shown),
        "uses": summary.usefulness,
        "states": STATES,
        "revision_facts": _revision_facts(shown, viewer.registry.now),
        "traces": verified is not None and will_trace(verified.manifest),
        "measured": _measured(shown.measured),
        "provenance": _provenance(verified, shown) if verified else [],
        "refused": refused,
        "files": file_part.rows,
        "file_first": files_from,
        "file_count": len(files),
        "files_first_link": file_part.first,
        "files_next_link": file_part.next,
        "revisions": revision_part.rows,
        "revision_first": revisions_from,
        "revision_count": len(rows),
        "revisions_first_link": revision_part.first,
        "revisions_next_link": revision_part.next,
    }


def _verify(viewer: Viewer, revision: Digest) -> tuple[Accepted | None, str]:
    """Returns the revision as its signature says, or why it is not believed."""
    try:
        return inventory.read_revision(viewer.registry, viewer.token, revision), ""
    except Untrusted as error:
        return None, error.message


def _facts(row: RevisionRecord) -> dict[str, list[tuple[str, Any]]]:
    """Return the facts of the builder's environment: what decides where the entry fits, and the others."""
    counted = {"any", *row.scopes}
    deciding = {one.name for one in BY_NAME.values() if one.decider == "cachesvc" and one.scope in counted}
    facts = sorted(row.fingerprint.items())
    return {
        "deciding": [fact for fact in facts if fact[0] in deciding],
        "recorded": [fact for fact in facts if fact[0] not in deciding],
    }


def _revision_facts(row: RevisionRecord, now: int) -> list[tuple[str, str]]:
    facts = [
        ("revision", row.revision),
        ("entry", row.entry),
        ("published", f"{text.utc_text(row.published)} ({text.ago_text(row.published, now)})"),
        ("published by", row.published_by),
        ("signer", row.signer),
        ("size", f"{bytes_text(row.pack_size)}, {row.files} file{'' if row.files == 1 else 's'}"),
        ("pack", row.pack),
        ("holds", ", ".join(f"{scope} code" for scope in row.scopes)),
        ("last used", text.ago_text(row.last_used, now)),
        ("pinned", text.utc_text(row.pinned)),
        ("expires", text.utc_text(row.expires)),
    ]
    return [(what, str(value)) for what, value in facts if value]


def _measured(measured: dict[str, float]) -> list[tuple[str, float]]:
    known = [(MEASURED[name], measured[name]) for name in MEASURED if name in measured]
    return known + [(name, seconds) for name, seconds in sorted(measured.items()) if name not in MEASURED]


def _provenance(verified: Accepted, row: RevisionRecord) -> list[tuple[str, str]]:
    """Returns (what, value) of the build: first what can be verified, then what the builder wrote."""
    provenance, manifest = verified.provenance, verified.manifest
    facts = [*provenance_facts(provenance), *proof_facts(manifest.proof)]
    if provenance is not None and provenance.vouched:
        accepted = row.builder == provenance.builder
        facts.append(("vouched", "by this registry, at the commit" if accepted else "not by this registry"))
    facts += [(f"note: {name}", value) for name, value in sorted(manifest.provenance.items())]
    return [(what, value) for what, value in facts if value]
