"""Tells one nvcc from another without starting it, and names the variables that change what it reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...environment import cxx

FLAGS_OF_TOOLS = (
    *("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES", "CUDAFE_FLAGS", "PTXAS_FLAGS", "NVVM_FLAGS", "OCG_FLAGS"),
)
"""Variables whose flags nvcc gives the programs that it runs. CUDA's manual has none of them;
``nvcc --dryrun`` of 13.0 shows it."""
_TOOLS = ("ptxas", "fatbinary", "cudafe++", "nvlink", "../nvvm/bin/cicc")
"""Programs that nvcc runs, relative to its folder."""


def nvcc_identity(file: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the identity of nvcc and of the programs that it runs; ``None`` where it is not there.

    It stands for the headers of the toolkit, too."""
    program = cxx.program(str(file), environ)
    identity = cxx.identity({**environ, "CXX": str(program)}) if program is not None else None
    if program is None or identity is None:
        return None
    tools = [program.parent / tool for tool in _TOOLS]
    return " ".join((identity, *(str(os.path.getsize(tool)) for tool in tools if tool.is_file())))
