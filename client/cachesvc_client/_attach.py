"""The bodies of the package's functions: arguments over configuration, and fail-open."""

from __future__ import annotations

import logging
import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import Config
from .wire.digest import Digest
from .wire.errors import CacheSvcError, Forbidden, InvalidRequest, NotWarm
from .wire.names import Name, Tag, Target
from .wire.protocol import CommitAnswer
from .wire.records import Workload

if TYPE_CHECKING:
    from .session import Session

_log = logging.getLogger("cachesvc")


def attach(
    name: str | None,
    bundle: str | Path | None,
    url: str | None,
    token: str | None,
    deadline: float | None,
    fallback: tuple[str, ...],
    model: Digest | None = None,
) -> Session | None:
    """See `cachesvc_client.attach`."""
    strict = False
    try:
        config = Config.read()
        strict = config.strict
        if config.mode == "off":
            return None
        if platform.system() != "Linux":
            _log.info("cachesvc works on Linux only; on %s it does nothing", platform.system())
            return None
        config = _with_arguments(config, url, token, deadline, fallback)
        names = [_name(name)] if name else list(config.names) if bundle is None else []
        if bundle is None and not names:
            raise InvalidRequest("attach: no name", "give one, or set CACHESVC_NAME")
        if bundle is None and not config.url:
            raise InvalidRequest("attach: no registry", "run cachesvc login, or set CACHESVC_URL")
        return _open_all(config, names, Path(bundle) if bundle else None, model)
    except CacheSvcError as error:
        if strict:
            raise
        _log.warning("not attached, this process compiles: %s", error)
    except Exception as error:
        if strict:
            raise
        _log.warning("not attached, this process compiles: %s: %s", type(error).__name__, error)
    return None


def _open_all(config: Config, names: list[Name], bundle: Path | None, model: Digest | None) -> Session:
    from .session import open_session

    if bundle is not None:
        return open_session(config, None, bundle.absolute())
    sessions = [open_session(config, name, None, model) for name in names]
    return sessions[0]


def _with_arguments(
    config: Config, url: str | None, token: str | None, deadline: float | None, fallback: tuple[str, ...]
) -> Config:
    try:
        tags = tuple(Tag(tag) for tag in fallback)
    except ValueError as error:
        raise InvalidRequest(f"attach: fallback: {error}") from None
    return replace(
        config,
        url=url or config.url,
        token=token or config.token,
        deadline=config.deadline if deadline is None else float(deadline),
        tag_fallback=tags or config.tag_fallback,
    )


def _name(text: str) -> Name:
    try:
        return Name.parse(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def register(model: Any, name: str | None) -> None:
    """Tells the sessions of a model that is about to be compiled; attaches if nothing is."""
    try:
        from .session import process
        from .workload import model_hash

        digest = model_hash(model) if hasattr(model, "named_modules") else None
        if digest is not None:
            process().models.append(digest)
        if name or not process().sessions:
            attach(name, None, None, None, None, (), digest)
    except Exception as error:  # noqa: BLE001 - see attach
        _log.warning("compile: not registered: %s: %s", type(error).__name__, error)


def publish(name: str | None, target: str) -> CommitAnswer:
    """See `cachesvc_client.publish`."""
    from .bundle.seal import SigningKey
    from .publishing import Draft, build_bundle, publish_bundle
    from .remote import Remote
    from .session import open_session, process

    config = Config.read()
    if config.mode != "readwrite":
        raise Forbidden("publish: CACHESVC_MODE is not readwrite", "set it where publishing is meant")
    if config.signing_key is None or not config.url:
        raise InvalidRequest("publish: no signing key or registry", "set CACHESVC_SIGNING_KEY, CACHESVC_URL")
    state = process()
    names = [_name(name)] if name else [session.wish.name for session in state.sessions if session.wish]
    if not names:
        raise InvalidRequest("publish: no name", "give one, or attach first")
    if state.observer is None:
        raise NotWarm("publish: attach comes before the first compile", "call attach at start-up")
    session = state.sessions[0] if state.sessions else open_session(config, None, None)
    key = SigningKey.load(config.signing_key)
    draft = Draft(
        name=names[0],
        target=_target(target),
        fingerprint=state.prepare(config, session.restored)[1],
        workload=Workload(model=state.models[0] if state.models else None),
        scopes=scopes(),
        lane=config.lane,
    )
    with (
        tempfile.TemporaryDirectory(prefix="cachesvc-") as folder,
        Remote(config.url, config.token) as remote,
    ):
        path = Path(folder) / "revision.cachesvc"
        build_bundle(session.capture(), draft, key, path)
        return publish_bundle(remote, path, key)


def scopes() -> tuple[str, ...]:
    """What the code of this process is bound to: the GPU if CUDA was used, else the host's CPU; both
    where host kernels were built or loaded beside it."""
    import sys

    from .session import process

    torch = sys.modules.get("torch")
    cuda = bool(torch is not None and torch.cuda.is_initialized())
    host = bool(process().kernels.recorded.kernels) or not cuda
    return (("gpu",) if cuda else ()) + (("host",) if host else ())


def _target(text: str) -> Target:
    try:
        return Target(text)
    except ValueError as error:
        raise InvalidRequest(f"publish: {error}") from None
