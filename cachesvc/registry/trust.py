"""Keep the registry's trust metadata: make them, sign anew before their time is over, and give them to
clients.

Clients pin the root. The targets say whose signatures count in which namespace; they follow the registry's
signers where the registry has the key of the targets, which is a registry of one machine.
"""

from __future__ import annotations

import json
import logging
import re

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.index.trust import TrustFile
from cachesvc.index.unit import Unit
from cachesvc.tuf import files
from cachesvc.tuf.keys import TrustKeys
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.trust_root.metadata import REVOKED, Revocation
from cachesvc_client.trust_root.updater import MAX_ROOTS
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.protocol import TrustAnswer

from .context import Registry

_log = logging.getLogger("cachesvc.trust")
_OTHER_KEYS = (
    "the trust metadata cannot be signed anew, because the root names other keys than root.key, targets.key "
    "and online.key in the data folder: restore these files, or services with a pinned root stop restoring"
)
"""Warning for an index whose keys are gone."""
_KEPT_FILES = 10
"""Files of each role but the root that are kept: a client may read while others are signed."""
_NAME = re.compile(r"(?:([1-9][0-9]{0,15})\.(root|snapshot|targets)|(timestamp))\.json")
"""Matches the name of a file that clients ask for."""


def prepare(registry: Registry) -> tuple[str, ...]:
    """Makes the first root, and signs targets anew from the signers that the registry has.

    Each start signs: after a restore from a backup, clients have seen newer versions than the index holds.
    Returns the ids of the root's keys; none in a registry without trust keys, which gets no metadata.
    """
    if registry.trust_keys is None:
        return ()
    with registry.index.write() as unit:
        unit.trust.take_turns()
        if unit.trust.newest("root") is None:
            _add(unit, "root", 1, files.make_root(registry.trust_keys, 1, registry.now), registry.now)
        if _signs(unit, registry.trust_keys):
            _sign_targets(registry, registry.trust_keys, unit)
        else:
            _log.warning(_OTHER_KEYS)
        root = json.loads(_newest(unit, "root").data)["signed"]
    _renew(registry)
    return tuple(root["roles"]["root"]["keyids"])


def follow_signers(registry: Registry, unit: Unit) -> None:
    """Signs targets that name the present signers, in the transaction that changed them.

    Does nothing in a registry without the key of the targets: there the operator signs them.
    """
    keys = registry.trust_keys
    if keys is None or unit.trust.newest("root") is None:
        return
    unit.trust.take_turns()
    if _signs(unit, keys):
        _sign_targets(registry, keys, unit)


def read_update(registry: Registry, by: Token, root: int, snapshot: int, targets: int) -> TrustAnswer:
    """Returns all that a client lacks which has these versions: one request instead of TUF's two to four.

    Raises ``NotFound`` in a registry without trust metadata.
    """
    demand(by, Action.read, by.namespace, by.lane)
    _renew(registry)
    with registry.index.read() as unit:
        newest = {role: unit.trust.newest(role) for role in files.LIFETIME}
        answer: dict[str, str] = {}
        last = newest["root"].version if newest["root"] else 0
        for version in range(root + 1, min(last, root + MAX_ROOTS) + 1):
            file = unit.trust.get("root", version)
            if file is not None:
                answer[f"{version}.root.json"] = file.data.decode()
    for role, known in (("timestamp", -1), ("snapshot", snapshot), ("targets", targets)):
        file = newest[role]
        if file is None:
            raise _no_metadata()
        if file.version != known:
            answer[f"{role}.json" if role == "timestamp" else f"{file.version}.{role}.json"] = (
                file.data.decode()
            )
    return TrustAnswer(answer)


def read_file(registry: Registry, by: Token, name: str) -> bytes:
    """Returns one file by TUF's name of it, such as ``1.root.json``. Raises ``NotFound``."""
    demand(by, Action.read, by.namespace, by.lane)
    match = _NAME.fullmatch(name)
    if match is None:
        raise NotFound(f"{name[:80]!r} is no file of trust metadata")
    _renew(registry)
    with registry.index.read() as unit:
        file = unit.trust.get(match[2], int(match[1])) if match[2] else unit.trust.newest("timestamp")
    if file is None:
        raise NotFound(f"{name}: there is no such file")
    return file.data


def _renew(registry: Registry) -> None:
    """Signs each file anew whose time is half over, if there is one and its key is here."""
    keys = registry.trust_keys
    if keys is None:
        return
    with registry.index.read() as unit:
        if not _old_roles(registry, unit):
            return
    with registry.index.write() as unit:
        unit.trust.take_turns()
        old = _old_roles(registry, unit)
        if not _signs(unit, keys):
            _log.warning(_OTHER_KEYS)
            return
        if "root" in old:
            version = _newest(unit, "root").version + 1
            _add(unit, "root", version, files.make_root(keys, version, registry.now), registry.now)
        if "targets" in old:
            _sign_targets(registry, keys, unit)
        elif old:
            _sign_online(registry, keys, unit, with_snapshot="snapshot" in old)


def _old_roles(registry: Registry, unit: Unit) -> list[str]:
    """Lists the roles whose newest file has less than half of its time left."""
    newest = [unit.trust.newest(role) for role in files.LIFETIME]
    return [
        file.role
        for file in newest
        if file is not None and file.expires - registry.now < files.LIFETIME[file.role] // 2
    ]


def _sign_targets(registry: Registry, keys: TrustKeys, unit: Unit) -> None:
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
    version = _next_version(before, registry.now)
    data = files.make_targets(keys, version, registry.now, signers, revoked)
    _add(unit, "targets", version, data, registry.now)
    _sign_online(registry, keys, unit, with_snapshot=True)


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


def _sign_online(registry: Registry, keys: TrustKeys, unit: Unit, *, with_snapshot: bool) -> None:
    now, targets = registry.now, _newest(unit, "targets")
    before = unit.trust.newest("snapshot")
    if with_snapshot or before is None:
        version = _next_version(before, now)
        data = files.make_snapshot(keys, version, now, targets.version, targets.data)
        _add(unit, "snapshot", version, data, now)
    snapshot = _newest(unit, "snapshot")
    version = _next_version(unit.trust.newest("timestamp"), now)
    data = files.make_timestamp(keys, version, now, snapshot.version, snapshot.data)
    _add(unit, "timestamp", version, data, now)


def _next_version(before: TrustFile | None, now: int) -> int:
    """Returns a version above all earlier ones, also above those that an index from a backup has lost."""
    return max(before.version + 1 if before else 1, now)


def _signs(unit: Unit, keys: TrustKeys) -> bool:
    """Returns whether the newest root names this registry's keys: a backup may be older than a key."""
    roles = json.loads(_newest(unit, "root").data)["signed"]["roles"]
    return all(keys.signer(role).public_key.keyid in roles[role]["keyids"] for role in files.LIFETIME)


def _add(unit: Unit, role: str, version: int, data: bytes, now: int) -> None:
    unit.trust.add(TrustFile(role, version, now + files.LIFETIME[role], data), now)
    if role != "root":  # a client follows the roots one by one
        unit.trust.keep(role, _KEPT_FILES)


def _newest(unit: Unit, role: str) -> TrustFile:
    file = unit.trust.newest(role)
    if file is None:
        raise _no_metadata()
    return file


def _no_metadata() -> NotFound:
    return NotFound(
        "this registry has no trust metadata", "its start makes them, where its data folder has the keys"
    )
