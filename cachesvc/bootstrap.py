"""Put the registry together from concrete backends, which no other module names."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import quote

from cachesvc.blobs.schemes import open_by_url
from cachesvc.blobs.store import BlobStore, Links, OnDisk, Unusable, prove
from cachesvc.blobs.wrappers import Meter, Metered, Retrying, Verifying
from cachesvc.domain.people import parse_grant
from cachesvc.domain.retention import Retention
from cachesvc.hot.memory import MemoryHot
from cachesvc.hot.store import Hot
from cachesvc.index import engine
from cachesvc.index.engine import (
    holds_tables,
    open_postgresql,
    open_sqlite,
    pending_postgresql,
    pending_sqlite,
    refuse_network_filesystem,
    view_postgresql,
    view_sqlite,
)
from cachesvc.index.snapshot import rows_in
from cachesvc.index.unit import Index
from cachesvc.oidc.issuers import Issuers
from cachesvc.oidc.login import Client
from cachesvc.outside import Destinations
from cachesvc.registry.context import Limits, PersonLogin, Registry
from cachesvc.registry.mirror.state import Mirror
from cachesvc.registry.upkeep.backup import KEYS
from cachesvc.settings import Settings
from cachesvc.tuf.keys import TrustKeys
from cachesvc.upstream.upstream import Upstream
from cachesvc.webhooks.sender import Sender
from cachesvc_client.atomic import sync_folder
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.registry_metadata import NoFiles, read_pinned
from cachesvc_client.trust_root.updater import Updater
from cachesvc_client.wire.errors import InvalidRequest, NotFound, StorageFull, Unavailable

_log = logging.getLogger("cachesvc.bootstrap")


@contextmanager
def open_registry(settings: Settings, *, prove_bucket: bool = False) -> Iterator[Registry]:
    """Opens a registry over the backends that the settings name, for the length of the block.

    ``prove_bucket``: first tries whether the bucket does what a registry needs. Locks the data folder, if the
    registry uses it, so that no second server works in it. Raises ``InvalidRequest`` or ``Unavailable`` with
    one line.
    """
    login = _login(settings)
    mirror = _mirror(settings)
    with _locked(_data_folder(settings.data)) if settings.embedded else nullcontext():
        if settings.database:
            index = open_postgresql(settings.database)
        else:
            index = open_sqlite(_index_file(settings))
        try:
            hot = _hot(settings)
            try:
                meter = Meter()
                blobs, links = _blobs(settings, meter, prove_bucket)
                own = MemoryHot() if settings.redis else None
                destinations = Destinations(private=settings.private_addresses)
                yield Registry(
                    index,
                    blobs,
                    hot,
                    _limits(settings),
                    links=links,
                    meter=meter,
                    own=own,
                    login=login,
                    trust_keys=_trust_keys(settings),
                    issuers=Issuers(destinations, own=settings.oidc_issuer),
                    sender=Sender(destinations, plain_http=settings.webhook_plain_http),
                    mirror=mirror,
                    on_disk=None if settings.packs_elsewhere else cast(OnDisk, _open_folder(settings)),
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
    with _locked(_data_folder(settings.data)):
        steps = pending_sqlite(_index_file(settings))
        if apply and steps:
            open_sqlite(_index_file(settings)).close()
        return steps


def check_backends(settings: Settings) -> list[tuple[str, str]]:
    """Returns (part, what it is) of the backends that the settings name, after a look at each. Changes
    nothing.

    Raises ``InvalidRequest`` or ``Unavailable`` with one line. An index or a folder that does not exist yet
    is no fault, if it can be made.
    """
    _trust_keys(settings)
    mirror = _mirror(settings)
    login = _login(settings)
    if settings.database:
        steps = pending_postgresql(settings.database)
        index = "PostgreSQL"
    else:
        refuse_network_filesystem(_existing_parent(settings.data))
        steps = pending_sqlite(_index_file(settings))
        index = f"SQLite in {settings.data}"
    found = [("index", f"{index}; " + (f"{len(steps)} migrations to run" if steps else "up to date"))]
    if settings.packs_elsewhere:
        store, _ = _blobs(settings, Meter(), prove_bucket=False)
        store.check()
        found.append(("packs", settings.packs_elsewhere))
    else:
        found.append(("packs", f"{_blob_folder(settings)}"))
    if settings.embedded:
        folder = _existing_parent(settings.data)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Unavailable(
                f"data folder {settings.data}: {folder} is not writable", "name another with --data"
            )
    hot = _hot(settings)
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


def _existing_parent(path: Path) -> Path:
    """Returns the folder, or the nearest above it that exists."""
    return next(place for place in (path, *path.parents) if place.is_dir())


@contextmanager
def open_store(settings: Settings) -> Iterator[tuple[BlobStore, Links | None]]:
    """Opens the blob store alone, as a registry uses it, with the ``Links`` to its objects if readers get
    any.

    Locks the data folder if it has the packs. Raises what ``open_registry`` raises.
    """
    with nullcontext() if settings.packs_elsewhere else _locked(_data_folder(settings.data)):
        yield _blobs(settings, Meter(), prove_bucket=False)


@contextmanager
def open_running(settings: Settings) -> Iterator[tuple[Index, BlobStore]]:
    """Opens index and store to read them, also while a server works with them. Raises what ``open_registry``
    raises, and ``InvalidRequest`` for a schema that is not the newest."""
    index = view_postgresql(settings.database) if settings.database else view_sqlite(_index_file(settings))
    try:
        if settings.packs_elsewhere:
            yield index, _blobs(settings, Meter(), prove_bucket=False)[0]
        else:
            yield index, Verifying(_open_folder(settings))
    finally:
        index.close()


@contextmanager
def open_empty(settings: Settings) -> Iterator[tuple[Callable[[], Index], BlobStore]]:
    """Opens the store of a registry that has no index yet, and yields a function that opens its new index.

    An index in the data folder gets its name when the block ends without an error: until then no registry is
    there. Locks the data folder, if the registry uses it. Raises ``InvalidRequest`` if there is an index.
    """
    require_empty(settings)
    if settings.database and settings.packs_elsewhere:
        yield partial(open_postgresql, settings.database), _blobs(settings, Meter(), prove_bucket=True)[0]
        return
    with _locked(_data_folder(settings.data)):
        store, _ = _blobs(settings, Meter(), prove_bucket=True)
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
            os.replace(unfinished, _index_file(settings))
            sync_folder(settings.data)


def knows_schema(schema: str) -> bool:
    """Returns whether this code knows a migration of the index, and so the tables and columns up to it."""
    return engine.knows_schema(schema)


def key_files(settings: Settings) -> dict[str, Path]:
    """Returns the private keys that the data folder holds, by name."""
    paths = {name: settings.data / f"{name}.key" for name in KEYS}
    return {name: path for name, path in paths.items() if path.is_file()}


def key_path(settings: Settings, name: str) -> Path | None:
    """Returns where a private key of a backup goes; ``None`` where the settings have it, or an operator."""
    return None if settings.database else settings.data / f"{name}.key"


def require_empty(settings: Settings) -> None:
    """Raises ``InvalidRequest`` if there is an index with anything in it. Changes nothing."""
    if not settings.database:
        if _index_file(settings).exists():
            raise _not_empty(str(_index_file(settings)))
        return
    if not holds_tables(settings.database):
        return
    index = view_postgresql(settings.database)
    try:
        if rows_in(index):
            raise _not_empty("the database")
    finally:
        index.close()


def has_store(settings: Settings) -> bool:
    """Returns whether a store is there already: to open one in the data folder would make it."""
    return bool(settings.packs_elsewhere) or _blob_folder(settings).is_dir()


def _not_empty(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} holds a registry already", "restore into an empty one: another --data, or another database"
    )


def require_registry(settings: Settings, *, store: bool = False) -> None:
    """Raise ``NotFound`` if the data folder should have a registry and holds none: to open one would make it.

    ``store``: only the store is needed, which may be in a folder that has no index yet.
    """
    if store:
        there = settings.packs_elsewhere or settings.data.is_dir()
    else:
        there = bool(settings.database) or _index_file(settings).is_file()
    if not there:
        raise NotFound(
            f"{settings.data}: no registry is there",
            "name its folder with --data or its settings with --config; cachesvc serve makes a new one",
        )


def signing_key_path(settings: Settings) -> Path:
    """Returns the path at which the first start puts the signing key."""
    return settings.data / "signing.key"


def _index_file(settings: Settings) -> Path:
    return settings.data / "index.sqlite3"


def _blob_folder(settings: Settings) -> Path:
    return settings.data / "blobs"


def _open_folder(settings: Settings, *, sweep: bool = False) -> BlobStore:
    return open_by_url(_blob_folder(settings).absolute().as_uri(), sweep=sweep)


def _blobs(settings: Settings, meter: Meter, prove_bucket: bool) -> tuple[BlobStore, Links | None]:
    if not settings.packs_elsewhere:
        return Metered(Verifying(_open_folder(settings, sweep=True)), meter), None
    store = _open_elsewhere(settings)
    if prove_bucket:
        _prove(store)
    gives_links = settings.downloads == "store" and callable(getattr(store, "link", None))
    return Metered(Retrying(Verifying(store)), meter), cast(Links, store) if gives_links else None


def _open_elsewhere(settings: Settings) -> BlobStore:
    if settings.bucket:
        return open_by_url(
            f"s3://{quote(settings.bucket)}/{quote(settings.bucket_prefix)}",
            endpoint=settings.bucket_endpoint,
            public_endpoint=settings.bucket_public_endpoint,
            addressing=settings.bucket_addressing,
        )
    if settings.oci_repository:
        return open_by_url(f"oci://{settings.oci_repository}", plain_http=settings.oci_plain_http)
    return open_by_url(settings.packs_url)


def _prove(store: BlobStore) -> None:
    """Ends the start if the store has a fault that waiting does not fix. A store that is down or full does
    not end the start: until it is back, the registry reports that it is not ready."""
    try:
        prove(store)
    except Unusable:
        raise
    except (Unavailable, StorageFull) as error:
        _log.warning("%s", error)


def _hot(settings: Settings) -> Hot:
    if not settings.redis:
        return MemoryHot()
    from cachesvc.hot.redis import RedisHot
    from cachesvc.hot.short_cache import ShortCache

    hot = ShortCache(RedisHot(settings.redis))
    try:
        hot.check()
    except Unavailable as error:
        # The start goes on: without Redis the registry is slower, never wrong.
        _log.warning("%s", error)
    return hot


def _trust_keys(settings: Settings) -> TrustKeys | None:
    """Returns the keys of trust metadata that the settings name or the data folder holds; ``None`` for a
    registry that signs none."""
    online = None
    if settings.upstream_url:  # a mirror has the metadata of its upstream
        return None
    if settings.online_key_file is not None:
        online = SigningKey.load(settings.online_key_file)
    elif settings.online_key:
        online = SigningKey.from_text(settings.online_key, "the setting online_key")
    folder = None if settings.database else settings.data
    return TrustKeys(folder, online) if folder is not None or online is not None else None


def _mirror(settings: Settings) -> Mirror | None:
    """Returns what makes this registry a mirror, if the settings name an upstream. Asks the upstream nothing:
    a start does not depend on it. Raises ``InvalidRequest``, and ``Untrusted`` or ``Corrupt`` for a file that
    is no root."""
    if not settings.upstream_url or settings.upstream_root is None:
        return None
    token = settings.upstream_token
    if settings.upstream_token_file is not None:
        token = _read_secret(settings.upstream_token_file, "upstream_token_file", "the token")
    root = read_pinned(settings.upstream_root)
    Updater(root, NoFiles(), str(settings.upstream_root), time.time())  # refuses what is no root
    return Mirror(
        Upstream(settings.upstream_url, token, root), settings.upstream_offline_seconds, settings.keep_bytes
    )


def _login(settings: Settings) -> PersonLogin | None:
    """Returns how people log in at the provider that the settings name; ``None`` if they name none. Asks the
    provider nothing: a start does not depend on it."""
    if not settings.oidc_issuer:
        return None
    page = f"{settings.public_url}/ui/login"
    secret = settings.oidc_client_secret
    if settings.oidc_client_secret_file is not None:
        secret = _read_secret(
            settings.oidc_client_secret_file, "oidc_client_secret_file", "the client's secret"
        )
    client = Client(
        settings.oidc_issuer, settings.oidc_client_id, secret, f"{page}/callback", settings.oidc_scopes
    )
    rules = {value: tuple(map(parse_grant, grants)) for value, grants in settings.oidc_roles.items()}
    return PersonLogin(client, page, settings.oidc_claim, rules, settings.oidc_session_seconds)


def _read_secret(path: Path, setting: str, what: str) -> str:
    try:
        secret = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise InvalidRequest(f"{setting} {path}: {reason}") from None
    if not secret:
        raise InvalidRequest(f"{setting} {path}: is empty", f"write {what} into it")
    return secret


def _limits(settings: Settings) -> Limits:
    return Limits(
        lease_seconds=settings.lease_seconds,
        grace_seconds=settings.grace_seconds,
        link_seconds=settings.link_seconds,
        claim_seconds=settings.claim_seconds,
        pack_bytes=settings.max_pack_bytes,
        quota_bytes=settings.quota_bytes,
        max_ages=settings.max_age,
        retention=Retention(
            settings.keep_revisions,
            settings.keep_days,
            settings.unused_days,
            settings.keep_bytes,
            settings.lane_days,
        ),
    )


def _data_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"data folder {path}: {error.strerror or error}", "name another with --data"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise Unavailable(f"data folder {path}: not writable", "name another with --data")
    return path


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    try:
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(
            f"data folder {data}: {error.strerror or error}", "name another with --data"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(
                f"data folder {data}: another server works in it", "stop it, or name another with --data"
            ) from None
        yield
    finally:
        os.close(lock)
