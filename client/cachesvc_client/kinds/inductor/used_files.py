"""Records what a process produced or used of Inductor's folder."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ...hooks import imports
from ..kind import KeyUses
from .versions import ARTIFACT_FOLDERS

if TYPE_CHECKING:
    from ...wire.digest import Digest

_log = logging.getLogger("cachesvc")


class UsedFiles:
    """What this process produced or used.

    The hooks fill it on the thread that compiles, so it only appends; paths are worked out when asked.
    """

    def __init__(self) -> None:
        self._artifacts: list[tuple[str, str, bytes]] = []
        """Type, key and content of each record of PyTorch's."""
        self.kernels: dict[str, Path] = {}
        """Host kernels: relative path -> the file that was built or loaded."""
        self.built: dict[str, Digest] = {}
        """Relative paths of the host kernels that were built here, and their digests."""
        self.loaded: set[str] = set()
        """Relative paths of the host kernels that were loaded from an accepted folder."""
        self.found: set[str] = set()
        """FX and AOT keys of what was found, and neither saved here before nor in another folder."""
        self.left: Callable[[], str] = str
        """Returns the words by which the program has chosen another folder, or an empty text."""
        self._saved: dict[tuple[str, str, bytes], None] = {}
        """Those of the records that are of a save."""
        self._call = threading.local()
        """``saves``: how many saves are under way on a thread."""

    def __len__(self) -> int:
        """Return the number of records so far."""
        return len(self._artifacts)

    def record_artifact(self, call: imports.Call) -> object:
        """Run in the place of ``CacheArtifactManager.record_artifact``, which PyTorch calls on a save and on
        a hit."""
        answer = call()
        artifact, key, content = map(call.argument, ("artifact_type", "key", "content"))
        if artifact == "autotune":
            content = _as_saved(content)
        elif ARTIFACT_FOLDERS.get(artifact) is None or not isinstance(content, bytes):
            return answer
        if self.left():
            return answer  # what lies in a folder of the program's is the program's
        record = artifact, key, content
        self._artifacts.append(record)
        if getattr(self._call, "saves", 0):
            self._saved.pop(record, None)
            self._saved[record] = None  # the last one is what the file has
        elif record not in self._saved:
            self.found.add(key)
        return answer

    def save(self, call: imports.Call) -> object:
        """Run in the place of a function that saves what was compiled or tuned here."""
        self._call.saves = getattr(self._call, "saves", 0) + 1
        try:
            return call()
        finally:
            self._call.saves -= 1

    def keys(self, since: int = 0) -> set[str]:
        """Return the FX and AOT keys that were saved or hit, without the first ``since`` records."""
        return {key for _, key, _ in self._artifacts[since:]}

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Drop host kernels of these paths and records of these keys: they are not to be captured."""
        self._artifacts = [record for record in self._artifacts if record[1] not in keys]
        self._saved = {record: None for record in self._saved if record[1] not in keys}
        self.found -= set(keys)
        self.loaded -= set(paths)
        self.kernels = {path: source for path, source in self.kernels.items() if path not in paths}

    def made(self) -> dict[str, Digest | None]:
        """Return the paths of what was saved or built here, with the digests of what was saved."""
        from ...wire.digest import Digest

        saved = {
            _path_of(artifact, key, content): Digest.of(content) if content else None
            for artifact, key, content in tuple(self._saved)
        }
        return {**self.built, **saved}

    def paths(self, root: Path, copied: bool = True) -> set[str]:
        """Return the paths of all files, relative to ``root``.

        Host kernels that were built here lie under PyTorch's own names. ``copied``: copy them into ``root``
        first, whole, by rename; not into a folder that this process has left, since others may use it. What
        cannot be copied, since a program or a cleaner has removed it, is left out.
        """
        paths = {_path_of(*record) for record in list(self._artifacts)}
        for path, source in list(self.kernels.items()) if copied else ():
            try:
                _copy_whole(source, root / path)
            except OSError as error:
                _log.debug("%s: left out: %s", source, error)
            else:
                paths.add(path)
        return paths


class UsedKeys(KeyUses):
    """The FX and AOT keys of what this process produced or used."""

    def __init__(self, files: UsedFiles) -> None:
        self._files = files
        self.not_found: set[str] = set()
        """Keys that were looked up and for which no file could be used."""

    def used(self) -> set[str]:
        """Return the keys that were saved or hit."""
        return self._files.keys()

    def found(self) -> set[str]:
        """Return the keys of what was found in this process's folder, and not made by it."""
        return set(self._files.found)

    def absent(self) -> set[str]:
        """Return the keys that were looked up and for which no file could be used."""
        return self.not_found

    def records(self) -> int:
        """Return how many records of PyTorch's there are."""
        return len(self._files)

    def since(self, records: int) -> set[str]:
        """Return the keys that were saved or hit after the first ``records``."""
        return self._files.keys(since=records)


def _as_saved(result: object) -> bytes:
    """Return the file's content of a tuning result (``RemoteCacheJsonSerde.encode``); nothing if no one knows
    it."""
    import json

    try:
        return json.dumps(result).encode("ascii") if isinstance(result, dict) else b""
    except (TypeError, ValueError):
        return b""


def _path_of(artifact: str, key: str, content: bytes) -> str:
    """Return the path of a record's file."""
    from torch._inductor.codecache import sha256_hash

    folder = ARTIFACT_FOLDERS.get(artifact)
    return key if folder is None else f"{folder(key)}/{sha256_hash(content)}"


def _copy_whole(source: Path, target: Path) -> None:
    if target.exists():
        return
    import shutil

    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
