"""The kind `cuda`: the CUDA driver's own cache of what it compiled from PTX.

Libraries bring kernels that no compiler of PyTorch's sees: cuDNN's attention is made for its shape and handed
to the driver as intermediate code, which the driver compiles when it is first used (H200, driver 580: 0.5 to
0.9 s for each graph of attention, 0.04 to 0.09 s with its cache; docs/gpu.md). It keeps the result in
``CUDA_CACHE_PATH``, by default ``~/.nv/ComputeCache``, where a fresh host has nothing::

    <x>/<y>/<14 hex digits>    immutable: the source, what the compiler is, the architecture, the machine code
    index                      of what the driver wrote, for its bound of size; no look-up needs it

Seen with driver 580 (`benchmarks/gpu/ptx.py`): an entry is found by its name alone, without or beside any
index; in another folder than it was made in; one whose bytes were changed, cut or swapped is compiled anew,
and so is one of another compiler or GPU, for the entry says what it is of. Nothing of the host is in it.
The driver reads the variable once, when CUDA is initialised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .rules import FileRule, KindRules

NAME = "cuda"
VARIABLE = "CUDA_CACHE_PATH"
RULES = KindRules(NAME, (FileRule(re.compile(r"[0-9a-f]/[0-9a-f]/[0-9a-f]{14}")),))


class Recorded:
    """The entries that this process may have made or used: the driver calls nothing of ours, so they are told
    by what the folder held before. What another process puts there meanwhile is among them."""

    def __init__(self) -> None:
        self._before: frozenset[str] = frozenset()
        self._restored: set[str] = set()

    def begin(self, root: Path) -> None:
        """From now on; what is in the folder already is others'."""
        self._before = frozenset(_entries(root))

    def accept(self, paths: Iterable[str]) -> None:
        """Those were restored for this process."""
        self._restored.update(paths)

    def paths(self, root: Path) -> set[str]:
        """Relative paths of them under ``root``."""
        return {path for path in _entries(root) if path not in self._before or path in self._restored}


def _entries(root: Path) -> set[str]:
    found = (path.relative_to(root).as_posix() for path in root.glob("?/?/*"))
    return {path for path in found if RULES.rule(path) is not None}
