"""Durations: how people write and read them, and a bound that several rooms share."""

from __future__ import annotations

import re

MAX_OFFLINE_SECONDS = 30 * 24 * 3600
"""Seconds for which answers are kept, and so the longest time for which a node can start from its last answer
while the registry cannot be reached."""
_DURATION = re.compile(r"([0-9]{1,9})([smhdw]?)")
"""Matches a duration: a number with its unit, or a number of seconds."""
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
"""Seconds of each unit of a duration."""


def parse_duration(text: str) -> float:
    """Returns the seconds of ``90d``, ``12h``, ``30m``, ``2w`` or ``45s``. Raises ``ValueError`` with what is
    allowed."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("allowed: a number and s, m, h, d or w, such as 12h or 90d")
    return float(int(match[1]) * _UNIT_SECONDS[match[2]])


def duration_text(seconds: float) -> str:
    """Returns a duration in the unit that fits it: ``13 ms``, ``12.3 s``, ``2.5 h``."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    if 0 < abs(seconds) < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s"
