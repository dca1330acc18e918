"""Restore: resolve, check, download what the node lacks, install. A straight line.

It has two halves: first every revision is checked, then what was accepted is installed. The caller chooses
the cache folder in between, for its name says what it may hold.

Everything foreign passes `bundle.check` before it is parsed, and every frame is verified before it is
unpacked: neither the registry nor the node store is trusted. Files of a pack that is downloaded are written
beside their places meanwhile (`node.staging`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..node.installed import InstalledRevision, RestoreResult, StagedRevision
from ..wire.codec import canonical
from ..wire.compare import Compatible, compare
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, Corrupt, Distrusted, Incompatible, NotFound, Untrusted
from ..wire.names import Lane, Name
from ..wire.protocol import Rejected, ResolveAnswer, ResolvedRevision
from ..wire.records import PackRecord, Statement
from .plan import NameRequest, RestoreContext

if TYPE_CHECKING:
    from ..bundle.check import Verified
    from ..http.registry import Remote
    from ..node.staging import Staging
    from ..node.store import Watcher


def accept_revisions(
    wish: NameRequest, remote: Remote, means: RestoreContext, restored: RestoreResult
) -> None:
    """Accepts every revision under a name that fits this environment, for the caller to install.

    One revision that is damaged or not trusted does not keep the others out: it is told in ``problems``,
    and raised only if nothing was accepted. Raises ``CacheSvcError``: ``NotFound`` (no such name),
    ``Incompatible`` (entries, but none fits: the message names the first factor), ``Untrusted``,
    ``Unavailable``, ``StorageFull``.
    """
    if not means.trusted:
        raise Untrusted("no signer is trusted", "run cachesvc login, or set CACHESVC_TRUSTED_KEYS")
    with restored.timed("resolve"):
        answer = _resolve(wish, remote, means, restored)
    restored.tag = answer.tag
    restored.rejected.extend(answer.rejected)
    failures: list[CacheSvcError] = []
    for revision in answer.revisions:
        try:
            _hold(_revision(wish, revision, remote, means, restored), means)
        except CacheSvcError as error:
            failures.append(error)
            restored.problems.append(str(error))
    if not restored.installed and not restored.stored and not means.held:
        raise failures[0] if failures else nothing_offered(wish.name, restored.rejected)


def accept_bundles(
    paths: Iterable[Path], wishes: Sequence[NameRequest], means: RestoreContext, restored: RestoreResult
) -> None:
    """Accepts bundle files, without any registry, for the caller to install.

    ``wishes``: each bundle has to be signed for one of them; if there are none, for any name, since the user
    named the file. ``lane``: see `RestoreContext`. Raises as :func:`accept_revisions` does.
    """
    if not means.trusted:
        raise Untrusted("no signer is trusted", "run cachesvc login, or set CACHESVC_TRUSTED_KEYS")
    failures: list[CacheSvcError] = []
    for path in paths:
        try:
            _hold(_bundle(path, wishes, means, restored), means)
        except CacheSvcError as error:
            failures.append(error)
            restored.problems.append(f"{path}: {error}")
    if not restored.installed and not means.held:
        raise failures[0] if failures else NotFound("no bundle file (*.cachesvc) there")


def _hold(held: StagedRevision, means: RestoreContext) -> None:
    """Of two revisions of one entry, which only bundles bring, the newer one is kept."""
    entry, sequence = held.manifest.entry, held.manifest.statement.sequence
    for other in [one for one in means.held if one.manifest.entry == entry]:
        if other.manifest.statement.sequence > sequence:
            raise Untrusted(
                f"{held.manifest.statement.full_name}: sequence {sequence} is older than "
                f"{other.manifest.statement.sequence}, which is there too",
                "remove the older bundle",
            )
        means.held.remove(other)
    if means.ahead:
        held.fetch()
    means.held.append(held)


def _resolve(
    wish: NameRequest, remote: Remote, means: RestoreContext, restored: RestoreResult
) -> ResolveAnswer:
    """The answer, from this node if another process asked the same in the last seconds.

    While the registry cannot be reached, the node's last answer is taken, however many days old (a week at
    most): what it names passes the same gate, and an image without a compiler could not start otherwise.
    """
    from ..http.registry import parse_resolved
    from ..node.store import OUTAGE_SECONDS

    request = wish.request(means.fingerprint)
    key = Digest.of(canonical([remote.identity, request]))
    recent = None if means.fresh else means.store.recent_answer(key)
    if recent is not None:
        with suppress(CacheSvcError):
            return parse_resolved(recent)
    try:
        raw = remote.resolve_bytes(request)
    except CacheSvcError as error:
        last = means.store.recent_answer(key, OUTAGE_SECONDS) if error.retry else None
        if last is None:
            raise
        restored.problems.append(f"{wish.name}: restored from this node's last answer: {error}")
        return parse_resolved(last)
    answer = parse_resolved(raw)
    means.store.remember_answer(key, raw)
    return answer


def _revision(
    wish: NameRequest, found: ResolvedRevision, remote: Remote, means: RestoreContext, restored: RestoreResult
) -> StagedRevision:
    """Checks one revision of a registry's answer."""
    from ..bundle.check import ExpectedStatement, check_envelope

    with restored.timed("check"):
        wanted = ExpectedStatement(
            namespace=wish.name.namespace, name=wish.name.name, tags=wish.tags, lane=wish.lane
        )
        verified = check_envelope(
            found.envelope.encode(), trusted=means.trusted, wanted=wanted, now=time.time()
        )
        _accept(verified, means, restored)
    fetched = partial(_fetch, found, verified.manifest.pack, remote, means, restored)
    install = partial(_install_pack, verified, fetched, means, restored)
    return StagedRevision(verified.manifest, verified.revision, fetched, install)


