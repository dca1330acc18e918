"""Hold a namespace to its quota of bytes: what is committed, and what each publisher has under way.

Committed bytes count for the namespace. Pending bytes (received or announced, and not committed) count for
their own share alone: a lane's for the lane, the trunk's for the token. So no one's uploads make another's
commit fail, and no share stores more than the room that the committed bytes leave.
"""

from __future__ import annotations

from cachesvc.index.packs.uploads import Upload
from cachesvc.index.unit import Unit
from cachesvc_client.wire.errors import StorageFull
from cachesvc_client.wire.names import Namespace

from ..context import Registry
from .sweep import sweep

_ROOM = "an admin makes room: cachesvc admin entries delete, gc, or namespaces set --quota"


def demand_room(
    registry: Registry, unit: Unit, namespace: Namespace, size: int, policy_quota: int | None
) -> None:
    """Raises ``StorageFull`` if ``size`` more committed bytes exceed the namespace's quota.

    Before an upload this saves a transfer that cannot be committed. In a commit's transaction it is exact:
    publishers of one namespace wait for each other. ``policy_quota``: the quota of the namespace's policy in
    bytes, as it was read a moment ago.
    """
    if effective_quota(registry, policy_quota) is not None:
        _demand_room(registry, unit, namespace, size)


def add_pending(registry: Registry, upload: Upload, key: str, leased_until: int, quota: int | None) -> None:
    """Adds the object that will have the bytes of an upload, and counts them as pending of its share.

    ``quota``: that of the namespace's policy in bytes, as it was read a moment ago. Raises ``StorageFull``
    if the namespace's committed bytes and the pending bytes of the share exceed the quota with this upload.
    Bytes that the share has left behind are deleted first.
    """
    share = _share(upload)
    if effective_quota(registry, quota) is None:
        with registry.index.write_once() as unit:
            unit.objects.add(key, leased_until, share, upload.size)
        return
    pending = _try_to_add(registry, upload, key, leased_until, share)
    if pending and sweep(registry, share):
        pending = _try_to_add(registry, upload, key, leased_until, share)
    if pending:
        whose = f"lane {upload.lane}" if upload.lane else f"token {upload.token}"
        raise StorageFull(
            f"{whose} has {pending} bytes under way in namespace {upload.namespace}; with the {upload.size} "
            "bytes of this pack they exceed what its quota leaves",
            f"commit or end those uploads; what is left behind counts for {registry.limits.lease_seconds} s",
        )


def effective_quota(registry: Registry, policy_quota: int | None) -> int | None:
    """Returns the quota in bytes: the policy's, or else the registry's; ``None`` is no quota."""
    return registry.limits.quota_bytes if policy_quota is None else policy_quota


def _share(upload: Upload) -> str:
    """Returns whose pending bytes those of the upload are. A lane is one share, however many tokens its jobs
    get."""
    return f"{upload.namespace} lane {upload.lane}" if upload.lane else f"{upload.namespace} {upload.token}"


def _try_to_add(registry: Registry, upload: Upload, key: str, leased_until: int, share: str) -> int:
    """Adds the object and returns 0; where the share has no room for it, returns its pending bytes.

    Raises ``StorageFull`` if the committed bytes alone leave no room.
    """
    with registry.index.write() as unit:
        room = _demand_room(registry, unit, upload.namespace, upload.size)
        pending = unit.objects.pending(share, key.rpartition("-")[0])
        if room is not None and pending > room:
            return pending
        unit.objects.add(key, leased_until, share, upload.size)
    return 0


def _demand_room(registry: Registry, unit: Unit, namespace: Namespace, size: int) -> int | None:
    """Returns the bytes that are free beyond ``size``; ``None``: without a bound. Raises ``StorageFull``."""
    quota = effective_quota(registry, unit.namespaces.quota(namespace, lock=True))
    if quota is None:
        return None
    stored = unit.namespaces.bytes(namespace)
    if stored + size > quota:
        raise StorageFull(
            f"namespace {namespace} holds {stored} of the {quota} bytes of its quota; this pack has {size}",
            _ROOM,
        )
    return quota - stored - size
