"""Restore prebuilt torch.compile and Triton artifacts, so that a fresh process does not compile.

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
    from .wire.requests.protocol import CommitAnswer

__version__ = "0.1.0"
"""The version of both distributions; both builds read this line."""
__all__ = ["attach", "compile", "prime", "publish", "report", "send_report", "status", "wait"]

_log = logging.getLogger("cachesvc")


def enabled() -> bool:
    """Return whether there is anything to do here: not with CACHESVC_MODE=off, and on Linux only."""
    from .environment.variables import is_mode_off

    return not is_mode_off() and sys.platform == "linux"


def named() -> bool:
    """Return whether the variables say what to attach to."""
    return bool(os.environ.get("CACHESVC_NAME") or os.environ.get("CACHESVC_BUNDLE"))


def attach(
    name: str | None = None,
    *,
    bundle: str | os.PathLike[str] | None = None,
    url: str | None = None,
    token: str | None = None,
    deadline: float | None = None,
    fallback: tuple[str, ...] = (),
    canary: bool | str | None = None,
    mode: str | None = None,
) -> Session | None:
    """Start to restore what is published under a name, in the background.

    Returns at once and never raises. What goes wrong is in one log line and in `report()`; under
    CACHESVC_STRICT=1 `wait()` and the first compile raise it. May be called before or after ``import torch``,
    twice, with several names, and in a process that forks.

    Args:
        name: ``namespace/name[:tag]``. By default CACHESVC_NAME.
        bundle: A ``.cachesvc`` file, or a folder of them, to restore from instead of a registry.
            CACHESVC_BUNDLE does the same, whatever the name.
        url: The registry. By default CACHESVC_URL, else that of the login.
        token: The token. By default CACHESVC_TOKEN, else that of the login.
        deadline: Seconds that the first compile waits, at most. By default CACHESVC_DEADLINE, else 10.
        fallback: Tags to try after the name's own, in order.
        canary: Whether to compare the first output of each restored graph with eager PyTorch, once, where no
            gradients are wanted. If it is wrong, this process compiles, and its node does not install that
            revision again. ``"sample"`` or ``"sample:N"`` does so in 1 of 100, or of N, starts, beside the
            service. By default CACHESVC_CANARY.
        mode: ``read``, ``readwrite`` (this process also publishes what it compiles, when it is quiet) or
            ``off``. By default CACHESVC_MODE; CACHESVC_MODE=off holds in any case.

    Returns:
        The session; ``None`` where there is nothing to do: CACHESVC_MODE=off, or not on Linux.
    """
    if not enabled() or mode == "off":
        return None
    try:
        from .session.options import AttachOptions
        from .session.sessions import open_session

        path = os.path.abspath(bundle) if bundle is not None else None
        return open_session(AttachOptions(name, path, url, token, deadline, fallback, None, canary, mode))
    except Exception as error:  # noqa: BLE001 - the cache is never the reason that a service fails
        _log.warning("not attached, this process compiles: %s: %s", type(error).__name__, error)
        return None


def compile(
    model: Any = None, *, name: str | None = None, canary: bool | str | None = None, **options: Any
) -> Any:
    """Compile as ``torch.compile(model, **options)`` does, and prefer the entries of this very model.

    Attaches to ``name``, or to CACHESVC_NAME if nothing is attached yet. Exact shapes are never required to
    match. Whatever goes wrong with the cache, torch compiles.

    Args:
        model: What ``torch.compile`` takes. Without it, a decorator is returned.
        name: ``namespace/name[:tag]``.
        canary: As in `attach`, where this attaches.
        **options: What ``torch.compile`` takes.

    Returns:
        What ``torch.compile`` returns: torch's own object.
    """
    import torch

    from .session.publish import register

    if model is None:
        return lambda function: compile(function, name=name, canary=canary, **options)
    if enabled():
        register(model, name, canary)
    return torch.compile(model, **options)


def publish(name: str | None = None, *, target: str = "service") -> CommitAnswer:
    """Publish what this process compiled or used, now. Blocks until it is committed.

    Without this call a process in mode ``readwrite`` publishes when it is quiet, into a lane; this call
    publishes into the trunk, or into CACHESVC_LANE. What the same key has published there stays beside it, so
    builds of several shapes publish under one name. Needs the mode ``readwrite``, a token that may write, and
    CACHESVC_SIGNING_KEY. Call it after the first backward, where there is one. In a job of several ranks on
    one node every rank calls it: they become one revision, which rank 0 publishes; only rank 0 needs token
    and key.

    Args:
        name: ``namespace/name[:tag]``. By default what is attached.
        target: The target under which it is published.

    Returns:
        The entry and its revision. Where nothing had to be compiled this is the revision that was restored,
        and ``created`` is false.

    Raises:
        CacheSvcError: With what is missing and how to fix it. ``Forbidden``: the mode is not ``readwrite``.
            ``ClaimLost``: this process was silent for too long, and another one compiles or has published.
            A service that shall go on without the publication catches the error.
    """
    from .session.publish import publish as run

    return run(name, target)


def report() -> Report:
    """Return what this process compiled, tuned and used, with the outcome and its reasons."""
    from .session.sessions import attached

    return attached().reporting.report()


def send_report(timeout: float = 1.0) -> bool:
    """Say the outcome and tell the registry now, as at exit.

    Both happen without this call too: when the compiler pauses, some seconds after the last compile, and at
    exit. Call it in processes that end in another way, such as by ``os._exit`` or a signal. It may be called
    again. Never raises.

    Args:
        timeout: Seconds that this takes, at most.

    Returns:
        Whether the registry has a report of this start.
    """
    from .session.sessions import attached

    return attached().reporting.send(timeout)


def wait(timeout: float | None = None) -> bool:
    """Wait until every attached restore is over. Raises only under CACHESVC_STRICT=1.

    Args:
        timeout: Seconds to wait for each, at most; ``None``: without a limit.

    Returns:
        Whether they are over.
    """
    from .session.sessions import attached

    over = [session.wait(timeout) for session in attached().sessions]
    return all(over)


def status() -> dict[str, str]:
    """Return how far each attached name is: for readiness probes."""
    from .session.sessions import attached

    return {session.label: session.status for session in attached().sessions}


def prime() -> None:
    """Import what the first compile needs, about a second, on the caller's thread.

    It is worth it only while the process waits for something else.
    """
    import importlib

    for module in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codecache"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            _log.warning("prime: %s: %s", module, error)
