"""Owns `Deadline`: how long a compile waits for a session, and how the session divides that time.

`attach` imports this module on the application's own thread, so the module imports only the standard library.
"""

from __future__ import annotations

import threading
import time

_AGREE_SHARE = 0.6
"""The share of the deadline in which the ranks of a job must agree; the rest is for their installs."""
_CLAIM_SHARE = 0.9
"""The share of the deadline that the first compile waits for another process that compiles the same. The rest
is for the restore of what the other process published."""
_RANKS_CLAIM_SHARE = 0.5
"""The share for the same wait in a job, whose ranks have to agree after it."""
_ASK_SECONDS = (0.01, 0.25)
"""Seconds between two checks of what other processes do: while a compile waits, and otherwise."""


class Deadline:
    """The time from the first compile until the compile waits no longer."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """The length of the deadline; ``None`` until the configuration was read."""
        self.awaited = threading.Event()
        """Set once a compile or `Session.wait` waits. Then the thread no longer waits to learn whether this
        process becomes a rank of a job."""
        self._began: float | None = None

    @property
    def began(self) -> bool:
        """Return whether a compile waits, or has waited."""
        return self._began is not None

    def begin(self, now: float) -> None:
        """Start the deadline for a compile that waits from ``now`` on (``time.perf_counter``)."""
        self._began = now
        self.awaited.set()

    def begin_again(self) -> None:
        """Reset the deadline in a forked child, where no compile waits yet."""
        self.awaited, self._began = threading.Event(), None

    def for_claim(self, *, alone: bool) -> float:
        """Return the seconds that a compile may still wait for another process that compiles the same.

        ``alone``: this process is no rank of a job.
        """
        return self._left(_CLAIM_SHARE if alone else _RANKS_CLAIM_SHARE) or 0.0

    def agreed_too_late(self) -> bool:
        """Return whether the time in which the ranks of a job must agree is over."""
        left = self._left(_AGREE_SHARE)
        return left is not None and left < 0

    def pause(self) -> None:
        """Sleep between two checks; shorter where a compile waits."""
        if self.pause_unawaited():
            time.sleep(_ASK_SECONDS[0])

    def pause_unawaited(self) -> bool:
        """Sleep between two checks, or until something waits; return whether something does."""
        return self.awaited.wait(_ASK_SECONDS[1])

    def _left(self, share: float) -> float | None:
        """Return the seconds left of a share; ``None`` where no compile waits or the length is not known."""
        if self._began is None or self.seconds is None:
            return None
        return self._began + share * self.seconds - time.perf_counter()
