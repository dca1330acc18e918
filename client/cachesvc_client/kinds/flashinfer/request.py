"""Reads a specification of FlashInfer's as a request for one library, and makes its key.

Nothing here starts nvcc, or needs one: FlashInfer itself asks nvcc for its version before it writes the file
for ninja.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...environment import cxx
from ..builds.dependencies import Dependencies, cuda_headers, read_with
from ..builds.flags import Doubt, compiler_words, linked_files
from ..builds.nvcc import FLAGS_OF_TOOLS, UNLISTED_FOLDERS, nvcc_identity, toolkit_home
from ..builds.request import BuildRequest, content_of
from .rules import MODULE_NAME
from .versions import FIELDS, FLAGS_OF_VARIABLES, OF_TOOLS

_OF_CUDA = re.compile(r"\$cuda_home/")
"""Matches include paths of CUDA's, which `Toolkit.brought` has."""


def read_spec(spec: Any) -> BuildRequest:
    """Return what a specification asks ninja for.

    Raises `Doubt` where it has what this kind does not know, and ``OSError`` for a source that cannot be
    read.
    """
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    if unknown := fields.keys() - FIELDS:
        raise Doubt(f"its specification has fields that are not known: {', '.join(sorted(unknown))}")
    if fields.get("embedded_cubin_factory") is not None:
        raise Doubt("it holds machine code that FlashInfer makes elsewhere")
    if not re.fullmatch(MODULE_NAME, spec.name):
        raise Doubt("its name is none that a file can have")
    sources = tuple(Path(os.path.abspath(source)) for source in spec.sources)
    common, includes = _common(fields["extra_include_dirs"])
    linker = [*_of_variable(FLAGS_OF_VARIABLES[2]), *_words(fields["extra_ldflags"])]
    return BuildRequest(
        name=spec.name,
        sources=sources,
        includes=includes,
        linked=tuple(linked_files(linker)),
        build_directory=Path(spec.build_dir),
        with_cuda=True,
        is_python_module=False,
        facts={
            "format": 1,
            "sources": [[source.name, content_of(source)] for source in sources],
            "common": common,
            "compiler": [*_checked(fields["extra_cflags"]), *_of_variable(FLAGS_OF_VARIABLES[0])],
            "cuda": [*_checked(fields["extra_cuda_cflags"]), *_of_variable(FLAGS_OF_VARIABLES[1])],
            "by_source": _by_source(sources, fields.get("extra_cuda_cflags_by_source")),
            "linker": linker,
            "includes": len(includes),
            "device_link": bool(fields["needs_device_linking"]),
            "architectures": _architectures(),
            "software": _software(),
            "environment": _environment(),
        },
    )


def difference(depends: Dependencies, request: BuildRequest) -> str:
    """Return what differs here from the host of a build, in words; an empty text if nothing does."""
    return depends.difference_with(request, Toolkit.here().compilers())


def read_by_build(request: BuildRequest, headers: Iterable[Path]) -> Dependencies:
    """Return the dependencies of a build that has just ended, from the files that its compilers read.

    Raises `Doubt` where the library does not follow from them.
    """
    toolkit = Toolkit.here()
    return read_with(request, headers, toolkit.compilers(), toolkit.brought())


@dataclasses.dataclass(frozen=True, slots=True)
class Toolkit:
    """The CUDA toolkit that FlashInfer would use. ``home``: its folder. ``nvcc``: the file of its compiler,
    ``None`` if it is not there."""

    home: Path
    nvcc: Path | None

    @classmethod
    def here(cls) -> Toolkit:
        """Return the toolkit of this process, found as ``cpp_ext.get_cuda_path`` finds it, without a process
        for that."""
        home = toolkit_home(os.environ)
        nvcc = os.environ.get("FLASHINFER_NVCC", "$cuda_home/bin/nvcc").replace("$cuda_home", home)
        return cls(Path(home), cxx.program(nvcc, os.environ))

    def compilers(self) -> dict[str, str | None]:
        """Return the identity of each compiler that a build would run here; ``None`` for one that is
        absent."""
        environ = os.environ
        host = environ.get("NVCC_CCBIN") or environ.get("CC") or "gcc"
        return {
            "c++": cxx.identity({**environ, "CXX": environ.get("CXX", "c++")}),
            "cc": cxx.identity({**environ, "CXX": host}),
            "nvcc": nvcc_identity(self.nvcc) if self.nvcc is not None else None,
        }

    def brought(self) -> list[Path]:
        """Return the folders of headers that the identity of nvcc, and factors of the fingerprint, stand
        for."""
        import torch

        homes = [self.home, *([self.nvcc.parents[1]] if self.nvcc is not None else [])]
        headers = [folder for home in homes for folder in cuda_headers(home)]
        return [*headers, *map(Path, _python_includes()), Path(torch.__file__).parent / "include"]


