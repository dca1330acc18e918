"""Restores revisions: resolves a name, checks each revision, downloads its pack if needed, and installs it.

This takes two steps. First every revision is checked; then the caller installs the accepted ones. Between the
steps the caller chooses the cache folder, which depends on the accepted revisions.

Everything foreign passes `trust.accept` before it is parsed, and every frame is verified before it is
unpacked: neither the registry nor the node store is trusted. While a pack is downloaded, its files are
already written beside their final places (`node.staging`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..environment.support import check_proof
from ..node.installed import InstalledRevision, RestoreResult, StagedRevision
from ..wire.compare import Compatible, compare
from ..wire.durations import duration_text
from ..wire.errors import (
    CacheSvcError,
    Corrupt,
    Distrusted,
    Incompatible,
    NotFound,
    Unavailable,
    Untrusted,
)
from ..wire.names import Lane, Name
from ..wire.protocol import Rejected, ResolveAnswer, ResolvedRevision
from ..wire.records import PackRecord, Statement
from .answers import leave_out, resolve
from .plan import NameRequest, RestoreContext

if TYPE_CHECKING:
    from ..http.registry import Remote
    from ..node.staging import Staging
    from ..node.store import Download, Watcher
    from ..trust.accept import Accepted


def accept_revisions(
    name_request: NameRequest, remote: Remote, context: RestoreContext, result: RestoreResult
) -> None:
    """Accepts every revision under a name that fits this environment, for the caller to install.

    A damaged or untrusted revision does not exclude the others: its error is listed in ``problems``, and is
    raised only if nothing was accepted. Raises ``CacheSvcError``: ``NotFound`` (no such name),
    ``Incompatible`` (entries, but none fits: the message names the first factor), ``Untrusted``,
    ``Unavailable``, ``StorageFull``.
    """
    if context.acceptance.trusts_nobody:
        raise Untrusted(
            f"no signer is trusted for {remote.url}",
            "run cachesvc login, or set CACHESVC_TRUSTED_KEYS; keys of a login count for its own URL alone",
        )
    answer = _resolve_all(name_request, remote, context, result)
    result.tag = answer.tag
    result.rejected.extend(answer.rejected)
    failures: list[CacheSvcError] = []
    revisions = answer.revisions
    if answer.more:
        revisions += leave_out(name_request, answer, remote, context, result)
    for revision in revisions:
        try:
            _keep_newest(check_revision(name_request, revision, remote, context, result), context)
        except CacheSvcError as error:
            failures.append(error)
            result.problems.append(str(error))
    if not (result.installed or result.stored or context.revisions or answer.more):
        raise failures[0] if failures else nothing_offered(name_request.name, result.rejected)


def _resolve_all(
    name_request: NameRequest, remote: Remote, context: RestoreContext, result: RestoreResult
) -> ResolveAnswer:
    """Returns the registry's answer to a start, and notes that it is whole if it leaves nothing out."""
    request = name_request.request(context.fingerprint, most=context.most)
    try:
        with result.timed("resolve"):
            answer = resolve(name_request, request, remote, context, result)
    except NotFound:
        context.note_whole(name_request, None)
        raise
    if not answer.more:
        context.note_whole(name_request, answer.tag)
    return answer


def accept_bundles(
    paths: Iterable[Path],
    name_requests: Sequence[NameRequest],
    context: RestoreContext,
    result: RestoreResult,
) -> None:
    """Accepts bundle files, without a registry, for the caller to install.

    Each bundle must be signed for one of ``name_requests``. If there are none, every name is accepted,
    because the user named the file. Raises as :func:`accept_revisions` does.
    """
    if context.acceptance.trusts_nobody:
        raise Untrusted(
            "a bundle is installed only if you trust who signed it, and no key is trusted",
            "set CACHESVC_TRUSTED_KEYS, or run cachesvc login",
        )
    failures: list[CacheSvcError] = []
    for path in paths:
        try:
            _keep_newest(_bundle(path, name_requests, context, result), context)
        except CacheSvcError as error:
            failures.append(error)
            result.problems.append(f"{path}: {error}")
    if not result.installed and not context.revisions:
        raise failures[0] if failures else NotFound("no bundle file (*.cachesvc) there")


def _keep_newest(staged: StagedRevision, context: RestoreContext) -> None:
    """Adds an accepted revision to the context; of two revisions of one entry the newer one is kept.

    Two bundles may hold revisions of one entry; a registry's answer does not.
    """
    entry, sequence = staged.manifest.entry, staged.manifest.statement.sequence
    for other in [one for one in context.revisions if one.manifest.entry == entry]:
        if other.manifest.statement.sequence > sequence:
            raise Untrusted(
                f"{staged.manifest.statement.full_name}: sequence {sequence} is older than "
                f"{other.manifest.statement.sequence}, which is there too",
                "remove the older bundle",
            )
        context.revisions.remove(other)
    if context.ahead:
        staged.fetch()
    context.revisions.append(staged)


