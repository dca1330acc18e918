"""Follow TUF's client workflow: from the pinned root to the present targets, each step signed by the one
before.

The steps and their order are those of section 5 of the specification (1.0.33). Files that pass are kept
locally, so that an older file is refused later. Local files are verified again at each start, from the pinned
root on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from ..wire.durations import duration_text
from ..wire.errors import CacheSvcError, NotFound, Untrusted
from .metadata import (
    Common,
    FileInfo,
    Root,
    Snapshot,
    Targets,
    Timestamp,
    read_root,
    read_snapshot,
    read_targets,
    read_timestamp,
)
from .signed import SignedFile

M = TypeVar("M")

MAX_ROOT_BYTES = 256 << 10
"""Largest number of bytes of a root."""
MAX_TIMESTAMP_BYTES = 16 << 10
"""Largest number of bytes of a timestamp."""
MAX_METADATA_BYTES = 4 << 20
"""Largest number of bytes of a snapshot, and of targets."""
MAX_ROOTS = 256
"""Largest number of new roots that one update goes through."""
CLOCK_SKEW_SECONDS = 300
"""Seconds by which the clocks of registry and client may differ when a signing time is checked."""

Fetch = Callable[[str, int], bytes]
"""Returns a file of the registry by its name, such as ``2.root.json``; reads so many bytes at most. Raises
``NotFound`` if there is none."""


class LocalFiles(Protocol):
    """Declares where files that passed are kept."""

    def read(self, name: str) -> bytes | None:
        """Return a file; ``None`` if it is not here."""

    def write(self, name: str, data: bytes) -> None:
        """Keep a file in place of an earlier one."""

    def remove(self, name: str) -> None:
        """Remove a file if it is here."""


@dataclass(frozen=True, slots=True)
class TrustMetadata:
    """Holds what an update has verified."""

    root: Root
    timestamp: Timestamp
    snapshot: Snapshot
    targets: Targets


class Updater:
    """Verify the trust metadata of one registry.

    ``pinned``: bytes of the root that the user trusts. ``where``: the registry, for messages. ``now``:
    seconds of UTC; the time of the whole update. ``allow_expired``: accept files after their time, for the
    operator who signs them anew.
    """

    def __init__(
        self, pinned: bytes, local: LocalFiles, where: str, now: float, *, allow_expired: bool = False
    ) -> None:
        """Read the pinned root and the local roots after it. Raise ``Untrusted`` if the pinned root does not
        hold."""
        self._local, self._where, self._now = local, where, now
        self._allow_expired = allow_expired
        self._verified: dict[tuple[str, bytes], object] = {}
        # By role and bytes: what the present root's keys signed. Several steps read the same local file, and
        # its signatures are checked once.
        file = self._parse(pinned, MAX_ROOT_BYTES, "root.json")
        root = read_root(file)
        self._require_signed(file, "root", root, "it")
        self._root = root
        self._follow_local_roots()

    def versions(self) -> tuple[int, int, int]:
        """Return the versions of root, snapshot and targets that are here; 0 for a file that does not
        hold."""
        snapshot = self._read_local("snapshot.json", self._snapshot)
        targets = self._read_local("targets.json", self._targets)
        return (
            self._root.common.version,
            snapshot.common.version if snapshot else 0,
            targets.common.version if targets else 0,
        )

    def refresh(self, fetch: Fetch) -> TrustMetadata:
        """Bring the metadata up to date. Raise ``Untrusted`` or ``Corrupt`` for metadata that do not hold,
        and what ``fetch`` raises."""
        self._update_root(fetch)
        timestamp = self._update_timestamp(fetch)
        snapshot = self._update_snapshot(timestamp, fetch)
        return TrustMetadata(self._root, timestamp, snapshot, self._update_targets(snapshot, fetch))

    def refresh_root(self, fetch: Fetch) -> Root:
        """Bring the root alone up to date, and return it. Raise as `refresh` does."""
        self._update_root(fetch)
        return self._root

    def last(self) -> TrustMetadata | None:
        """Return the local metadata, without asking the registry; ``None`` if there are none.

        Raise ``Untrusted`` if they do not hold any more, such as after their time.
        """
        if any(
            self._local.read(name) is None for name in ("timestamp.json", "snapshot.json", "targets.json")
        ):
            return None
        return self.refresh(self._fetch_locally)

    def _fetch_locally(self, name: str, _limit: int) -> bytes:
        data = self._local.read(name.split(".", 1)[1] if name[0].isdigit() else name)
        if data is None or "root" in name:
            raise NotFound(f"{name}: not on this node")
        return data

    def _follow_local_roots(self) -> None:
        for _ in range(MAX_ROOTS):
            data = self._local.read(f"{self._root.common.version + 1}.root.json")
            if data is None:
                return
            try:
                self._take_root(self._next_root(data))
            except Untrusted:  # a damaged file: the registry is asked for it again
                return

    def _update_root(self, fetch: Fetch) -> None:
        for _ in range(MAX_ROOTS):
            name = f"{self._root.common.version + 1}.root.json"
            try:
                data = fetch(name, MAX_ROOT_BYTES)
            except NotFound:
                break
            root = self._next_root(data)
            # Versions that an attacker has raised are forgotten when the keys change. First the files go: if
            # the process ends here, the next one does the same again.
            if any(_signers(root, role) != _signers(self._root, role) for role in ("timestamp", "snapshot")):
                self._local.remove("timestamp.json")
                self._local.remove("snapshot.json")
            self._local.write(name, data)
            self._take_root(root)
        self._require_current(self._root.common, "root.json")

    def _take_root(self, root: Root) -> None:
        """Go on with another root. What the earlier root's keys signed must be checked again."""
        self._root = root
        self._verified.clear()

    def _next_root(self, data: bytes) -> Root:
        """Return the root after the present one. Raise ``Untrusted`` unless both roots' keys signed it."""
        version = self._root.common.version + 1
        file = self._parse(data, MAX_ROOT_BYTES, f"{version}.root.json")
        self._require_signed(file, "root", self._root, f"root {version - 1}")
        root = read_root(file)
        self._require_signed(file, "root", root, "it")
        if root.common.version != version:
            raise Untrusted(f"{self._where}: {file.what}: it is version {root.common.version}")
        return root

    def _update_timestamp(self, fetch: Fetch) -> Timestamp:
        name = "timestamp.json"
        local = self._read_local(name, self._timestamp)
        data = fetch(name, MAX_TIMESTAMP_BYTES)
        timestamp = self._timestamp(data)
        if local is not None:
            _require_not_older(self._where, name, timestamp.common.version, local.common.version)
            _require_not_older(
                self._where, "snapshot.json", timestamp.snapshot.version, local.snapshot.version
            )
            if timestamp.common.version == local.common.version:
                timestamp = local
        self._require_current(timestamp.common, name)
        if timestamp is not local:
            self._local.write(name, data)
        return timestamp

    def _update_snapshot(self, timestamp: Timestamp, fetch: Fetch) -> Snapshot:
        name, info = "snapshot.json", timestamp.snapshot
        local = self._read_local(name, self._snapshot)
        if local is not None and local.common.version == info.version and self._is_same(name, info):
            self._require_current(local.common, name)
            return local
        data = self._fetch_version(name, info, fetch)
        snapshot = self._snapshot(data)
        self._require_version(name, snapshot.common, info)
        for file, before in (local.files if local is not None else {}).items():
            if file not in snapshot.files:
                raise Untrusted(f"{self._where}: {name} does not name {file[:80]} any more")
            _require_not_older(self._where, file, snapshot.files[file].version, before.version)
        self._require_current(snapshot.common, name)
        self._local.write(name, data)
        return snapshot

    def _update_targets(self, snapshot: Snapshot, fetch: Fetch) -> Targets:
        name, info = "targets.json", snapshot.files["targets.json"]
        local = self._read_local(name, self._targets)
        if local is not None and local.common.version == info.version and self._is_same(name, info):
            self._require_current(local.common, name)
            return local
        data = self._fetch_version(name, info, fetch)
        targets = self._targets(data)
        self._require_version(name, targets.common, info)
        self._require_current(targets.common, name)
        self._local.write(name, data)
        return targets

    def _timestamp(self, data: bytes) -> Timestamp:
        return self._signed("timestamp", data, MAX_TIMESTAMP_BYTES, read_timestamp)

    def _snapshot(self, data: bytes) -> Snapshot:
        return self._signed("snapshot", data, MAX_METADATA_BYTES, read_snapshot)

    def _targets(self, data: bytes) -> Targets:
        return self._signed("targets", data, MAX_METADATA_BYTES, read_targets)

    def _signed(self, role: str, data: bytes, limit: int, reader: Callable[[SignedFile], M]) -> M:
        """Return what is in a file that enough keys of a role of the root signed. Raise ``Untrusted``,
        ``Corrupt``."""
        if (role, data) in self._verified:
            return cast(M, self._verified[role, data])
        file = self._parse(data, limit, f"{role}.json")
        self._require_signed(file, role, self._root, f"root {self._root.common.version}")
        content = self._verified[role, data] = reader(file)
        return content

    def _require_signed(self, file: SignedFile, role: str, root: Root, whose: str) -> None:
        login = f"cachesvc login {self._where} --new-root"
        hint = f"is it another registry at this address? If it is yours: {login}"
        file.require(root.roles[role], root.keys, whose, hint)

    def _parse(self, data: bytes, limit: int, name: str) -> SignedFile:
        return SignedFile.parse(data, limit=limit, what=f"{self._where}: {name}")

    def _read_local(self, name: str, reader: Callable[[bytes], M]) -> M | None:
        """Return a local file, even after its time; ``None`` if it is missing or does not hold."""
        data = self._local.read(name)
        if data is None:
            return None
        try:
            return reader(data)
        except CacheSvcError:
            return None

    def _is_same(self, name: str, info: FileInfo) -> bool:
        data = self._local.read(name)
        try:
            info.check(data or b"", name)
        except CacheSvcError:
            return False
        return data is not None

    def _fetch_version(self, name: str, info: FileInfo, fetch: Fetch) -> bytes:
        """Return the file of a version that another file vouches for. Raise ``Corrupt`` for other bytes."""
        limit = MAX_METADATA_BYTES if info.length is None else min(info.length, MAX_METADATA_BYTES)
        data = fetch(f"{info.version}.{name}" if self._root.consistent_snapshot else name, limit)
        info.check(data, f"{self._where}: {name}")
        return data

    def _require_version(self, name: str, common: Common, info: FileInfo) -> None:
        if common.version != info.version:
            raise Untrusted(
                f"{self._where}: {name} is version {common.version}, and version {info.version} is signed for"
            )

    def _require_current(self, common: Common, name: str) -> None:
        """Raise ``Untrusted`` if the time of a file is over, or if it was signed in the future: then this
        machine's clock is behind."""
        if common.signed_at is not None and self._now + CLOCK_SKEW_SECONDS < common.signed_at:
            late = duration_text(common.signed_at - self._now)
            raise Untrusted(
                f"this machine's clock is wrong: {name} of {self._where} was signed {late} after "
                "this clock's time",
                "set the clock",
            )
        if common.expires <= self._now and not self._allow_expired:
            ago = duration_text(self._now - common.expires)
            renewal = "the registry must be reached and sign anew"
            if name in ("root.json", "targets.json"):
                renewal = "its operator must sign anew (cachesvc admin trust renew)"
            raise Untrusted(
                f"the trust metadata of {self._where} expired {ago} ago ({name})",
                f"{renewal}, or this machine's clock is wrong",
            )


def _signers(root: Root, role: str) -> set[str]:
    """Return the key material of a role's keys."""
    return {root.keys[keyid].public for keyid in root.roles[role].keyids if keyid in root.keys}


def _require_not_older(where: str, name: str, version: int, known: int) -> None:
    if version < known:
        raise Untrusted(
            f"{where}: {name[:80]} has version {version}, and this node has seen version {known}",
            "a rolled-back registry? its operator must change the keys of timestamp and snapshot",
        )
