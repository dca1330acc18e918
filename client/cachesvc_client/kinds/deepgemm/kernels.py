"""Gives DeepGEMM a folder with the kernels of entries in it, and records those that it compiles there."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...wire.errors import printable
from .rules import CUBIN, FOLDER, KERNEL, RULES, SOURCE, VARIABLE

if TYPE_CHECKING:
    from ...wire.digest import Digest

_UNREAD = 1
"""The time of the last access, in nanoseconds, of machine code that nobody has read yet. A file system with
``relatime``, as usual, then keeps the time of the first access."""
_log = logging.getLogger("cachesvc")


class Kernels:
    """The kernels of this process: which DeepGEMM may find, and which it compiled."""

    def __init__(self, named_by: str, root: Path | None) -> None:
        """``named_by``: the variable with which the user named DeepGEMM's folder; empty if there is none.
        ``root``: the kind's folder when DeepGEMM is imported; ``None`` if none was decided."""
        self.reason = ""
        """Why DeepGEMM has no folder of ours, in words for the user."""
        self.seconds = 0.0
        """Seconds that the key and the copies took."""
        self.given: set[str] = set()
        """Names of the folders of kernels that were put there for DeepGEMM."""
        self._found: set[str] = set()
        """Names of those that were read since."""
        self._named_by = named_by
        self._root = root
        self._accepted: dict[str, Path] = {}
        """Folders of kernels of verified revisions, by their path below the kind's folder."""
        self._package: Path | None = None
        self._key = ""
        self._folder: Path | None = None
        """The folder that DeepGEMM got; ``None`` before its import."""
        self._before: frozenset[str] = frozenset()
        """Names of the kernels that other processes had compiled in that folder before."""

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the kernels among these files to be found."""
        for path in paths:
            if RULES.rule(path) is not None and path.endswith("/" + CUBIN):
                folder = path.rpartition("/")[0]
                self._accepted[folder] = root / folder
        self._give()

    @property
    def allowed(self) -> list[Path]:
        """Return the folders of the kernels that DeepGEMM may find."""
        return list(self._accepted.values())

    def refuse_all(self) -> None:
        """Put no kernel of the folders that were accepted so far there any more."""
        self._accepted.clear()

    def forget(self, paths: Collection[str]) -> None:
        """Treat the kernels of these paths as never used, and take them out of DeepGEMM's folder."""
        for wrong in {path.rpartition("/")[0] for path in paths if RULES.rule(path) is not None}:
            self._accepted.pop(wrong, None)
            key, name = wrong.split("/")[1:]
            if key == self._key and self._folder is not None:
                self.given.discard(name)
                with contextlib.suppress(OSError):
                    os.rename(self._folder / "cache" / name, aside := self._temporary())
                    shutil.rmtree(aside, ignore_errors=True)

    def open(self, module: ModuleType) -> None:
        """Name DeepGEMM's folder, once its module is imported and before its first kernel, and put the
        accepted kernels there. A folder that the user named stays DeepGEMM's."""
        if self._folder is not None or self._root is None:
            return
        begin = time.perf_counter()
        try:
            self._open(Path(str(module.__file__)).parent, self._root)
        except Exception as error:  # noqa: BLE001 - a doubt: DeepGEMM goes on as without us
            self.reason = printable(str(error))[:200]
            _log.debug("DeepGEMM is left alone: %s", error, exc_info=True)
        self.seconds += time.perf_counter() - begin

    def _open(self, package: Path, root: Path) -> None:
        from ..builds.flags import Doubt
        from .toolchain import key_of

        if self._named_by:
            raise Doubt(f"{self._named_by} names a folder of yours")
        self._package, self._key = package, key_of(package)
        folder = root / "jit" / self._key
        for name in ("cache", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._before = frozenset(self._present())
        self._give()
        os.environ[VARIABLE] = str(folder)

    def _give(self) -> None:
        """Put the accepted kernels of this key where DeepGEMM looks, each in one step: half a kernel is an
        error there."""
        if self._folder is None:
            return
        for path, source in list(self._accepted.items()):
            if path.startswith(f"{FOLDER}/{self._key}/"):
                target, aside = self._folder / "cache" / source.name, self._temporary()
                try:
                    shutil.copytree(source, aside)
                    os.utime(aside / CUBIN, ns=(_UNREAD, (aside / CUBIN).stat().st_mtime_ns))
                    os.rename(aside, target)
                except OSError:  # there already, or gone
                    shutil.rmtree(aside, ignore_errors=True)
                if target.is_dir():
                    self.given.add(source.name)

    def _temporary(self) -> Path:
        assert self._folder is not None
        return self._folder / "tmp" / f"cachesvc-{secrets.token_hex(8)}"

    def _present(self) -> Iterator[str]:
        """Yield the names of the kernels in DeepGEMM's folder that are whole."""
        try:
            names = os.listdir(self._folder / "cache") if self._folder is not None else []
        except OSError:
            return
        for name in names:
            folder = Path(str(self._folder), "cache", name)
            if re.fullmatch(KERNEL, name) and all((folder / file).is_file() for file in (SOURCE, CUBIN)):
                yield name

    def found(self) -> set[str]:
        """Return the names of the given kernels whose machine code was read, by the time of the last access:
        no function of Python's sees DeepGEMM's look-ups. None on a file system that keeps no such times."""
        for name in self.given - self._found if self._folder is not None else ():
            with contextlib.suppress(OSError):
                if Path(str(self._folder), "cache", name, CUBIN).stat().st_atime_ns != _UNREAD:
                    self._found.add(name)
        return self._found & self.given

    def used_paths(self) -> set[str]:
        """Return the paths of the machine code that was read."""
        return {f"{FOLDER}/{self._key}/{name}/{CUBIN}" for name in self.found()}

    @property
    def opened(self) -> bool:
        """Return whether DeepGEMM got a folder of ours."""
        return self._folder is not None

    def compiled(self) -> set[str]:
        """Return the names of the kernels that were compiled since DeepGEMM was imported. A process that
        shares the folder may have compiled some of them."""
        return set(self._present()) - self.given - self._before

    def made_files(self) -> dict[str, Digest | None]:
        """Return the paths of the kernels that were compiled since DeepGEMM was imported."""
        kernels = [f"{FOLDER}/{self._key}/{name}" for name in self.compiled()]
        return {f"{kernel}/{file}": None for kernel in kernels for file in (SOURCE, CUBIN)}

    def used_files(self, root: Path, left: bool) -> set[str]:
        """Return the files of the kernels in DeepGEMM's folder; copy what was compiled.

        Nothing that was compiled is kept where the key is another one by now."""
        if self._folder is None or self._package is None or left:
            return set()
        names = set(self.given)
        if compiled := set(self._present()) - names:
            names |= compiled if self._key_now() == self._key else set()
        return {file for name in names for file in self._keep(root, name)}

    def _key_now(self) -> str:
        from .toolchain import key_of

        assert self._package is not None
        try:
            return key_of(self._package)
        except Exception as error:  # noqa: BLE001 - a doubt
            _log.debug("what DeepGEMM compiled is not kept: %s", error)
            return ""

    def _keep(self, root: Path, name: str) -> Iterator[str]:
        """Write a kernel whole below ``root`` and yield its paths there. Does not read what was given to
        DeepGEMM, see `found`."""
        from ...atomic import replacing

        assert self._folder is not None
        place = f"{FOLDER}/{self._key}/{name}"
        folder = self._accepted.get(place, self._folder / "cache" / name)
        (root / place).mkdir(parents=True, exist_ok=True)
        for file in (SOURCE, CUBIN):
            data = (folder / file).read_bytes()
            target = root / place / file
            if not target.is_file() or target.read_bytes() != data:
                with replacing(target) as out:
                    out.write(data)
            yield f"{place}/{file}"