def check_revision(
    name_request: NameRequest,
    resolved: ResolvedRevision,
    remote: Remote,
    context: RestoreContext,
    result: RestoreResult,
) -> StagedRevision:
    """Checks one revision of a registry's answer. Raises ``CacheSvcError`` unless it is trusted and fits."""
    from ..bundle.check import ExpectedStatement

    with result.timed("check"):
        expected = ExpectedStatement(
            namespace=name_request.name.namespace,
            name=name_request.name.name,
            tags=name_request.tags,
            lane=name_request.lane,
        )
        verified = context.acceptance.accept(resolved.envelope_bytes, expected, context.store)
        _demand_fit(verified, context, result)
    fetch = partial(_fetch, resolved, verified.manifest.pack, remote, context, result)
    install = partial(_install_pack, verified, fetch, context, result)
    return StagedRevision(verified.manifest, verified.revision, verified.signer, fetch, install)


def _bundle(
    path: Path, name_requests: Sequence[NameRequest], context: RestoreContext, result: RestoreResult
) -> StagedRevision:
    """Checks one bundle file."""
    from ..bundle.file import open_bundle

    with result.timed("check"):
        envelope, offset = open_bundle(path)
        verified = context.acceptance.accept(envelope, None, context.store)
        _refuse_unasked(verified.manifest.statement, name_requests, context.lane)
        _demand_fit(verified, context, result)

    def install(
        rank: int | None, may_install: Callable[[], bool] | None = None, /
    ) -> InstalledRevision | None:
        return _install(verified, path, offset, _going_by(may_install, context), result, rank)

    return StagedRevision(verified.manifest, verified.revision, verified.signer, lambda: None, install)


def _refuse_unasked(statement: Statement, name_requests: Sequence[NameRequest], lane: Lane | None) -> None:
    """Raises ``Untrusted`` if nobody asked for the bundle's name, tag or lane."""
    signed = f"this bundle is signed for {statement.full_name}"
    if statement.lane not in (None, lane):
        raise Untrusted(
            f"{signed} in lane {statement.lane}, wanted: lane {lane}"
            if lane
            else f"{signed} in lane {statement.lane}, wanted: the trunk",
            f"set CACHESVC_LANE={statement.lane} to use it",
        )
    name = (statement.namespace, statement.name)
    if name_requests and not any(
        name == (name_request.name.namespace, name_request.name.name) and statement.tag in name_request.tags
        for name_request in name_requests
    ):
        expected = " or ".join(
            f"{name_request.name.namespace}/{name_request.name.name}:{tag}"
            for name_request in name_requests
            for tag in name_request.tags
        )
        raise Untrusted(f"{signed}, wanted: {expected}", "attach to the bundle's own name, or to no name")


def _install_pack(
    verified: Accepted,
    fetch: Callable[..., Path],
    context: RestoreContext,
    result: RestoreResult,
    rank: int | None,
    may_install: Callable[[], bool] | None = None,
    /,
) -> InstalledRevision | None:
    """Installs a revision whose pack is downloaded, or is written beside its places while it arrives."""
    from ..node.staging import Staging

    context = _going_by(may_install, context)
    try:
        with Staging(
            verified.manifest, context.rules, context.roots, may_go_on=context.may_install
        ) as staging:
            return _install(verified, fetch(staging), 0, context, result, rank, staging)
    except (Corrupt, NotFound):
        # Frames are verified again at install: the node's copy was damaged since it was downloaded, or the
        # node's agent has removed it a moment ago.
        context.store.discard(verified.manifest.pack.digest)
        return _install(verified, fetch(own=True), 0, context, result, rank)


def _going_by(may_install: Callable[[], bool] | None, context: RestoreContext) -> RestoreContext:
    return context if may_install is None else replace(context, may_install=may_install)


def _fetch(
    resolved: ResolvedRevision,
    pack: PackRecord,
    remote: Remote,
    context: RestoreContext,
    result: RestoreResult,
    watcher: Watcher | None = None,
    own: bool = False,
) -> Path:
    """Returns the path of the pack on this node, after a download if the node lacks it.

    ``own``: the copy of the node's agent is damaged, or gone.
    """
    if context.offers is not None and not own:
        present = context.store.pack(pack.digest, pack.size)
        shared = present or context.offers.store.pack(pack.digest, pack.size)
        if shared is not None:
            return shared

    def download(offset: int) -> Iterator[bytes]:
        return remote.downloads.fetch(resolved, pack, offset)

    _leave_slow(pack, download, context)
    with result.timed("download"), context.store.slow.awaited(pack.digest):
        path, moved = context.store.fetch(pack.digest, pack.size, download, watcher)
        result.moved += moved
    return path


