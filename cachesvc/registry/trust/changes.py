"""Take roots and targets that an operator has signed offline, and make new keys where the registry has its
own."""

from __future__ import annotations

from cachesvc.domain.access import ANY, Action, Token, demand
from cachesvc.index.access.trust import TrustFile
from cachesvc.index.unit import Unit
from cachesvc.schema.trust_changes import KeysRequest, RootRequest, TargetsRequest, TrustState
from cachesvc.tuf.keys import KEY_NAMES, TrustKeys, key_texts
from cachesvc.tuf.read import Root, check_root, check_targets, read_root, read_targets, signed_at
from cachesvc_client.bundle.seal import key_text
from cachesvc_client.trust_root.registry_metadata import NoFiles
from cachesvc_client.trust_root.updater import (
    CLOCK_SKEW_SECONDS,
    MAX_METADATA_BYTES,
    MAX_ROOT_BYTES,
    Updater,
)
from cachesvc_client.wire.durations import duration_text
from cachesvc_client.wire.errors import HeadConflict, InvalidRequest, NotFound, TooLarge, Untrusted

from ..audit import note
from ..context import Registry
from .files import (
    add_file,
    add_own_root,
    newest_file,
    newest_root,
    sign_online,
    sign_own_targets,
    signs_all,
    signs_online,
)

_NO_KEY = (
    "this registry has no online key",
    "set CACHESVC_SERVER_ONLINE_KEY to a key of cachesvc keygen, on every replica, and restart",
)
"""Message and hint for a registry that cannot sign snapshot and timestamp."""


def read_state(registry: Registry, by: Token) -> TrustState:
    """Returns which roles the registry signs itself, and the online key that the next root is to name.
    Raises ``NotFound`` for a mirror, which signs nothing."""
    demand(by, Action.read, by.namespace, by.lane)
    if registry.mirror is not None:
        raise NotFound(f"a mirror of {registry.mirror.upstream.url} signs nothing", "ask there")
    with registry.index.read() as unit:
        return _state(registry, unit)


def put_root(registry: Registry, by: Token, request: RootRequest) -> TrustState:
    """Stores the next root, perhaps with new targets, if the operator's keys signed them; then the registry
    signs snapshot and timestamp.

    Sending the same root again is a success. Raises ``HeadConflict`` if there is another root of that version
    already, ``Untrusted`` for what clients would refuse. A refused request changes nothing.
    """
    demand(by, Action.admin, ANY)
    data = _bounded(request.root, MAX_ROOT_BYTES, "root.json")
    new = read_root(data)
    root = new.signed
    with registry.index.write() as unit:
        unit.trust.take_turns()
        before = unit.trust.newest("root")
        last = newest_root(unit) if before is not None else None
        if before is None or before.data != data:
            _require_next(root.version, before)
            check_root(new, last)
            _require_time(registry, signed_at(new), "root.json")
            _require_online_key(registry, root)
            add_file(unit, "root", root.version, int(root.expires.timestamp()), data, registry.now)
            note(registry, unit, by, "trust.root", ANY, f"root {root.version}", keys=_root_keys(root))
        if request.targets is not None:
            _add_targets(registry, unit, by, request.targets, root)
        elif unit.trust.newest("targets") is None:
            raise InvalidRequest("the first root comes with its targets", "cachesvc admin trust init")
        _sign_and_check(registry, unit, before)
        state = _state(registry, unit)
    _keys(registry).settle(root)
    return state


def put_targets(registry: Registry, by: Token, request: TargetsRequest) -> TrustState:
    """Stores the next targets, if enough keys that the root names signed them; then the registry signs
    snapshot and timestamp. Raises as :func:`put_root` does."""
    demand(by, Action.admin, ANY)
    with registry.index.write() as unit:
        unit.trust.take_turns()
        before = newest_file(unit, "root")
        _require_online_key(registry, newest_root(unit))
        if _add_targets(registry, unit, by, request.targets, newest_root(unit)):
            _sign_and_check(registry, unit, before)
        return _state(registry, unit)


def make_keys(registry: Registry, by: Token, request: KeysRequest) -> TrustState:
    """Makes new keys. A registry that signs its own root signs the root that names them at once; elsewhere
    the new online key waits for a root that names it.

    Raises ``InvalidRequest`` for keys that the operator holds.
    """
    demand(by, Action.admin, ANY)
    if not request.keys or not set(request.keys) <= set(KEY_NAMES):
        raise InvalidRequest("keys: name some of root, targets and online")
    keys = _keys(registry)
    with registry.index.write() as unit:
        unit.trust.take_turns()
        before = newest_file(unit, "root")
        last = newest_root(unit)
        if not signs_all(last, keys) and request.keys != ("online",):
            raise InvalidRequest(
                "the operator holds the keys of root and targets", "cachesvc admin trust rotate-root"
            )
        if "online" in request.keys and not keys.makes_keys and keys.names_newest_online(last):
            raise InvalidRequest(
                "the online key comes from the settings, so this registry makes none",
                "put a new one into CACHESVC_SERVER_ONLINE_KEY, restart every replica, and then: "
                "cachesvc admin trust rotate-online",
            )
        keys.prepare_next(name for name in request.keys if name != "online" or keys.makes_keys)
        if signs_all(last, keys):
            root = add_own_root(registry, keys, unit)
            sign_own_targets(registry, keys, unit)
            _check_as_client(registry, unit, before.data)
            subject = f"root {root.version}"
            note(registry, unit, by, "trust.root", ANY, subject, new=", ".join(request.keys))
        else:
            note(registry, unit, by, "trust.key", ANY, "online key")
        root = newest_root(unit)
    keys.settle(root)
    with registry.index.read() as unit:
        return _state(registry, unit)


