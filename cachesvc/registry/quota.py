"""Hold a namespace to its quota of bytes."""

from __future__ import annotations

from cachesvc.index.unit import Unit
from cachesvc_client.wire.errors import StorageFull
from cachesvc_client.wire.names import Namespace

from .context import Registry


def demand_room(
    registry: Registry, unit: Unit, namespace: Namespace, size: int, policy_quota: int | None
) -> None:
    """Raises ``StorageFull`` if ``size`` more bytes exceed the namespace's quota.

    Before an upload this saves a transfer that cannot be committed. In a commit's transaction it is exact:
    publishers of one namespace wait for each other. ``policy_quota``: the quota of the namespace's policy in
    bytes, as it was read a moment ago.
    """
    if effective_quota(registry, policy_quota) is None:
        return
    quota = effective_quota(registry, unit.namespaces.quota(namespace, lock=True))
    stored = unit.namespaces.bytes(namespace)
    if quota is not None and stored + size > quota:
        raise StorageFull(
            f"namespace {namespace} holds {stored} of the {quota} bytes of its quota; this pack has {size}",
            "an admin makes room: cachesvc admin entries delete, gc, or namespaces set --quota",
        )


def effective_quota(registry: Registry, policy_quota: int | None) -> int | None:
    """Returns the quota in bytes: the policy's, or else the registry's; ``None`` is no quota."""
    return registry.limits.quota_bytes if policy_quota is None else policy_quota
