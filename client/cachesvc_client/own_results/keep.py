"""Keeps what this node compiled itself for its next start.

So a service for which the registry has nothing compiles once, though its private cache folder is a new one at
each start. The results lie apart from the cache folders, as a bundle that the node's own key signs, and pass
the same checks as every bundle.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..wire.digest import Digest
from ..wire.names import Name, Target
from ..wire.records import Workload
from .node_key import node_key

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey
    from ..hooks.activity import Moment
    from ..hooks.counters import Observer
    from ..kinds.folders import Folders
    from ..node.installed import InstalledRevision, StagedRevision
    from ..node.ledger import Selection
    from ..wire.factors import Fingerprint
    from ..wire.names import Lane

_log = logging.getLogger("cachesvc")

NAME = Name.parse("own/results")
"""Name that a node's own results have in their manifest."""
_TARGET = Target("own")
"""Target that a node's own results have in their manifest."""
_MAX_BYTES = 64 << 20
"""Bytes of all files together; larger results are not kept."""


class OwnResultsProcess(Protocol):
    """Declares what this room needs of the process whose results it keeps and installs."""

    keeps_own: bool
    """Whether what is compiled here is kept for the node's next start."""

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return the environment; ``None`` before it was detected."""

    @property
    def folders(self) -> Folders:
        """Return the cache folders."""

    @property
    def observer(self) -> Observer | None:
        """Return the counts of what was compiled; ``None`` before the hooks were armed."""

    def own_results(self) -> Path | None:
        """Return where the results of the present folder are kept; ``None`` for a folder of the user's."""

    def activity(self) -> object:
        """Return a value that changes while this process compiles; ``None`` before it does."""

    def distrusts(self, entry: Digest, revision: Digest) -> bool:
        """Return whether this node has withdrawn a revision of an entry."""

    def own_files(self, signer: PublicKey | None, lane: Lane | None = None) -> Selection:
        """Return the files that a signer may sign for a lane; ``None``: what this process compiled alone."""

    def scopes(self) -> tuple[str, ...]:
        """Return what the compiled code is bound to: GPU, host, or both."""

    def accept(self, revisions: Iterable[InstalledRevision | StagedRevision]) -> None:
        """Allow the code of installed revisions to be loaded."""


def folder_name(path: Path) -> Digest:
    """Reads from a bundle's file name the name of the private cache folder that results were compiled in."""
    return Digest(f"sha256:{path.name.partition('.')[0]}")


class Keeper:
    """Keeps what a process compiles. Listens to the process's `hooks.activity.ActivityWatch`."""

    def __init__(self, process: OwnResultsProcess) -> None:
        self._process = process
        self._kept_activity: object = None

    def __call__(self, moment: Moment, _deadline: float) -> None:
        """Writes the results when the process is quiet or ends, if something is new. An exit waits no longer
        than for the other listeners; results that are not written by then are compiled again."""
        if moment == "compiled" or not self._process.keeps_own:
            return
        activity = self._process.activity()
        if activity is None or activity == self._kept_activity:
            return
        self._kept_activity = activity
        try:
            keep_own_results(self._process)
        except Exception as error:  # noqa: BLE001 - the next start compiles again
            _log.debug("what was compiled here is not kept: %s: %s", type(error).__name__, error)


def keep_own_results(process: OwnResultsProcess) -> Path | None:
    """Writes what this process compiled, and what it used of the node's own results, for the next start.

    Returns ``None`` if nothing was compiled, if it is too much, or if there is no folder for the node's key.
    Raises ``CacheSvcError`` and ``OSError``.
    """
    from ..publication.build_bundle import Draft, build_bundle

    path = process.own_results()
    if path is None or process.observer is None or process.observer.snapshot().clean:
        return None
    key = node_key(make=False)
    selection = process.own_files(key.public if key else None)
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
        scopes=process.scopes(),
    )
    with tempfile.TemporaryDirectory(dir=path.parent.parent / "tmp") as folder:
        bundle = Path(folder) / "bundle"
        build_bundle(files, draft, key, bundle, quick=True)
        os.replace(bundle, path)
    return path


def _size(files: list[SourceFile]) -> int:
    return sum(len(file.data) for file in files if isinstance(file.data, bytes))