def _add_targets(registry: Registry, unit: Unit, by: Token, text: str, root: Root) -> bool:
    """Stores targets unless they are the newest already; returns whether they are new."""
    data = _bounded(text, MAX_METADATA_BYTES, "targets.json")
    targets = read_targets(data)
    version, before = targets.signed.version, unit.trust.newest("targets")
    if before is not None and before.data == data:
        return False
    if before is not None and version <= before.version:
        raise HeadConflict(
            f"targets.json is version {version}, and version {before.version} is stored: somebody else was "
            "faster, or it is an old draft",
            "make it again from the present targets, and sign that",
        )
    check_targets(targets, root)
    _require_time(registry, signed_at(targets), "targets.json")
    now, expires = registry.now, int(targets.signed.expires.timestamp())
    add_file(unit, "targets", version, expires, data, now)
    delegations = targets.signed.delegations
    names = ", ".join(delegations.roles or {}) if delegations is not None else ""
    note(registry, unit, by, "trust.targets", ANY, f"targets {version}", roles=names or None)
    return True


def _sign_and_check(registry: Registry, unit: Unit, before: TrustFile | None) -> None:
    """Signs snapshot and timestamp, and lets the client's own reader go from the root before to the new
    targets."""
    sign_online(registry, _keys(registry), unit, with_snapshot=True)
    _check_as_client(registry, unit, (before or newest_file(unit, "root")).data)


def _check_as_client(registry: Registry, unit: Unit, pinned: bytes) -> None:
    """Raises ``Untrusted`` or ``Corrupt`` if a client that has pinned this root would refuse what is stored.
    The reader's own hints are for a client."""

    def fetch(name: str, _limit: int) -> bytes:
        version, _, role = name.removesuffix(".json").rpartition(".")
        file = unit.trust.get(role, int(version)) if version else unit.trust.newest(role)
        if file is None:
            raise NotFound(f"{name}: there is no such file")
        return file.data

    try:
        Updater(pinned, NoFiles(), "this registry", registry.now).refresh(fetch)
    except Untrusted as error:
        raise type(error)(
            f"clients would refuse this: {error.message}",
            "root and targets must fit together: sign both anew, and send them as one draft",
        ) from None


def _state(registry: Registry, unit: Unit) -> TrustState:
    keys = registry.trust_keys
    online = keys.newest("online") if keys is not None else None
    if unit.trust.newest("root") is None:
        own = keys is not None and keys.makes_keys
        return TrustState(own, own, online.public if online is not None else None)
    root = newest_root(unit)
    return TrustState(
        keys is not None and signs_all(root, keys),
        keys is not None and signs_online(root, keys),
        online.public if online is not None else None,
        root.version,
    )


def _keys(registry: Registry) -> TrustKeys:
    if registry.trust_keys is None:
        raise InvalidRequest(*_NO_KEY)
    return registry.trust_keys


def _require_next(version: int, before: TrustFile | None) -> None:
    if before is None:
        return
    if version <= before.version:
        raise HeadConflict(
            f"root.json is version {version}, and root {before.version} is stored: somebody else was faster, "
            "or it is an old draft",
            "make it again from the present root, and sign that",
        )
    if version != before.version + 1:
        raise InvalidRequest(
            f"root.json is version {version}, and the next one is {before.version + 1}",
            "clients go from root to root: send each one",
        )


def _require_online_key(registry: Registry, root: Root) -> None:
    """Raises ``InvalidRequest`` unless this registry can sign what ``root`` leaves to it."""
    keys = _keys(registry)
    if not signs_online(root, keys):
        online = keys.newest("online")
        named = ", ".join(sorted(map(key_text, key_texts(root, "timestamp"))))
        raise InvalidRequest(
            f"the root leaves snapshot and timestamp to key {named}, and this registry's online key is "
            f"{online.public.short if online is not None else 'missing'}",
            "give every replica the same CACHESVC_SERVER_ONLINE_KEY, or: cachesvc admin trust rotate-online",
        )
    if not root.consistent_snapshot:
        raise InvalidRequest("root.json: consistent_snapshot is false", "this registry has versions of files")


def _require_time(registry: Registry, at: int | None, what: str) -> None:
    """Raises ``Untrusted`` for a file of the future. Clients would refuse it too, and name their own
    clock."""
    if at is not None and at > registry.now + CLOCK_SKEW_SECONDS:
        raise Untrusted(
            f"{what} was signed {duration_text(at - registry.now)} after the registry's time: a clock is "
            "wrong",
            "set the clock of the machine that signed, or the registry's, and sign again",
        )


def _bounded(text: str, limit: int, what: str) -> bytes:
    data = text.encode(errors="replace")  # half of a character has no UTF-8: no signature fits the file then
    if len(data) > limit:
        raise TooLarge(f"{what}: {len(data)} bytes; at most {limit} are allowed")
    return data


def _root_keys(root: Root) -> str:
    return ", ".join(map(key_text, key_texts(root, "root")))
