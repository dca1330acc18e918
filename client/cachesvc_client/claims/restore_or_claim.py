"""Who compiles what no entry holds: this process, or another one for which it waits.

Nothing here decides whether anything fits or is trusted: whoever waited looks again, as anybody does. A claim
that cannot be had, for whatever reason, is no reason not to compile.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from ..http.registry import Remote
from ..wire.claims import MAX_WAIT_SECONDS, ClaimAnswer, ClaimRef, ClaimRelease, ClaimRequest, ClaimSubject
from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, ClaimLost, Incompatible, NotFound
from ..wire.partitions import known_partition

if TYPE_CHECKING:
    from ..config import Config
    from ..node.installed import RestoreResult
    from ..ranks.job import Job
    from ..restore.plan import NameRequest, RestoreContext
    from ..wire.names import Name

_log = logging.getLogger("cachesvc")
T = TypeVar("T")

ANSWER_SECONDS = 10.0
"""For one answer of the registry, beyond what was to be waited for."""
RELEASE_SECONDS = 1.0
"""For giving a claim back, which also happens at exit."""
HOLD_SECONDS = 1800.0
"""A service that has not published by then never will: others need not wait for it any longer."""
RESOLVED_SECONDS = 6.0
"""Longer than a registry remembers what it answered."""
_PAUSE_SECONDS = 1.0
"""Between two requests, where the registry does not wait for us."""
_RUNS = ("GITHUB_RUN_ID", "CI_JOB_ID", "BUILD_ID")
"""What CI systems call a run."""


class Claim:
    """A claim that this process holds, renewed on a thread of its own until it is given back, published
    under, or lost. It is the process's that took it: not a forked child's."""

    def __init__(self, remote: Remote, answer: ClaimAnswer, holder: str, most: float | None = None) -> None:
        self._remote = remote
        self.ref = ClaimRef(answer.key, holder, answer.fence)
        self.lost = False
        """Somebody else has taken it over."""
        self._pid = os.getpid()
        self._over = threading.Event()
        self._until = None if most is None else time.monotonic() + most
        self._every = max(0.5, answer.left / 3)
        _held.add(self)
        _at_exit()
        threading.Thread(target=self._renew, name="cachesvc-claim", daemon=True).start()

    @property
    def shown(self) -> ClaimRef | None:
        """What a commit presents: also a claim that was lost, which the registry refuses, and says why. One
        that this process has given back, or that its parent holds, is not shown."""
        return None if self._over.is_set() or self._pid != os.getpid() else self.ref

    def published(self) -> None:
        """A commit has given it back."""
        self._over.set()
        _held.discard(self)

    def release(self, *, done: bool = False) -> None:
        """Gives it back, if it is still ours. ``done``: what it was for is published. Never raises."""
        if self._over.is_set() or self._pid != os.getpid():
            return
        self.published()
        if not self.lost:
            with suppress(CacheSvcError):
                request = ClaimRelease(self.ref, done)
                self._remote.release_claim(request, time.monotonic() + RELEASE_SECONDS)

    def _renew(self) -> None:
        wait = self._every
        while not self._over.wait(wait):
            if self._until is not None and time.monotonic() > self._until:
                self.release()
                return
            try:
                self._remote.renew_claim(self.ref, time.monotonic() + self._every)
                wait = self._every
            except ClaimLost as error:
                if not self._over.is_set():
                    self.lost = True
                    _log.info("%s", error)
                return
            except CacheSvcError as error:
                _log.debug("claim not renewed: %s", error)
                wait = self._every / 3


_held: set[Claim] = set()


@functools.cache
def _at_exit() -> None:
    atexit.register(_release_all)


def _release_all() -> None:
    for claim in tuple(_held):
        claim.release()


@dataclass(frozen=True, slots=True)
class ClaimOutcome(Generic[T]):
    """``found``: what somebody else has published. ``claim``: nothing is there, and this process is the one
    that compiles it. Neither: it compiles as if there were no claims; ``why``, if that is worth telling."""

    found: T | None = None
    claim: Claim | None = None
    why: str = ""


def turn(
    remote: Remote,
    request: ClaimRequest,
    look: Callable[[], T | None],
    *,
    patience: Callable[[], float],
    told: Callable[[ClaimAnswer], None] = lambda _: None,
    poll: float = MAX_WAIT_SECONDS,
    most: float | None = None,
    outage: float = 0.0,
    leads: bool = True,
) -> ClaimOutcome[T]:
    """Takes the claim, or waits for who has it, until it is published, or free, or ``patience`` (seconds that
    may still be waited) is over.

    ``look``: what is published now, asked again whenever something may be. ``told``: of who is waited for,
    after each request, which waits for ``poll`` seconds. ``most``: seconds to hold the claim. ``outage``:
    seconds that a registry may be away. ``leads``: false for a rank of a job whose claim another rank holds.
    Raises only what ``look`` raises; a claim is given back then.
    """
    failed_since: float | None = None
    while True:
        wait = max(0.0, min(poll, patience()))
        began = time.monotonic()
        try:
            answer = remote.claim(replace(request, wait=wait), began + wait + ANSWER_SECONDS)
        except CacheSvcError as error:
            failed_since = failed_since or began
            if isinstance(error, NotFound):
                return ClaimOutcome()  # a registry from before there were claims
            if not error.retry or time.monotonic() - failed_since >= outage or patience() <= 0:
                return ClaimOutcome(why=str(error))
            time.sleep(min(_PAUSE_SECONDS, max(0.0, patience())))
            continue
        failed_since = None
        if answer.state == "yours" and leads:
            return _looked_again(Claim(remote, answer, request.holder, most), look)
        if answer.state == "yours":
            return ClaimOutcome(look(), why="another rank of this job publishes it")
        if answer.state == "published":
            found = _seen(look, patience)
            if found is not None:
                return ClaimOutcome(found)
            request = replace(request, seen=answer.fence)
            continue
        told(answer)
        if patience() <= 0:
            return ClaimOutcome(
                why=f"{answer.who or 'somebody else'} still compiles it, for {answer.age} s now"
            )
        if time.monotonic() - began < wait / 2:
            time.sleep(min(_PAUSE_SECONDS, max(0.0, patience())))


def _seen(look: Callable[[], T | None], patience: Callable[[], float]) -> T | None:
    """What was published. A replica may answer for some seconds as it did before."""
    until = time.monotonic() + min(RESOLVED_SECONDS, patience())
    while (found := look()) is None and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
    return found


def _looked_again(claim: Claim, look: Callable[[], T | None]) -> ClaimOutcome[T]:
    """Between the last look and the claim somebody may have published."""
    try:
        found = look()
    except BaseException:
        claim.release()
        raise
    if found is None:
        return ClaimOutcome(claim=claim)
    claim.release(done=True)
    return ClaimOutcome(found)


def whoever() -> str:
    """This host and, in CI, the run: for people who wait for it."""
    run = next((os.environ[name] for name in _RUNS if os.environ.get(name)), "")
    said = f"{os.uname().nodename}{f', run {run}' if run else ''}, process {os.getpid()}"
    return "".join(letter for letter in said if letter.isprintable())[:100]


# A service that publishes what it compiles ------------------------------------------------------


@dataclass(slots=True)
class ClaimedRestore:
    """What a session does about names that nothing fits, where it may publish. ``patience``: as in
    :func:`turn`. ``label``: the session's, the same for all ranks of its job. ``claims``: that it took."""

    config: Config
    patience: Callable[[], float]
    job: Job | None
    label: str
    claims: dict[Name, Claim] = field(default_factory=dict)

    def accept(
        self, wish: NameRequest, remote: Remote, means: RestoreContext, restored: RestoreResult
    ) -> None:
        """Does what `restore.accept_revisions` does; where nothing is found, it does so once more when
        another process has published. Raises what that raises."""
        from ..restore.revision_restore import accept_revisions

        before = len(restored.rejected)
        try:
            return accept_revisions(wish, remote, means, restored)
        except (NotFound, Incompatible) as error:
            missed = error
        if not self._can_publish:
            raise missed

        def look() -> bool | None:
            del restored.rejected[before:]
            with suppress(NotFound, Incompatible):
                accept_revisions(wish, remote, replace(means, fresh=True), restored)
                return True
            return None

        if self._turn(wish, means, look).found is None:
            raise missed

    @property
    def _leads(self) -> bool:
        """This process is the one that publishes, and so needs a signing key."""
        return self.job is None or self.job.rank == 0

    @property
    def _can_publish(self) -> bool:
        key_is_there = self.config.signing_key is not None or not self._leads
        return key_is_there and (self.job is None or self.job.one_node)

    def _holder(self) -> str:
        """The ranks of a job are one holder: they have its claim together, and none waits for another."""
        if self.job is None:
            return secrets.token_hex(16)
        return Digest.of(canonical([self.job.key, "claim", self.label])).hex[:32]

    def _turn(
        self, wish: NameRequest, means: RestoreContext, look: Callable[[], bool | None]
    ) -> ClaimOutcome[bool]:
        config = self.config
        timeout = MAX_WAIT_SECONDS + ANSWER_SECONDS
        remote = Remote(config.url or "", config.token, timeout=timeout, retries=0)
        name = wish.name
        subject = ClaimSubject(
            name.namespace, name.name, known_partition(means.fingerprint), name.tag, wish.lane
        )
        told: set[str] = set()

        def tell(answer: ClaimAnswer) -> None:
            if answer.who not in told:
                told.add(answer.who)
                _log.info("%s: waits for %s, who compiles it for %d s now", name, answer.who, answer.age)

        made = turn(
            remote,
            ClaimRequest(subject, self._holder(), whoever()),
            look,
            patience=self.patience,
            told=tell,
            most=HOLD_SECONDS,
            leads=self._leads,
        )
        if made.claim is not None:
            _log.info("%s: nothing fits; others wait until this process has published it", name)
            self.claims[name] = made.claim
        elif made.found is None and made.why:
            _log.info("%s: not waited for: %s", name, made.why)
        return made
