"""Reads a call of ``_jit_compile`` as a request for one library, and makes its key."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..builds.flags import Doubt, compiler_words, linked_files
from ..builds.nvcc import UNLISTED_FOLDERS
from ..builds.request import BuildRequest, content_of
from .rules import LIBRARY_NAME
from .versions import PARAMETERS

_READ_BY_ALL = (
    *("CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LIBRARY_PATH", "TORCH_DONT_CHECK_COMPILER_ABI"),
    *("TORCH_NO_COMPILER_WRAPPER", "SOURCE_DATE_EPOCH"),
)
"""Variables that ``cpp_extension``, a compiler or a linker reads in every build."""
_READ_FOR_CUDA = (
    *("CC", "TORCH_CUDA_ARCH_LIST", "PYTORCH_NVCC", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"),
    *("NVCC_CCBIN", "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES"),
)
"""Variables that are read in a build with CUDA as well."""


def read_request(module: Any, arguments: Mapping[str, Any]) -> BuildRequest:
    """Return the request of a call with these arguments. ``module``: ``torch.utils.cpp_extension``.

    Raises `Doubt` where the call has what this kind does not know, and ``OSError`` for a source that cannot
    be read.
    """
    if unknown := arguments.keys() - PARAMETERS:
        raise Doubt(f"_jit_compile has parameters that are not known: {', '.join(sorted(unknown))}")
    sources = tuple(Path(os.path.abspath(source)) for source in arguments["sources"])
    with_cuda = _with_cuda(module, arguments)
    includes = [os.path.abspath(path.strip()) for path in arguments.get("extra_include_paths") or ()]
    linker = _without_pytorchs(module, arguments.get("extra_ldflags") or (), with_cuda)
    if not re.fullmatch(LIBRARY_NAME, arguments["name"]):
        raise Doubt("its name is none that a file can have")
    return BuildRequest(
        name=arguments["name"],
        sources=sources,
        includes=tuple(Path(path) for path in includes),
        linked=tuple(linked_files(linker)),
        build_directory=Path(arguments["build_directory"]),
        with_cuda=with_cuda,
        is_python_module=bool(arguments["is_python_module"]),
        facts={
            "format": 1,
            "sources": [[source.name, content_of(source)] for source in sources],
            "compiler": compiler_words(arguments.get("extra_cflags") or ()),
            "linker": linker,
            "includes": len(includes),
            "is_python_module": bool(arguments["is_python_module"]),
            "software": _software(),
            "environment": _environment(_READ_BY_ALL),
            "cuda": _cuda(module, arguments.get("extra_cuda_cflags") or ()) if with_cuda else None,
        },
    )


def _with_cuda(module: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether nvcc takes part, as ``_jit_compile`` decides it. Raises `Doubt` for SYCL and ROCm."""
    sources = arguments["sources"]
    if arguments.get("with_sycl") or arguments.get("extra_sycl_cflags"):
        raise Doubt("it is built with SYCL")
    if any(os.path.splitext(source)[1] in (".sycl", ".hip") for source in sources):
        raise Doubt("a source is for SYCL or ROCm")
    given = arguments.get("with_cuda")
    with_cuda = any(map(module._is_cuda_file, sources)) if given is None else bool(given)
    if with_cuda and module.IS_HIP_EXTENSION:
        raise Doubt("it is built with ROCm")
    return with_cuda


def _without_pytorchs(module: Any, flags: Any, with_cuda: bool) -> list[str]:
    """Return the linker's flags of the user's. PyTorch appends its own to the user's list, so a list that is
    used for two extensions holds them the second time."""
    import inspect

    nothing: dict[str, Any] = dict.fromkeys(inspect.signature(module._prepare_ldflags).parameters, False)
    own: set[str] = set()
    for cuda in {False, with_cuda}:
        own.update(module._prepare_ldflags(**{**nothing, "extra_ldflags": [], "with_cuda": cuda}))
    return [flag for flag in flags if flag not in own]


def _software() -> dict[str, Any]:
    import torch

    return {
        "torch": torch.__version__,
        "commit": torch.version.git_version,
        "abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        "python": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
    }


def _environment(names: tuple[str, ...]) -> dict[str, str]:
    for name in (*UNLISTED_FOLDERS, "CUDA_INC_PATH"):
        if os.environ.get(name):
            raise Doubt(f"the variable {name} adds files that the compiler does not list")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _cuda(module: Any, flags: Any) -> dict[str, Any]:
    """Return what decides nvcc's part. The architectures are those of this process's GPUs, unless the flags
    or TORCH_CUDA_ARCH_LIST name them."""
    import torch

    return {
        "version": torch.version.cuda,
        "compiler": compiler_words(flags),
        "architectures": module._get_cuda_arch_flags(list(flags)),
        "environment": _environment(_READ_FOR_CUDA),
    }
