"""Read the four kinds of trust metadata, strictly: root, timestamp, snapshot and targets of TUF 1.0.

What TUF does not define is allowed and ignored, as TUF demands, but for three fields of ours:
``x-cachesvc-signed-at`` (seconds of UTC) of any file, and ``x-cachesvc-revoked`` and ``x-cachesvc-max-age``
of targets.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from ..bundle.seal import PublicKey
from ..wire.errors import Corrupt
from .keys import MetadataKey
from .signed import Role, SignedFile

M = TypeVar("M")

SIGNED_AT = "x-cachesvc-signed-at"
"""Name of the field that says when a file was signed, in seconds of UTC."""
REVOKED = "x-cachesvc-revoked"
"""Name of the field of targets that lists revoked signers."""
MAX_AGE = "x-cachesvc-max-age"
"""Name of the field of targets that says by namespace, or ``*``, for how many seconds a revision counts."""
TOP_ROLES = ("root", "timestamp", "snapshot", "targets")
"""Names of the roles that a root defines."""
_SPEC_VERSION = re.compile(r"1\.[0-9]{1,4}(?:\.[0-9]{1,4})?")
"""Matches the versions of TUF's formats that are read."""
_EXPIRES = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
"""Matches a time in TUF's form."""
_HASHES: dict[str, Callable[[bytes], Any]] = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
"""Hash functions that count, by the names in metadata."""


@dataclass(frozen=True, slots=True)
class Common:
    """Holds what every file says of itself. ``expires``, ``signed_at``: seconds of UTC."""

    version: int
    expires: int
    signed_at: int | None


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Describes another file that a file vouches for."""

    version: int
    length: int | None
    hashes: Mapping[str, str] | None

    def check(self, data: bytes, what: str) -> None:
        """Raise ``Corrupt`` unless ``data`` has the length and the hashes, as far as they are named."""
        if self.length is not None and len(data) > self.length:
            raise Corrupt(f"{what}: longer than the {self.length} bytes that are signed")
        if self.hashes is None:
            return
        names = [name for name in self.hashes if name in _HASHES]
        if not names or any(_HASHES[name](data).hexdigest() != self.hashes[name] for name in names):
            raise Corrupt(f"{what}: the bytes do not have the hash that is signed")


@dataclass(frozen=True, slots=True)
class Root:
    """Holds the keys of all roles."""

    common: Common
    keys: Mapping[str, MetadataKey]
    roles: Mapping[str, Role]
    consistent_snapshot: bool


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Names the present snapshot."""

    common: Common
    snapshot: FileInfo


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Names the present file of every targets role."""

    common: Common
    files: Mapping[str, FileInfo]


@dataclass(frozen=True, slots=True)
class Delegation:
    """Holds a role that targets delegate to: who may sign for the paths that fit ``paths``."""

    name: str
    role: Role
    paths: tuple[str, ...]
    terminating: bool


@dataclass(frozen=True, slots=True)
class Revocation:
    """Describes a signer whose signatures count no more. ``at``: seconds of UTC. ``namespace``: the one that
    refuses the signer; ``None`` if all do."""

    key: PublicKey
    at: int
    reason: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Holds the delegations: the signers of each namespace and lane rule. ``ages``: by namespace, or ``*``,
    the seconds after its signature for which a revision counts."""

    common: Common
    keys: Mapping[str, MetadataKey]
    delegations: tuple[Delegation, ...]
    revoked: tuple[Revocation, ...]
    ages: Mapping[str, int]


def key_texts(keys: Mapping[str, MetadataKey], role: Role) -> tuple[str, ...]:
    """Return the keys of a role as texts: an Ed25519 key whole, as ``ed25519:…``; of another key its type and
    the beginning of its id in the metadata."""
    texts = []
    for keyid in role.keyids:
        key = keys.get(keyid)
        kind = key.keytype if key is not None else "unknown"
        texts.append((key.signer if key is not None else None) or f"{kind}:{keyid[:16]}")
    return tuple(texts)


def read_root(file: SignedFile) -> Root:
    """Return the root in a file whose signatures were checked. Raise ``Corrupt``."""
    return _read(file, "root", _root)


def read_timestamp(file: SignedFile) -> Timestamp:
    """Return the timestamp in a file whose signatures were checked. Raise ``Corrupt``."""
    return _read(file, "timestamp", _timestamp)


def read_snapshot(file: SignedFile) -> Snapshot:
    """Return the snapshot in a file whose signatures were checked. Raise ``Corrupt``."""
    return _read(file, "snapshot", _snapshot)


def read_targets(file: SignedFile) -> Targets:
    """Return the targets in a file whose signatures were checked. Raise ``Corrupt``."""
    return _read(file, "targets", _targets)


