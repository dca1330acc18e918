"""Tells one nvcc from another without starting it, and names the variables that change what it reads."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ...environment import cxx

FLAGS_OF_TOOLS = (
    *("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES", "CUDAFE_FLAGS", "PTXAS_FLAGS", "NVVM_FLAGS", "OCG_FLAGS"),
)
"""Variables whose flags nvcc gives the programs that it runs. CUDA's manual has none of them;
``nvcc --dryrun`` of 13.0 shows it."""
UNLISTED_FOLDERS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"),
)
"""Variables with which a compiler reads files that its list of dependencies does not name."""
_CUDA_HOME = "/usr/local/cuda"
"""Where libraries look for CUDA if neither a variable nor the PATH names it."""
_TOOLS = ("ptxas", "fatbinary", "cudafe++", "nvlink", "../nvvm/bin/cicc")
"""Programs that nvcc runs, relative to its folder."""


def toolkit_home(environ: Mapping[str, str]) -> str:
    """Return the folder of the CUDA toolkit as FlashInfer (``cpp_ext.get_cuda_path``) finds it, without the
    process that it starts for that. The folder may be absent."""
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if home:
        return home
    program = shutil.which("nvcc", path=environ.get("PATH"))
    return os.path.dirname(os.path.dirname(program)) if program else _CUDA_HOME


def nvcc_identity(file: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the identity of nvcc and of the programs that it runs; ``None`` where it is not there.

    It stands for the headers of the toolkit, too."""
    program = cxx.program(str(file), environ)
    if program is None:
        return None
    tools = [tool for tool in (program.parent / name for name in _TOOLS) if tool.is_file()]
    stamps = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in (program, *tools))
    return _identity(program, stamps)


@functools.lru_cache(8)
def _identity(program: Path, stamps: tuple[tuple[int, int], ...]) -> str | None:
    """``stamps``: size and time of nvcc and of each program. Cached: nvcc is read whole, for each kernel."""
    identity = cxx.identity({**os.environ, "CXX": str(program)})
    return None if identity is None else " ".join((identity, *(str(size) for size, _ in stamps[1:])))