def _bundle(
    path: Path, wishes: Sequence[NameRequest], means: RestoreContext, restored: RestoreResult
) -> StagedRevision:
    """Checks one bundle file."""
    from ..bundle.check import check_envelope
    from ..bundle.file import open_bundle

    with restored.timed("check"):
        envelope, offset = open_bundle(path)
        verified = check_envelope(envelope, trusted=means.trusted, wanted=None, now=time.time())
        _refuse_unasked(verified.manifest.statement, wishes, means.lane)
        _accept(verified, means, restored)

    def install(rank: int | None) -> InstalledRevision | None:
        return _install(verified, path, offset, means, restored, rank)

    return StagedRevision(verified.manifest, verified.revision, lambda: None, install)


def _refuse_unasked(statement: Statement, wishes: Sequence[NameRequest], lane: Lane | None) -> None:
    """Raises ``Untrusted`` for a bundle of another name than those that were asked for, or of a lane that was
    not asked for."""
    said = f"this bundle is signed for {statement.full_name}"
    if statement.lane not in (None, lane):
        raise Untrusted(
            f"{said} in lane {statement.lane}, wanted: lane {lane}"
            if lane
            else f"{said} in lane {statement.lane}, wanted: the trunk",
            f"set CACHESVC_LANE={statement.lane} to use it",
        )
    name = (statement.namespace, statement.name)
    if wishes and not any(
        name == (wish.name.namespace, wish.name.name) and statement.tag in wish.tags for wish in wishes
    ):
        wanted = " or ".join(
            f"{wish.name.namespace}/{wish.name.name}:{tag}" for wish in wishes for tag in wish.tags
        )
        raise Untrusted(f"{said}, wanted: {wanted}", "attach to the bundle's own name, or to no name")


