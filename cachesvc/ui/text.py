"""Say numbers, times and digests as people read them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cachesvc_client.bundle.seal import key_text
from cachesvc_client.console.tables import bytes_text, environment_label
from cachesvc_client.wire.compare import ancestor_withdrawn

_STEPS = ((86_400, "d"), (3600, "h"), (60, "min"))
"""Units of durations in seconds, the largest first."""


def count_text(number: int) -> str:
    """Returns a number with thousands apart by a thin space, such as ``12 345``."""
    return f"{number:,}".replace(",", "\u2009")


def seconds_text(seconds: float) -> str:
    """Returns a duration, such as ``2.1 ms``, ``12.5 s``, ``3.2 min`` or ``5.1 d``."""
    for size, unit in _STEPS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.1f} ms" if 0 < seconds < 1 else f"{seconds:.1f} s"


def ago_text(then: int | None, now: int) -> str:
    """Returns how long ago a time was, or in how long it will be: ``3 h ago``, ``in 5 d``, ``now``."""
    if then is None:
        return "never"
    for size, unit in _STEPS:
        if abs(now - then) >= size:
            span = f"{abs(now - then) // size} {unit}"
            return f"{span} ago" if then < now else f"in {span}"
    return "just now"


def utc_text(seconds: int | None) -> str:
    """Returns a time in minutes of UTC, such as ``2026-11-21 14:20``; nothing for ``None``."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def iso_text(seconds: int) -> str:
    """Returns a time in the form that programs read (RFC 3339)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def digest_text(digest: str) -> str:
    """Returns the first 12 hex digits of a digest; commands accept them in place of the whole."""
    return digest.removeprefix("sha256:")[:12]


def environment_text(facts: Mapping[str, Any]) -> str:
    """Returns an environment in short: torch, device, interpreter."""
    torch, device, python = environment_label(dict(facts))
    return " · ".join(part for part in (f"torch {torch}", device, python) if part not in ("-", "cpu"))


def value_text(value: object) -> str:
    """Returns the value of a factor; of a long list its first members and their number."""
    if isinstance(value, list):
        shown = ", ".join(map(str, value[:12]))
        return f"{shown}, … ({len(value)} in all)" if len(value) > 12 else shown or "none"
    return str(value)


FILTERS = {
    "bytes": bytes_text,
    "count": count_text,
    "seconds": seconds_text,
    "utc": utc_text,
    "iso": iso_text,
    "digest": digest_text,
    "key": key_text,
    "ancestor": ancestor_withdrawn,
    "environment": environment_text,
    "label": environment_label,
    "value": value_text,
}
"""The functions by the names that the templates have for them."""
