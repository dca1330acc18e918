"""How long a compile waits for a session, and what the session's thread may do with that time.

Nothing but the standard library: `attach` pays for it on the application's own thread.
"""

from __future__ import annotations

import threading
import time

_AGREE_SHARE = 0.6
"""Of the deadline: until then the ranks of a job must have agreed; the rest is for their installs."""
_TURN_SHARE = 0.9
"""Of the deadline: so long the first compile waits for another process that compiles the same. What is left
is for the restore of what that one published."""
_RANKS_TURN_SHARE = 0.5
"""The same, where ranks have to agree afterwards."""
_ASK_SECONDS = (0.01, 0.25)
"""Between two looks at what others do: while a compile waits, and otherwise."""


class Deadline:
    """Runs from the first compile on. ``seconds``: ``None`` until the configuration says it."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.awaited = threading.Event()
        """Somebody waits: what is not known of this process's rank by now has to do."""
        self._began: float | None = None

    def begin(self, now: float) -> None:
        """A compile waits from ``now`` on (``time.perf_counter``)."""
        self._began = now
        self.awaited.set()

    def begin_again(self) -> None:
        """In a forked child nobody waits yet."""
        self.awaited, self._began = threading.Event(), None

    def for_turn(self, *, alone: bool) -> float:
        """Seconds that may still be waited for another process that compiles. ``alone``: no rank of a job."""
        return self._left(_TURN_SHARE if alone else _RANKS_TURN_SHARE) or 0.0

    def agreed_too_late(self) -> bool:
        """The ranks of a job have had their share."""
        left = self._left(_AGREE_SHARE)
        return left is not None and left < 0

    def pause(self) -> None:
        """Between two looks, shorter where a compile waits."""
        if self.pause_unawaited():
            time.sleep(_ASK_SECONDS[0])

    def pause_unawaited(self) -> bool:
        """Between two looks, until somebody waits; answers whether somebody does."""
        return self.awaited.wait(_ASK_SECONDS[1])

    def _left(self, share: float) -> float | None:
        """``None`` where no compile waits, or it is not known for how long."""
        if self._began is None or self.seconds is None:
            return None
        return self._began + share * self.seconds - time.perf_counter()
