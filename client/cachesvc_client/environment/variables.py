"""Parses the ``CACHESVC_*`` variables that are read both at start-up and by the configuration.

`config` refuses a malformed value and says what is allowed. Start-up code must not raise, so `is_switched_on`
and `is_mode_off` treat a malformed value as not set. This module imports almost nothing, because `attach`
pays for it on the application's own thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, cast

Mode = Literal["read", "readwrite", "off"]

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def parse_switch(text: str) -> bool:
    """Return whether the text of a switch means on. Raises ``ValueError`` with what is allowed."""
    value = text.strip().lower()
    if value not in _ON + _OFF:
        raise ValueError("allowed: 1 or 0")
    return value in _ON


def parse_mode(text: str) -> Mode:
    """Return the mode that a text names. Raises ``ValueError`` with what is allowed."""
    value = text.strip()
    if value not in ("read", "readwrite", "off"):
        raise ValueError("allowed: read, readwrite, off")
    return cast(Mode, value)


def is_switched_on(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the switch ``name``, which is off by default, is on. A malformed value counts as off."""
    try:
        return parse_switch((os.environ if environ is None else environ).get(name, ""))
    except ValueError:
        return False


def obsolete_line(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the line for a user who sets a variable that does nothing any more; ``None`` if there is
    none."""
    if not (os.environ if environ is None else environ).get("CACHESVC_UNTESTED"):
        return None
    return (
        "CACHESVC_UNTESTED does nothing any more: on a torch that is not among the tested releases, entries "
        "are used that cachesvc warm has proven on it; unset it"
    )


def is_mode_off(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether ``CACHESVC_MODE`` turns cachesvc off. A malformed value does not."""
    try:
        return parse_mode((os.environ if environ is None else environ).get("CACHESVC_MODE", "")) == "off"
    except ValueError:
        return False
