"""Owns the bodies of `cachesvc_client.publish` and, beside torch, of `cachesvc_client.compile`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..config.settings import Config
from ..wire.errors import (
    Forbidden,
    InvalidRequest,
    NotWarm,
    StorageFull,
)
from ..wire.names import Name
from .entry_publication import (
    draft_of,
    publish_beside_head,
    publish_with_ranks,
    publisher_key,
    restoring_of,
    selected,
)

if TYPE_CHECKING:
    from ..publication.build_bundle import Draft
    from ..wire.requests.protocol import CommitAnswer
    from .session import Session

_log = logging.getLogger("cachesvc")


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
            process().output.models.append(digest)
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
        return publish_with_ranks(sessions, config, draft, job)
    return _restored_revision(draft) or _publish_own_files(sessions, config, draft)


def _publish_own_files(sessions: Sequence[Session], config: Config, draft: Draft) -> CommitAnswer:
    from ..process.process import process

    key = publisher_key(config)
    files = selected(draft, process().files.own_files(key.public, draft.lane))
    answer = publish_beside_head(sessions, config, key, files, draft, restoring_of(sessions, draft.name))
    assert answer is not None
    return answer[0]


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
    from ..wire.requests.protocol import CommitAnswer
    from .entry_head import is_of_entry
    from .sessions import attached

    if attached().reporting.report().state != "hit":
        return None
    results = [session.result for session in attached().sessions if session.result is not None]
    for one in (one for result in results for one in result.installed):
        if is_of_entry(draft, one.manifest):
            return CommitAnswer(one.manifest.entry, one.revision, created=False)
    return None


def _parse_name(text: str) -> Name:
    try:
        return Name.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None
