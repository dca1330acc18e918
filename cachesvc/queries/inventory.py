"""Read and print one name, or one entry, of a registry."""

from __future__ import annotations

from dataclasses import dataclass

from cachesvc.console.columns import REVISION_COLUMNS, SUMMARY_COLUMNS
from cachesvc.schema.entries import RevisionRecord
from cachesvc_client.console.listing import digest_text, moment, name_text, print_facts, print_listing
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.queries.names import Connection, all_names
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import InvalidRequest, NotFound, printable
from cachesvc_client.wire.requests.protocol import EntrySummary, EnvironmentUse, NameSummary
from cachesvc_client.wire.requests.reports import STATES

from .matching import Place, matching_places
from .registry_calls import complete_digest, path_with_query

_WHOLE = "--json has all"
"""What a table of `show` says where a column is left out."""


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """Describes an entry with its revisions, the newest first."""

    entry: EntrySummary
    revisions: tuple[RevisionRecord, ...]


@dataclass(frozen=True, slots=True)
class ShownName:
    """Describes a name with its entries, the newest first; of one tag if the user named one."""

    name: NameSummary
    entries: tuple[EntrySummary, ...]


def read_entry(registry: Connection, text: str) -> ShownEntry:
    """Ask for the entry whose digest begins with ``text``. Raises ``InvalidRequest``, ``NotFound``."""
    key = complete_digest(registry, "entry", text)
    summary = registry.call("GET", f"/v1/entries/{key}", None, EntrySummary)
    return ShownEntry(summary, registry.rows(f"/v1/entries/{key}/revisions", RevisionRecord))


def read_name(registry: Connection, text: str) -> ShownName:
    """Ask for a name and its entries. Raises ``InvalidRequest``, and ``NotFound`` with the nearest name or
    the existing tags."""
    place = Place.parse(text)
    if place.name is None:
        raise InvalidRequest(
            f"{text[:80]} is neither NAMESPACE/NAME nor the beginning of an entry's digest",
            "the command ls lists names, and search lists entries",
        )
    names = [row for row in all_names(registry, [place.namespace]) if row.name == place.name]
    query = path_with_query(f"/v1/namespaces/{place.namespace}/entries", name=place.name, tag=place.tag)
    entries = registry.rows(query, EntrySummary) if names else ()
    if not entries:
        near = matching_places(registry, text)  # raises with a hint, unless the text is a part of a name
        hint = f"did you mean {near[0].namespace}/{near[0].name}?" if near else ""
        raise NotFound(f"nothing is under {text[:80]}", hint)
    return ShownName(names[0], entries)


def print_name(shown: ShownName) -> None:
    """Print a name for people: facts, then a table of its entries."""
    name, uses = shown.name, [use for row in shown.entries for use in row.usefulness]
    print_facts(
        [
            ("name", f"{name.namespace}/{name.name}"),
            ("tags", ", ".join(name.tags)),
            ("entries", f"{len(shown.entries)}, {bytes_text(sum(row.pack_size for row in shown.entries))}"),
            ("last published", moment(max(row.published for row in shown.entries))),
            ("starts", starts_text(uses)),
        ]
    )
    print_listing("show", shown.entries, SUMMARY_COLUMNS, whole=_WHOLE)


def print_entry(shown: ShownEntry) -> None:
    """Print an entry for people: facts, its starts by environment, then a table of its revisions."""
    summary = shown.entry
    facts: list[tuple[str, object]] = [
        ("entry", summary.entry),
        ("name", name_text(shown.revisions[0])),
        ("target", summary.target),
        ("scopes", ", ".join(summary.scopes)),
    ]
    facts += [(name, value) for name, value in sorted(summary.fingerprint.items()) if name != "cpu_flags"]
    facts += [(f"measured {name}", duration_text(value)) for name, value in sorted(summary.measured.items())]
    print_facts(facts)
    for use in summary.usefulness:
        about = use.facts.get("gpu") or use.facts.get("cpu_isa", "")
        print(printable(f"starts on {about or digest_text(use.environment)}: {starts_text([use])}"))
    print_listing("show entry", shown.revisions, REVISION_COLUMNS, whole=_WHOLE)


def starts_text(uses: list[EnvironmentUse]) -> str:
    """Return how many starts came to which outcome, and the seconds that they saved."""
    counts = {state: sum(getattr(use, state) for use in uses) for state in STATES}
    starts = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{starts}; {duration_text(sum(use.saved for use in uses))} saved" if starts else "none reported"
