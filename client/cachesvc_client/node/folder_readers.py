"""Sees which private folders any live process of this host knows: one without cachesvc may have inherited a
variable that names one, and leaves no mark."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

_FOLDER = re.compile(rb"/folders/([0-9a-f]{64})")


def folders_in_sight(until: float) -> set[str] | None:
    """Return the names of private folders that live processes name in their environment, or have files of
    open, where this user may read that; ``None`` if that was not found out ``until`` a time of
    ``time.monotonic()``, or the system does not say."""
    named: set[str] = set()
    seen: set[str] = set()
    # Again until there is no new process: one that ends passes its variables on to those that it started.
    while new := _processes() - seen:
        for process in new:
            if time.monotonic() > until:
                return None
            for text in _said(Path("/proc", process)):
                named.update(name.decode() for name in _FOLDER.findall(text))
        seen |= new
    return named if seen else None


def _processes() -> set[str]:
    try:
        return {name for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()


def _said(process: Path) -> Iterator[bytes]:
    """Yield what names files of a process: its variables, the files that it has mapped or open, its working
    directory. What may not be read, or has ended, is omitted."""
    for name in ("environ", "maps"):
        with contextlib.suppress(OSError):
            yield (process / name).read_bytes()
    with contextlib.suppress(OSError):
        for link in ("cwd", *(f"fd/{number}" for number in os.listdir(process / "fd"))):
            with contextlib.suppress(OSError):
                yield os.fsencode(os.readlink(process / link))
