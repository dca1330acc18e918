"""Save a program of these tests two seconds of CPU time: the program imports this module first and calls
`end` last.

Python then searches for no garbage, and ends without taking the modules of torch apart. Threads are joined
and exit functions run as in any process. A program that fails ends as any process."""

import atexit
import gc
import os
import sys

_ended = []


@atexit.register  # Exit functions run in reverse order, so this one, the first to be registered, runs last.
def _leave_at_once():
    if _ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def end():
    """Tell that the program has done its work."""
    _ended.append(True)


gc.disable()
