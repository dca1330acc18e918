"""Find, name and capture the files in this process's cache folders; for `worker`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .. import kinds_used
from .phase import CapturedFile

if TYPE_CHECKING:
    from cachesvc_client.session.session import Session


def cache_roots() -> dict[str, Path]:
    """Return kind -> cache folder of this process; makes folders that do not exist."""
    from cachesvc_client.process.process import process

    roots = process().folders.roots()
    for root in roots.values():
        root.mkdir(parents=True, exist_ok=True)
    return roots


def outermost(roots: Mapping[str, Path]) -> list[Path]:
    """Return the folders that lie inside of no other one: to watch these is to watch all."""
    return [root for root in roots.values() if not any(other in root.parents for other in roots.values())]


def list_files(roots: Mapping[str, Path]) -> Iterator[str]:
    """Yield ``kind/path`` of every file that a kind captures."""
    for kind, root in roots.items():
        for folder, _, files in os.walk(root):
            for name in files:
                path = os.path.relpath(os.path.join(folder, name), root)
                if kinds_used.is_captured(kind, path):
                    yield f"{kind}/{path}"


def name_files(roots: Mapping[str, Path], paths: Iterable[Path]) -> set[str]:
    """Return ``kind/path`` of absolute paths; a path belongs to the innermost kind, or to none."""
    inner_first = sorted(roots.items(), key=lambda item: -len(item[1].parts))
    names = set()
    for path in paths:
        owner = next(((kind, root) for kind, root in inner_first if path.is_relative_to(root)), None)
        if owner is not None:
            names.add(f"{owner[0]}/{path.relative_to(owner[1])}")
    return names


def handed_files() -> dict[str, set[str]]:
    """Return kind -> files that tools of this process took, for the kinds that hand files to their tools."""
    from cachesvc_client.process.process import process

    states = process().kinds.items()
    return {kind: handed for kind, state in states if (handed := state.handed()) is not None}


def capture_files(session: Session, stage: Path, emitted: Iterable[str]) -> tuple[CapturedFile, ...]:
    """Copy the files that this process produced or used to ``stage``, in portable form, and list them.

    ``emitted``: files that PyTorch wrote out of entries that hold them, so no copy is needed.
    """
    capture = []
    left_out = set(emitted)
    for file in session.capture(whole=True):
        if f"{file.kind}/{file.path}" in left_out:
            continue
        target = stage / file.kind / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = file.data if isinstance(file.data, bytes) else file.data.read_bytes()
        target.write_bytes(data)
        capture.append(CapturedFile(file.kind, file.path, len(data), file.mode))
    return tuple(capture)