def _install_pack(
    verified: Verified,
    fetched: Callable[..., Path],
    means: RestoreContext,
    restored: RestoreResult,
    rank: int | None,
) -> InstalledRevision | None:
    from ..node.staging import Staging

    try:
        with Staging(verified.manifest, means.rules, means.roots, may_go_on=means.may_install) as staging:
            return _install(verified, fetched(staging), 0, means, restored, rank, staging)
    except Corrupt:
        # Frames are verified again at install: the node's copy was damaged since it was downloaded.
        means.store.discard(verified.manifest.pack.digest)
        return _install(verified, fetched(), 0, means, restored, rank)


def _fetch(
    found: ResolvedRevision,
    pack: PackRecord,
    remote: Remote,
    means: RestoreContext,
    restored: RestoreResult,
    watcher: Watcher | None = None,
) -> Path:
    """The pack on this node, downloaded if it lacks."""
    with restored.timed("download"):
        path, moved = means.store.fetch(
            pack.digest,
            pack.size,
            lambda offset: remote.fetch(found, pack, offset),
            watcher,
        )
        restored.moved += moved
    return path


def _accept(verified: Verified, means: RestoreContext, restored: RestoreResult) -> None:
    """A registry's word that something fits is not enough: compared here again."""
    from ..bundle.check import check_sequence

    manifest = verified.manifest
    check_sequence(verified, means.store.seen(manifest.entry))
    _refuse_distrusted(verified, means)
    verdict = compare(means.fingerprint, manifest.fingerprint, manifest.scopes)
    if isinstance(verdict, Compatible):
        return
    statement = manifest.statement
    restored.rejected.append(Rejected(manifest.entry, statement.target, statement.tag, verdict.differences))
    raise Incompatible(
        f"{statement.full_name} {statement.target}: {verdict.reason}", verdict.differences[0].fix
    )


def _refuse_distrusted(verified: Verified, means: RestoreContext) -> None:
    manifest = verified.manifest
    if means.store.distrusts(manifest.entry, verified.revision):
        raise Distrusted(
            f"{manifest.statement.full_name} {manifest.statement.target}: a canary on this node found its "
            "numbers wrong",
            "publish another revision with cachesvc warm --force",
        )


def _still_trusted(verified: Verified, means: RestoreContext) -> None:
    """Another process's canary may have spoken during the install, and removed what was there until then.
    A mark of another revision is over: this one has taken its place."""
    from ..node.install import remove

    try:
        _refuse_distrusted(verified, means)
    except Distrusted:
        remove(verified.manifest, means.rules, means.roots())
        raise
    means.store.trust_again(verified.manifest.entry)


def _install(
    verified: Verified,
    path: Path,
    offset: int,
    means: RestoreContext,
    restored: RestoreResult,
    rank: int | None,
    staging: Staging | None = None,
) -> InstalledRevision | None:
    from ..bundle.pack import PackReader
    from ..node.install import install

    done = None
    if means.may_install():
        with restored.timed("install"), PackReader(path, verified.manifest, offset) as reader:
            staged = staging.finish() if staging is not None else None
            done = install(
                reader, means.rules, means.roots(), rank=rank, staged=staged, may_go_on=means.may_install
            )
        _still_trusted(verified, means)
    means.store.saw(verified.manifest.entry, verified.manifest.statement.sequence)
    if done is None:
        return None
    files = done.written + done.kept + done.merged
    return InstalledRevision(verified.manifest, verified.revision, files, done.bytes)


def nothing_offered(name: Name, rejected: Sequence[Rejected]) -> CacheSvcError:
    """Says why an answer holds no revision, in the same words for a service's log, `doctor` and `pull`."""
    if not rejected:
        return NotFound(f"{name}: nothing is published under it", "check the name, or run cachesvc warm")
    nearest = rejected[0]
    count = "1 entry" if len(rejected) == 1 else f"{len(rejected)} entries"
    verdict = "none fits; nearest is"
    if nearest.withheld:
        verdict = "none is offered here; withheld is"
    told = "; ".join(map(str, nearest.differences[:3]))
    return Incompatible(f"{name}: {count}, {verdict} {nearest.target}: {told}", nearest.differences[0].fix)
