"""Writes durations for people."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """Returns a duration in the unit that fits it: ``12.3 s``, ``2.5 h``."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
