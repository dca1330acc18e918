"""Make the parts of a registry of its settings: the store of packs, hints, keys, login, limits."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import cast
from urllib.parse import quote

from cachesvc.blobs.schemes import open_by_url
from cachesvc.blobs.store import BlobStore, Links, Unusable, prove
from cachesvc.blobs.wrappers import Meter, Metered, Retrying, Verifying
from cachesvc.domain.people import parse_grant
from cachesvc.domain.retention import Retention
from cachesvc.hot.memory import MemoryHot
from cachesvc.hot.store import Hot
from cachesvc.oidc.login import Client
from cachesvc.registry.context import Limits, PersonLogin
from cachesvc.registry.mirror.state import Mirror
from cachesvc.reserve import Reserve
from cachesvc.settings import Settings
from cachesvc.tuf.keys import TrustKeys
from cachesvc.upstream.upstream import Upstream
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.registry_metadata import NoFiles, read_pinned
from cachesvc_client.trust_root.updater import Updater
from cachesvc_client.wire.errors import InvalidRequest, StorageFull, Unavailable

from .folders import blob_folder

_log = logging.getLogger("cachesvc.bootstrap")


def open_folder(settings: Settings, *, sweep: bool = False) -> BlobStore:
    return open_by_url(blob_folder(settings).absolute().as_uri(), sweep=sweep)


def open_blobs(settings: Settings, meter: Meter, prove_bucket: bool) -> tuple[BlobStore, Links | None]:
    if not settings.packs_elsewhere:
        return Metered(Verifying(open_folder(settings, sweep=True)), meter), None
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


def reserve_of(settings: Settings) -> Reserve:
    """Return the reserve of the data folder's disk; if that is full, its bytes are free now."""
    if not settings.embedded:
        return Reserve()
    reserve = Reserve(settings.data / "reserve", settings.reserve_bytes)
    reserve.tend()
    return reserve


def open_hot(settings: Settings) -> Hot:
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


def trust_keys_of(settings: Settings) -> TrustKeys | None:
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


def mirror_of(settings: Settings) -> Mirror | None:
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


def login_of(settings: Settings) -> PersonLogin | None:
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


def limits_of(settings: Settings) -> Limits:
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
            settings.older_model_days,
        ),
    )
