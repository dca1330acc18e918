"""Mirror the trust metadata of the upstream: verified from the mirror's own pinned root, and kept as they
were signed, so that clients of the mirror pin the same root."""

from __future__ import annotations

import re

from cachesvc.index.access.trust import TrustFile
from cachesvc.tuf.read import read_root
from cachesvc_client.trust_root.metadata import Targets
from cachesvc_client.trust_root.registry_metadata import ask_file, fetch_from
from cachesvc_client.trust_root.updater import MAX_ROOT_BYTES, TrustMetadata, Updater
from cachesvc_client.wire.errors import NotFound, Untrusted

from ..context import Registry
from ..trust.files import add_file
from .state import Mirror

_ROOT = re.compile(r"([1-9][0-9]{0,15})\.root\.json")


def refresh_trust(registry: Registry, mirror: Mirror) -> Targets:
    """Brings the trust metadata up to date and returns whose signatures count. Stores what passed, all files
    together. Raises ``Untrusted`` or ``Corrupt`` for metadata that do not hold, and then stores nothing."""
    remote = mirror.upstream.remote
    files = _Files(registry)
    updater = Updater(mirror.upstream.root, files, remote.url, registry.clock())
    try:
        metadata = updater.refresh(fetch_from(remote, updater))
    except NotFound as error:
        raise Untrusted(
            f"{remote.url}: {error.message}; a mirror needs the trust metadata of its upstream",
            "an operator makes them there: cachesvc admin trust init",
        ) from None
    pinned = read_root(mirror.upstream.root).signed
    with registry.index.read() as unit:
        first = unit.trust.get("root", pinned.version) is None
    if first:
        files.written |= _older_roots(mirror, pinned.version)
        files.written[f"{pinned.version}.root.json"] = mirror.upstream.root
    if files.written:
        _store(registry, files.written, metadata)
    return metadata.targets


def _older_roots(mirror: Mirror, pinned: int) -> dict[str, bytes]:
    """Returns the roots before the pinned one, for clients that pinned one of these. They are not parsed, and
    nothing follows from them here: a client verifies each root by the one before."""
    roots = {}
    for version in range(1, pinned):
        name = f"{version}.root.json"
        try:
            data = ask_file(mirror.upstream.remote, name, MAX_ROOT_BYTES)
            data.decode()
        except (NotFound, UnicodeDecodeError):
            continue
        roots[name] = data
    return roots


def _store(registry: Registry, written: dict[str, bytes], metadata: TrustMetadata) -> None:
    present = {
        "timestamp.json": metadata.timestamp.common,
        "snapshot.json": metadata.snapshot.common,
        "targets.json": metadata.targets.common,
    }
    with registry.index.write() as unit:
        unit.trust.take_turns()
        for name, data in written.items():
            root = _ROOT.fullmatch(name)
            if root is not None:
                if unit.trust.get("root", int(root[1])) is None:
                    expires = metadata.root.common.expires
                    add_file(unit, "root", int(root[1]), expires, data, registry.now)
                continue
            role, common = name.removesuffix(".json"), present[name]
            unit.mirrors.replace_files(role)
            unit.trust.add(TrustFile(role, common.version, common.expires, data), registry.now)


class _Files:
    """The files of the index, as the updater reads them; ``written`` are those that passed in this update."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.written: dict[str, bytes] = {}
        self._removed: set[str] = set()

    def read(self, name: str) -> bytes | None:
        """Return a file; ``None`` if it is not here."""
        if name in self.written:
            return self.written[name]
        if name in self._removed:
            return None
        root = _ROOT.fullmatch(name)
        with self._registry.index.read() as unit:
            if root is not None:
                file = unit.trust.get("root", int(root[1]))
            else:
                file = unit.trust.newest(name.removesuffix(".json"))
        return file.data if file is not None else None

    def write(self, name: str, data: bytes) -> None:
        """Keep a file for the end of the update."""
        self.written[name] = data

    def remove(self, name: str) -> None:
        """Hide a file that counts no more; another one takes its place in this update."""
        self._removed.add(name)
        self.written.pop(name, None)
