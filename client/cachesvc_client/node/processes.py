"""Reads what Linux says of processes: proc(5), random(4) and namespaces(7)."""

from __future__ import annotations

import os
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File with the id of this boot of the machine."""


def boot_id() -> str | None:
    """Return what names this machine and its boot; ``None`` if the system does not say."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def pid_namespace() -> str | None:
    """Return what names the set of processes that this one sees; ``None`` if the system does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's ``stat`` from its state on: then come its parent and, as number 19,
    when it began, in ticks since the boot. None if it has ended, or they may not be read."""
    try:
        # The name before them stands in parentheses and may hold some itself.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
