"""The kind `cuda`: what libraries compile for themselves, in the CUDA driver's own cache folder.

No compiler of PyTorch's sees these kernels: cuDNN makes attention for its shape when it is first called, and
the driver compiles what a library brings as PTX (H200, driver 580: 0.4 to 0.9 s for each graph of attention,
0.04 to 0.09 s where its kernels are there; docs/gpu.md). Both keep the result in ``CUDA_CACHE_PATH``, by
default ``~/.nv/ComputeCache``, where a fresh host has nothing::

    <x>/<y>/<14 hex digits>    immutable: source, compiler, architecture and machine code
    index                      format 0x41, entries and their bytes in all, then name and size of each

Seen with driver 580 (`benchmarks/gpu/ptx.py`): an entry is found by its name alone, in another folder than it
was made in, and when CUDA has been initialised before it was put there; one whose bytes were changed, cut or
swapped is compiled anew, and so is one of another compiler or GPU. Who writes an entry and finds no index
empties the folder first, so there has to be one; what it does not list stays. The variable is read once,
when CUDA is initialised.

cuDNN's sources hold the working directory (its compiler's debug information), so its kernels serve processes
that start in the directory of the builder, as containers do. Nothing else of the host is in an entry.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from ..rules import FileRule, KindRules

NAME = "cuda"
VARIABLE = "CUDA_CACHE_PATH"
RULES = KindRules(NAME, (FileRule(re.compile(r"[0-9a-f]/[0-9a-f]/[0-9a-f]{14}")),))
_EMPTY_INDEX = struct.pack("<IIQ", 0x41, 0, 0)


class UsedFiles:
    """The entries that this process made or used. No library tells of them: they are known by what the folder
    held before, so that what another process puts there meanwhile is among them."""

    def __init__(self) -> None:
        self._before: frozenset[str] = frozenset()
        self._restored: set[str] = set()

    def begin(self, there: Iterable[str]) -> None:
        """From now on; what is in the folder already is others'. Paths are relative to it, here and below."""
        self._before = frozenset(there)

    def accept(self, paths: Iterable[str]) -> None:
        """Those are restored for this process."""
        self._restored.update(paths)

    def made(self, there: set[str]) -> set[str]:
        """Those of what is in the folder now that were compiled."""
        return there - self._before - self._restored

    def paths(self, there: set[str]) -> set[str]:
        """All of them that are in the folder now."""
        return there - (self._before - self._restored)


def prepare(root: Path) -> None:
    """The folder, with an index. Nothing happens where it cannot be written: nothing is kept there then."""
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root / "index", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, _EMPTY_INDEX)
        finally:
            os.close(handle)
