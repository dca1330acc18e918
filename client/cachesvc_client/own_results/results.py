"""Keeps what this node compiled itself for its next start: a service for which a registry has nothing
compiles once, though its private cache folder is emptied at each start.

The results lie apart from the cache folders, as a bundle that is signed by the node's own key, and pass the
same gate as every bundle. The key lies outside of the node store, so that a store that is copied or cached
cannot bring its own.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .. import kinds
from ..wire.compare import Compatible, compare
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, Corrupt, InvalidRequest, Untrusted
from ..wire.names import Name, Target
from ..wire.records import Workload

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import SigningKey
    from ..hooks.activity import Moment
    from ..node.installed import InstalledRevision
    from ..session.process import Process

_log = logging.getLogger("cachesvc")

_NAME = Name.parse("own/results")
_TARGET = Target("own")
_MAX_BYTES = 64 << 20
"""Of all files together; more is not kept."""


def restore_own_results(process: Process) -> InstalledRevision | None:
    """Installs what an earlier start of the same trust scope compiled on this node with the same revisions.
    Answers ``None`` if there is nothing. Removes what is damaged or not signed by this node. Raises
    ``StorageFull``."""
    place = process.own_results()
    if place is None or not place.exists():
        return None
    key = _node_key(make=False)
    try:
        return _installed(process, place, key) if key is not None else None
    except (Untrusted, Corrupt) as error:
        _log.debug("%s: removed: %s", place, error)
        with suppress(OSError):
            place.unlink()
    return None


def _installed(process: Process, place: Path, key: SigningKey) -> InstalledRevision | None:
    from ..bundle.check import ExpectedStatement, check_envelope
    from ..bundle.file import open_bundle
    from ..bundle.pack import PackReader
    from ..node.folders import install
    from ..node.installed import InstalledRevision

    wanted = ExpectedStatement(_NAME.namespace, _NAME.name, (_NAME.tag,))
    envelope, offset = open_bundle(place)
    verified = check_envelope(envelope, trusted=[key.public], wanted=wanted, now=time.time())
    manifest = verified.manifest
    if manifest.workload.script != _folder(place):
        raise Untrusted(f"{place}: made for another cache folder")
    if not isinstance(compare(process.fingerprint or {}, manifest.fingerprint, manifest.scopes), Compatible):
        return None
    with PackReader(place, manifest, offset) as reader:
        done = install(reader, kinds.RULES, process.folders.roots())
    with suppress(OSError):
        os.utime(place)
    made = InstalledRevision(manifest, verified.revision, done.written + done.kept + done.merged, done.bytes)
    process.accept([made])
    return made


def _folder(place: Path) -> Digest:
    """The name of the private cache folder that results were compiled in."""
    return Digest(f"sha256:{place.name.partition('.')[0]}")


class Keeper:
    """Keeps what a process compiles: a listener of its `hooks.activity.ActivityWatch`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._kept: object = None

    def __call__(self, moment: Moment, _deadline: float) -> None:
        """Writes the results where the process is quiet or ends, if something is new. An exit does not wait
        longer than for the other listeners: what is not written by then is compiled again."""
        if moment == "compiled" or not self._process.keeps_own:
            return
        seen = self._process.activity()
        if seen is None or seen == self._kept:
            return
        self._kept = seen
        try:
            keep_own_results(self._process)
        except Exception as error:  # noqa: BLE001 - the next start compiles again
            _log.debug("what was compiled here is not kept: %s: %s", type(error).__name__, error)


def keep_own_results(process: Process) -> Path | None:
    """Writes what this process compiled, and what it used of the node's own results, for the next start.

    Answers ``None`` if nothing was compiled, if it is too much, or if there is no home for the node's key.
    Raises ``CacheSvcError`` and ``OSError``.
    """
    from ..publication.build_bundle import Draft, build_bundle

    place = process.own_results()
    if place is None or process.observer is None or process.observer.snapshot().clean:
        return None
    files = process.compiled_here()
    key = _node_key(make=True) if files and _size(files) <= _MAX_BYTES else None
    if key is None or process.fingerprint is None:
        return None
    draft = Draft(
        name=_NAME,
        target=_TARGET,
        fingerprint=process.fingerprint,
        workload=Workload(script=_folder(place)),
        scopes=process.scopes(),
    )
    with tempfile.TemporaryDirectory(dir=place.parent.parent / "tmp") as folder:
        made = Path(folder) / "made"
        build_bundle(files, draft, key, made, quick=True)
        os.replace(made, place)
    return place


def _size(files: list[SourceFile]) -> int:
    return sum(len(file.data) for file in files if isinstance(file.data, bytes))


def _node_key(*, make: bool) -> SigningKey | None:
    """This node's own key, readable by this user alone. ``None`` without one, or without a home for it."""
    from ..bundle.seal import SigningKey
    from ..config import login_path

    login = login_path()
    if login is None:
        return None
    path = login.with_name("node.key")
    try:
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(InvalidRequest):  # another process was faster
                SigningKey.generate().save(path)
        facts = path.lstat()
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise InvalidRequest(f"{path}: others may read or replace it", f"chmod 600 {path}")
        return SigningKey.load(path)
    except (OSError, CacheSvcError) as error:
        _log.debug("no key of this node: %s", error)
        return None
