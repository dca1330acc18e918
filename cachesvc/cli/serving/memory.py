"""Have the C library return large blocks of memory to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Numbers of glibc's mallopt(3)."""
LARGE_BYTES = 1 << 20
"""Bytes of a block from which on it is the system's again once it is free. glibc raises this number by itself
up to 32 MiB, and keeps the memory of large answers: three times as much [measured]."""
ARENAS = 2
"""Places from which threads get memory: each keeps that of its largest answer."""


def give_back_large_blocks() -> None:
    """Say so to the C library of this process; without glibc, do nothing."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_ARENA_MAX, ARENAS)
