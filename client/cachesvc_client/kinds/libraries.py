"""Keeps the libraries of a kind that builds them with ninja: which may be loaded, which were loaded and which
were built here.

A kind of this form keeps ``<host folder>/<host>/<key>/<read>/<name>.so``, and beside it the list of what the
build read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .kind import Activity, KindState
from .rules import DEPENDS, HOST_FOLDER, AcceptedFolders, KindRules, host_id

if TYPE_CHECKING:
    from ..wire.digest import Digest
    from ..wire.factors import Fingerprint
    from .builds.request import BuildRequest

_log = logging.getLogger("cachesvc")


class BuiltLibrary(NamedTuple):
    """A library that this process built. ``content``: its digest, since a later build writes over it.
    ``depends``: its list of dependencies."""

    file: Path
    content: str
    depends: bytes

    @property
    def read(self) -> str:
        """Return the name of the folder for what its build read."""
        return digest_of(self.depends)[:16]


class Libraries:
    """The libraries of one kind in this process."""

    def __init__(self, rules: KindRules) -> None:
        self.host = ""
        """The id of this host, for what is built here; empty before the environment is known."""
        self.loaded: dict[str, Path] = {}
        """Libraries that were loaded from an accepted folder: relative path -> file."""
        self.built: dict[tuple[str, str], BuiltLibrary] = {}
        """Libraries that were built here, by the folder of their key and what was read, and by file name."""
        self.reasons: dict[str, str] = {}
        """Why a library was built here and not loaded from an accepted folder, by its name. A name stays when
        a later call of it builds nothing."""
        self.seconds = 0.0
        """Seconds spent in keys, look-ups and records: cachesvc's, not the builder's."""
        self._accepted = AcceptedFolders(rules, DEPENDS)
        """The folders that may hold the library of a key."""
        self._call = threading.local()
        """Of the present call on a thread. ``names``: the files that ninja wrote; ``reason``: why the library
        is not loaded from an accepted folder."""

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the libraries among these files to be loaded."""
        self._accepted.accept(root, paths)

    def refuse_all(self) -> None:
        """Allow no library to be loaded from the folders that were accepted so far."""
        self._accepted.clear()

    def forget(self, paths: Collection[str]) -> None:
        """Treat libraries of these paths as never used, and load them no more."""
        wrong = self._accepted.forget(paths)
        self.loaded = {
            path: file for path, file in self.loaded.items() if path.rpartition("/")[0] not in wrong
        }
        places = {folder.partition("/")[2].partition("/")[2] for folder in wrong}
        self.built = {place: library for place, library in self.built.items() if place[0] not in places}

    def built_paths(self) -> dict[str, BuiltLibrary]:
        """Return the libraries that were built here, by the path that each has in the kind's folder; none
        before the environment is known."""
        built = list(self.built.items()) if self.host else []
        return {f"{HOST_FOLDER}/{self.host}/{key}/{name}": library for (key, name), library in built}

    def _fitting(self, key: str, name: str, absent: str, difference: Callable[[Any], str]) -> Path | None:
        """Return an accepted folder of a key whose library fits, and keep the reason if there is none:
        ``absent``, or the ``difference`` that its `Dependencies` make here, in words."""
        from .builds.dependencies import Dependencies
        from .whole_library import is_whole

        self._call.reason = absent
        for folder in self._accepted.of(key):
            if is_whole(folder / f"{name}.so"):
                self._call.reason = difference(Dependencies.decode((folder / DEPENDS).read_bytes()))
                if not self._call.reason:
                    return folder
        return None

    def _keep(
        self, request: BuildRequest, name: str, headers: Collection[Path], depends: bytes, began: int
    ) -> None:
        """Record the library ``name`` that was built during a call. ``began``: nanoseconds, when it began;
        what its build read must not have changed since."""
        library = request.build_directory / f"{name}.so"
        read = (*headers, *request.sources, *request.linked)
        if changed := [path for path in read if path.stat().st_mtime_ns > began]:
            _log.debug("%s is not kept: %s changed during its build", name, changed[0])
            return
        built = BuiltLibrary(library, content_of(library), depends)
        self.built[f"{request.key(name)}/{built.read}", library.name] = built

    def _timed(self, step: Callable[[], Any]) -> Any:
        """Run a step of cachesvc's own; ``None`` if it fails, which is a doubt."""
        begin = time.perf_counter()
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - a doubt: the builder goes on as without us
            _log.debug("a library is left to its builder: %s", error, exc_info=True)
            return None
        finally:
            self.seconds += time.perf_counter() - begin


class LibrariesState(KindState):
    """The state of a kind whose files are libraries that ninja builds."""

    def __init__(self, libraries: Libraries) -> None:
        self.part = self._libraries = libraries

    def set_environment(self, fingerprint: Fingerprint) -> None:
        """Name this host, so that the libraries that it builds can be captured."""
        self._libraries.host = host_id(fingerprint)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the paths of the libraries that were loaded or built, and of their lists of dependencies;
        copy what was built here."""
        libraries = self._libraries
        paths = set(self.used_paths())
        if not left:
            for path, library in libraries.built_paths().items():
                if not copy_built(library, (root / path).parent, library.file.name):
                    paths.discard(path)
        return {file for path in paths for file in (path, f"{path.rpartition('/')[0]}/{DEPENDS}")}

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the libraries that were built here, and their lists of dependencies."""
        from ..wire.digest import Digest

        made: dict[str, Digest | None] = {}
        for path, library in self._libraries.built_paths().items():
            made[path] = Digest(f"sha256:{library.content}")
            made[f"{path.rpartition('/')[0]}/{DEPENDS}"] = Digest.of(library.depends)
        return made

    def used_paths(self) -> set[str]:
        """Return the paths of the libraries that were loaded or built."""
        return {*self._libraries.loaded, *self._libraries.built_paths()}

    def has_host_code(self) -> bool:
        """Return whether a library was loaded or built: its code is for this host."""
        return self.activity().opened

    def activity(self) -> Activity:
        """Return how many libraries were loaded and built, and the seconds of keys, look-ups and records."""
        libraries = self._libraries
        opened = bool(libraries.loaded or libraries.built)
        return Activity((len(libraries.loaded), len(libraries.built)), opened, libraries.seconds)


def copy_built(library: BuiltLibrary, folder: Path, name: str) -> bool:
    """Write a library that was built here, and its dependencies, whole into ``folder``.

    Return whether they are there. A library that a later build has replaced is left out. Other files of these
    names are replaced: in a folder that the user named, anybody may have written them.
    """
    from ..atomic import replacing

    depends = digest_of(library.depends)
    if content_of(folder / name) == library.content and content_of(folder / DEPENDS) == depends:
        return True
    data = library.file.read_bytes() if library.file.is_file() else b""
    if digest_of(data) != library.content:
        return False
    os.makedirs(folder, exist_ok=True)
    for file, content in ((name, data), (DEPENDS, library.depends)):
        with replacing(folder / file, 0o755 if file == name else 0o644) as out:
            out.write(content)
    return True


def content_of(file: Path) -> str:
    """Return the digest of a file's content; empty if it is not there."""
    return digest_of(file.read_bytes()) if file.is_file() else ""


def digest_of(data: bytes) -> str:
    """Return 64 hex digits over bytes."""
    from ..wire.digest import Digest

    return Digest.of(data).hex
