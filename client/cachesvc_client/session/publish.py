"""Owns the bodies of `cachesvc_client.publish` and, beside torch, of `cachesvc_client.compile`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..hooks import logger
from ..wire.errors import (
    CacheSvcError,
    Forbidden,
    HeadConflict,
    InvalidRequest,
    NotWarm,
    StorageFull,
    Unsupported,
)
from ..wire.names import Lane, Name, Target

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import Signer
    from ..claims.claim import Claim
    from ..node.ledger import Selection
    from ..publication.build_bundle import Draft
    from ..ranks.job import Job
    from ..ranks.join_files import HandIn
    from ..restore.name_restore import SessionRestore
    from ..restore.plan import NameRequest
    from ..wire.digest import Digest
    from ..wire.protocol import CommitAnswer
    from .session import Session

_log = logging.getLogger("cachesvc")
_HAND_IN_SECONDS = 120.0
"""How long the ranks of a job may take, in seconds, to all reach `publish`. After that the publication fails
and names the ranks that did not reach it."""
_ATTEMPTS = 8
"""Times that a publication is tried which another one into the same entry has overtaken."""
_PUBLISH_SECONDS = 3600.0
"""How long the other ranks wait, in seconds, for rank 0 to publish."""


def register(model: Any, name: str | None, canary: bool | str | None = None) -> None:
    """Tell the sessions of a model that is about to be compiled. Attaches if nothing is attached.

    Never raises.
    """
    from ..process.process import process
    from .options import AttachOptions
    from .sessions import attached, open_session

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
    """Do what `cachesvc_client.publish` says."""
    try:
        return _publish(name, target)
    except OSError as error:
        raise StorageFull(
            f"publish: {error.filename or 'a file'}: {error.strerror or error}", "call publish again"
        ) from error


def _publish(name: str | None, target: str) -> CommitAnswer:
    from ..ranks.job import this_job
    from .sessions import attached

    sessions = attached().sessions
    config = _config(sessions)
    if config.mode != "readwrite":
        raise Forbidden(
            f"publish: this process only reads (CACHESVC_MODE={config.mode})",
            "set CACHESVC_MODE=readwrite, or start it with: cachesvc run NAME --mode readwrite -- COMMAND",
        )
    if not sessions:
        raise NotWarm("publish: nothing was recorded", "call attach before the first compile")
    if name:
        names = [_parse_name(name)]
    else:
        names = [request.name for session in sessions for request in session.requests]
    if not names:
        raise InvalidRequest("publish: no name", "give one, or attach to one")
    draft, job = draft_of(config, names[0], target), this_job()
    if job is not None:
        return publish_with_ranks(config, draft, job)
    return _restored_revision(draft) or _publish_own_files(config, draft)


def _publish_own_files(config: Config, draft: Draft) -> CommitAnswer:
    from ..process.process import process

    key = publisher_key(config)
    files = selected(draft, process().own_files(key.public, draft.lane))
    answer = publish_beside_head(config, key, files, draft, _restoring_of(draft.name))
    assert answer is not None
    return answer[0]


def _restoring_of(name: Name) -> SessionRestore | None:
    """Return the restore of the session that asked for a name, or else of any."""
    from .sessions import attached

    sessions = [session for session in attached().sessions if session.restoring is not None]
    asked = [one for one in sessions if any(request.name == name for request in one.requests)]
    return next((session.restoring for session in [*asked, *sessions]), None)


def publisher_key(config: Config) -> Signer:
    """Return what signs for this process. Raise ``InvalidRequest`` without one, or without a registry."""
    from ..publication.signer import signer_of

    key = signer_of(config)
    if key is None or not config.url:
        raise InvalidRequest("publish: no signing key or registry", "set CACHESVC_SIGNING_KEY, CACHESVC_URL")
    return key


def selected(draft: Draft, selection: Selection) -> list[SourceFile]:
    """Return the files of a selection; say once what is left out. Raise ``NotWarm`` if nothing is left."""
    from ..process.process import process

    if selection.text and process().is_news(f"{draft.name} {selection.text}"):
        text = "%s: left out of the publication, since its signer did not make it for %s: %s"
        where = f"the lane {draft.lane}" if draft.lane else "the trunk"
        logger.write(logging.INFO, text, draft.name, where, selection.text)
    if selection.text and not selection.files:
        raise NotWarm(
            f"{draft.target}: nothing is left to publish: {selection.text}",
            "a publication holds what this process compiled, and what its signer published in the same lane",
        )
    return [known.file for known in selection.files]


def _config(sessions: Sequence[Session]) -> Config:
    """Return the configuration of the first session that may publish, else that of the process."""
    config = Config.read()
    configs = (session.options.over(config) for session in sessions)
    return next((one for one in configs if one.mode == "readwrite"), config)


def _restored_revision(draft: Draft) -> CommitAnswer | None:
    """Return the restored revision of the draft's entry, if nothing was compiled beside it; else ``None``.

    Then there is nothing to publish: each process of a fleet would replace the revision by an equal one, and
    one without a compiler would publish another entry.
    """
    from ..wire.protocol import CommitAnswer
    from .entry_head import is_of_entry
    from .sessions import attached

    if attached().report().state != "hit":
        return None
    results = [session.result for session in attached().sessions if session.result is not None]
    for one in (one for result in results for one in result.installed):
        if is_of_entry(draft, one.manifest):
            return CommitAnswer(one.manifest.entry, one.revision, created=False)
    return None


def _claims(name: Name) -> list[tuple[Lane | None, Claim]]:
    """Return the claims under which this process compiled ``name``, with their lanes: one of each session,
    with one holder."""
    from .sessions import attached

    return [
        (session.config.lane, session.claims[name])
        for session in attached().sessions
        if name in session.claims and session.config is not None
    ]


def publish_beside_head(
    config: Config,
    key: Signer,
    files: Sequence[SourceFile],
    draft: Draft,
    restoring: SessionRestore | None,
    request: NameRequest | None = None,
    new: Set[tuple[str, str]] | None = None,
) -> tuple[CommitAnswer, int] | None:
    """Publish the files, and with them those of the entry's head that this signer may sign again: several
    processes publish into one entry. Return also how many files; ``None`` if the head has all of ``new``.

    ``restoring``: asks for the head; ``None``: nothing is kept of it. A head that came since it was asked for
    is joined too. ``new``: given where a service publishes by itself, which spends little of the processor on
    it. Raises as `cachesvc_client.publish` does.
    """
    import tempfile

    from ..process.process import process
    from ..restore.plan import NameRequest
    from .entry_head import fetch_head, join_head

    request = request or NameRequest(draft.name, (), draft.lane)
    seen: set[Digest] = set()
    for left in reversed(range(_ATTEMPTS)):
        with tempfile.TemporaryDirectory(prefix="cachesvc-") as folder:
            head = None if restoring is None else fetch_head(restoring, request, key, draft)
            revision = None if head is None else head[0].revision
            held = {(file.kind, file.path) for file in head[0].manifest.files} if head is not None else set()
            if new is not None and new <= held:
                process().note_published(draft.name, files)
                return None  # another process of the fleet has published the same
            joined, whole = join_head(head, files, key.public, draft, Path(folder))

            def replaces(other: Digest, revision: Digest | None = revision) -> bool:
                """Return whether a head was joined, or was asked for and not offered."""
                known = other == revision or other in seen or restoring is None
                seen.add(other)
                return known

            try:
                answer = publish_files(config, key, joined, whole, replaces, quick=new is not None)
                return answer, len(joined)
            except HeadConflict:
                if not left:
                    raise
    raise AssertionError("unreachable")


def publish_files(
    config: Config,
    key: Signer,
    files: Sequence[SourceFile],
    draft: Draft,
    replaces: Callable[[Digest], bool],
    *,
    quick: bool = False,
) -> CommitAnswer:
    """Sign the files as one bundle and publish it, under this process's claim if it has one in that lane.

    ``replaces``: see `publish_bundle`. ``quick``: spend little of the processor on it. Raises as
    `cachesvc_client.publish` does, and ``HeadConflict``.
    """
    import tempfile

    from ..http.registry import Remote
    from ..process.process import process
    from ..publication.build_bundle import build_bundle
    from ..publication.publish_bundle import publish_bundle

    remote = Remote(config.url or "", config.token)
    with remote, tempfile.TemporaryDirectory(prefix="cachesvc-") as folder:
        path = Path(folder) / "revision.cachesvc"
        build_bundle(files, draft, key, path, quick=quick)
        claims = _claims(draft.name)
        refs = (claim.commit_ref for lane, claim in claims if lane == draft.lane)
        answer = publish_bundle(remote, path, key, claim=next(filter(None, refs), None), replaces=replaces)
    for lane, claim in claims:
        if lane == draft.lane:
            claim.published()
        else:
            claim.release(done=True)  # who waits in a lane sees the trunk too
    process().note_published(draft.name, files)
    return answer


def publish_with_ranks(config: Config, draft: Draft, job: Job, occasion: str = "publish") -> CommitAnswer:
    """Hand in the files of this rank with their origins; rank 0 publishes those of all ranks that it may
    sign, as one revision.

    ``occasion``: why it is published. Every rank publishes equally often for each occasion. Raises as
    `cachesvc_client.publish` does.
    """
    from ..node.store import NodeStore
    from ..node.store_root import store_root
    from ..process.process import process
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
    store = NodeStore(store_root(config.store))
    publications = process().publications
    publications[draft.name, occasion + draft.target] += 1
    number = publications[draft.name, occasion + draft.target]
    subject = [job.key, occasion, str(draft.name), draft.target, number]
    box = HandIn(store.job(Digest.of(codec.canonical(subject))))
    try:
        made = box.exchange(job.rank, job.world, process().made_files(), _HAND_IN_SECONDS)
        facts = {"scopes": list(draft.scopes), "ancestors": codec.plain(draft.ancestors)}
        box.give(job.rank, process().known_files(made), facts)
        if job.rank:
            return codec.build(CommitAnswer, box.await_reply(_HAND_IN_SECONDS + _PUBLISH_SECONDS))
        return _publish_for_all(config, box, draft, job)
    except OSError as error:
        raise StorageFull(f"publish: node store {store.root}: {error.strerror or error}") from error


def _publish_for_all(config: Config, box: HandIn, draft: Draft, job: Job) -> CommitAnswer:
    """Collect the files of all ranks, publish them, and reply to the ranks, also with an error."""
    from ..kinds import rule_of
    from ..node.ledger import Source, select
    from ..ranks.join_files import join_captures
    from ..wire import codec
    from ..wire.ancestors import Ancestor, in_order

    try:
        captured, facts = box.collect(job.world, _HAND_IN_SECONDS)
        key = publisher_key(config)
        scopes = sorted({scope for rank_facts in facts.values() for scope in rank_facts["scopes"]})
        workload = replace(draft.workload, ranks=job.world)
        told = [codec.build(Ancestor, one) for of_rank in facts.values() for one in of_rank["ancestors"]]
        whole = replace(draft, scopes=tuple(scopes), workload=workload, ancestors=in_order(told))
        source = Source(key.public, draft.lane)
        selected(draft, select((known for files in captured.values() for known in files), source))
        own = {rank: [one.file for one in select(files, source).files] for rank, files in captured.items()}
        files = join_captures(own, rule_of)
        published = publish_beside_head(config, key, files, whole, _restoring_of(whole.name))
        assert published is not None
        answer = published[0]
    except CacheSvcError as error:
        box.reply(error)
        raise
    except Exception as error:
        box.reply(CacheSvcError(f"publish by rank 0: {type(error).__name__}: {error}"))
        raise
    box.reply(codec.plain(answer))
    return answer


def _parse_name(text: str) -> Name:
    try:
        return Name.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None


def draft_of(config: Config, name: Name, target: str) -> Draft:
    """Describe the revision that this process would publish. Raises ``InvalidRequest`` for a malformed
    target."""
    from ..node.installed import RestoreResult
    from ..process.process import process
    from ..publication.build_bundle import Draft
    from ..ranks.job import this_job
    from ..wire.records import Workload

    state = process()
    try:
        checked = Target(target)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None
    here = state.prepare(config, RestoreResult())[1]
    return Draft(
        name=name,
        target=checked,
        # Of what the other ranks of a job compiled with, this process knows nothing.
        fingerprint=here if this_job() is not None else state.built_for(here),
        workload=Workload(model=state.models[0] if state.models else None),
        scopes=state.scopes(),
        lane=config.lane,
        keys=state.key_facts(),
        asked=state.asked.facts(),
        ancestors=state.ledger.ancestors(),
    )
