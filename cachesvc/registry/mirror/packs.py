"""Get the packs of a mirror on the first demand, and let those go that were offered longest ago."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress

from cachesvc.index.mirrors import ABSENT
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Corrupt,
    LeaseLost,
    NotFound,
    ProtocolMismatch,
    Unavailable,
    Untrusted,
)
from cachesvc_client.wire.manifest.records import PackRecord

from ..context import Registry
from ..download import Pack
from ..intake import Intake, end_lease, extend_object
from .state import Mirror
from .sync import absent_key

_log = logging.getLogger("cachesvc.mirror")


def is_absent(pack: Pack) -> bool:
    """Returns whether the pack is not in the mirror's store yet."""
    return pack.key.startswith(ABSENT)


def start_pull(registry: Registry, revision: Digest) -> Future[None]:
    """Begins the download of a revision's pack, unless it is under way, and returns its future. It goes on
    when no one waits for it any more."""
    mirror = registry.mirror
    assert mirror is not None
    return mirror.pulls.start(revision, lambda: _pull(registry, mirror, revision))


def _pull(registry: Registry, mirror: Mirror, revision: Digest) -> None:
    """Downloads a pack into a new object, and has the revision name the object once all of its bytes are
    there and have the signed digest. Raises ``NotFound``, ``Unavailable``."""
    with registry.index.read() as unit:
        place = unit.pack_places.of_revision(revision)
    if place is None:
        raise NotFound(f"revision {revision} does not exist", "it may be gone: resolve again")
    if not place.key.startswith(ABSENT):
        return
    mirror.demand_open()
    registry.packs.reserve.demand()
    pack = PackRecord(place.digest, place.size)
    key = f"packs/m-{secrets.token_hex(16)}"
    with registry.index.write_once() as unit:
        unit.objects.add(key, registry.now + registry.limits.lease_seconds)
    try:
        _receive(registry, mirror, revision, pack, key)
        with registry.index.write() as unit:
            kept = unit.objects.hold(
                key, registry.now + registry.limits.grace_seconds, (pack.digest, pack.size)
            )
            if kept is None:
                raise LeaseLost("the pack was collected while it came", "try again")
            if not unit.mirrors.place_pack(revision, place.key, key):
                raise NotFound(f"revision {revision} was replaced meanwhile", "resolve again")
    except BaseException as error:
        end_lease(registry, key)
        _log.warning("the pack of revision %s is not here: %s", revision, error)
        raise
    with suppress(CacheSvcError):
        trim(registry, spare=revision)


def _receive(registry: Registry, mirror: Mirror, revision: Digest, pack: PackRecord, key: str) -> None:
    """Stores the bytes of a pack. Raises ``Unavailable`` for other bytes than the signed ones, and deletes
    them."""

    def chunks() -> Iterator[bytes]:
        for chunk in mirror.upstream.pack(revision, pack):
            mirror.demand_open()
            yield chunk

    intake = Intake(chunks(), pack.size, extend=lambda: extend_object(registry, key), clock=registry.clock)
    try:
        registry.packs.blobs.put(key, intake)
    except Corrupt as error:
        raise Unavailable(error.message, "the upstream's store is damaged, or it lies") from None
    except (Untrusted, ProtocolMismatch) as error:
        # Its words are for the operator: a reader must not learn addresses, nor allow one at its own node.
        _log.warning("the upstream leads elsewhere for revision %s: %s", revision, error)
        text = f"the upstream leads elsewhere for the pack of revision {revision}"
        raise Unavailable(text, "the mirror's operator: look into its log") from None
    if intake.digest != pack.digest:
        registry.packs.blobs.delete(key)
        raise Unavailable(
            f"the upstream sent other bytes for revision {revision} than the signed ones",
            "its store is damaged, or it lies: cachesvc admin fsck --deep there",
        )


def trim(registry: Registry, spare: Digest | None = None) -> int:
    """Lets packs go until those that are here have ``keep_bytes`` bytes at most, those first that were
    offered longest ago, and returns how many. ``spare``: a pack that stays in any case.

    Their revisions stay: the next reader has the pack come again. The bytes are deleted after the grace
    period, so that downloads under way can end.
    """
    mirror = registry.mirror
    if mirror is None or mirror.keep_bytes is None:
        return 0
    with registry.index.read() as unit:
        packs = unit.mirrors.packs()
    surplus, gone = sum(size for _, _, size in packs) - mirror.keep_bytes, 0
    for revision, key, size in packs:
        if surplus <= 0:
            break
        if revision == spare:
            continue
        absent = absent_key(revision)
        with registry.index.write() as unit:
            unit.mirrors.unplaced(absent)
            if unit.mirrors.place_pack(revision, key, absent):
                unit.objects.lease(key, registry.grace_ends)
                gone, surplus = gone + 1, surplus - size
    return gone
