"""Installs what an earlier start compiled on this node."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..kinds import RULES
from ..wire.compare import Compatible, compare
from ..wire.errors import Corrupt, Distrusted, Untrusted
from .keep import NAME, folder_name
from .node_key import node_key

if TYPE_CHECKING:
    from ..bundle.seal import SigningKey
    from ..node.installed import InstalledRevision
    from ..process.process import Process

_log = logging.getLogger("cachesvc")


def restore_own_results(process: Process) -> InstalledRevision | None:
    """Installs what an earlier start of the same trust scope compiled on this node with the same revisions.

    Returns ``None`` if there is nothing. Removes a bundle that is damaged or not signed by this node. Raises
    ``StorageFull``.
    """
    path = process.own_results()
    if path is None or not path.exists():
        return None
    key = node_key(make=False)
    try:
        return _install(process, path, key) if key is not None else None
    except (Untrusted, Corrupt) as error:
        level = logging.WARNING if isinstance(error, Distrusted) else logging.DEBUG
        _log.log(level, "removed: %s: %s", path, error)
        with suppress(OSError):
            path.unlink()
    return None


def _install(process: Process, path: Path, key: SigningKey) -> InstalledRevision | None:
    """Checks and installs a bundle; returns ``None`` if the bundle does not fit this environment."""
    from ..bundle.check import ExpectedStatement
    from ..bundle.file import open_bundle
    from ..bundle.pack import PackReader
    from ..node.install import install
    from ..node.installed import InstalledRevision
    from ..trust.accept import Acceptance

    expected = ExpectedStatement(NAME.namespace, NAME.name, (NAME.tag,))
    envelope, offset = open_bundle(path)
    verified = Acceptance([key.public]).accept_signed(envelope, expected)
    manifest = verified.manifest
    if manifest.workload.script != folder_name(path):
        raise Untrusted("built in another cache folder")
    process.refuse_own(verified)
    if not isinstance(compare(process.fingerprint or {}, manifest.fingerprint, manifest.scopes), Compatible):
        return None
    with PackReader(path, manifest, offset) as reader:
        counts = install(reader, RULES, process.folders.roots())
    with suppress(OSError):
        os.utime(path)
    files = counts.written + counts.kept + counts.merged
    own = InstalledRevision(manifest, verified.revision, verified.signer, files, counts.bytes)
    process.accept([own])
    process.own = own
    return own


def keys_of_own(process: Process, installed: Iterable[InstalledRevision]) -> set[str]:
    """Return the keys of installed graphs that files of this node's own results have, of those that were
    used: a recorded frame calls the graphs of the revision that the node made it beside."""
    if process.own is None:
        return set()
    roots, used = process.folders.roots(), process.all_kinds.used_paths()
    keys = frozenset(key for entry in installed for key in entry.manifest.graph_keys)
    files = [one for one in process.own.manifest.files if one.path in used and one.kind in roots]
    return set().union(*(_named(roots[one.kind] / one.path, keys) for one in files))


@functools.cache
def _named(path: Path, keys: frozenset[str]) -> set[str]:
    """Return the keys that occur in a file; none where it is gone."""
    try:
        data = path.read_bytes()
    except OSError:
        return set()
    return {key for key in keys if key.encode() in data}
