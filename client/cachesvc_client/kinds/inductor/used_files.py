"""Records what a process produced or used of Inductor's folder."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from ...hooks import imports
from .versions import ARTIFACT_FOLDERS


class UsedFiles:
    """What this process produced or used.

    The hooks fill it on the thread that compiles, so it only appends; paths are worked out when asked.
    """

    def __init__(self) -> None:
        self._artifacts: list[tuple[str, str, bytes]] = []
        """Type, key and content of each record of PyTorch's."""
        self.kernels: dict[str, Path] = {}
        """Host kernels: relative path -> the file that was built or loaded."""

    def __len__(self) -> int:
        """Return the number of records so far."""
        return len(self._artifacts)

    def record_artifact(self, call: imports.Call) -> object:
        """Run in the place of ``CacheArtifactManager.record_artifact``, which PyTorch calls on a save and on
        a hit."""
        answer = call()
        artifact, key, content = map(call.argument, ("artifact_type", "key", "content"))
        if ARTIFACT_FOLDERS.get(artifact) is not None and isinstance(content, bytes):
            self._artifacts.append((artifact, key, content))
        elif artifact == "autotune":
            self._artifacts.append((artifact, key, b""))
        return answer

    def keys(self, since: int = 0) -> set[str]:
        """Return the FX and AOT keys that were saved or hit, without the first ``since`` records."""
        return {key for _, key, _ in self._artifacts[since:]}

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Drop host kernels of these paths and records of these keys: they are not to be captured."""
        self._artifacts = [record for record in self._artifacts if record[1] not in keys]
        self.kernels = {path: source for path, source in self.kernels.items() if path not in paths}

    def paths(self, root: Path, copied: bool = True) -> set[str]:
        """Return the paths of all files, relative to ``root``.

        Host kernels that were built here lie under PyTorch's own names. ``copied``: copy them into ``root``
        first, whole, by rename; not into a folder that this process has left, since others may use it.
        """
        paths = set()
        for artifact, key, content in list(self._artifacts):
            folder = ARTIFACT_FOLDERS.get(artifact)
            paths.add(key if folder is None else f"{folder(key)}/{_content_name(content)}")
        for path, source in list(self.kernels.items()) if copied else ():
            _copy_whole(source, root / path)
            paths.add(path)
        return paths


def _content_name(content: bytes) -> str:
    from torch._inductor.codecache import sha256_hash

    return str(sha256_hash(content))


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
