"""Keeps a fork from falling into an import of cachesvc's threads.

Python gives a forked child the locks of modules as they are. A module that another thread was importing then
is locked for ever in the child, and the first import of it hangs [measured: a worker that was forked right
after attach never compiled]. So a fork waits until no thread of cachesvc imports, and none begins to.
"""

from __future__ import annotations

import _imp
import sys
import threading
import time
from types import FrameType

_LONGEST = 2.0
"""Seconds that a fork waits at most: a thread may wait for a module that the forking thread imports."""
_IMPORTS = "<frozen importlib._bootstrap>"
_held = threading.local()
"""``gate``: whether this thread holds the lock of imports."""


def close() -> None:
    """Wait until no thread of cachesvc imports, and let none begin until `open_again`."""
    deadline = time.monotonic() + _LONGEST
    _imp.acquire_lock()
    while _importing() and time.monotonic() < deadline:
        _imp.release_lock()
        time.sleep(0.001)
        _imp.acquire_lock()
    _held.gate = True


def open_again() -> None:
    """Let threads import again, in the parent and in the child."""
    if getattr(_held, "gate", False):
        _held.gate = False
        _imp.release_lock()


def _importing() -> bool:
    frames = sys._current_frames()
    return any(
        _is_in_import(frames.get(thread.ident or 0))
        for thread in threading.enumerate()
        if thread.name.startswith("cachesvc-")
    )


def _is_in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False
