"""A child process that runs code of the test's and may be killed while it does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def was_killed(act: Callable[[], None]) -> bool:
    """Runs ``act`` in a forked child; whether SIGKILL ended it. Any end but that and living through fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0
