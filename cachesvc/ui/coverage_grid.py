"""Judge the coverage of a name as ``cachesvc coverage`` does, from what the registry has."""

from __future__ import annotations

from cachesvc.domain.access import Token
from cachesvc.index.inventory import Search
from cachesvc.registry import inventory, names
from cachesvc.registry.context import Registry
from cachesvc.registry.resolve import resolve_each
from cachesvc_client.commands.coverage import Coverage, CoveredEntries
from cachesvc_client.wire.admin import MAX_PAGE, EntryRecord
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.names import Name, Namespace, ShortName, Tag

from .page import Viewer

Environment = tuple[Digest, Fingerprint]


def cover(
    viewer: Viewer, namespace: Namespace, name: ShortName, tag: Tag, begin: int, most: int
) -> tuple[Coverage, list[Environment]]:
    """Returns the grid of the environments from number ``begin`` on, ``most`` of them, and all environments.

    What is offered is asked as a service would ask, in the token's lane; that counts for nobody's use.
    """
    registry, token = viewer.registry, viewer.token
    summaries = names.list_entries(registry, token, namespace, name, tag)
    visible = tuple(row for row in summaries if row.lane is None or row.lane == token.lane)
    chosen = Name(namespace, name, tag)
    entries = CoveredEntries(chosen, token.lane, visible, tuple(_records(registry, token, chosen)))
    environments = entries.environments()
    shown = environments[begin : begin + most]
    answers = resolve_each(registry, [entries.request(here) for _, here in shown], to_starts=False)
    rows = []
    for (digest, here), answer in zip(shown, answers, strict=True):
        if isinstance(answer, CacheSvcError):
            raise answer
        rows.append((digest, here, answer))
    return Coverage(str(chosen), entries.targets, entries.rows(rows)), environments


def _records(registry: Registry, token: Token, name: Name) -> list[EntryRecord]:
    search = Search(namespace=name.namespace, name=name.name, tag=name.tag)
    rows: list[EntryRecord] = []
    cursor = None
    while True:
        page = inventory.search_entries(registry, token, search, cursor, MAX_PAGE)
        rows += page.rows
        if page.next is None:
            return rows
        cursor = page.next