def _common(directories: Iterable[Any] | None) -> tuple[list[str], tuple[Path, ...]]:
    """Return the words that FlashInfer gives every compiler, and the include paths in the compiler's order.

    ``-I`` comes before ``-isystem``, in which order FlashInfer names them.
    """
    cpp_ext: Any = sys.modules["flashinfer.jit.cpp_ext"]
    folders = None if directories is None else [Path(path) for path in directories]
    words: list[str] = []
    includes: list[str] = []
    for flag in cpp_ext.build_common_cflags("$cuda_home", folders):
        folder = _include(flag)
        if folder is None:
            words.append(flag)
        elif not _OF_CUDA.match(folder) and folder not in _python_includes():
            includes.append(folder)
    if unknown := [word for word in words if not word.startswith("-D")]:
        raise Doubt(f"FlashInfer's flag {unknown[0]} is not known")
    if relative := [path for path in includes if not os.path.isabs(path)]:
        raise Doubt(f"the compiler looks for headers in {relative[0]}")
    return words, tuple(map(Path, includes))


def _include(flag: str) -> str | None:
    """Return the folder of ``-I<folder>`` or ``-isystem <folder>``; ``None`` for another flag."""
    match = re.fullmatch(r"(?:-I|-isystem +)(.+)", flag)
    return match[1] if match is not None else None


@functools.cache
def _python_includes() -> frozenset[str]:
    return frozenset(sysconfig.get_path(name) for name in ("include", "platinclude"))


def _architectures() -> list[str]:
    """Return the architectures for which FlashInfer compiles here."""
    context = sys.modules["flashinfer.compilation_context"].CompilationContext()
    names = sorted(f"{major}.{minor}" for major, minor in context.TARGET_CUDA_ARCHS)
    if not names:
        raise Doubt("FlashInfer has no architecture to compile for")
    if "10.7a" in names:
        raise Doubt("whether it is compiled for 10.7 depends on nvcc")
    return names


def _by_source(sources: Sequence[Path], flags: Mapping[Any, Iterable[str]] | None) -> list[list[Any]]:
    """Return the flags of single sources, by their place among the sources."""
    places = {os.path.realpath(source): place for place, source in enumerate(sources)}
    found = ((places[os.path.realpath(source)], _checked(words)) for source, words in (flags or {}).items())
    return sorted([place, words] for place, words in found)


def _checked(flags: Iterable[str] | None) -> list[str]:
    """Return the words of a compiler's flags. Raises `Doubt` for flags that read what nobody lists."""
    return compiler_words(_words(flags))


def _words(flags: Iterable[str] | None) -> list[str]:
    return [str(flag) for flag in flags or ()]


def _of_variable(name: str) -> list[str]:
    return compiler_words([os.environ.get(name, "")])


def _software() -> dict[str, str]:
    """Return the versions that a library depends on: FlashInfer's, and those of what it is linked to when it
    is loaded."""
    import torch

    modules = {name: sys.modules.get(name) for name in ("flashinfer", "tvm_ffi")}
    versions = {name: str(getattr(module, "__version__", "")) for name, module in modules.items()}
    cuda = str(torch.version.cuda)
    return {
        **versions,
        "torch": torch.__version__,
        "cuda": cuda,
        "python": sys.implementation.cache_tag or "",
    }


def _environment() -> dict[str, str]:
    for name in (*UNLISTED_FOLDERS, *FLAGS_OF_TOOLS):
        if os.environ.get(name):
            raise Doubt(f"the variable {name} adds files that the compiler does not list")
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        _of_variable(name)
    return {name: os.environ[name] for name in OF_TOOLS if os.environ.get(name)}
