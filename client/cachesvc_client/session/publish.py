"""The bodies of the package's functions: arguments over configuration, and fail-open."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..wire.errors import CacheSvcError, Forbidden, InvalidRequest, NotWarm, StorageFull, Unsupported
from ..wire.names import Name, Target

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..claims.claim import Claim
    from ..publication.build_bundle import Draft
    from ..ranks.job import Job
    from ..ranks.join_files import HandIn
    from ..wire.protocol import CommitAnswer

_log = logging.getLogger("cachesvc")
_HAND_IN_SECONDS = 120.0
"""Ranks reach the same line within this time, or the publish fails and names those that did not."""
_PUBLISH_SECONDS = 3600.0
_published: Counter[tuple[Name, Target]] = Counter()


def register(model: Any, name: str | None, canary: bool | None = None) -> None:
    """Tells the sessions of a model that is about to be compiled; attaches if nothing is. Never raises."""
    from .process import process
    from .session import AttachOptions, attached, open_session

    try:
        from ..environment.model_hash import model_hash

        digest = model_hash(model) if hasattr(model, "named_modules") else None
        if digest is not None:
            process().models.append(digest)
        if name or not attached().sessions:
            open_session(AttachOptions(name, model=digest, canary=canary))
    except Exception as error:  # noqa: BLE001 - the cache is never the reason that a service fails
        _log.warning("compile: not registered: %s: %s", type(error).__name__, error)


def publish(name: str | None, target: str) -> CommitAnswer:
    """See `cachesvc_client.publish`."""
    from ..ranks.job import this_job
    from .session import attached

    config = Config.read()
    if config.mode != "readwrite":
        raise Forbidden("publish: CACHESVC_MODE is not readwrite", "set it where publishing is meant")
    sessions = attached().sessions
    if not sessions:
        raise NotWarm("publish: nothing was recorded", "call attach before the first compile")
    names = [_name(name)] if name else [wish.name for session in sessions for wish in session.wishes]
    if not names:
        raise InvalidRequest("publish: no name", "give one, or attach to one")
    draft, job = _draft(config, names[0], target), this_job()
    if job is not None:
        return _publish_with_ranks(config, sessions[0].capture(), draft, job)
    return _restored(draft) or _publish(config, sessions[0].capture(), draft)


def _restored(draft: Draft) -> CommitAnswer | None:
    """The revision of this very entry that was restored, where nothing was compiled beside it: there is
    nothing to publish, and each process of a fleet would put another revision of the same over it."""
    from ..wire.protocol import CommitAnswer
    from ..wire.records import Statement, entry_key
    from .session import attached

    if attached().report().state != "hit":
        return None
    statement = Statement(draft.name.namespace, draft.name.name, draft.target, 1, draft.name.tag, draft.lane)
    entry = entry_key(statement, draft.fingerprint, draft.scopes, draft.workload)
    results = [session.restored for session in attached().sessions if session.restored is not None]
    found = [one.revision for result in results for one in result.installed if one.manifest.entry == entry]
    return CommitAnswer(entry, found[0], created=False) if found else None


def _claim(name: Name) -> Claim | None:
    """That this process compiled it under, if it has one."""
    from .session import attached

    held = [session.turns.claims for session in attached().sessions if session.turns is not None]
    return next((claims[name] for claims in held if name in claims), None)


def _publish(config: Config, files: Sequence[SourceFile], draft: Draft) -> CommitAnswer:
    import tempfile

    from ..bundle.seal import SigningKey
    from ..http.registry import Remote
    from ..publication.build_bundle import build_bundle
    from ..publication.publish_bundle import publish_bundle

    if config.signing_key is None or not config.url:
        raise InvalidRequest("publish: no signing key or registry", "set CACHESVC_SIGNING_KEY, CACHESVC_URL")
    key = SigningKey.load(config.signing_key)
    remote = Remote(config.url, config.token)
    with remote, tempfile.TemporaryDirectory(prefix="cachesvc-") as folder:
        path = Path(folder) / "revision.cachesvc"
        build_bundle(files, draft, key, path)
        claim = _claim(draft.name)
        answer = publish_bundle(remote, path, key, claim=claim.shown if claim else None)
        if claim is not None:
            claim.published()
        return answer


def _publish_with_ranks(config: Config, files: Sequence[SourceFile], draft: Draft, job: Job) -> CommitAnswer:
    """Every rank hands in what it has; rank 0 publishes it as one revision and tells the others."""
    from ..node.store import NodeStore, default_root
    from ..ranks.join_files import HandIn
    from ..wire import codec
    from ..wire.digest import Digest
    from ..wire.protocol import CommitAnswer

    if not job.one_node:
        raise Unsupported(
            f"publish: {job.here or 'an unknown number'} of {job.world} ranks are on this node, and only "
            "those share a node store",
            "publish from a job on one node, or warm it",
        )
    store = NodeStore(config.store or default_root())
    _published[draft.name, draft.target] += 1  # every rank publishes equally often
    said = [job.key, "publish", str(draft.name), draft.target, _published[draft.name, draft.target]]
    box = HandIn(store.job(Digest.of(codec.canonical(said))))
    try:
        box.give(job.rank, files, {"scopes": list(draft.scopes)})
        if job.rank:
            return codec.build(CommitAnswer, box.await_reply(_HAND_IN_SECONDS + _PUBLISH_SECONDS))
        return _publish_for_all(config, box, draft, job)
    except OSError as error:
        raise StorageFull(f"publish: node store {store.root}: {error.strerror or error}") from error


def _publish_for_all(config: Config, box: HandIn, draft: Draft, job: Job) -> CommitAnswer:
    from ..ranks.join_files import join_captures
    from ..wire import codec

    try:
        captured, facts = box.collect(job.world, _HAND_IN_SECONDS)
        scopes = sorted({scope for given in facts.values() for scope in given["scopes"]})
        workload = replace(draft.workload, ranks=job.world)
        whole = replace(draft, scopes=tuple(scopes), workload=workload)
        answer = _publish(config, join_captures(captured), whole)
    except CacheSvcError as error:
        box.reply(error)
        raise
    except Exception as error:
        box.reply(CacheSvcError(f"publish by rank 0: {type(error).__name__}: {error}"))
        raise
    box.reply(codec.plain(answer))
    return answer


def _name(text: str) -> Name:
    try:
        return Name.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None


def _draft(config: Config, name: Name, target: str) -> Draft:
    from ..node.installed import RestoreResult
    from ..publication.build_bundle import Draft
    from ..wire.records import Workload
    from .process import process

    state = process()
    try:
        checked = Target(target)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None
    return Draft(
        name=name,
        target=checked,
        fingerprint=state.prepare(config, RestoreResult())[1],
        workload=Workload(model=state.models[0] if state.models else None),
        scopes=state.scopes(),
        lane=config.lane,
        keys=state.key_facts(),
        asked=state.asked.facts(),
    )
