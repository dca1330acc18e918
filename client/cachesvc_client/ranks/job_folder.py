"""Owns what the ranks of one job have in common on their node: a folder of whole files, and the identity of
the processes that wrote them.

    <folder>/state.json      votes and outcome of one vote; replaced whole, under the lock (`ranks.votes`)
    <folder>/lock            held (flock) while the state is changed
    <folder>/files/<hex>     contents that were handed in, by digest; equal contents of ranks lie here once
    <folder>/made-<n>.json   which files rank n made itself (`ranks.join_files`)
    <folder>/rank-<n>.json   what rank n handed in
    <folder>/answer.json     rank 0's answer to the others

Nothing here needs a collective of torch's, a server, or a rank that lives: ranks wait for files alone.
A run that reuses the key of an earlier one (the same port) is told apart by the processes that voted.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from ..node.processes import stat_fields


def process_id(pid: int) -> str:
    """Names a process as ``pid:start``, which no later process has; ``proc(5)``, stat, field 22."""
    fields = stat_fields(pid)
    return f"{pid}:{fields[19]}" if fields and fields[0] not in ("Z", "X") else f"{pid}:"


def ancestors() -> set[str]:
    """Names the processes that started this one, directly or not: at most eight."""
    processes: set[str] = set()
    pid = os.getppid()
    while pid > 1 and len(processes) < 8:
        processes.add(process_id(pid))
        fields = stat_fields(pid)
        if not fields:
            break
        pid = int(fields[1])
    return processes


def lives(process: str) -> bool:
    """Tells whether the process of this id runs. A zombie does not."""
    pid = process.partition(":")[0]
    return pid.isdigit() and not process.endswith(":") and process_id(int(pid)) == process


def put_file(folder: Path, name: str, data: bytes) -> None:
    """Writes a whole file in place of an earlier one. Does not flush it to the disk: a power failure ends the
    processes that the file is for."""
    temporary = folder / f".{secrets.token_hex(8)}"
    temporary.write_bytes(data)
    os.replace(temporary, folder / name)


def read_json(path: Path) -> dict[str, Any] | None:
    """Reads a JSON object; returns ``None`` if the file is not there or holds none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
