"""List the names and entries of a namespace."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import EntrySummary, NameSummary

from .context import Registry

_PLACE = re.compile(r"([a-z0-9._-]{1,128})/([a-z0-9._/-]{1,1100})")


@dataclass(frozen=True, slots=True)
class NamePage:
    """Lists names in alphabetical order. ``next``: the cursor of the following page, ``None`` on the last."""

    rows: tuple[NameSummary, ...]
    next: str | None = None


def find_names(
    registry: Registry, token: Token, text: str = "", cursor: str | None = None, limit: int = 50
) -> NamePage:
    """Returns a page of the names with ``text`` in ``namespace/name``, of all namespaces that the token may
    read."""
    demand(token, Action.read, token.namespace)
    place = _PLACE.fullmatch(cursor) if cursor is not None else None
    if cursor is not None and place is None:
        raise InvalidRequest(f"cursor: {cursor[:100]!r}", "send the cursor of the page before")
    after = (place[1], place[2]) if place else ("", "")
    with registry.index.read() as unit:
        rows = unit.listing.find_names(token.namespace, _lanes(token), text, after, limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return NamePage(tuple(rows[:limit]), f"{last.namespace}/{last.name}" if last else None)


def list_tags(registry: Registry, token: Token, namespace: Namespace, name: ShortName) -> list[Tag]:
    """Returns the tags of a name, as far as the token sees them, at most 100. Raises ``NotFound`` if nothing
    is published under the name, also for what the token may not see."""
    with registry.index.read() as unit:
        visible = may(token, Action.read, namespace)
        tags = unit.listing.tags(namespace, name, _lanes(token)) if visible else []
    if not tags:
        raise NotFound(
            f"nothing is published as {namespace}/{name}", "it may be in another namespace or lane"
        )
    return tags


def list_names(
    registry: Registry, token: Token, namespace: Namespace, trunk: bool = False
) -> list[NameSummary]:
    """Returns the names with their tags, entries and bytes, as far as the token sees them; or those of the
    trunk alone, where no lane's writer adds some."""
    demand(token, Action.read, namespace)
    with registry.index.read() as unit:
        return unit.listing.names(namespace, (None,) if trunk else _lanes(token))


def list_entries(
    registry: Registry,
    token: Token,
    namespace: Namespace,
    name: ShortName | None,
    tag: Tag | None,
    trunk: bool = False,
) -> list[EntrySummary]:
    """Returns the entries with their heads and reported outcomes, newest first, as far as the token sees
    them; or those of the trunk alone."""
    demand(token, Action.read, namespace)
    with registry.index.read() as unit:
        rows = unit.listing.entries(namespace, (None,) if trunk else _lanes(token), name, tag)
        uses = unit.usefulness.of([row.revision for row in rows])
    return [replace(row, usefulness=uses.get(row.revision, ())) for row in rows]


def get_entry(registry: Registry, token: Token, entry: Digest) -> EntrySummary:
    """Returns one entry, with the reported outcomes of its head. Raises ``NotFound``, also for what the token
    may not see."""
    with registry.index.read() as unit:
        row = unit.listing.summary(entry)
        uses = unit.usefulness.of([row[1].revision]) if row else {}
    if row is None or not may(token, Action.read, row[0], row[1].lane):
        raise NotFound(f"entry {entry} does not exist")
    return replace(row[1], usefulness=uses.get(row[1].revision, ()))


def _lanes(token: Token) -> tuple[Lane | None, ...] | None:
    return None if token.lane is None else (None, token.lane)
