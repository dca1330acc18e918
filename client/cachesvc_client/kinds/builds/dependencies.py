"""What the build of a library read besides its sources: which compilers, headers and linked files.

A library is only loaded where all of it is the same. A header's place is told by the folder in which the
build looked for it (an include path, or the folder of a source), so a project may lie elsewhere. Left out is
what factors of the fingerprint name: headers of torch, Python, CUDA, the compiler and the C library.
"""

from __future__ import annotations

import functools
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...environment import cxx
from ...wire.digest import Digest
from .flags import Doubt
from .request import BuildRequest

MAX_FILES = 4096
"""Files of the user's that one build may have read."""
_MAX_BYTES = 1 << 20
"""Bytes of a `rules.DEPENDS` file."""
_FORMAT = 1
_SYSTEM = tuple(map(Path, ("/usr/include", "/usr/lib", "/usr/local/cuda", "/lib")))
"""Folders whose headers belong to the host."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """One file that a build read. ``base``: an include path (``include:0``), the folder of a source
    (``source:0``), or empty for an absolute ``path``. ``content``: 64 hex digits."""

    base: str
    path: str
    content: str


@dataclass(frozen=True, slots=True)
class Dependencies:
    """All that a build read. ``compilers``: by their part in the build, each one's identity."""

    compilers: Mapping[str, str]
    files: tuple[Dependency, ...]

    def encode(self) -> bytes:
        """Return the bytes of a `rules.DEPENDS` file. Raises `Doubt` if they are too many."""
        files = [[file.base, file.path, file.content] for file in self.files]
        document = {"format": _FORMAT, "compilers": dict(self.compilers), "files": files}
        data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        if len(self.files) > MAX_FILES or len(data) > _MAX_BYTES:
            raise Doubt("its build read too many files")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Dependencies:
        """Read a `rules.DEPENDS` file. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for others."""
        document = json.loads(data) if len(data) <= _MAX_BYTES else {}
        if document.get("format") != _FORMAT:
            raise ValueError(f"{data[:40]!r} is no list of dependencies")
        files = tuple(
            Dependency(str(base), str(path), str(content)) for base, path, content in document["files"]
        )
        return cls({str(part): str(name) for part, name in document["compilers"].items()}, files)

    def difference(self, request: BuildRequest, module: Any) -> str:
        """Return what differs here from the host of the build, in words; an empty text if nothing does.

        A compiler that is not here differs in nothing: images of services have none.
        """
        return self.difference_with(request, compilers(request, module))

    def difference_with(self, request: BuildRequest, here: Mapping[str, str | None]) -> str:
        """Return `difference` where a build would run the compilers ``here``, by their part in it."""
        if here.keys() != self.compilers.keys():
            return "other compilers take part"
        for part, identity in here.items():
            if identity is not None and identity != self.compilers[part]:
                return f"{part} is {identity} here, and {self.compilers[part]} there"
        bases = _bases(request)
        for file in self.files:
            if file.base and file.base not in bases:
                return f"{file.path} was read from a folder that is not named here"
            place = bases.get(file.base, Path()) / file.path
            if _digest(place) != file.content or _hidden(file, place, bases):
                return f"{file.path} differs"
        return ""


def read_by_build(request: BuildRequest, module: Any, headers: Iterable[Path]) -> Dependencies:
    """Return the dependencies of a build that has just ended, from the files that its compilers read.

    Raises `Doubt` where the library does not follow from them.
    """
    return read_with(request, headers, compilers(request, module), _brought(module))


def read_with(
    request: BuildRequest,
    headers: Iterable[Path],
    identities: Mapping[str, str | None],
    brought: Iterable[Path],
) -> Dependencies:
    """Return `read_by_build` for a build with these compilers, where the headers in the folders ``brought``
    follow from other facts."""
    if unknown := [part for part, identity in identities.items() if identity is None]:
        raise Doubt(f"the compiler {unknown[0]} cannot be told")
    bases = _bases(request)
    own = {os.path.realpath(source) for source in request.sources}
    places = [path for path in headers if os.path.realpath(path) not in own]
    files = {*_of_the_user(places, request, brought), *map(_absolute, request.linked)}
    for file in files:
        if _hidden(file, bases.get(file.base, Path()) / file.path, bases):
            raise Doubt(f"there is more than one {file.path}")
    known = {part: str(identity) for part, identity in identities.items()}
    return Dependencies(known, tuple(sorted(files, key=lambda file: (file.base, file.path))))


