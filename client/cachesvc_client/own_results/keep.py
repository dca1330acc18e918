"""Keeps what this node compiled itself for its next start.

So a service for which the registry has nothing compiles once, though its private cache folder is a new one at
each start. The results lie apart from the cache folders, as a bundle that the node's own key signs, and pass
the same checks as every bundle.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..process.events import Listener
from ..wire.digest import Digest
from ..wire.manifest.records import Workload
from ..wire.names import Name, Target
from .node_key import node_key

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..hooks.activity import Moment
    from ..process.process import Process

_log = logging.getLogger("cachesvc")

NAME = Name.parse("own/results")
"""Name that a node's own results have in their manifest."""
_TARGET = Target("own")
"""Target that a node's own results have in their manifest."""
_MAX_BYTES = 64 << 20
"""Bytes of all files together; larger results are not kept."""


def folder_name(path: Path) -> Digest:
    """Reads from a bundle's file name the name of the private cache folder that results were compiled in."""
    return Digest(f"sha256:{path.name.partition('.')[0]}")


class Keeper(Listener):
    """Keeps what a process compiles."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._kept_activity: object = None

    def paused(self, moment: Moment, _deadline: float) -> None:
        """Writes the results when the process is quiet or ends, if something is new. An exit waits no longer
        than for the other listeners; results that are not written by then are compiled again."""
        if moment == "compiled" or not self._process.keeps_own:
            return
        activity = self._process.output.activity()
        if activity is None or activity == self._kept_activity:
            return
        self._kept_activity = activity
        try:
            keep_own_results(self._process)
        except Exception as error:  # noqa: BLE001 - the next start compiles again
            _log.debug("what was compiled here is not kept: %s: %s", type(error).__name__, error)


def keep_own_results(process: Process) -> Path | None:
    """Writes what this process compiled or recorded, and what it used of the node's own results, for the next
    start.

    Returns ``None`` if it did neither, if it is too much, or if there is no folder for the node's key.
    Raises ``CacheSvcError`` and ``OSError``.
    """
    from ..publication.build_bundle import Build, Draft, build_bundle

    path = process.own_results()
    if path is None or process.output.observer is None:
        return None
    is_clean = process.output.observer.snapshot().clean
    if is_clean and not process.records_own:
        return None
    key = node_key(make=False)
    selection = process.files.own_files(key.public if key else None)
    if is_clean and not process.all_kinds.recorded():
        return None
    if selection.text:
        _log.debug("not kept for this node's next start: %s", selection.text)
    files = [known.file for known in selection.files]
    key = (key or node_key(make=True)) if files and _size(files) <= _MAX_BYTES else None
    if key is None or process.fingerprint is None:
        return None
    draft = Draft(
        name=NAME,
        target=_TARGET,
        fingerprint=process.fingerprint,
        workload=Workload(script=folder_name(path)),
        scopes=process.output.scopes(),
        build=Build(ancestors=process.ledger.ancestors()),
    )
    with tempfile.TemporaryDirectory(dir=path.parent.parent / "tmp") as folder:
        bundle = Path(folder) / "bundle"
        build_bundle(files, draft, key, bundle, quick=True)
        os.replace(bundle, path)
    return path


def _size(files: list[SourceFile]) -> int:
    return sum(len(file.data) for file in files if isinstance(file.data, bytes))
