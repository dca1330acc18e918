"""Make the next root and the next targets of an operator, without signatures: new keys of a role, a
delegation of a namespace or its lanes, a revocation.

Times are seconds of UTC. Each function returns the bytes of a file that its holders then sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tuf.api.metadata import DelegatedRole, Delegations, Targets

from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust_root.metadata import MAX_AGE, REVOKED, Revocation
from cachesvc_client.wire.errors import InvalidRequest

from .files import RoleKeys, make_root, next_version, revocation_row, role_name, role_paths, sign_file
from .keys import public_key, tuf_key
from .read import read_root, read_targets

T = TypeVar("T")


def next_root(present: bytes | None, now: int, roles: Mapping[str, RoleKeys]) -> bytes:
    """Return the root after ``present``, with the keys of ``roles`` in the place of those that these roles
    have; without a present root the first one."""
    if present is None:
        return make_root(1, now, roles, [])
    root = read_root(present, "the present root").signed
    root.version += 1
    for role, keys in roles.items():
        for keyid in list(root.roles[role].keyids):
            root.revoke_key(keyid, role)
        for key in keys.keys:
            root.add_key(tuf_key(key), role)
        root.roles[role].threshold = keys.threshold
    return sign_file(root, now, [])


def next_targets(present: bytes, now: int, change: Callable[[Targets], T]) -> tuple[bytes, T]:
    """Return the targets after ``present`` with a change, and what ``change`` returned."""
    targets = read_targets(present, "the present targets").signed
    result = change(targets)
    targets.version = next_version(targets.version, now)
    return sign_file(targets, now, []), result


def delegate(
    targets: Targets,
    namespace: str,
    lane: str | None,
    keys: Iterable[PublicKey],
    removed: Iterable[PublicKey],
    threshold: int | None,
) -> DelegatedRole:
    """Add ``keys`` to the signers of a namespace, or of a pattern of its lanes, and remove ``removed``.

    ``threshold``: how many of the keys must sign; ``None`` keeps the present number. Raise ``InvalidRequest``
    for a revoked key, and for a threshold that the keys cannot reach.
    """
    roles, name = _roles(targets), role_name(namespace, lane)
    role = roles.setdefault(name, DelegatedRole(name, [], 1, False, role_paths(namespace, lane)))
    for key in keys:
        _require_not_revoked(targets, key, namespace)
        targets.add_key(tuf_key(key), name)
    for key in removed:
        if not _remove(targets, name, key):
            raise InvalidRequest(f"{key.short} is no key of {name}")
    role.threshold = threshold if threshold is not None else role.threshold
    if not role.keyids:
        del roles[name]
    elif role.threshold > len(role.keyids):
        raise InvalidRequest(
            f"{name}: {role.threshold} of {len(role.keyids)} keys would have to sign",
            "name more keys with --key, or a lower --threshold",
        )
    return role


def role_keys(targets: bytes, namespace: str, lane: str | None) -> list[PublicKey]:
    """Return the keys that may sign for a namespace, or for a pattern of its lanes."""
    delegations = read_targets(targets, "the present targets").signed.delegations
    role = ((delegations.roles or {}) if delegations else {}).get(role_name(namespace, lane))
    if delegations is None or role is None:
        return []
    keys = (public_key(delegations.keys[keyid]) for keyid in role.keyids if keyid in delegations.keys)
    return [key for key in keys if key is not None]


def revoke(targets: Targets, key: PublicKey, now: int, why: str) -> list[str]:
    """Remove a key from every role, and list it as revoked in all namespaces, with the reason.

    Return the names of the roles that had the key. Where the keys that are left are fewer than the threshold,
    the name says so.
    """
    left = []
    for name, role in list(_roles(targets).items()):
        if not _remove(targets, name, key):
            continue
        if not role.keyids:
            del _roles(targets)[name]
            left.append(f"{name} (nobody is left)")
        elif len(role.keyids) < role.threshold:
            left.append(f"{name} ({role.threshold} must sign, {len(role.keyids)} left)")
        else:
            left.append(name)
    others = [row for row in targets.unrecognized_fields.get(REVOKED, []) if row.get("key") != key]
    row = revocation_row(Revocation(key, now, why))
    targets.unrecognized_fields[REVOKED] = sorted([*others, row], key=lambda one: str(one["key"]))
    return left


def set_max_age(targets: Targets, namespace: str, seconds: int | None) -> None:
    """Say for how many seconds after its signature a revision of a namespace counts, or of each (``*``);
    ``None`` says it no more."""
    ages = {**targets.unrecognized_fields.get(MAX_AGE, {}), namespace: seconds}
    present = {place: age for place, age in ages.items() if age is not None}
    targets.unrecognized_fields.pop(MAX_AGE, None)
    if present:
        targets.unrecognized_fields[MAX_AGE] = present


def _roles(targets: Targets) -> dict[str, DelegatedRole]:
    """Return the delegated roles by name; add an empty table where there is none."""
    if targets.delegations is None:
        targets.delegations = Delegations({}, {})
    if targets.delegations.roles is None:
        raise InvalidRequest("the targets have succinct roles, which are not read", "make them anew")
    return targets.delegations.roles


def _remove(targets: Targets, name: str, key: PublicKey) -> bool:
    """Take a key out of a role; return whether it was there."""
    assert targets.delegations is not None
    role = _roles(targets)[name]
    keys = targets.delegations.keys
    keyids = [keyid for keyid in role.keyids if keyid in keys and public_key(keys[keyid]) == key]
    for keyid in keyids:
        targets.revoke_key(keyid, name)
    return bool(keyids)


def _require_not_revoked(targets: Targets, key: PublicKey, namespace: str) -> None:
    for row in targets.unrecognized_fields.get(REVOKED, []):
        if row["key"] == key and row.get("namespace") in (None, namespace):
            raise InvalidRequest(
                f"{key} was revoked: {str(row.get('reason') or 'no reason is listed')[:120]}", "use a new key"
            )