def compilers(request: BuildRequest, module: Any) -> dict[str, str | None]:
    """Return the identity of each compiler that a build would run here; ``None`` for one that is absent."""
    environ = os.environ
    known = {"c++": cxx.identity({**environ, "CXX": environ.get("CXX", "c++")})}
    if request.with_cuda:
        if environ.get("CC"):
            known["cc"] = cxx.identity({**environ, "CXX": environ["CC"]})
        home = module.CUDA_HOME
        nvcc = environ.get("PYTORCH_NVCC") or (os.path.join(home, "bin", "nvcc") if home else "")
        known["nvcc"] = _digest(Path(nvcc)) if nvcc else None
    return known


def _bases(request: BuildRequest) -> dict[str, Path]:
    """The folders in which a compiler looks for headers of the user's, in its order."""
    bases = {f"source:{index}": source.parent for index, source in enumerate(request.sources)}
    return bases | {f"include:{index}": path for index, path in enumerate(request.includes)}


def _of_the_user(
    paths: Iterable[Path], request: BuildRequest, folders: Iterable[Path]
) -> Iterator[Dependency]:
    bases, brought = _bases(request), [Path(os.path.realpath(path)) for path in folders]
    for path in paths:
        real = Path(os.path.realpath(path))
        if any(map(real.is_relative_to, brought)):
            continue
        place = Path(os.path.abspath(path))
        below = [(name, base) for name, base in bases.items() if place.is_relative_to(base)]
        if below:
            name, base = max(below, key=lambda pair: len(pair[1].parts))
            yield _dependency(name, str(place.relative_to(base)), place)
        elif not any(map(real.is_relative_to, _SYSTEM)):
            yield _absolute(place)


def _brought(module: Any) -> Iterator[Path]:
    """The folders of headers that torch, Python and CUDA bring."""
    yield Path(module.__file__).parents[1] / "include"
    for name in ("include", "platinclude"):
        yield Path(sysconfig.get_path(name))
    if module.CUDA_HOME:
        yield from cuda_headers(Path(module.CUDA_HOME))


def cuda_headers(home: Path) -> Iterator[Path]:
    """Yield the folders of headers of a CUDA toolkit; none of a folder without CUDA's headers.

    ``home`` is ``/usr/local`` where ``/usr/local/bin/nvcc`` is a script, and others have headers below it."""
    if (home / "include" / "cuda_runtime.h").is_file():
        yield home / "include"
        yield from (home / "targets").glob("*/include")


def _absolute(path: Path) -> Dependency:
    return _dependency("", str(path), path)


def _dependency(base: str, path: str, place: Path) -> Dependency:
    content = _digest(place)
    if content is None:
        raise Doubt(f"{place} is gone")
    return Dependency(base, path, content)


def _hidden(file: Dependency, place: Path, bases: Mapping[str, Path]) -> bool:
    """Return whether a compiler may find another file of this name, in a folder before this one.

    A source's own folder comes first for that source.
    """
    if not file.base.startswith("include:"):
        return False
    real = os.path.realpath(place)
    for name, base in bases.items():
        if name == file.base:
            return False
        other = base / file.path
        if other.exists() and os.path.realpath(other) != real:
            return True
    return False


def _digest(path: Path) -> str | None:
    """Return the digest of a file's content, or ``None`` if it cannot be read."""
    try:
        status = path.stat()
        return _content(path, status.st_size, status.st_mtime_ns, status.st_ino)
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=MAX_FILES)
def _content(path: Path, *_state: int) -> str:
    """``_state``: size, time and number of the file, so that a changed file is read again."""
    data = path.read_bytes()
    if b"incbin" in data and path.suffix not in (".so", ".a", ".o"):
        raise ValueError(f"{path.name} may read files that the compiler does not list")
    return Digest.of(data).hex
