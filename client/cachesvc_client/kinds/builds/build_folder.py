"""Reads what a build left in PyTorch's folder of an extension: which files it wrote, and which it read."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .flags import Doubt

_BUILD_LINE = re.compile(r"^build ((?:[^\s:$]|\$.)+): (?:compile|cuda_compile) ", re.MULTILINE)
"""A line of ``build.ninja`` that makes an object file (``cpp_extension._write_ninja_file``)."""
_LISTED = re.compile(r"^(\S.*): #deps (\d+), deps mtime \d+ \((VALID|STALE)\)$")
"""The line of ``ninja -t deps`` that begins the list of an object file."""
_NINJA_SECONDS = 30.0
"""Seconds that ninja may take to print its records."""

State = Mapping[str, tuple[int, int, int]]
"""The files of a folder: name -> time of change, size and number."""


def state_of(folder: Path) -> State:
    """Return the state of the files in ``folder``; empty if it is not there."""
    try:
        return {
            entry.name: (status.st_mtime_ns, status.st_size, status.st_ino)
            for entry in os.scandir(folder)
            if entry.is_file() and (status := entry.stat())
        }
    except OSError:
        return {}


def written(before: State, after: State) -> frozenset[str]:
    """Return the names of the files that are new or were changed between two states."""
    return frozenset(name for name, state in after.items() if before.get(name) != state)


def read_headers(folder: Path, names: frozenset[str], sources: int) -> set[Path]:
    """Return the files that the compilers of a build read, as ninja recorded them.

    ``names``: the files that this build wrote; ``sources``: how many sources it has. Raises `Doubt` where an
    object file is of an earlier build, or was made without a list.
    """
    text = (folder / "build.ninja").read_text()
    objects = {re.sub(r"\$(.)", r"\1", name) for name in _BUILD_LINE.findall(text)}
    if len(objects) != sources or not {_below(folder, name) for name in objects} <= names:
        raise Doubt("a part of it was built earlier")
    done = subprocess.run(
        ["ninja", "-t", "deps", *sorted(objects)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_NINJA_SECONDS,
        check=True,
    )
    lists = _parse(done.stdout)
    if missing := objects - lists.keys():
        raise Doubt(f"ninja has no list of what {min(missing)} was made of")
    return {Path(os.path.abspath(folder / path)) for name in objects for path in lists[name]}


def _below(folder: Path, name: str) -> str:
    """Return the path of an output relative to the folder of the build: FlashInfer writes absolute paths."""
    real = os.path.realpath(folder)
    return os.path.relpath(os.path.join(real, name), real)


def _parse(text: str) -> dict[str, list[str]]:
    """Return the valid lists of ``ninja -t deps``, by object file."""
    lists: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if match := _LISTED.match(line):
            current = []
            if match[3] == "VALID":
                lists[match[1]] = current
        elif line.startswith("    "):
            current.append(line[4:])
    return lists
