"""Captures files of the cache folders in their portable form: the inverse of `node.install`."""

from __future__ import annotations

import errno
import logging
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..bundle.pack import SourceFile
from ..kinds.rules import FileRule, KindRules
from ..wire.errors import StorageFull, Untrusted
from .safe_files import OpenFolders, read_unchanged_file

log = logging.getLogger("cachesvc")

_MAX_READS = 5
"""Number of times that a file is read while it goes on changing; after that it is omitted."""
_REREAD_SECONDS = 0.02
"""Seconds between two reads of a file that changes."""


def capture(
    paths: Mapping[str, Iterable[str]], rules: Mapping[str, KindRules], roots: Mapping[str, Path]
) -> list[SourceFile]:
    """Reads the named files (kind -> paths relative to its folder) in their portable form, sorted.

    :func:`.install.install` does the inverse: it installs elsewhere what was captured, with the paths of
    that place. Left out are files that no rule matches, links, files that are not regular, files that
    vanish, and (with a warning) files that go on changing. Contents are held in memory: compilers rewrite
    in place, so a path would not do. Raises ``StorageFull`` if a file may not be read.
    """
    folders = OpenFolders(create=False)
    files = []
    try:
        for kind in sorted(paths.keys() & rules.keys() & roots.keys()):
            for path in sorted(set(paths[kind])):
                rule = rules[kind].rule(path)
                if rule is not None and not {"", ".", ".."} & set(path.split("/")):
                    files.extend(_capture_file(folders, kind, path, rule, roots[kind]))
    finally:
        folders.close()
    return files


def _capture_file(folders: OpenFolders, kind: str, path: str, rule: FileRule, root: Path) -> list[SourceFile]:
    """Captures one file; returns an empty list if the file is omitted."""
    parent, _, name = path.rpartition("/")
    for _ in range(_MAX_READS):
        try:
            content = read_unchanged_file(folders.open(root, parent), name)
        except (FileNotFoundError, Untrusted):
            return []
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ESTALE):
                return []
            raise StorageFull(f"capture: {root / path}: {error.strerror or error}") from error
        if content is not None:
            data, status = content
            if not stat.S_ISREG(status.st_mode):
                return []
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            try:
                return [SourceFile(kind, path, rule.portable(data, root) if rule.portable else data, mode)]
            except Exception as error:  # noqa: BLE001 - none of ours raises; a kind may be somebody else's
                log.warning("%s: left out, it has no portable form: %s", root / path, error)
                return []
        time.sleep(_REREAD_SECONDS)
    log.warning("%s: left out, it goes on changing while it is captured", root / path)
    return []
