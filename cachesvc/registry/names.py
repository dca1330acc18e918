"""List the names and entries of a namespace."""

from __future__ import annotations

from dataclasses import replace

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag
from cachesvc_client.wire.protocol import EntrySummary, NameSummary

from .context import Registry


def list_names(registry: Registry, token: Token, namespace: Namespace) -> list[NameSummary]:
    """Returns the names with their tags, entries and bytes, as far as the token sees them."""
    demand(token, Action.read, namespace)
    with registry.index.read() as unit:
        return unit.entries.names(namespace, _lanes(token))


def list_entries(
    registry: Registry, token: Token, namespace: Namespace, name: ShortName | None, tag: Tag | None
) -> list[EntrySummary]:
    """Returns the entries with their heads and reported outcomes, newest first, as far as the token sees
    them."""
    demand(token, Action.read, namespace)
    with registry.index.read() as unit:
        rows = unit.entries.listing(namespace, _lanes(token), name, tag)
        uses = unit.usefulness.of([row.revision for row in rows])
    return [replace(row, usefulness=uses.get(row.revision, ())) for row in rows]


def get_entry(registry: Registry, token: Token, entry: Digest) -> EntrySummary:
    """Returns one entry, with the reported outcomes of its head. Raises ``NotFound``, also for what the token
    may not see."""
    with registry.index.read() as unit:
        row = unit.entries.summary(entry)
        uses = unit.usefulness.of([row[1].revision]) if row else {}
    if row is None or not may(token, Action.read, row[0], row[1].lane):
        raise NotFound(f"entry {entry} does not exist")
    return replace(row[1], usefulness=uses.get(row[1].revision, ()))


def _lanes(token: Token) -> tuple[Lane | None, ...] | None:
    return None if token.lane is None else (None, token.lane)
