"""Acquires a claim on what nobody has published, or waits for the process that holds it.

Nothing here decides whether published code fits or is trusted: a process that waited looks again, as any
process does. A claim that cannot be acquired, for whatever reason, is no reason not to compile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ..wire.claims import MAX_WAIT_SECONDS, ClaimAnswer, ClaimRequest
from ..wire.errors import CacheSvcError, NotFound
from .claim import Claim

if TYPE_CHECKING:
    from ..http.registry import Remote

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""Seconds that one answer of the registry may take beyond the wait that was asked for."""
RESOLVED_SECONDS = 6.0
"""Seconds that a published revision may stay unseen: longer than a registry remembers its answers."""
_PAUSE_SECONDS = 1.0
"""Seconds between two requests, where the registry itself does not wait."""
_RUN_VARIABLES = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILD_ID")
"""Variables in which CI systems name a run."""


@dataclass(frozen=True, slots=True)
class ClaimOutcome(Generic[T]):
    """Says who compiles. ``result``: what another process has published. ``claim``: nothing is published, and
    this process compiles it. Neither: this process compiles as if there were no claims; ``why`` says the
    reason, if a person should know it."""

    result: T | None = None
    claim: Claim | None = None
    why: str = ""


def acquire_or_wait(
    remote: Remote,
    request: ClaimRequest,
    look: Callable[[], T | None],
    *,
    patience: Callable[[], float],
    on_wait: Callable[[ClaimAnswer], None] = lambda _: None,
    poll_seconds: float = MAX_WAIT_SECONDS,
    hold_seconds: float | None = None,
    outage_seconds: float = 0.0,
    leads: bool = True,
) -> ClaimOutcome[T]:
    """Takes the claim, or waits for its holder until the work is published or free, or ``patience`` (the
    seconds that may still be waited) is over.

    ``look``: answers what is published; it is called again whenever something may be. ``on_wait``: called
    with the holder's answer after each request; a request waits for ``poll_seconds``. ``hold_seconds``: how
    long the claim may be held. ``outage_seconds``: how long a registry may be away. ``leads``: false for a
    rank of a job whose claim another rank holds.
    Raises only what ``look`` raises; a claim is given back then.
    """
    failed_since: float | None = None
    while True:
        wait = max(0.0, min(poll_seconds, patience()))
        began = time.monotonic()
        try:
            answer = remote.claim(replace(request, wait=wait), began + wait + ANSWER_SECONDS)
        except CacheSvcError as error:
            failed_since = failed_since or began
            if isinstance(error, NotFound):
                return ClaimOutcome()  # a registry from before there were claims
            if not error.retry or time.monotonic() - failed_since >= outage_seconds or patience() <= 0:
                return ClaimOutcome(why=str(error))
            time.sleep(min(_PAUSE_SECONDS, max(0.0, patience())))
            continue
        failed_since = None
        if answer.state == "yours" and leads:
            return _look_again(Claim(remote, answer, request.holder, hold_seconds), look)
        if answer.state == "yours":
            return ClaimOutcome(look(), why="another rank of this job publishes it")
        if answer.state == "published":
            result = _await_publication(look, patience)
            if result is not None:
                return ClaimOutcome(result)
            request = replace(request, seen=answer.fence)
            continue
        on_wait(answer)
        if patience() <= 0:
            return ClaimOutcome(
                why=f"{answer.who or 'somebody else'} still compiles it, for {answer.age} s now"
            )
        if time.monotonic() - began < wait / 2:
            time.sleep(min(_PAUSE_SECONDS, max(0.0, patience())))


def _await_publication(look: Callable[[], T | None], patience: Callable[[], float]) -> T | None:
    """Looks until the published revision is there. A replica may give its earlier answer for some seconds."""
    until = time.monotonic() + min(RESOLVED_SECONDS, patience())
    while (result := look()) is None and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
    return result


def _look_again(claim: Claim, look: Callable[[], T | None]) -> ClaimOutcome[T]:
    """Looks once more: somebody may have published between the last look and the claim."""
    try:
        result = look()
    except BaseException:
        claim.release()
        raise
    if result is None:
        return ClaimOutcome(claim=claim)
    claim.release(done=True)
    return ClaimOutcome(result)


def describe_this_process() -> str:
    """Names this host, in CI the run, and this process, for people who wait for it."""
    run = next((os.environ[name] for name in _RUN_VARIABLES if os.environ.get(name)), "")
    text = f"{os.uname().nodename}{f', run {run}' if run else ''}, process {os.getpid()}"
    return "".join(letter for letter in text if letter.isprintable())[:100]
