"""What a kind says about its files, in a form that needs neither torch nor Triton.

Install and capture, `warm` and the check gate read these rules; the hooks that need the compilers
live in the kind's own module. `attach` imports these modules and needs nothing of them, so a library that
only the rules' functions need is imported inside of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..wire.factors import Fingerprint

Rewrite = Callable[[bytes, Path], bytes]
"""(data, the kind's absolute folder) -> data."""
HOST_FOLDER = "cachesvc"
"""The folder in a kind's folder with what is compiled for hosts: one folder for each host id."""
DEPENDS = "depends.json"
"""The name of the file that lists what the build of a library read."""


@dataclass(frozen=True, slots=True)
class FileRule:
    """Files of one pattern.

    ``pattern``: a regular expression that matches the whole path relative to the kind's folder. It is
    compiled when it is first needed, since `attach` has no time for it. ``write``: *immutable* files are
    replaced only if their content is not what was verified; *merge* files are joined with what is there by
    ``merge(local, incoming)``; *ours* are written by nobody else, so one whose bytes differ is a damaged one
    and is replaced.
    ``portable`` replaces absolute paths by placeholders at capture, ``local`` is its inverse at install;
    digests are over the portable bytes. ``last``: such files point to others (graphs, Triton's group files),
    so they are installed after all others; a killed install then leaves no pointer to what is missing.
    ``alike``: of files that are named by their content, what two in one folder have in common if either
    serves for both: ranks write the same twice. Raises ``ValueError`` for what it cannot read.
    ``demanded_by``: a variable of the tool; with 1 there, the tool ends where it cannot load such a file. It
    would otherwise make the file again, and say so in its log alone.
    """

    pattern: str
    write: Literal["immutable", "merge", "ours"] = "immutable"
    portable: Rewrite | None = None
    local: Rewrite | None = None
    merge: Callable[[bytes, bytes], bytes] | None = None
    last: bool = False
    alike: Callable[[bytes], bytes] | None = None
    demanded_by: str = ""


@dataclass(frozen=True, slots=True)
class KindRules:
    """A kind: its name in manifests and the files that it may hold. What no rule matches is
    neither captured nor installed. ``deferrable``: whether a process can do without the files until it
    compiles a graph; other files are searched for when a library is imported or a kernel is called."""

    name: str
    rules: tuple[FileRule, ...]
    deferrable: bool = False

    def rule(self, path: str) -> FileRule | None:
        """Return the first rule for a relative path, or ``None``."""
        return next((rule for rule in self.rules if re.fullmatch(rule.pattern, path)), None)

    def files_in(self, root: Path) -> set[str]:
        """Return the relative paths of all files under ``root`` that a rule matches. Follows no link."""
        paths: set[str] = set()
        for folder, _, names in os.walk(root):
            relative = os.path.relpath(folder, root)
            under = names if relative == "." else [f"{relative}/{name}" for name in names]
            paths.update(path for path in under if self.rule(path) is not None)
        return paths


def host_rules(name: str, files: str, last: str) -> KindRules:
    """Return the rules of a kind with ``<HOST_FOLDER>/<host>/<key>/<made>/<file>``.

    ``files``: matches the names of its files. ``last``: the file without which a folder is not looked at.
    """
    folder = HOST_FOLDER + r"/[0-9a-f]{16}/[0-9a-f]{64}/[0-9a-f]{16}/"
    pointer = FileRule(folder + re.escape(last), write="ours", last=True)
    return KindRules(name, (FileRule(folder + files, write="ours"), pointer))


def is_newer(path: Path, began: int) -> bool:
    """Return whether a file got its content after ``began``, nanoseconds of ``time.time_ns``. By the time
    of the last change of the inode, which no program can set."""
    try:
        return path.stat().st_ctime_ns > began
    except OSError:
        return False


class AcceptedFolders:
    """Holds the folders that may be loaded, of a kind with `host_rules`."""

    def __init__(self, rules: KindRules, last: str) -> None:
        self._rules, self._last = rules, last
        self._by_key: dict[str, list[Path]] = {}

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Accept the folders of these files, whose paths are relative to ``root``."""
        for path in paths:
            if path.endswith("/" + self._last) and self._rules.rule(path) is not None:
                folder = (root / path).parent
                folders = self._by_key.setdefault(folder.parent.name, [])
                if folder not in folders:
                    folders.append(folder)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def of(self, key: str) -> Sequence[Path]:
        """Return the folders of a key."""
        return self._by_key.get(key, ())

    def all(self) -> list[Path]:
        """Return the folders of all keys."""
        return [folder for folders in list(self._by_key.values()) for folder in folders]

    def remove(self, key: str, folder: Path) -> None:
        """Accept a folder of a key no more."""
        self._by_key[key] = [other for other in self.of(key) if other != folder]

    def clear(self) -> None:
        """Accept none of the folders any more."""
        self._by_key.clear()

    def forget(self, paths: Collection[str]) -> set[str]:
        """Accept the folders of these files no more; return them, relative to the kind's folder."""
        wrong = {path.rpartition("/")[0] for path in paths if self._rules.rule(path) is not None}
        for key, folders in list(self._by_key.items()):
            self._by_key[key] = [folder for folder in folders if self.relative(folder) not in wrong]
        return wrong

    def relative(self, folder: Path) -> str:
        """Return the path of a folder, relative to the kind's folder."""
        return "/".join((HOST_FOLDER, *folder.parts[-3:]))


def host_id(fingerprint: Fingerprint) -> str:
    """Return 16 hex digits over the host factors of a fingerprint: the name of the folder of what is built
    for it."""
    from ..wire.codec import canonical
    from ..wire.digest import Digest

    names = ("platform", "cpu_isa", "cpu_flags", "cxx", "libc", "torch")
    return Digest.of(canonical({name: fingerprint.get(name) for name in names})).hex[:16]
