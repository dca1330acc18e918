"""Restores prebuilt torch.compile and Triton artifacts, so that a fresh process does not compile.

>>> import cachesvc_client
>>> cachesvc_client.attach("team/model")          # doctest: +SKIP
>>> model = torch.compile(model)                  # doctest: +SKIP

Importing has no side effects and does not import torch. Nothing here raises in a service, unless
CACHESVC_STRICT=1: if something cannot be restored, the process compiles, and one log line (logger
``cachesvc``) says why.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outcome.judge import Report
    from .session.session import Session
    from .wire.protocol import CommitAnswer

__version__ = "0.1.0"
"""The version of both distributions; both builds read this line."""
__all__ = ["attach", "compile", "prime", "publish", "report", "send_report", "status", "wait"]

_log = logging.getLogger("cachesvc")


def enabled() -> bool:
    """Whether there is anything to do here: not with CACHESVC_MODE=off, and on Linux only."""
    return os.environ.get("CACHESVC_MODE", "").strip() != "off" and sys.platform == "linux"


def named() -> bool:
    """Whether the variables say what to attach to."""
    return bool(os.environ.get("CACHESVC_NAME") or os.environ.get("CACHESVC_BUNDLE"))


def attach(
    name: str | None = None,
    *,
    bundle: str | os.PathLike[str] | None = None,
    url: str | None = None,
    token: str | None = None,
    deadline: float | None = None,
    fallback: tuple[str, ...] = (),
    canary: bool | None = None,
) -> Session | None:
    """Starts to restore what is published under ``name`` (``namespace/name[:tag]``), in the background.

    Returns at once and never raises. Without arguments everything comes from the CACHESVC_* variables and
    the login file. ``bundle``: a ``.cachesvc`` file, or a folder of them, instead of a registry; so is
    CACHESVC_BUNDLE, whatever the name.
    ``deadline``: seconds that the first compile waits, at most. ``fallback``: tags to try after the name's
    own. ``canary``: compare the first output of each restored graph with eager's, once, where gradients are
    not wanted; if it is wrong this process compiles, and its node does not install that revision again.
    May be called before or after ``import torch``, twice, with several names, and in a process that
    forks. What is wrong is told in one log line, in ``report()`` and, under CACHESVC_STRICT=1, raised by
    ``wait()`` and by the first compile. Answers ``None`` where there is nothing to do: CACHESVC_MODE=off, or
    not on Linux.
    """
    if not enabled():
        return None
    try:
        from .session.session import AttachOptions, open_session

        path = os.path.abspath(bundle) if bundle is not None else None
        return open_session(AttachOptions(name, path, url, token, deadline, fallback, canary=canary))
    except Exception as error:  # noqa: BLE001 - the cache is never the reason that a service fails
        _log.warning("not attached, this process compiles: %s: %s", type(error).__name__, error)
        return None


def compile(model: Any = None, *, name: str | None = None, canary: bool | None = None, **options: Any) -> Any:
    """``torch.compile(model, **options)``, returning torch's own object; attaches to ``name`` (or to
    CACHESVC_NAME) and tells it the model's hash, so that its entries are preferred.
    ``canary`` as in :func:`attach`, where this attaches.

    Exact shapes are never required to match. Whatever goes wrong with the cache, torch compiles.
    """
    import torch

    from .session.publish import register

    if model is None:
        return lambda function: compile(function, name=name, canary=canary, **options)
    if enabled():
        register(model, name, canary)
    return torch.compile(model, **options)


def publish(name: str | None = None, *, target: str = "service") -> CommitAnswer:
    """Publishes what this process compiled or used. Needs CACHESVC_MODE=readwrite, a write token and
    CACHESVC_SIGNING_KEY. Raises ``CacheSvcError`` with what is missing; blocks until it is committed. Where
    nothing had to be compiled, what was restored is published already: the answer is that revision, which is
    not ``created``. ``ClaimLost``: this process was silent for too long, and another one compiles or has.

    To be called after the first backward, where there is one. In a job of several ranks on one node every
    rank calls it: they become one revision, which rank 0 publishes (it alone needs token and key)."""
    from .session.publish import publish as run

    return run(name, target)


def report() -> Report:
    """What this process compiled, tuned and used: `Report`, with ``state`` and ``reasons``."""
    from .session.session import attached

    return attached().report()


def send_report(timeout: float = 1.0) -> bool:
    """Says the outcome and tells the registry now, as at exit, and answers whether it has a report of this
    start. That happens by itself too: when the compiler pauses, some seconds after the last compile, and at
    exit. This is for processes that end otherwise, such as by ``os._exit`` or a signal. Takes at most
    ``timeout`` seconds. Never raises."""
    from .session.session import attached

    return attached().send_report(timeout)


def wait(timeout: float | None = None) -> bool:
    """Waits until every attached restore is over; answers whether they are. Raises only under
    CACHESVC_STRICT=1."""
    from .session.session import attached

    over = [session.wait(timeout) for session in attached().sessions]
    return all(over)


def status() -> dict[str, str]:
    """What each attached name is at: for readiness probes."""
    from .session.session import attached

    return {session.label: session.status for session in attached().sessions}


def prime() -> None:
    """Imports what the first compile needs (about a second) on the caller's thread. Worth it only
    while the process waits for something else."""
    import importlib

    for module in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codecache"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            _log.warning("prime: %s: %s", module, error)
