"""Keep cache folders as they were restored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path


class RestoredFolder:
    """Holds a copy of the cache folders as they were restored."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self._files = {path: path.read_bytes() for path in self._paths()}
        self._modes = {path: path.stat().st_mode for path in self._files}
        self._stamps = {path: self._stamp(path) for path in self._files}

    def put_back(self) -> None:
        """Delete what is new, and write again what was changed or deleted."""
        for path in self._paths():
            if path not in self._files:
                path.unlink(missing_ok=True)
        for path, content in self._files.items():
            if not path.exists() or self._stamp(path) != self._stamps[path]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.write_bytes(content)
                path.chmod(self._modes[path])
                self._stamps[path] = self._stamp(path)

    def _paths(self) -> Iterator[Path]:
        for root in self._roots:
            yield from (path for path in list(root.rglob("*")) if path.is_file() and not path.is_symlink())

    @staticmethod
    def _stamp(path: Path) -> tuple[int, int, int]:
        status = path.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