def _leave_slow(pack: PackRecord, download: Download, context: RestoreContext) -> None:
    """Raise ``Unavailable`` for a pack that came so slowly a while ago that this start would wait in vain. A
    thread downloads it for a later start."""
    from ..node.slow_downloads import REMEMBERED_SECONDS
    from ..node.store import STALLED_SECONDS

    store = context.store
    left = store.slow.seconds_left(pack.digest, pack.size)
    if context.patience is None or left <= context.patience or store.pack(pack.digest, pack.size) is not None:
        return

    def go_on() -> None:
        with suppress(CacheSvcError):
            store.fetch(pack.digest, pack.size, download)

    if not store.slow.is_moving(pack.digest, STALLED_SECONDS):
        with suppress(RuntimeError):  # no more threads
            threading.Thread(target=go_on, name="cachesvc-download", daemon=True).start()
    raise Unavailable(
        f"pack {pack.digest}: it came too slowly for an earlier start, and this one does not wait for it",
        f"look at the network to the registry; a start waits again in {duration_text(REMEMBERED_SECONDS)}",
    )


def _demand_fit(verified: Accepted, context: RestoreContext, result: RestoreResult) -> None:
    """Raises ``CacheSvcError`` unless no canary of this node has refused the revision and it fits this
    environment.

    The registry has compared the environments too, but a client does not rely on that.
    """
    manifest = verified.manifest
    _refuse_distrusted(verified, context, result)
    verdict = compare(context.fingerprint, manifest.fingerprint, manifest.scopes)
    if isinstance(verdict, Compatible):
        if context.support is not None:
            check_proof(manifest, context.support, context.fingerprint)
        return
    statement = manifest.statement
    result.rejected.append(Rejected(manifest.entry, statement.target, statement.tag, verdict.differences))
    raise Incompatible(
        f"{statement.full_name} {statement.target}: {verdict.reason}", verdict.differences[0].fix
    )


def _refuse_distrusted(verified: Accepted, context: RestoreContext, result: RestoreResult) -> None:
    manifest, revision = verified.manifest, verified.revision
    if not context.store.distrusts(manifest.entry, revision):
        return
    what = f"{manifest.statement.full_name} {manifest.statement.target}"
    fix = "publish another revision with cachesvc warm --force"
    mark = context.store.crashed_of(manifest.entry, revision)
    if mark is None:
        raise Distrusted(f"{what}: a canary on this node found its numbers wrong", fix)
    result.withdrawn.append(InstalledRevision(manifest, revision, verified.signer, 0, 0))
    raise Distrusted(
        f"{what}: two processes of this node crashed while they loaded files of revision {revision}",
        f"{fix}, or remove {mark} if they crashed of something else",
    )


def _still_trusted(verified: Accepted, context: RestoreContext, result: RestoreResult) -> None:
    """Removes the installed files and raises ``Distrusted`` if the node has withdrawn the revision meanwhile.

    A canary of another process may do so during the install, and removes only the files that are there then.
    Otherwise clears the mark of an older revision, whose place this one has taken.
    """
    from ..node.install import remove

    try:
        _refuse_distrusted(verified, context, result)
    except Distrusted:
        remove(verified.manifest, context.rules, context.roots())
        raise
    context.store.trust_again(verified.manifest.entry, verified.revision)


def _install(
    verified: Accepted,
    path: Path,
    offset: int,
    context: RestoreContext,
    result: RestoreResult,
    rank: int | None,
    staging: Staging | None = None,
) -> InstalledRevision | None:
    """Installs the files of a pack; returns ``None`` if it is too late for that."""
    from ..bundle.pack import PackReader
    from ..node.install import install

    counts = None
    if context.may_install():
        with result.timed("install"), PackReader(path, verified.manifest, offset) as reader:
            staged_files = staging.finish() if staging is not None else None
            counts = install(
                reader,
                context.rules,
                context.roots(),
                rank=rank,
                staged=staged_files,
                may_go_on=context.may_install,
            )
        _still_trusted(verified, context, result)
    manifest = verified.manifest
    context.store.record_sequence(manifest.entry, manifest.statement.sequence, verified.signer)
    if counts is None:
        return None
    files = counts.written + counts.kept + counts.merged
    return InstalledRevision(verified.manifest, verified.revision, verified.signer, files, counts.bytes)


def nothing_offered(name: Name, rejected: Sequence[Rejected]) -> CacheSvcError:
    """Returns the error for an answer without revisions, in the same words for a log, `doctor` and `pull`."""
    if not rejected:
        return NotFound(f"{name}: nothing is published under it", "check the name, or run cachesvc warm")
    nearest = rejected[0]
    count = "1 entry" if len(rejected) == 1 else f"{len(rejected)} entries"
    verdict = "none fits; nearest is"
    if nearest.withheld:
        verdict = "none is offered here; withheld is"
    differences = "; ".join(map(str, nearest.differences[:3]))
    return Incompatible(
        f"{name}: {count}, {verdict} {nearest.target}: {differences}", nearest.differences[0].fix
    )
