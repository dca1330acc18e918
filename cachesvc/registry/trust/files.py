"""Sign files of trust metadata and store them, within a transaction whose callers take turns."""

from __future__ import annotations

import json

from cachesvc.domain.access import ANY
from cachesvc.index.access.trust import TrustFile
from cachesvc.index.unit import Unit
from cachesvc.tuf import files
from cachesvc.tuf.keys import TrustKeys
from cachesvc.tuf.read import Root, read_root
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust_root.metadata import REVOKED, Revocation
from cachesvc_client.wire.errors import NotFound

from ..context import Registry

_KEPT_FILES = 10
"""Files of each role but the root that are kept: a client may read while others are signed."""


def newest_file(unit: Unit, role: str) -> TrustFile:
    """Returns the newest file of a role. Raises ``NotFound``."""
    file = unit.trust.newest(role)
    if file is None:
        raise no_metadata()
    return file


def newest_root(unit: Unit) -> Root:
    """Returns the newest root. Raises ``NotFound``."""
    return read_root(newest_file(unit, "root").data).signed


def no_metadata() -> NotFound:
    """Returns the error of a registry without trust metadata."""
    return NotFound("this registry has no trust metadata", "cachesvc admin trust show says how it gets them")


def signs_online(root: Root, keys: TrustKeys) -> bool:
    """Returns whether the registry can sign snapshot and timestamp."""
    return keys.can_sign(root, "snapshot") and keys.can_sign(root, "timestamp")


def signs_targets(root: Root, keys: TrustKeys) -> bool:
    """Returns whether the registry can sign targets, and then what names them."""
    return keys.can_sign(root, "targets") and signs_online(root, keys)


def signs_all(root: Root, keys: TrustKeys) -> bool:
    """Returns whether the registry can sign every role: the registry of one machine."""
    return keys.can_sign(root, "root") and signs_targets(root, keys)


def add_own_root(registry: Registry, keys: TrustKeys, unit: Unit) -> Root:
    """Adds a root of the newest keys that are here, one for each role, which also the keys of the root before
    sign."""
    before = unit.trust.newest("root")
    version = before.version + 1 if before is not None else 1
    newest = {name: keys.newest(name) for name in ("root", "targets", "online")}
    public = {name: files.RoleKeys((key.public,)) for name, key in newest.items() if key is not None}
    roles = {role: public.get(role, public["online"]) for role in files.LIFETIME}
    unsigned = read_root(files.make_root(version, registry.now, roles, [])).signed
    signers = keys.signers(read_root(before.data).signed, "root") if before is not None else []
    signers = [*signers, *keys.signers(unsigned, "root")]
    data = files.make_root(version, registry.now, roles, signers)
    add_file(unit, "root", version, registry.now + files.LIFETIME["root"], data, registry.now)
    return unsigned


def sign_own_targets(registry: Registry, keys: TrustKeys, unit: Unit) -> None:
    """Adds targets of the present signers, and what names them. A signer that was revoked is listed with the
    reason; one that was removed is listed without."""
    before = unit.trust.newest("targets")
    refused = unit.revoked.all(ANY)
    places = {(row.key, row.namespace) for row in refused}
    signers = [
        row
        for row in unit.signers.all(ANY)
        if (row.key, row.namespace) not in places and (row.key, ANY) not in places and _is_usable(row.key)
    ]
    listed = [
        Revocation(PublicKey(row.key), row.revoked, row.why, None if row.namespace == ANY else row.namespace)
        for row in refused
        if _is_usable(row.key)
    ]
    named = {row.key for row in signers} | {one.key for one in listed if one.namespace is None}
    gone = [Revocation(key, at, "") for key, at in _named_before(before, registry.now).items()]
    revoked = sorted(
        [*listed, *(one for one in gone if one.key not in named)],
        key=lambda one: (one.key, one.namespace or ""),
    )
    now, version = registry.now, files.next_version(before.version if before else None, registry.now)
    own = keys.signers(newest_root(unit), "targets")
    data = files.make_targets(version, now, signers, revoked, own, registry.limits.max_ages)
    add_file(unit, "targets", version, now + files.LIFETIME["targets"], data, now)
    sign_online(registry, keys, unit, with_snapshot=True)


def sign_online(registry: Registry, keys: TrustKeys, unit: Unit, *, with_snapshot: bool) -> None:
    """Adds a timestamp, and before it a snapshot of the newest targets if asked for."""
    now, targets, root = registry.now, newest_file(unit, "targets"), newest_root(unit)
    before = unit.trust.newest("snapshot")
    if with_snapshot or before is None:
        version = files.next_version(before.version if before else None, now)
        signers = keys.signers(root, "snapshot")
        data = files.make_snapshot(version, now, targets.version, targets.data, signers)
        add_file(unit, "snapshot", version, now + files.LIFETIME["snapshot"], data, now)
    snapshot = newest_file(unit, "snapshot")
    last = unit.trust.newest("timestamp")
    version = files.next_version(last.version if last else None, now)
    signers = keys.signers(root, "timestamp")
    data = files.make_timestamp(version, now, snapshot.version, snapshot.data, signers)
    add_file(unit, "timestamp", version, now + files.LIFETIME["timestamp"], data, now)


def add_file(unit: Unit, role: str, version: int, expires: int, data: bytes, now: int) -> None:
    """Stores a file. Of each role but the root, only the newest ``_KEPT_FILES`` files are kept."""
    unit.trust.add(TrustFile(role, version, expires, data), now)
    if role != "root":  # a client follows the roots one by one
        unit.trust.keep(role, _KEPT_FILES)


def _is_usable(text: str) -> bool:
    """Returns whether a stored text is a key whose signatures count. An older version stored keys that
    anybody can sign for."""
    try:
        PublicKey(text)
    except ValueError:
        return False
    return True


def _named_before(targets: TrustFile | None, now: int) -> dict[PublicKey, int]:
    """Returns the keys that earlier targets named, as signers or as revoked everywhere, with the time of a
    revocation."""
    if targets is None:
        return {}
    signed = json.loads(targets.data)["signed"]
    named = {
        PublicKey.from_raw(bytes.fromhex(key["keyval"]["public"])): now
        for key in signed["delegations"]["keys"].values()
    }
    revoked = [row for row in signed.get(REVOKED, []) if "namespace" not in row]
    return named | {PublicKey(row["key"]): row["at"] for row in revoked}
