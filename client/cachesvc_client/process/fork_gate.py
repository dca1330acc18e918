"""Keeps a fork from falling into an import of cachesvc's threads.

Python gives a forked child the locks of modules as they are. A module that another thread was importing then
is locked for ever in the child, and the first import of it hangs [measured: a worker that was forked right
after attach never compiled]. The same holds for the lock under which ``tempfile`` looks for a folder. So a
fork waits until no thread of cachesvc does either, and none begins to import.
"""

from __future__ import annotations

import _imp
import os
import sys
import threading
import time
from types import FrameType

_LONGEST = 2.0
"""Seconds that a fork waits at most: a thread may wait for a module that the forking thread imports."""
_LOCKED = ("<frozen importlib._bootstrap>", f"{os.sep}tempfile.py")
"""Ends of the names of files whose functions hold a lock that Python does not make anew in a child."""
_held = threading.local()
"""``gate``: whether this thread holds the lock of imports."""


def close() -> None:
    """Wait until no thread of cachesvc holds such a lock, and let none import until `open_again`."""
    deadline = time.monotonic() + _LONGEST
    _imp.acquire_lock()
    while _is_locked() and time.monotonic() < deadline:
        _imp.release_lock()
        time.sleep(0.001)
        _imp.acquire_lock()
    _held.gate = True


def open_again() -> None:
    """Let threads import again, in the parent and in the child."""
    if getattr(_held, "gate", False):
        _held.gate = False
        _imp.release_lock()


def _is_locked() -> bool:
    frames = sys._current_frames()
    return any(
        _holds_lock(frames.get(thread.ident or 0))
        for thread in threading.enumerate()
        if thread.name.startswith("cachesvc-")
    )


def _holds_lock(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_LOCKED):
            return True
        frame = frame.f_back
    return False
