"""Accepts the revisions of a name, or of bundle files, that count here and fit this environment.

Everything foreign passes `trust.accept` before it is parsed. Before the caller installs what was accepted, it
chooses the cache folder, which depends on the accepted revisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..environment.support import check_proof
from ..node.installed import AcceptedRevision, InstalledRevision, RestoreResult
from ..wire.compare import Compatible, compare
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, Distrusted, Incompatible, NotFound, Untrusted
from ..wire.manifest.records import Statement
from ..wire.names import Lane, Name
from ..wire.requests.protocol import Rejected, ResolvedRevision
from .ask import ask
from .packs import BundlePack, RegistryPack
from .request import NameRequest
from .settings import Inquiry, RestoreSettings, RestoreTarget

if TYPE_CHECKING:
    from ..node.store import NodeStore
    from ..trust.accept import Accepted


def accept_name(
    request: NameRequest,
    inquiry: Inquiry,
) -> list[AcceptedRevision]:
    """Return every revision under a name that counts here and fits this environment.

    A damaged or untrusted revision does not exclude the others: its error is listed in ``problems``, and is
    raised only if nothing was accepted. Raise ``CacheSvcError``: ``NotFound`` (no such name),
    ``Incompatible`` (entries, but none fits: the message names the first factor), ``Untrusted``,
    ``Unavailable``, ``StorageFull``.
    """
    settings, result = inquiry.settings, inquiry.result
    if settings.acceptance.trusts_nobody:
        raise Untrusted(
            f"no signer is trusted for {inquiry.remote.url}",
            "run cachesvc login, or set CACHESVC_TRUSTED_KEYS; keys of a login count for its own URL alone",
        )
    answer = ask(request, inquiry)
    result.more += answer.more or 0
    result.rejected.extend(answer.rejected)
    accepted: list[AcceptedRevision] = []
    failures: list[CacheSvcError] = []
    for resolved in answer.revisions:
        try:
            one = accept_resolved(request, resolved, inquiry)
            if settings.prefetch:
                one.pack.fetch()
            accepted.append(one)
        except CacheSvcError as error:
            failures.append(error)
            result.problems.append(str(error))
    if not (accepted or inquiry.others or result.installed or result.stored or answer.more):
        raise failures[0] if failures else nothing_offered(request.name, result.rejected)
    return accepted


def accept_resolved(
    request: NameRequest,
    resolved: ResolvedRevision,
    inquiry: Inquiry,
) -> AcceptedRevision:
    """Return one revision of a registry's answer. Raise ``CacheSvcError`` unless it is trusted and fits."""
    from ..bundle.check import ExpectedStatement

    settings, target, result = inquiry.settings, inquiry.target, inquiry.result
    with result.timed("check"):
        expected = ExpectedStatement(
            namespace=request.name.namespace,
            name=request.name.name,
            tags=request.tags,
            lane=request.lane,
        )
        accepted = settings.acceptance.accept(resolved.envelope_bytes, expected, target.store.marks)
        _demand_fit(accepted, settings, target, result)
    pack = RegistryPack(resolved, accepted.manifest.pack, inquiry.remote, target, settings.patience, result)
    return AcceptedRevision(accepted, pack)


def accept_bundles(
    paths: Iterable[Path],
    requests: Sequence[NameRequest],
    settings: RestoreSettings,
    target: RestoreTarget,
    result: RestoreResult,
) -> list[AcceptedRevision]:
    """Return the revisions of bundle files, without a registry; of one entry the newest.

    Each bundle must be signed for one of ``requests``. If there are none, every name is accepted, because the
    user named the file. Raise as `accept_name` does.
    """
    if settings.acceptance.trusts_nobody:
        raise Untrusted(
            "a bundle is installed only if you trust who signed it, and no key is trusted",
            "set CACHESVC_TRUSTED_KEYS, or run cachesvc login",
        )
    accepted: dict[Digest, AcceptedRevision] = {}
    failures: list[CacheSvcError] = []
    for path in paths:
        try:
            one = _accept_bundle(path, requests, settings, target, result)
            add_newest(accepted, one)
        except CacheSvcError as error:
            failures.append(error)
            result.problems.append(f"{path}: {error}")
    if not (accepted or result.installed):
        raise failures[0]
    return list(accepted.values())


