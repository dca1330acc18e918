"""The bodies of the package's functions: arguments over configuration, and fail-open."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import Config
from .wire.errors import Forbidden, InvalidRequest, NotWarm
from .wire.names import Name, Target

if TYPE_CHECKING:
    from .wire.protocol import CommitAnswer

_log = logging.getLogger("cachesvc")


def register(model: Any, name: str | None) -> None:
    """Tells the sessions of a model that is about to be compiled; attaches if nothing is. Never raises."""
    from .session import Wanted, open_session, process

    try:
        from .workload import model_hash

        digest = model_hash(model) if hasattr(model, "named_modules") else None
        if digest is not None:
            process().models.append(digest)
        if name or not process().sessions:
            open_session(Wanted(name, model=digest))
    except Exception as error:  # noqa: BLE001 - the cache is never the reason that a service fails
        _log.warning("compile: not registered: %s: %s", type(error).__name__, error)


def publish(name: str | None, target: str) -> CommitAnswer:
    """See `cachesvc_client.publish`."""
    import tempfile

    from .bundle.seal import SigningKey
    from .publishing import build_bundle, publish_bundle
    from .remote import Remote
    from .session import process

    config = Config.read()
    if config.mode != "readwrite":
        raise Forbidden("publish: CACHESVC_MODE is not readwrite", "set it where publishing is meant")
    if config.signing_key is None or not config.url:
        raise InvalidRequest("publish: no signing key or registry", "set CACHESVC_SIGNING_KEY, CACHESVC_URL")
    sessions = process().sessions
    if not sessions:
        raise NotWarm("publish: nothing was recorded", "call attach before the first compile")
    names = [_name(name)] if name else [wish.name for session in sessions for wish in session.wishes]
    if not names:
        raise InvalidRequest("publish: no name", "give one, or attach to one")
    key = SigningKey.load(config.signing_key)
    draft = _draft(config, names[0], target)
    remote = Remote(config.url, config.token)
    with remote, tempfile.TemporaryDirectory(prefix="cachesvc-") as folder:
        path = Path(folder) / "revision.cachesvc"
        build_bundle(sessions[0].capture(), draft, key, path)
        return publish_bundle(remote, path, key)


def _name(text: str) -> Name:
    try:
        return Name.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None


def _draft(config: Config, name: Name, target: str) -> Any:
    from .publishing import Draft
    from .restore import Restored
    from .session import process
    from .wire.records import Workload

    state = process()
    try:
        checked = Target(target)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None
    return Draft(
        name=name,
        target=checked,
        fingerprint=state.prepare(config, Restored())[1],
        workload=Workload(model=state.models[0] if state.models else None),
        scopes=state.scopes(),
        lane=config.lane,
        asked=state.asked.facts(),
    )
