"""Judge the coverage of a name as ``cachesvc coverage`` does, from what the registry has."""

from __future__ import annotations

from cachesvc.domain.access import Token
from cachesvc.index.entries.search import Search
from cachesvc.queries.coverage import COLD_SECONDS, Coverage, CoveredEntries, with_traces
from cachesvc.queries.planned import Plan, PlannedEnvironment
from cachesvc.registry import inventory, names, wanted
from cachesvc.registry.context import Registry
from cachesvc.registry.resolve import resolve_each
from cachesvc.schema.entries import MAX_PAGE, EntryRecord
from cachesvc_client.queries.offer import will_trace
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.factors import Facts
from cachesvc_client.wire.names import Name, Namespace, ShortName, Tag
from cachesvc_client.wire.requests.protocol import ResolvedRevision

from .page import Viewer


def cover(
    viewer: Viewer,
    namespace: Namespace,
    name: ShortName,
    tag: Tag,
    begin: int,
    most: int,
    changes: Facts | None = None,
) -> tuple[Coverage, list[PlannedEnvironment]]:
    """Returns the grid of the environments from number ``begin`` on, ``most`` of them, and all environments.

    ``changes``: facts that every environment that the registry has seen is planned to get; then the grid is
    that of the command's gate. What is offered is asked as a service would ask, in the token's lane; that
    counts for no one's use.
    """
    registry, token = viewer.registry, viewer.token
    summaries = names.list_entries(registry, token, namespace, name, tag)
    visible = tuple(row for row in summaries if row.lane is None or row.lane == token.lane)
    chosen = Name(namespace, name, tag)
    entries = CoveredEntries(chosen, token.lane, visible, tuple(_records(registry, token, chosen)))
    reported = wanted.list_seen(registry, token, chosen, token.lane)
    if changes:
        environments = Plan(of_all=True, changes=changes).environments(entries.seen(reported))
    else:
        environments = entries.environments(reported, registry.clock() - COLD_SECONDS)
    shown = environments[begin : begin + most]
    answers = resolve_each(registry, [entries.request(one.facts) for one in shown])
    rows = []
    for one, answer in zip(shown, answers, strict=True):
        if isinstance(answer, CacheSvcError):
            raise answer
        rows.append((one, answer))
    grid = entries.rows(rows)
    deciding = {cell.entry for row in grid for cell in row.cells if cell.state == "warm"}
    signers = {row.revision: row.signer for row in entries.records}
    heads = {row.entry: row for _, answer in rows for row in answer.revisions if row.entry in deciding}
    traced = frozenset(one for one, head in heads.items() if _traces(head, signers.get(head.revision, "")))
    return Coverage(str(chosen), entries.targets, with_traces(grid, traced), bool(changes)), environments


def _traces(head: ResolvedRevision, signer: str) -> bool:
    try:
        return will_trace(inventory.verify_revision(head.revision, signer, head.envelope_bytes).manifest)
    except CacheSvcError:  # services are not offered it either: nothing is said of its hits
        return False


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