def _read(file: SignedFile, role: str, reader: Callable[[dict[str, Any], Common], M]) -> M:
    content = file.content
    try:
        if content.get("_type") != role:
            raise ValueError(f"_type: {str(content.get('_type'))[:40]!r}, {role!r} is expected")
        if not _SPEC_VERSION.fullmatch(_text(content, "spec_version")):
            raise ValueError(f"spec_version: {str(content['spec_version'])[:40]!r}, this client reads 1.x")
        signed_at = content.get(SIGNED_AT)
        if signed_at is not None and type(signed_at) is not int:
            raise ValueError(f"{SIGNED_AT}: a number of seconds is expected")
        return reader(content, Common(_number(content, "version", 1), _expires(content), signed_at))
    except ValueError as error:
        raise Corrupt(f"{file.what}: {str(error)[:300]}") from None


def _root(content: dict[str, Any], common: Common) -> Root:
    roles = {name: Role.read(value, f"roles.{name}") for name, value in _object(content, "roles").items()}
    missing = [name for name in TOP_ROLES if name not in roles]
    if missing:
        raise ValueError(f"roles: {', '.join(missing)} missing")
    consistent = content.get("consistent_snapshot", False)
    if not isinstance(consistent, bool):
        raise ValueError("consistent_snapshot: true or false is expected")
    return Root(common, _keys(content), roles, consistent)


def _timestamp(content: dict[str, Any], common: Common) -> Timestamp:
    files = _file_infos(content)
    if "snapshot.json" not in files:
        raise ValueError("meta: snapshot.json missing")
    return Timestamp(common, files["snapshot.json"])


def _snapshot(content: dict[str, Any], common: Common) -> Snapshot:
    files = _file_infos(content)
    if "targets.json" not in files:
        raise ValueError("meta: targets.json missing")
    return Snapshot(common, files)


def _targets(content: dict[str, Any], common: Common) -> Targets:
    _object(content, "targets")
    revoked = tuple(_revocation(item) for item in _list(content, REVOKED)) if REVOKED in content else ()
    listed = _object(content, MAX_AGE) if MAX_AGE in content else {}
    ages = {place: _number(listed, place, 1) for place in listed}
    if "delegations" not in content:
        return Targets(common, {}, (), revoked, ages)
    delegations = _object(content, "delegations")
    if "roles" not in delegations:
        raise ValueError("delegations: roles missing (succinct_roles are not read)")
    roles = tuple(_delegation(value) for value in _list(delegations, "roles"))
    if len({role.name for role in roles}) != len(roles):
        raise ValueError("delegations.roles: two roles of one name")
    return Targets(common, _keys(delegations), roles, revoked, ages)


def _delegation(value: Any) -> Delegation:
    if not isinstance(value, dict):
        raise ValueError("delegations.roles: objects are expected")
    name = _text(value, "name")
    if not name or name in TOP_ROLES:
        raise ValueError(f"delegations.roles: {name!r} is no name of a delegated role")
    if "paths" not in value:
        raise ValueError(f"delegations.roles.{name[:60]}: paths missing (path_hash_prefixes are not read)")
    paths = _list(value, "paths")
    if not all(isinstance(path, str) for path in paths):
        raise ValueError(f"delegations.roles.{name[:60]}.paths: text is expected")
    terminating = value.get("terminating")
    if not isinstance(terminating, bool):
        raise ValueError(f"delegations.roles.{name[:60]}.terminating: true or false is expected")
    return Delegation(name, Role.read(value, f"delegations.roles.{name[:60]}"), tuple(paths), terminating)


def _revocation(value: Any) -> Revocation:
    if not isinstance(value, dict):
        raise ValueError(f"{REVOKED}: objects are expected")
    namespace = _text(value, "namespace") if "namespace" in value else None
    return Revocation(PublicKey(value.get("key")), _number(value, "at", 0), _text(value, "reason"), namespace)


def _file_infos(content: dict[str, Any]) -> dict[str, FileInfo]:
    return {name: _file_info(name, value) for name, value in _object(content, "meta").items()}


def _file_info(name: str, value: Any) -> FileInfo:
    if not isinstance(value, dict):
        raise ValueError(f"meta.{name[:60]}: an object is expected")
    hashes = _object(value, "hashes") if "hashes" in value else None
    if hashes is not None and not (hashes and all(isinstance(item, str) for item in hashes.values())):
        raise ValueError(f"meta.{name[:60]}.hashes: text is expected")
    length = _number(value, "length", 0) if "length" in value else None
    return FileInfo(_number(value, "version", 1), length, hashes)


def _keys(content: dict[str, Any]) -> dict[str, MetadataKey]:
    keys = _object(content, "keys").items()
    return {keyid: MetadataKey.read(value, f"keys.{keyid[:16]}") for keyid, value in keys}


def _expires(content: dict[str, Any]) -> int:
    text = _text(content, "expires")
    if not _EXPIRES.fullmatch(text):
        raise ValueError("expires: a time such as 2030-01-31T12:00:00Z is expected")
    return int(datetime.fromisoformat(text[:-1] + "+00:00").timestamp())


def _object(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name}: an object is expected")
    return value


def _list(content: dict[str, Any], name: str) -> list[Any]:
    value = content.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name}: a list is expected")
    return value


def _text(content: dict[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: text is expected")
    return value


def _number(content: dict[str, Any], name: str, least: int) -> int:
    value = content.get(name)
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: a number of {least} or more is expected")
    return value
