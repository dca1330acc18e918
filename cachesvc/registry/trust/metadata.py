"""Keep the registry's trust metadata: make them, sign anew before their time is over, and give them to
clients.

Clients pin the root. The targets say whose signatures count in which namespace; they follow the registry's
signers where the registry has the key of the targets, which is a registry of one machine. Elsewhere the
operator signs root and targets, and the registry signs snapshot and timestamp alone.
"""

from __future__ import annotations

import logging
import re
import time

from cachesvc.domain.access import Action, Token, demand
from cachesvc.index.access.trust import TrustFile
from cachesvc.index.unit import Unit
from cachesvc.tuf import files
from cachesvc.tuf.keys import TrustKeys, key_texts
from cachesvc.tuf.read import Root
from cachesvc_client.trust_root.updater import MAX_ROOTS
from cachesvc_client.wire.errors import InvalidRequest, NotFound
from cachesvc_client.wire.requests.protocol import TrustAnswer

from ..context import Registry
from .files import (
    add_own_root,
    newest_file,
    newest_root,
    no_metadata,
    sign_online,
    sign_own_targets,
    signs_all,
    signs_online,
    signs_targets,
)

_log = logging.getLogger("cachesvc.trust")
_OTHER_KEYS = (
    "the trust metadata cannot be signed anew, because the root names other keys than this registry has: "
    "restore root.key, targets.key and online.key in the data folder, or the setting online_key; or let the "
    "root name the present online key: cachesvc admin trust rotate-online. Else services with a pinned root "
    "stop restoring"
)
"""Warning for an index whose keys are gone."""
_NAME = re.compile(r"(?:([1-9][0-9]{0,15})\.(root|snapshot|targets)|(timestamp))\.json")
"""Matches the name of a file that clients ask for."""


def prepare(registry: Registry) -> tuple[str, ...]:
    """Makes the first root of a registry of one machine, and signs anew what the registry has keys for.

    Each start signs: after a restore from a backup, clients have seen newer versions than the index holds.
    Returns the root's keys as texts; none in a registry without trust metadata.
    """
    keys = registry.trust_keys
    with registry.index.read() as unit:
        missing = unit.trust.newest("root") is None
    if missing and (keys is None or not keys.makes_keys):
        return ()
    if keys is None:
        _log.warning(_OTHER_KEYS)
        with registry.index.read() as unit:
            return key_texts(newest_root(unit), "root")
    with registry.index.write() as unit:
        unit.trust.take_turns()
        if unit.trust.newest("root") is None:
            keys.make_missing()
            add_own_root(registry, keys, unit)
        root = newest_root(unit)
        if signs_targets(root, keys):
            sign_own_targets(registry, keys, unit)
        elif signs_online(root, keys):
            sign_online(registry, keys, unit, with_snapshot=True)
        _log_keys(root, keys, unit)
    keys.settle(root)
    _renew(registry)
    return key_texts(root, "root")


def follow_signers(registry: Registry, unit: Unit) -> None:
    """Signs targets that name the present signers, in the transaction that changed them.

    Does nothing in a registry without the key of the targets: there the operator signs them.
    """
    keys = registry.trust_keys
    if keys is None or unit.trust.newest("root") is None:
        return
    unit.trust.take_turns()
    if signs_targets(newest_root(unit), keys):
        sign_own_targets(registry, keys, unit)


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
            raise no_metadata()
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
    """Signs each file anew whose time is half over, if there is one and its key is here.

    Of several replicas one signs, and the others find that nothing is old any more.
    """
    try:
        _renew_by(registry, registry.trust_keys)
    except InvalidRequest as error:  # a key file that cannot be read is no fault of the client that asks
        _log.warning("the trust metadata are not signed anew: %s", error)


def _renew_by(registry: Registry, keys: TrustKeys | None) -> None:
    if keys is None:
        return
    with registry.index.read() as unit:
        old = _old_roles(registry, unit)
        if not old:
            return
        root = newest_root(unit)
        if not signs_online(root, keys):
            _log.warning(_OTHER_KEYS)
            return
        if not _signable(root, keys, old):
            return
    with registry.index.write() as unit:
        unit.trust.take_turns()
        root = newest_root(unit)
        old = _signable(root, keys, _old_roles(registry, unit))
        if "root" in old:
            add_own_root(registry, keys, unit)
        if "targets" in old:
            sign_own_targets(registry, keys, unit)
        elif old:
            sign_online(registry, keys, unit, with_snapshot="snapshot" in old)


def _old_roles(registry: Registry, unit: Unit) -> list[str]:
    """Lists the roles whose newest file has less than half of its time left."""
    newest = [unit.trust.newest(role) for role in files.LIFETIME]
    return [file.role for file in newest if file is not None and _is_old(file, registry.now)]


def _is_old(file: TrustFile, now: int) -> bool:
    return file.expires - now < files.LIFETIME[file.role] // 2


def elsewhere_signed(registry: Registry, unit: Unit) -> dict[str, int]:
    """Return the seconds until the newest file of each role expires that this registry does not sign anew
    by itself: its key is with the operator, or gone. Nothing in a registry without trust metadata."""
    newest = {role: unit.trust.newest(role) for role in files.LIFETIME}
    if newest["root"] is None:
        return {}
    keys = registry.trust_keys
    root = newest_root(unit)
    own = _signable(root, keys, list(newest)) if keys is not None and signs_online(root, keys) else []
    return {
        role: file.expires - registry.now
        for role, file in newest.items()
        if file is not None and role not in own
    }


def _signable(root: Root, keys: TrustKeys, roles: list[str]) -> list[str]:
    """Returns those of ``roles`` that the registry signs itself: an operator's root and targets are not."""
    own = {"root": signs_all, "targets": signs_targets}
    return [role for role in roles if own.get(role, signs_online)(root, keys)]


def _log_keys(root: Root, keys: TrustKeys, unit: Unit) -> None:
    """Logs at a start which keys are not here, and what the operator has to do."""
    if not signs_online(root, keys):
        _log.warning(_OTHER_KEYS)
    elif not signs_targets(root, keys):
        _log.info(_offline_keys(keys, unit))


def _offline_keys(keys: TrustKeys, unit: Unit) -> str:
    """Returns a line about the keys that the operator holds."""
    ends = {role: time.strftime("%Y-%m-%d", time.gmtime(newest_file(unit, role).expires)) for role in _HELD}
    unneeded = [f"{role}.key" for role in _HELD if keys.newest(role) is not None]
    line = (
        f"the operator holds the keys of root (expires {ends['root']}) and targets (expires "
        f"{ends['targets']}): cachesvc admin trust renew signs them anew"
    )
    if unneeded:
        line += f"; {' and '.join(unneeded)} in the data folder are not needed any more: delete them"
    return line


_HELD = ("root", "targets")
"""Roles whose keys an operator may hold."""
