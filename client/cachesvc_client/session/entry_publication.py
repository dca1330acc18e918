"""Publishes what this process compiled beside the head of its entry: alone, or with the ranks of its job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.settings import Config
from ..hooks import logger
from ..wire.errors import (
    CacheSvcError,
    HeadConflict,
    InvalidRequest,
    NotWarm,
    StorageFull,
    Unsupported,
)
from ..wire.names import Lane, Name, Target

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..bundle.seal import PublicKey, Signer
    from ..claims.claim import Claim
    from ..node.ledger import Selection
    from ..publication.build_bundle import Draft
    from ..ranks.job import Job
    from ..ranks.join_files import HandIn
    from ..restore.request import NameRequest
    from ..restore.session_restore import SessionRestore
    from ..trust.accept import Accepted
    from ..wire.digest import Digest
    from ..wire.requests.protocol import CommitAnswer
    from .session import Session

_log = logging.getLogger("cachesvc")
_HAND_IN_SECONDS = 120.0
"""How long the ranks of a job may take, in seconds, to all reach `publish`. After that the publication fails
and names the ranks that did not reach it."""
_ATTEMPTS = 8
"""Times that a publication is tried which another one into the same entry has overtaken."""
_PUBLISH_SECONDS = 3600.0
"""How long the other ranks wait, in seconds, for rank 0 to publish."""


def publisher_key(config: Config) -> Signer:
    """Return what signs for this process. Raise ``InvalidRequest`` without one, or without a registry."""
    from ..publication.signer import signer_of

    key = signer_of(config)
    if key is None or not config.url:
        raise InvalidRequest("publish: no signing key or registry", "set CACHESVC_SIGNING_KEY, CACHESVC_URL")
    return key


def draft_of(config: Config, name: Name, target: str) -> Draft:
    """Describe the revision that this process would publish. Raises ``InvalidRequest`` for a malformed
    target."""
    from ..node.installed import RestoreResult
    from ..process.process import process
    from ..publication.build_bundle import Build, Draft
    from ..ranks.job import this_job
    from ..wire.manifest.records import Workload

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
        fingerprint=here if this_job() is not None else state.output.built_for(here),
        workload=Workload(model=state.output.models[0] if state.output.models else None),
        scopes=state.output.scopes(),
        lane=config.lane,
        keys=state.output.key_facts(),
        asked=state.output.asked.facts(),
        build=Build(ancestors=state.ledger.ancestors()),
    )


def selected(draft: Draft, selection: Selection) -> list[SourceFile]:
    """Return the files of a selection; say once what is left out. Raise ``NotWarm`` if nothing is left."""
    from ..process.process import process

    if selection.text and process().files.is_news(f"{draft.name} {selection.text}"):
        text = "%s: left out of the publication, since its signer did not make it for %s: %s"
        where = f"the lane {draft.lane}" if draft.lane else "the trunk"
        logger.write(logging.INFO, text, draft.name, where, selection.text)
    if selection.text and not selection.files:
        raise NotWarm(
            f"{draft.target}: nothing is left to publish: {selection.text}",
            "a publication holds what this process compiled, and what its signer published in the same lane",
        )
    return [known.file for known in selection.files]


def publish_beside_head(
    sessions: Sequence[Session],
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
    from ..restore.request import NameRequest
    from .entry_head import fetch_head, join_head

    request = request or NameRequest(draft.name, (), draft.lane)
    seen: set[Digest] = set()
    for left in reversed(range(_ATTEMPTS)):
        with tempfile.TemporaryDirectory(prefix="cachesvc-") as folder:
            head = None if restoring is None else fetch_head(restoring, request, key, draft)
            revision = None if head is None else head[0].revision
            held = {(file.kind, file.path) for file in head[0].manifest.files} if head is not None else set()
            if new is not None and head is not None:
                files, new = _once_recorded(head[0], key.public, draft, files, new)
            if new is not None and new <= held:
                process().files.note_published(draft.name, files)
                return None  # another process of the fleet has published the same
            joined, whole = join_head(head, files, key.public, draft, Path(folder))

            def replaces(other: Digest, revision: Digest | None = revision) -> bool:
                """Return whether a head was joined, or was asked for and not offered."""
                known = other == revision or other in seen or restoring is None
                seen.add(other)
                return known

            try:
                answer = publish_files(sessions, config, key, joined, whole, replaces, quick=new is not None)
                return answer, len(joined)
            except HeadConflict:
                if not left:
                    raise
    raise AssertionError("unreachable")


def _once_recorded(
    head: Accepted, signer: PublicKey, draft: Draft, files: Sequence[SourceFile], new: Set[tuple[str, str]]
) -> tuple[Sequence[SourceFile], Set[tuple[str, str]]]:
    """Return the files, and which are new, without what this process recorded if another one was faster. Then
    this process records no more."""
    from ..kinds import BY_NAME
    from ..process.process import process
    from .entry_head import recorded_by_others

    published = process().files.published(draft.name)
    if not recorded_by_others(head, signer, draft.lane, published):
        return files, new
    process().all_kinds.stop_recording(published)
    twice = {place for place in new if BY_NAME[place[0]].records_on is not None}
    return [file for file in files if (file.kind, file.path) not in twice], new - twice


def publish_files(
    sessions: Sequence[Session],
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
        claims = _claims(sessions, draft.name)
        refs = (claim.commit_ref for lane, claim in claims if lane == draft.lane)
        answer = publish_bundle(remote, path, key, claim=next(filter(None, refs), None), replaces=replaces)
    for lane, claim in claims:
        if lane == draft.lane:
            claim.published()
        else:
            claim.release(done=True)  # who waits in a lane sees the trunk too
    process().files.note_published(draft.name, files)
    return answer


def publish_with_ranks(
    sessions: Sequence[Session], config: Config, draft: Draft, job: Job, occasion: str = "publish"
) -> CommitAnswer:
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
    from ..wire.requests.protocol import CommitAnswer

    if not job.one_node:
        raise Unsupported(
            f"publish: {job.here or 'an unknown number'} of {job.world} ranks are on this node, and only "
            "those share a node store",
            "publish from a job on one node, or warm it",
        )
    store = NodeStore(store_root(config.store))
    publications = process().output.publications
    publications[draft.name, occasion + draft.target] += 1
    number = publications[draft.name, occasion + draft.target]
    subject = [job.key, occasion, str(draft.name), draft.target, number]
    box = HandIn(store.job(Digest.of(codec.canonical(subject))))
    try:
        made = box.exchange(job.rank, job.world, process().files.made_files(), _HAND_IN_SECONDS)
        facts = {"scopes": list(draft.scopes), "ancestors": codec.plain(draft.build.ancestors)}
        box.give(job.rank, process().files.known_files(made), facts)
        if job.rank:
            return codec.build(CommitAnswer, box.await_reply(_HAND_IN_SECONDS + _PUBLISH_SECONDS))
        return _publish_for_all(sessions, config, box, draft, job)
    except OSError as error:
        raise StorageFull(f"publish: node store {store.root}: {error.strerror or error}") from error


def _publish_for_all(
    sessions: Sequence[Session], config: Config, box: HandIn, draft: Draft, job: Job
) -> CommitAnswer:
    """Collect the files of all ranks, publish them, and reply to the ranks, also with an error."""
    from ..kinds import rule_of
    from ..node.ledger import Source, select
    from ..ranks.join_files import join_captures
    from ..wire import codec
    from ..wire.manifest.ancestors import Ancestor, in_order

    try:
        captured, facts = box.collect(job.world, _HAND_IN_SECONDS)
        key = publisher_key(config)
        scopes = sorted({scope for rank_facts in facts.values() for scope in rank_facts["scopes"]})
        workload = replace(draft.workload, ranks=job.world)
        told = [codec.build(Ancestor, one) for of_rank in facts.values() for one in of_rank["ancestors"]]
        build = replace(draft.build, ancestors=in_order(told))
        whole = replace(draft, scopes=tuple(scopes), workload=workload, build=build)
        source = Source(key.public, draft.lane)
        selected(draft, select((known for files in captured.values() for known in files), source))
        own = {rank: [one.file for one in select(files, source).files] for rank, files in captured.items()}
        files = join_captures(own, rule_of)
        published = publish_beside_head(
            sessions, config, key, files, whole, restoring_of(sessions, whole.name)
        )
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


def restoring_of(sessions: Sequence[Session], name: Name) -> SessionRestore | None:
    """Return the restore of the session that asked for a name, or else of any."""
    restoring = [session for session in sessions if session.restoring is not None]
    asked = [one for one in restoring if any(request.name == name for request in one.requests)]
    return next((session.restoring for session in [*asked, *restoring]), None)


def _claims(sessions: Sequence[Session], name: Name) -> list[tuple[Lane | None, Claim]]:
    """Return the claims under which this process compiled ``name``, with their lanes: one of each session,
    with one holder."""
    return [
        (session.config.lane, session.claims[name])
        for session in sessions
        if name in session.claims and session.config is not None
    ]
