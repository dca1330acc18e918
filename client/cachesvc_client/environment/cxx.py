"""Identifies the C++ compiler that Inductor would run, from the compiler's file.

``detect`` runs in services at their start, where a child process costs tens of milliseconds and may be
forbidden; the version stands in the compiler's own bytes. A program that its bytes do not show to be a
compiler is run once: one that cannot run is none, and kernels that are restored need none.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

_GCC_MARK = b"gcc version %s %s"
"""Format of ``g++ -v``, which every driver of gcc holds (gcc/gcc.cc). The version is a string of its own."""
_GCC_VERSION = re.compile(rb"\0([0-9]+\.[0-9]+\.[0-9]+(?: [0-9]{8} \([a-z ]+\))?)(?=\0)")
"""Matches the version, which is a string of its own."""
_GCC_PACKAGE = re.compile(rb"\0(\([^\0]{1,80}\)) (?=\0)")
"""Matches ``pkgversion_string``, such as ``(Ubuntu 13.3.0-6ubuntu2~24.04.1) ``."""
_EXEC = re.compile(rb"^\s*exec\s+[\"']?(/[^\s\"']+)", re.MULTILINE)
"""Matches the line of a wrapper script that runs the compiler."""
_CLANG_VERSION = re.compile(rb"clang -cc1 version ([0-9]+\.[0-9]+\.[0-9]+)")
"""Matches the version in clang itself or, where clang is a small program over a library, in libclang-cpp
(cc1_main, Frontend)."""
_WRAPPERS = frozenset({"ccache", "sccache", "distcc", "icecc"})
"""Names of programs that run the next compiler of their name on the PATH."""
_HEAD = 1 << 20
"""Number of bytes of a compiler that its hash covers."""
_MAX_SCRIPTS = 4
"""Largest number of wrapper scripts that call each other."""
_SECONDS = 5.0
"""Seconds after which a program that has not failed is taken for one that runs."""
_VERSION = ("--version",)
_EMPTY_SOURCE = ("-x", "c++", "-fsyntax-only", os.devnull)


def identity(environ: Mapping[str, str]) -> str | None:
    """Returns ``g++ 12.2.0`` or ``clang++ 16.0.6``; for other compilers the file's name and a hash that
    changes with each build of it. ``None`` if there is no compiler, or none that can run. Never raises.

    Looks where Inductor looks: the variable CXX, else ``g++``, on the PATH (``torch/_inductor/config.py``,
    ``cpp.cxx``; ``cpp_builder.get_cpp_compiler``). A process is started only for a
    program that is neither a gcc with its parts nor a clang of this machine.
    """
    command = environ.get("CXX", "g++")
    path = program(command, environ)
    if path is None:
        return None
    try:
        known = (_gcc(path) or _clang(path)) if _is_native(path) else None
        if known and (known.startswith("clang++") or _has_front_end(path, known)):
            return known
        stat = path.stat()
        file = (str(path), stat.st_mtime_ns, stat.st_size)
        runs = _runs(command, _EMPTY_SOURCE if known else _VERSION, environ.get("PATH", os.defpath), file)
        return (known or _by_content(path)) if runs else None
    except (OSError, ValueError):  # unreadable, or empty: mmap refuses that
        return None


def _is_native(path: Path) -> bool:
    """Return whether a program is machine code of this machine, by the head of its file."""
    with open(path, "rb") as file, open("/proc/self/exe", "rb") as own:
        head, mine = file.read(20), own.read(20)
    return head[:4] == b"\x7fELF" and head[4:6] + head[18:20] == mine[4:6] + mine[18:20]


def _has_front_end(path: Path, known: str) -> bool:
    """Return whether gcc's driver has the program beside it that compiles C++: images leave it out."""
    version = known.removeprefix("g++ ").split()[0]
    folders = (version, version.partition(".")[0])
    return any(file.parent.name in folders for file in path.parent.parent.glob("lib*/gcc/*/[0-9]*/cc1plus"))


