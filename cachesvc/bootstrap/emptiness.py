"""Open the store and the index of a registry that a backup is restored into."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cachesvc.blobs.store import BlobStore
from cachesvc.blobs.wrappers import Meter
from cachesvc.index.engine import (
    holds_tables,
    open_postgresql,
    open_sqlite,
    view_postgresql,
)
from cachesvc.index.snapshot import rows_in
from cachesvc.index.unit import Index
from cachesvc.settings import Settings
from cachesvc_client.atomic import sync_folder
from cachesvc_client.wire.errors import InvalidRequest

from .folders import data_folder, index_file, locked
from .parts import open_blobs


@contextmanager
def open_empty(settings: Settings) -> Iterator[tuple[Callable[[], Index], BlobStore]]:
    """Opens the store of a registry that has no index yet, and yields a function that opens its new index.

    An index in the data folder gets its name when the block ends without an error: until then no registry is
    there. Locks the data folder, if the registry uses it. Raises ``InvalidRequest`` if there is an index.
    """
    require_empty(settings)
    if settings.database and settings.packs_elsewhere:
        yield partial(open_postgresql, settings.database), open_blobs(settings, Meter(), prove_bucket=True)[0]
        return
    with locked(data_folder(settings.data)):
        store, _ = open_blobs(settings, Meter(), prove_bucket=True)
        if settings.database:
            yield partial(open_postgresql, settings.database), store
            return
        require_empty(settings)
        unfinished = settings.data / "restore.sqlite3"
        for name in (unfinished, *(Path(f"{unfinished}-{end}") for end in ("wal", "shm", "journal"))):
            name.unlink(missing_ok=True)
        opened: list[Index] = []

        def open_index() -> Index:
            opened.append(open_sqlite(unfinished))
            return opened[-1]

        try:
            yield open_index, store
        finally:
            for index in opened:
                index.close()
        if opened:
            os.replace(unfinished, index_file(settings))
            sync_folder(settings.data)


def require_empty(settings: Settings) -> None:
    """Raises ``InvalidRequest`` if there is an index with anything in it. Changes nothing."""
    if not settings.database:
        if index_file(settings).exists():
            raise _not_empty(str(index_file(settings)))
        return
    if not holds_tables(settings.database):
        return
    index = view_postgresql(settings.database)
    try:
        if rows_in(index):
            raise _not_empty("the database")
    finally:
        index.close()


def _not_empty(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} holds a registry already", "restore into an empty one: another --data, or another database"
    )