def _accept_bundle(
    path: Path,
    requests: Sequence[NameRequest],
    settings: RestoreSettings,
    target: RestoreTarget,
    result: RestoreResult,
) -> AcceptedRevision:
    from ..bundle.file import open_bundle

    with result.timed("check"):
        envelope, offset = open_bundle(path)
        accepted = settings.acceptance.accept(envelope, None, target.store.marks)
        _refuse_unasked(accepted.manifest.statement, requests, settings.lane)
        _demand_fit(accepted, settings, target, result)
    return AcceptedRevision(accepted, BundlePack(path, offset))


def add_newest(accepted: dict[Digest, AcceptedRevision], one: AcceptedRevision) -> None:
    """Add a revision to those that were accepted, by entry, in the place of an older one. Raise ``Untrusted``
    if a newer one is there."""
    statement, other = one.manifest.statement, accepted.get(one.manifest.entry)
    if other is not None and other.manifest.statement.sequence > statement.sequence:
        raise Untrusted(
            f"{statement.full_name}: sequence {statement.sequence} is older than "
            f"{other.manifest.statement.sequence}, which is there too",
            "remove the older bundle",
        )
    accepted[one.manifest.entry] = one


def _refuse_unasked(statement: Statement, requests: Sequence[NameRequest], lane: Lane | None) -> None:
    """Raise ``Untrusted`` if nobody asked for the bundle's name, tag or lane."""
    signed = f"this bundle is signed for {statement.full_name}"
    if statement.lane not in (None, lane):
        raise Untrusted(
            f"{signed} in lane {statement.lane}, wanted: lane {lane}"
            if lane
            else f"{signed} in lane {statement.lane}, wanted: the trunk",
            f"set CACHESVC_LANE={statement.lane} to use it",
        )
    name = (statement.namespace, statement.name)
    if requests and not any(
        name == (request.name.namespace, request.name.name) and statement.tag in request.tags
        for request in requests
    ):
        expected = " or ".join(
            f"{request.name.namespace}/{request.name.name}:{tag}"
            for request in requests
            for tag in request.tags
        )
        raise Untrusted(f"{signed}, wanted: {expected}", "attach to the bundle's own name, or to no name")


def _demand_fit(
    accepted: Accepted, settings: RestoreSettings, target: RestoreTarget, result: RestoreResult
) -> None:
    """Raise ``CacheSvcError`` unless no canary of this node has refused the revision and it fits this
    environment.

    The registry has compared the environments too, but a client does not rely on that.
    """
    manifest = accepted.manifest
    refuse_distrusted(accepted, target.store, result)
    verdict = compare(settings.fingerprint, manifest.fingerprint, manifest.scopes)
    if isinstance(verdict, Compatible):
        if settings.support is not None:
            check_proof(manifest, settings.support, settings.fingerprint)
        return
    statement = manifest.statement
    result.rejected.append(Rejected(manifest.entry, statement.target, statement.tag, verdict.differences))
    raise Incompatible(
        f"{statement.full_name} {statement.target}: {verdict.reason}", verdict.differences[0].fix
    )


def refuse_distrusted(accepted: Accepted, store: NodeStore, result: RestoreResult) -> None:
    """Raise ``Distrusted`` for a revision that this node has withdrawn; note in ``result`` one that was
    withdrawn after crashes."""
    manifest, revision = accepted.manifest, accepted.revision
    if not store.marks.distrusts(manifest.entry, revision):
        return
    what = f"{manifest.statement.full_name} {manifest.statement.target}"
    fix = "publish another revision with cachesvc warm --force"
    mark = store.marks.crashed_of(manifest.entry, revision)
    if mark is None:
        raise Distrusted(f"{what}: a canary on this node found its numbers wrong", fix)
    result.unusable.withdrawn.append(InstalledRevision(manifest, revision, accepted.signer, 0, 0))
    raise Distrusted(
        f"{what}: two processes of this node crashed while they loaded files of revision {revision}",
        f"{fix}, or remove {mark} if they crashed of something else",
    )


def nothing_offered(name: Name, rejected: Sequence[Rejected]) -> CacheSvcError:
    """Return the error for an answer without revisions, in the same words for a log, `doctor` and `pull`."""
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