@lru_cache(maxsize=8)
def _runs(command: str, arguments: Sequence[str], search: str, _file: tuple[str, int, int]) -> bool:
    """Return whether a program ends without an error. ``_file``: what it is now, so a new one is asked."""
    import subprocess  # for those whose compiler is unknown

    program = shutil.which(command, path=search)
    try:
        return program is not None and not subprocess.call(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PATH": search},
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False


def program(command: str, environ: Mapping[str, str]) -> Path | None:
    """Returns the real file of a compiler, behind links, wrappers and wrapper scripts; ``None`` if there is
    none. Starts no process and never raises."""
    path = _resolve(command, environ.get("PATH", os.defpath))
    try:
        return None if path is None else _follow_scripts(path)
    except OSError:
        return None


def is_plain_gcc(command: str, environ: Mapping[str, str]) -> bool:
    """Return whether a command runs gcc itself: no script and no wrapper that could add options. Never
    raises."""
    found = shutil.which(command, path=environ.get("PATH", os.defpath))
    try:
        path = None if found is None else Path(os.path.realpath(found))
        return path is not None and _is_native(path) and _gcc(path) is not None
    except (OSError, ValueError):
        return False


def _resolve(command: str, search: str) -> Path | None:
    """Returns the compiler's real file. A wrapper such as ccache runs the next program of that name on the
    PATH."""
    while True:
        program = shutil.which(command, path=search)
        if program is None:
            return None
        path = Path(os.path.realpath(program))
        if path.name not in _WRAPPERS:
            return path
        folders = search.split(os.pathsep)
        folder = os.path.dirname(program)
        if folder not in folders:
            return None
        search = os.pathsep.join(folders[folders.index(folder) + 1 :])
        command = os.path.basename(command)


def _follow_scripts(path: Path) -> Path:
    """Returns the program that a wrapper script ends in (``exec /usr/gcc/bin/g++-real -B… "$@"``)."""
    for _ in range(_MAX_SCRIPTS):
        with open(path, "rb") as file:
            head = file.read(1 << 16)
        match = _EXEC.search(head) if head.startswith(b"#!") else None
        if match is None or not os.access(match[1], os.X_OK):
            return path
        path = Path(os.path.realpath(os.fsdecode(match[1])))
    return path


def _gcc(path: Path) -> str | None:
    """Identifies gcc by the versions that stand alone among the driver's strings. Linked libraries have
    versions too; then the version counts that names the compiler's own folder, or its package."""
    with _map_file(path) as data:
        if data.find(_GCC_MARK) < 0:
            return None
        versions = {match[1].decode() for match in _GCC_VERSION.finditer(data)}
        packages = b" ".join(_GCC_PACKAGE.findall(data)).decode("ascii", "replace")
    folders = {folder.name for folder in path.parent.parent.glob("lib*/gcc/*/[0-9]*")}
    by_folder = {version for version in versions if {version, version.partition(".")[0]} & folders}
    by_package = {
        version for version in versions if re.search(rf"(?<![0-9.]){re.escape(version)}(?![0-9])", packages)
    }
    for candidates in (versions, by_folder, by_package, by_folder & by_package):
        if len(candidates) == 1:
            return f"g++ {candidates.pop()}"
    return None  # a doubt: the content identifies it


def _clang(path: Path) -> str | None:
    if "clang" not in path.name:
        return None
    for candidate in (path, *_clang_libraries(path)):
        with _map_file(candidate) as data:
            match = _CLANG_VERSION.search(data)
            if match is not None:
                return f"clang++ {match[1].decode()}"
    return None


def _clang_libraries(path: Path) -> Iterator[Path]:
    yield from sorted((path.parent.parent / "lib").glob("libclang-cpp.so*"))


def _by_content(path: Path) -> str:
    """Identifies a compiler by its first MiB, which has the ELF header and the build id, and so differs
    between builds."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    digest = hashlib.sha256(b"%d:%b" % (path.stat().st_size, head))
    return f"{path.name} sha256:{digest.hexdigest()[:16]}"


def _map_file(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
