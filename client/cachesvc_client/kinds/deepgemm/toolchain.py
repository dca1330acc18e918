"""Makes the key of what DeepGEMM compiles with here: what decides machine code, and is not in DeepGEMM's own
digest."""

from __future__ import annotations

import os
from pathlib import Path

from ...environment import cxx
from ...wire.codec import canonical
from ...wire.digest import Digest
from ..builds.flags import Doubt, compiler_words
from ..builds.nvcc import FLAGS_OF_TOOLS, UNLISTED_FOLDERS, nvcc_identity, toolkit_home

_READ_BY_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
"""Variables that nvcc reads in every build."""


def key_of(package: Path) -> str:
    """Return 32 hex digits over what DeepGEMM, whose package lies in this folder, compiles with.

    Reads nvcc and all headers of the package: CUTLASS's are among them, which DeepGEMM's digest leaves out.
    Raises `Doubt` where something else decides, and ``OSError`` for headers that cannot be read.
    """
    environ = os.environ
    if environ.get("DG_JIT_USE_NVRTC", "0") not in ("", "0"):
        raise Doubt("NVRTC compiles its kernels, and which NVRTC is not known")
    for name in (*UNLISTED_FOLDERS, *FLAGS_OF_TOOLS):
        if environ.get(name):
            raise Doubt(f"the variable {name} adds files that no key has")
    for name in _READ_BY_NVCC[:2]:
        compiler_words([environ.get(name, "")])
    nvcc = Path(environ.get("DG_JIT_NVCC_COMPILER") or Path(toolkit_home(environ)) / "bin" / "nvcc")
    if (identity := nvcc_identity(nvcc)) is None:
        raise Doubt(f"there is no nvcc at {nvcc}, which DeepGEMM asks for its release")
    facts = {
        "format": 1,
        "nvcc": identity,
        "host": cxx.identity({**environ, "CXX": environ.get("NVCC_CCBIN") or "g++"}),
        "flags": {name: environ[name] for name in _READ_BY_NVCC if environ.get(name)},
        "headers": _headers(package / "include"),
    }
    return Digest.of(canonical(facts)).hex[:32]


def _headers(folder: Path) -> list[list[str]]:
    """Return the path and the digest of each file below a folder of headers."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise Doubt(f"{folder} has no headers")
    return [[path.relative_to(folder).as_posix(), Digest.of(path.read_bytes()).hex] for path in files]
