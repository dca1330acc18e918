"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(|b|kib|mib|gib|tib)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of ``500MiB``, ``1.5TiB`` or ``1000``. Raises ``ValueError`` with what is allowed."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("allowed: bytes, such as 500MiB or 1.5TiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])
