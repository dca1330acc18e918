"""Durations: how they are written for people, and a bound that several rooms share."""

from __future__ import annotations

MAX_OFFLINE_SECONDS = 30 * 24 * 3600
"""Seconds for which answers are kept, and so the longest time for which a node can start from its last answer
while the registry cannot be reached."""


def duration_text(seconds: float) -> str:
    """Returns a duration in the unit that fits it: ``12.3 s``, ``2.5 h``."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
