"""The clock of a simulated week: this module is imported before all others, which then know no other time."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator

_real_time = time.time
_moved = 0.0
_off: contextvars.ContextVar[float] = contextvars.ContextVar("off", default=0.0)


def now() -> float:
    """Return the simulated seconds of UTC, on a host whose clock may be off."""
    return _real_time() + _moved + _off.get()


def move_to(moment: float) -> None:
    """Let it be ``moment``, if that is later than now."""
    global _moved
    _moved += max(0.0, moment - (_real_time() + _moved))


@contextlib.contextmanager
def off_by(seconds: float) -> Iterator[None]:
    """Let the clock of what runs in the block be off."""
    token = _off.set(seconds)
    try:
        yield
    finally:
        _off.reset(token)


time.time = now
