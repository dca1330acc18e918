"""Owns a claim of this process: renews it on a thread, and gives it back unless it is lost."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..wire.errors import CacheSvcError, ClaimLost
from ..wire.requests.claims import ClaimAnswer, ClaimRef, ClaimRelease

if TYPE_CHECKING:
    from ..http.claims import Claims

_log = logging.getLogger("cachesvc")

RELEASE_SECONDS = 1.0
"""Seconds that the release of a claim may take, which also happens at exit."""


class Claim:
    """Renews a claim on a thread of its own, until the claim is released, ended by a commit, or lost.

    The claim belongs to the process that acquired it, and not to a forked child. The end of the process
    releases it. ``hold_seconds``: the time after which it is released in any case.
    """

    def __init__(
        self, claims: Claims, answer: ClaimAnswer, holder: str, hold_seconds: float | None = None
    ) -> None:
        self._claims = claims
        self.ref = ClaimRef(answer.key, holder, answer.fence)
        self.lost = False
        """Whether another process has taken the claim over."""
        self._pid = os.getpid()
        self._over = threading.Event()
        self._until = None if hold_seconds is None else time.monotonic() + hold_seconds
        self._renew_seconds = max(0.5, answer.left / 3)
        atexit.register(self.release)
        threading.Thread(target=self._renew, name="cachesvc-claim", daemon=True).start()

    @property
    def commit_ref(self) -> ClaimRef | None:
        """Returns the claim as a commit presents it; ``None`` if it was released, or is the parent process's.

        A commit presents a lost claim too: the registry refuses it and says why.
        """
        return None if self._over.is_set() or self._pid != os.getpid() else self.ref

    def published(self) -> None:
        """Ends the claim after a commit, which has released it at the registry."""
        self._over.set()
        atexit.unregister(self.release)

    def release(self, *, done: bool = False) -> None:
        """Releases the claim, if this process still has it. Raises no ``CacheSvcError``.

        ``done``: whether the claimed work is published.
        """
        if self._over.is_set() or self._pid != os.getpid():
            return
        self.published()
        if not self.lost:
            with suppress(CacheSvcError):
                request = ClaimRelease(self.ref, done)
                self._claims.release(request, time.monotonic() + RELEASE_SECONDS)

    def _renew(self) -> None:
        """Renews the claim until it is over or lost, or its time is over."""
        wait = self._renew_seconds
        while not self._over.wait(wait):
            if self._until is not None and time.monotonic() > self._until:
                self.release()
                return
            try:
                self._claims.renew(self.ref, time.monotonic() + self._renew_seconds)
                wait = self._renew_seconds
            except ClaimLost as error:
                if not self._over.is_set():
                    self.lost = True
                    _log.info("%s", error)
                return
            except CacheSvcError as error:
                _log.debug("claim not renewed: %s", error)
                wait = self._renew_seconds / 3
