"""Run code of a test in a child process that may be killed while the code runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def was_killed(act: Callable[[], None]) -> bool:
    """Run ``act`` in a forked child and return whether SIGKILL ended the child.

    Fail if the child ends in any way but by SIGKILL or with status 0."""
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
