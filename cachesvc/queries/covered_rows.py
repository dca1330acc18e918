"""Read what a grid of coverage is judged from: the entries of a name, and the environments that started."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence

from cachesvc.schema.entries import EntryPage, EntryRecord
from cachesvc.schema.wanted import SeenEnvironment
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.names import Lane, Name

from .registry_calls import all_pages


def seen_environments(remote: Remote, name: Name, lane: Lane | None) -> Sequence[SeenEnvironment]:
    """Return the environments that reported starts."""
    query = {"name": name.name, "tag": name.tag, **({"lane": lane} if lane else {})}
    path = f"/v1/namespaces/{name.namespace}/environments?{urllib.parse.urlencode(query)}"
    return remote.rows(path, SeenEnvironment)


def entry_records(remote: Remote, name: Name) -> list[EntryRecord]:
    """Return the records of all entries of a name."""
    query = {"namespace": name.namespace, "name": name.name, "tag": name.tag}
    return list(all_pages(remote, "/v1/entries", EntryPage, None, **query))
