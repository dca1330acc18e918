"""Acquires a claim on work that is not published, or waits for the process that has the claim.

This module does not decide whether published code fits or is trusted: a process that has waited restores as
any process does. A process that cannot acquire a claim, for whatever reason, compiles all the same.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ..wire.errors import CacheSvcError
from ..wire.requests.claims import MAX_WAIT_SECONDS, ClaimAnswer, ClaimRequest
from .claim import Claim

if TYPE_CHECKING:
    from ..http.claims import Claims

T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""Seconds that one answer of the registry may take beyond the requested wait."""
RESOLVED_SECONDS = 6.0
"""Seconds that a resolve may not show a published revision: longer than a registry remembers its answers."""
_PAUSE_SECONDS = 1.0
"""Seconds between two requests, where the registry itself does not wait; each further pause is longer."""
_LONGEST_PAUSE = 5
"""How many times that is a pause at most: a registry that cannot let a fleet wait is asked less often."""
_MOST_ANCESTORS = 32
_RUN_VARIABLES = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILD_ID")
"""Variables in which CI systems name a run."""


@dataclass(frozen=True, slots=True)
class ClaimOutcome(Generic[T]):
    """Says who compiles.

    ``result``: what another process has published. ``claim``: set if nothing is published and this process
    compiles. If neither is set, this process compiles as if there were no claims, and ``why`` is the reason,
    if a person should know it.
    """

    result: T | None = None
    claim: Claim | None = None
    why: str = ""


def acquire_or_wait(
    claims: Claims,
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
    """Acquires the claim; or waits for its holder until the work is published, the claim is free, or
    ``patience`` is over.

    ``look``: returns what is published, and is called again whenever there may be something. ``patience``:
    returns the seconds that this process may still wait. ``on_wait``: called with the registry's answer after
    each request that waited, for ``poll_seconds`` at most. ``hold_seconds``: how long this process may keep
    the claim. ``outage_seconds``: how long the registry may be unreachable. ``leads``: false for a rank of a
    job whose claim another rank has. Raises only what ``look`` raises; a claim is released then.
    """
    failed_since: float | None = None
    pauses = 0
    ancestors = _describe_ancestors()
    # Whoever may be started by the holder asks at once: the holder may wait for this very process.
    first = 0.0 if ancestors else poll_seconds
    while True:
        wait = max(0.0, min(first, patience()))
        first = poll_seconds
        began = time.monotonic()
        try:
            answer = claims.take(replace(request, wait=wait), began + wait + ANSWER_SECONDS)
        except CacheSvcError as error:
            # A request may have waited at a registry that was there until now.
            failed_since = failed_since or min(time.monotonic(), began + wait)
            if not error.retry or time.monotonic() - failed_since >= outage_seconds or patience() <= 0:
                return ClaimOutcome(why=str(error))
            pauses += 1
            _pause(pauses, patience)
            continue
        failed_since = None
        if answer.state == "yours" and leads:
            return _look_again(Claim(claims, answer, request.holder, hold_seconds), look)
        if answer.state == "yours":
            return ClaimOutcome(look(), why="another rank of this job publishes it")
        if answer.state == "published":
            result = _await_publication(look, patience=patience)
            if result is not None:
                return ClaimOutcome(result)
            request = replace(request, seen=answer.fence)
            continue
        if answer.who in ancestors:
            return ClaimOutcome(why="a parent of this process compiles it, and may wait for this process")
        on_wait(answer)
        if patience() <= 0:
            return ClaimOutcome(
                why=f"{answer.who or 'somebody else'} still compiles it, for {answer.age} s now"
            )
        pauses = pauses + 1 if time.monotonic() - began < wait / 2 else 0
        if pauses:
            _pause(pauses, patience)


def _pause(number: int, patience: Callable[[], float]) -> None:
    """Sleeps before the next request, the longer the more pauses there were. Processes that began at one
    moment do not come back at one moment."""
    longest = _PAUSE_SECONDS * min(number, _LONGEST_PAUSE)
    time.sleep(min(longest * random.uniform(0.5, 1.0), max(0.0, patience())))


def _await_publication(look: Callable[[], T | None], *, patience: Callable[[], float]) -> T | None:
    """Calls ``look`` until it returns the publication, since a replica may repeat an earlier answer for
    seconds."""
    until = time.monotonic() + min(RESOLVED_SECONDS, patience())
    while (result := look()) is None and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
    return result


def _look_again(claim: Claim, look: Callable[[], T | None]) -> ClaimOutcome[T]:
    """Calls ``look`` once more: another process may have published between the last call and the claim."""
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
    """Return a name of this host, in CI the run, and this process, for the people who wait for it."""
    return _describe_process(os.getpid())


def _describe_process(pid: int) -> str:
    run = next((os.environ[name] for name in _RUN_VARIABLES if os.environ.get(name)), "")
    text = f"{os.uname().nodename}{f', run {run}' if run else ''}, process {pid}"
    return "".join(letter for letter in text if letter.isprintable())[:100]


def _describe_ancestors() -> frozenset[str]:
    """Return the names of the processes that this one comes from and that run the same program.

    A compiler measures what it makes in child processes, as Helion's search does. Such a child attaches as
    its parent did, and the parent that holds the claim waits for it.
    """
    found: list[str] = []
    pid = os.getppid()
    try:
        own = os.readlink("/proc/self/exe")
        while pid > 1 and len(found) < _MOST_ANCESTORS:
            if os.readlink(f"/proc/{pid}/exe") == own:
                found.append(_describe_process(pid))
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass  # another user's process, or none: nothing of it waits for this one
    return frozenset(found)
