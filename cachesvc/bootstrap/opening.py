"""Open a registry, or a part of one, over the backends that its settings name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

from cachesvc.blobs.store import BlobStore, Links, OnDisk
from cachesvc.blobs.wrappers import Meter, Verifying
from cachesvc.hot.memory import MemoryHot
from cachesvc.index.engine import (
    open_postgresql,
    open_sqlite,
    pending_postgresql,
    pending_sqlite,
    refuse_network_filesystem,
    view_postgresql,
    view_sqlite,
)
from cachesvc.index.unit import Index
from cachesvc.oidc.issuers import Issuers
from cachesvc.outside import Destinations
from cachesvc.registry.context import Outside, Packs, Registry
from cachesvc.settings import Settings
from cachesvc.webhooks.sender import Sender
from cachesvc_client.wire.errors import Unavailable

from .folders import blob_folder, data_folder, existing_parent, index_file, locked
from .parts import (
    limits_of,
    login_of,
    mirror_of,
    open_blobs,
    open_folder,
    open_hot,
    reserve_of,
    trust_keys_of,
)


@contextmanager
def open_registry(settings: Settings, *, prove_bucket: bool = False) -> Iterator[Registry]:
    """Opens a registry over the backends that the settings name, for the length of the block.

    ``prove_bucket``: first tries whether the bucket does what a registry needs. Locks the data folder, if the
    registry uses it, so that no second server works in it. Raises ``InvalidRequest`` or ``Unavailable`` with
    one line.
    """
    login = login_of(settings)
    mirror = mirror_of(settings)
    with locked(data_folder(settings.data)) if settings.embedded else nullcontext():
        reserve = reserve_of(settings)
        index = (
            open_postgresql(settings.database)
            if settings.database
            else open_sqlite(index_file(settings), reserve)
        )
        try:
            hot = open_hot(settings)
            try:
                meter = Meter()
                blobs, links = open_blobs(settings, meter, prove_bucket)
                on_disk = None if settings.packs_elsewhere else cast(OnDisk, open_folder(settings))
                own = MemoryHot() if settings.redis else None
                destinations = Destinations(private=settings.private_addresses)
                yield Registry(
                    index,
                    Packs(blobs, links, meter, on_disk, reserve),
                    hot,
                    limits_of(settings),
                    own=own,
                    outside=Outside(
                        Issuers(destinations, own=settings.oidc_issuer),
                        Sender(destinations, plain_http=settings.webhook_plain_http),
                        login,
                    ),
                    trust_keys=trust_keys_of(settings),
                    mirror=mirror,
                    peers=settings.peers,
                )
            finally:
                hot.close()
        finally:
            index.close()


def migrate_index(settings: Settings, *, apply: bool) -> list[tuple[str, str]]:
    """Returns (step, what it does) of the migrations that the index lacks; runs them if ``apply``.

    Raises what ``open_registry`` raises. PostgreSQL may be migrated beside running servers: every step only
    adds to the schema.
    """
    if settings.database:
        steps = pending_postgresql(settings.database)
        if apply and steps:
            open_postgresql(settings.database).close()
        return steps
    with locked(data_folder(settings.data)):
        steps = pending_sqlite(index_file(settings))
        if apply and steps:
            open_sqlite(index_file(settings), reserve_of(settings)).close()
        return steps


def check_backends(settings: Settings) -> list[tuple[str, str]]:
    """Returns (part, what it is) of the backends that the settings name, after a look at each. Changes
    nothing.

    Raises ``InvalidRequest`` or ``Unavailable`` with one line. An index or a folder that does not exist yet
    is no fault, if it can be made.
    """
    trust_keys_of(settings)
    mirror = mirror_of(settings)
    login = login_of(settings)
    if settings.database:
        steps = pending_postgresql(settings.database)
        index = "PostgreSQL"
    else:
        refuse_network_filesystem(existing_parent(settings.data))
        steps = pending_sqlite(index_file(settings))
        index = f"SQLite in {settings.data}"
    found = [("index", f"{index}; " + (f"{len(steps)} migrations to run" if steps else "up to date"))]
    if settings.packs_elsewhere:
        store, _ = open_blobs(settings, Meter(), prove_bucket=False)
        store.check()
        found.append(("packs", settings.packs_elsewhere))
    else:
        found.append(("packs", f"{blob_folder(settings)}"))
    if settings.embedded:
        folder = existing_parent(settings.data)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Unavailable(
                f"data folder {settings.data}: {folder} is not writable", "name another with --data"
            )
    hot = open_hot(settings)
    try:
        hot.check()
    finally:
        hot.close()
    found.append(("hints", "Redis" if settings.redis else "in this process"))
    if mirror is not None:
        who = mirror.upstream.remote.whoami()
        found.append(("mirrors", f"{mirror.upstream.url}, {who.role} in {who.namespace}"))
    if login is not None:
        Issuers(own=login.client.issuer).probe(login.client.issuer)
        found.append(("login", f"{login.client.issuer}, back to {login.client.redirect_uri}"))
    return found


@contextmanager
def open_store(settings: Settings) -> Iterator[tuple[BlobStore, Links | None]]:
    """Opens the blob store alone, as a registry uses it, with the ``Links`` to its objects if readers get
    any.

    Locks the data folder if it has the packs. Raises what ``open_registry`` raises.
    """
    with nullcontext() if settings.packs_elsewhere else locked(data_folder(settings.data)):
        yield open_blobs(settings, Meter(), prove_bucket=False)


@contextmanager
def open_running(settings: Settings) -> Iterator[tuple[Index, BlobStore]]:
    """Opens index and store to read them, also while a server works with them. Raises what ``open_registry``
    raises, and ``InvalidRequest`` for a schema that is not the newest."""
    index = view_postgresql(settings.database) if settings.database else view_sqlite(index_file(settings))
    try:
        if settings.packs_elsewhere:
            yield index, open_blobs(settings, Meter(), prove_bucket=False)[0]
        else:
            yield index, Verifying(open_folder(settings))
    finally:
        index.close()
