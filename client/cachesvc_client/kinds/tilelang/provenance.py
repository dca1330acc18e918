"""Says with what a kernel was made, as far as TileLang's own key leaves it out.

The key covers the function, the target, the passes and the flags. It leaves out which compiler runs, what
that compiler reads besides the source, and changes of the source by the program. Whoever loads the kernel
needs the same. What cannot be told is a `Doubt`: such a kernel is neither kept nor loaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...environment import cxx
from ..torch_extensions.flags import Doubt, compiler_words
from .versions import (
    IN_KEY_OR_IDLE,
    OF_THE_PACKAGE,
    POSTPROCESSORS,
    PREFIXES,
    STANDARD_CXX_HEADERS,
    STANDARD_HEADERS,
)

_FORMAT = 1
_MAX_BYTES = 1 << 16
"""Bytes of a `rules.MADE` file."""
_COMPILERS = ("g++", "clang++", "c++")
"""The compilers that TileLang looks for, in its order (``contrib/cc.py``, ``get_cplus_compiler``)."""
_READ_BY_COMPILERS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("GCC_COMPARE_DEBUG", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH"),
    *("LD_RUN_PATH", "CCC_OVERRIDE_OPTIONS"),
)
"""Variables with which a compiler or a linker reads other files, or writes another library."""
_READS_NOTHING = re.compile(
    r"-(O\w*|g\w*|D\w+(=.*)?|U\w+|m[\w.=+,-]+|f[\w.=+-]+|W[\w=+-]*|std=[\w+]+|w|pipe|pthread)"
)
"""Flags with which a compiler reads no file."""
_INCLUDE = re.compile(rb"^\s*#\s*(?:include|include_next|import|embed)\b\s*(\S*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Provenance:
    """With what a kernel was made. ``compiler``: its identity. ``facts``: the rest, each as a short text."""

    compiler: str
    facts: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the bytes of a `rules.MADE` file."""
        document = {"format": _FORMAT, "compiler": self.compiler, "facts": dict(self.facts)}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Provenance:
        """Read a `rules.MADE` file. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for others."""
        document = json.loads(data) if len(data) <= _MAX_BYTES else {}
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"{data[:40]!r} does not say with what a kernel was made")
        facts = {str(name): str(text) for name, text in dict(document["facts"]).items()}
        return cls(str(document["compiler"]), facts)

    def difference(self, facts: Mapping[str, str], compiler: str | None) -> str:
        """Return what differs in a process with these facts, in words; an empty text if nothing does.

        ``compiler``: the one that would run there. One that is absent differs in nothing: images of services
        have none.
        """
        if compiler is not None and compiler != self.compiler:
            return f"the compiler is {compiler} here, and {self.compiler} there"
        for name in sorted({*facts, *self.facts}):
            here, there = facts.get(name, "none"), self.facts.get(name, "none")
            if here != there:
                return f"{name} is {here} here, and {there} there"
        return ""


def compiler_identity(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the identity of the compiler that TileLang would run, ``None`` where there is none."""
    search = environ.get("PATH", os.defpath)
    named = environ.get("CXX") or environ.get("CC")
    command = named or next((name for name in _COMPILERS if shutil.which(name, path=search)), None)
    return cxx.identity({**environ, "CXX": command}) if command else None


def facts_here(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the facts of this process. Raises `Doubt` where a program or a variable may change the code in a
    way that has no short text."""
    _refuse_postprocessors()
    for name in _READ_BY_COMPILERS:
        if environ.get(name):
            raise Doubt(f"the variable {name} changes what a compiler reads")
    package = _package()
    for name in OF_THE_PACKAGE:
        if any(not _inside(path, package) for path in environ.get(name, "").split(os.pathsep) if path):
            raise Doubt(f"the variable {name} names files that are not TileLang's own")
    return {**_versions(), **_libraries(package), **dict(_variables(environ))}


def check_flags(flags: Iterable[str]) -> None:
    """Raise `Doubt` for a flag with which a compiler reads a file, whose content no key has."""
    for word in compiler_words(flags):
        if not _READS_NOTHING.fullmatch(word):
            raise Doubt(f"nobody knows what the compiler reads with the flag {word}")


def check_source(source: bytes) -> None:
    """Raise `Doubt` for a source that includes more than TileLang's own headers and those of the compiler."""
    if b"incbin" in source or b".include" in source:
        raise Doubt("its source may read a file that is no header")
    for match in _INCLUDE.finditer(source):
        name = match[1].decode(errors="replace")
        if not _is_known_header(name):
            raise Doubt(f"its source includes {name}, whose content no key has")


def _is_known_header(name: str) -> bool:
    inner = re.fullmatch(r"<([\w./+-]+)>", name)
    if inner is None or ".." in inner[1]:
        return False
    if inner[1].startswith("tl_templates/"):
        return (_package() / "src" / inner[1]).is_file()
    return inner[1] in STANDARD_CXX_HEADERS or (
        inner[1].endswith(".h") and inner[1].removesuffix(".h") in STANDARD_HEADERS
    )


def _refuse_postprocessors() -> None:
    tvm_ffi: Any = sys.modules["tvm_ffi"]
    for name in POSTPROCESSORS:
        if tvm_ffi.get_global_func(name, allow_missing=True) is not None:
            raise Doubt(f"the program changes the source of kernels ({name})")


def _package() -> Path:
    """Return the folder of TileLang, which calls us."""
    return Path(os.path.realpath(str(sys.modules["tilelang"].__file__))).parent


def _inside(path: str, package: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(package)


def _versions() -> dict[str, str]:
    modules = {"TileLang": "tilelang", "TVM's FFI": "tvm_ffi"}
    return {text: str(getattr(sys.modules.get(name), "__version__", "")) for text, name in modules.items()}


def _libraries(package: Path) -> dict[str, str]:
    """What the number of a release does not tell: a build from source has one too."""
    sizes = {
        f"the size of {name}": str((package / "lib" / name).stat().st_size)
        for name in ("libtilelang.so", "libtvm_compiler.so", "libtvm_runtime.so")
    }
    headers = sorted((package / "src" / "tl_templates" / "cpp").iterdir())
    return {**sizes, "the digest of its headers": _digest(b"".join(map(Path.read_bytes, headers)))}


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield TileLang's other variables; their values as digests."""
    for name in sorted(environ):
        if name.startswith(PREFIXES) and name not in IN_KEY_OR_IDLE and name not in OF_THE_PACKAGE:
            yield name, _digest(environ[name].encode(errors="surrogateescape"))


def _digest(data: bytes) -> str:
    from ...wire.digest import Digest

    return Digest.of(data).hex[:16]
