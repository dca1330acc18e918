"""Says with what a kernel was made, as far as TileLang's own key leaves it out.

The key covers the function, the target, the passes and the flags. It leaves out which compiler runs, what
that compiler reads besides the source, and changes of the source by the program. Whoever loads the kernel
needs the same. What cannot be told is a `Doubt`: such a kernel is neither kept nor loaded.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...environment import cxx
from ..builds.flags import Doubt, compiler_words
from ..builds.nvcc import FLAGS_OF_TOOLS, nvcc_identity
from .versions import (
    CUDA,
    CUDA_CALLBACKS,
    CUDA_HEADERS,
    IN_KEY_OR_IDLE,
    OF_OTHER_PLATFORMS,
    OF_THE_PACKAGE,
    PREFIXES,
    STANDARD_CXX_HEADERS,
    STANDARD_HEADERS,
    Backend,
)

_FORMAT = 2
_MAX_BYTES = 1 << 16
"""Bytes of a `rules.MADE` file."""
_COMPILERS = ("g++", "clang++", "c++")
"""The compilers that TileLang looks for, in its order (``contrib/cc.py``, ``get_cplus_compiler``)."""
_HOST_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
"""Those that TVM looks for, which compiles the host's part of a kernel for a GPU (its ``contrib/cc.py``)."""
_READ_BY_COMPILERS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("GCC_COMPARE_DEBUG", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "SOURCE_DATE_EPOCH"),
    *("LD_RUN_PATH", "CCC_OVERRIDE_OPTIONS"),
)
"""Variables with which a compiler or a linker reads other files, or writes another library."""
_READ_BY_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", *FLAGS_OF_TOOLS)
_FOLDERS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
"""Those that hold nothing but folders."""
_READS_NOTHING = re.compile(
    r"-(O\w*|g\w*|D\w+(=.*)?|U\w+|m[\w.=+,-]+|f[\w.=+-]+|W[\w=+-]*|std=[\w+]+|w|pipe|pthread|lineinfo)"
    r"|--?use_fast_math|--?expt-(relaxed-constexpr|extended-lambda)|--?maxrregcount=\d+"
    r"|--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)|--ptxas-options=[\w=-]+"
)
"""Flags with which a compiler, nvcc among them, reads no file."""
_TVM_HEADERS = Path("3rdparty", "tvm", "include")
"""TVM's headers, in TileLang's package. Those of TVM's FFI are a package with a version of its own."""
_INCLUDE = re.compile(rb"^\s*#\s*(?:include|include_next|import|embed)\b\s*(\S*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Provenance:
    """With what a kernel was made. ``compilers``: their identities, by what each is called in a reason.
    ``facts``: the rest, each as a short text."""

    compilers: Mapping[str, str]
    facts: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the bytes of a `rules.MADE` file."""
        document = {"format": _FORMAT, "compilers": dict(self.compilers), "facts": dict(self.facts)}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Provenance:
        """Read a `rules.MADE` file. Raises ``ValueError``, ``TypeError`` or ``KeyError`` for others."""
        document = json.loads(data) if len(data) <= _MAX_BYTES else {}
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"{data[:40]!r} does not say with what a kernel was made")
        return cls(_texts(document["compilers"]), _texts(document["facts"]))

    def difference(self, facts: Mapping[str, str], compilers: Mapping[str, str | None]) -> str:
        """Return what differs in a process with these facts, in words; an empty text if nothing does.

        ``compilers``: those that would run there. One that is absent differs in nothing: images of services
        have none.
        """
        for name, compiler in compilers.items():
            there = self.compilers.get(name, "none")
            if compiler not in (None, there):
                return f"{name} is {compiler} here, and {there} there"
        for name in sorted({*facts, *self.facts}):
            here, there = facts.get(name, "none"), self.facts.get(name, "none")
            if here != there:
                return f"{name} is {here} here, and {there} there"
        return ""


def compilers_here(backend: Backend, environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Return the identities of the compilers that TileLang would run; ``None`` for one that is not there.

    A host without nvcc compiles nothing for a GPU, whatever other compilers it has.
    """
    compilers = {"the compiler": _first(_COMPILERS, environ)}
    if backend != CUDA:
        return compilers
    toolkit = _toolkit()
    compilers["the compiler of the host's part"] = _first(_HOST_COMPILERS, environ)
    compilers["nvcc"] = nvcc_identity(toolkit / "bin" / "nvcc", environ) if toolkit else None
    return compilers if compilers["nvcc"] else dict.fromkeys(compilers)


def _first(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """Return the identity of the compiler that a variable names, else of the first that is on the PATH."""
    search = environ.get("PATH", os.defpath)
    named = environ.get("CXX") or environ.get("CC")
    command = named or next((name for name in names if shutil.which(name, path=search)), None)
    return cxx.identity({**environ, "CXX": command}) if command else None


def facts_here(
    backend: Backend, callbacks: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the facts of this process. Raises `Doubt` where a program or a variable may change the code in a
    way that has no short text.

    ``callbacks``: TileLang's own functions, by the names under which it registers them for CUDA.
    """
    _refuse_postprocessors(backend)
    if backend == CUDA:
        _refuse_other_callbacks(callbacks)
    package, toolkit = _package(), _toolkit() if backend == CUDA else None
    if backend != CUDA or compilers_here(backend, environ)["nvcc"]:
        _refuse_variables(environ, toolkit)
    for name in (*OF_THE_PACKAGE, *(("TL_CUTLASS_PATH",) if backend == CUDA else ())):
        if any(not _inside(path, package) for path in _paths(environ.get(name, ""))):
            raise Doubt(f"the variable {name} names files that are not TileLang's own")
    return {**_versions(), **_libraries(package, backend), **dict(_variables(environ))}


def _refuse_variables(environ: Mapping[str, str], toolkit: Path | None) -> None:
    """Raise `Doubt` for a variable with which a compiler reads other files than its own, or than those of the
    CUDA toolkit: images with one name its folders so."""
    for name in (*_READ_BY_COMPILERS, *(_READ_BY_NVCC if toolkit is not None else ())):
        value = environ.get(name, "")
        folders = _paths(value) if toolkit is not None and name in _FOLDERS else []
        if value and not (toolkit and folders and all(_inside(path, toolkit) for path in folders)):
            raise Doubt(f"the variable {name} changes what a compiler reads")


def _paths(value: str) -> list[str]:
    return [path for path in value.split(os.pathsep) if path]


def _toolkit() -> Path | None:
    """Return the folder of the CUDA toolkit that TileLang would use; ``None`` where it found none."""
    home = getattr(sys.modules.get("tilelang.env"), "CUDA_HOME", "")
    return Path(os.path.realpath(str(home))) if home else None


class NvccRun(NamedTuple):
    """Is one run of nvcc by TileLang. ``options``: what TileLang adds to the command. ``code``: the machine
    code that nvcc made from ``source``."""

    source: bytes
    options: tuple[str, ...]
    code: bytes


def check_run(run: NvccRun | None, source: bytes, library: bytes) -> None:
    """Raise `Doubt` unless a library has the machine code that nvcc made here, from this source, with flags
    and include paths that are known."""
    if run is None:
        raise Doubt("nvcc did not make its machine code here: TileLang had it in a folder of its own")
    if run.source != source or not run.code or run.code not in library:
        raise Doubt("its machine code is not what nvcc made of its source")
    package = _package()
    check_flags(word for word in run.options if not (word.startswith("-I") and _inside(word[2:], package)))


def check_flags(flags: Iterable[str]) -> None:
    """Raise `Doubt` for a flag with which a compiler reads a file, whose content no key has."""
    for word in compiler_words(flags):
        if not _READS_NOTHING.fullmatch(word):
            raise Doubt(f"nobody knows what the compiler reads with the flag {word}")


def check_source(source: bytes) -> None:
    """Raise `Doubt` for a source that includes more than the headers of TileLang, TVM, the CUDA toolkit and
    the compilers."""
    if b"incbin" in source or b".include" in source:
        raise Doubt("its source may read a file that is no header")
    for match in _INCLUDE.finditer(source):
        name = match[1].decode(errors="replace")
        if not _is_known_header(name):
            raise Doubt(f"its source includes {name}, whose content no key has")


def _is_known_header(name: str) -> bool:
    inner = re.fullmatch(r"<([\w./+-]+)>|\"(tvm/[\w./+-]+)\"", name)
    if inner is None or ".." in name:
        return False
    header = inner[1] or inner[2]
    if header.startswith("tl_templates/"):
        return (_package() / "src" / header).is_file()
    if header.startswith("tvm/"):
        return header.startswith("tvm/ffi/") or (_package() / _TVM_HEADERS / header).is_file()
    if header in STANDARD_CXX_HEADERS or header in OF_OTHER_PLATFORMS:
        return True
    return header.endswith(".h") and header.removesuffix(".h") in STANDARD_HEADERS | CUDA_HEADERS


def _refuse_postprocessors(backend: Backend) -> None:
    for name in backend.postprocessors:
        if _registered(name) is not None:
            raise Doubt(f"the program changes the source of kernels ({name})")


def _refuse_other_callbacks(callbacks: Mapping[str, Any]) -> None:
    """Raise `Doubt` unless TileLang's own functions compile for CUDA."""
    for name in CUDA_CALLBACKS:
        if name not in callbacks or _registered(name) != callbacks[name]:
            raise Doubt(f"nobody knows how the program compiles kernels ({name})")


def cuda_callbacks() -> dict[str, Any]:
    """Return the functions that are registered for CUDA now, by their names."""
    return {name: _registered(name) for name in CUDA_CALLBACKS}


def _registered(name: str) -> Any:
    tvm_ffi: Any = sys.modules["tvm_ffi"]
    return tvm_ffi.get_global_func(name, allow_missing=True)


def _package() -> Path:
    """Return the folder of TileLang, which calls us."""
    return Path(os.path.realpath(str(sys.modules["tilelang"].__file__))).parent


def _inside(path: str, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(folder)


def _versions() -> dict[str, str]:
    modules = {"TileLang": "tilelang", "TVM's FFI": "tvm_ffi"}
    return {text: str(getattr(sys.modules.get(name), "__version__", "")) for text, name in modules.items()}


def _libraries(package: Path, backend: Backend) -> dict[str, str]:
    """What the number of a release does not tell: a build from source has one too."""
    sizes = {
        f"the size of {name}": str((package / "lib" / name).stat().st_size)
        for name in ("libtilelang.so", "libtvm_compiler.so", "libtvm_runtime.so")
    }
    headers = sorted((package / "src" / "tl_templates" / backend.headers).rglob("*"))
    content = b"".join(file.read_bytes() for file in headers if file.is_file())
    facts = {**sizes, "the digest of its headers": _digest(content)}
    if backend == CUDA:
        facts["the sizes of CUTLASS and TVM"] = _sizes(package / "3rdparty")
    return facts


@functools.cache
def _sizes(folder: Path) -> str:
    """Return a digest of the names and sizes of the headers below a folder: there are thousands."""
    headers = sorted(
        (str(file.relative_to(folder)), file.stat().st_size)
        for suffix in ("h", "hpp", "cuh", "inl")
        for file in folder.rglob(f"*.{suffix}")
    )
    return _digest(repr(headers).encode())


def _texts(document: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in dict(document).items()}


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield TileLang's other variables; their values as digests."""
    for name in sorted(environ):
        if name.startswith(PREFIXES) and name not in IN_KEY_OR_IDLE and name not in OF_THE_PACKAGE:
            yield name, _digest(environ[name].encode(errors="surrogateescape"))


def _digest(data: bytes) -> str:
    from ...wire.digest import Digest

    return Digest.of(data).hex[:16]
