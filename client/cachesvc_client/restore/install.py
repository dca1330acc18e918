"""Installs an accepted revision: puts its files into the cache folders of this process.

Every frame is verified before it is unpacked: neither the registry nor the node store is trusted. While a
pack is downloaded, its files are already written beside their final places (`node.staging`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..node.installed import AcceptedRevision, InstalledRevision, RestoreResult
from ..wire.errors import Corrupt, Distrusted, NotFound
from .accept import refuse_distrusted
from .packs import BundlePack
from .settings import RestoreTarget

if TYPE_CHECKING:
    from ..node.staging import Staging


def install_revision(
    revision: AcceptedRevision,
    target: RestoreTarget,
    result: RestoreResult,
    *,
    rank: int | None = None,
    may_install: Callable[[], bool] = lambda: True,
) -> InstalledRevision | None:
    """Put the files of a revision into the cache folders, all of them or those that a rank needs.

    Return ``None`` if ``may_install``, which is asked before every file, says that it is too late: then the
    pack is on this node. Raise ``Corrupt``, ``Untrusted``, ``StorageFull``, ``Unavailable``.
    """
    from ..node.staging import Staging

    pack = revision.pack
    if isinstance(pack, BundlePack):
        return _install(revision, pack.path, target, result, rank, may_install, offset=pack.offset)
    try:
        with Staging(revision.manifest, target.rules, target.roots, may_go_on=may_install) as staging:
            path = pack.fetch(staging)
            return _install(revision, path, target, result, rank, may_install, staging=staging)
    except (Corrupt, NotFound):
        # Frames are verified again at install: the node's copy was damaged since it was downloaded, or the
        # node's agent has removed it a moment ago.
        target.store.discard(revision.manifest.pack.digest)
        return _install(revision, pack.fetch(own=True), target, result, rank, may_install)


def _install(
    revision: AcceptedRevision,
    path: Path,
    target: RestoreTarget,
    result: RestoreResult,
    rank: int | None,
    may_install: Callable[[], bool],
    *,
    offset: int = 0,
    staging: Staging | None = None,
) -> InstalledRevision | None:
    from ..bundle.pack import PackReader
    from ..node.install import install

    manifest, counts = revision.manifest, None
    if may_install():
        with result.timed("install"), PackReader(path, manifest, offset) as reader:
            counts = install(
                reader,
                target.rules,
                target.roots(),
                rank=rank,
                staged=staging.finish() if staging is not None else None,
                may_go_on=may_install,
            )
        _demand_trust(revision, target, result)
    target.store.marks.record_sequence(manifest.entry, manifest.statement.sequence, revision.signer)
    if counts is None:
        return None
    files = counts.written + counts.kept + counts.merged
    return InstalledRevision(manifest, revision.revision, revision.signer, files, counts.bytes)


def _demand_trust(revision: AcceptedRevision, target: RestoreTarget, result: RestoreResult) -> None:
    """Remove the installed files and raise ``Distrusted`` if the node has withdrawn the revision meanwhile.

    A canary of another process may do so during the install, and removes only the files that are there then.
    Otherwise clear the mark of an older revision, whose place this one has taken.
    """
    from ..node.install import remove

    try:
        refuse_distrusted(revision.accepted, target.store, result)
    except Distrusted:
        remove(revision.manifest, target.rules, target.roots())
        raise
    target.store.marks.trust_again(revision.manifest.entry, revision.revision)
