"""The kind `cuda`: what libraries compile for themselves, in the CUDA driver's own cache folder.

No compiler of PyTorch's sees these kernels: cuDNN makes attention for its shape when it is first called, and
the driver compiles what a library brings as PTX (H200, driver 580: 0.4 to 0.9 s for each graph of attention,
0.04 to 0.09 s where its kernels are there; docs/gpu.md). Both keep the result in ``CUDA_CACHE_PATH``, by
default ``~/.nv/ComputeCache``, where a fresh host has nothing::

    <x>/<y>/<14 hex digits>    immutable: source, compiler, architecture and machine code
    index                      format 0x41, entries and their bytes in all, then name and size of each

Seen with driver 580 (`benchmarks/gpu/ptx.py`): the driver finds an entry by its name alone, in another folder
than the entry was made in, and also if the entry was put there after CUDA was initialised. It compiles anew
what was changed, cut or swapped, and what is of another compiler or GPU. A process that writes an entry and
finds no index empties the folder first, so cachesvc writes an index; the driver keeps files that the index
does not list. The driver reads the variable once, when CUDA is initialised.

cuDNN's sources hold the working directory (its compiler's debug information), so its kernels serve processes
that start in the directory of the builder, as containers do. Nothing else of the host is in an entry. One
folder serves all environments: its entries say what they are of.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterable
from pathlib import Path

from ..kind import Kind, KindFolder, KindState, RestoredFacts
from ..rules import FileRule, KindRules

RULES = KindRules("cuda", (FileRule(r"[0-9a-f]/[0-9a-f]/[0-9a-f]{14}"),))
_EMPTY_INDEX = struct.pack("<IIQ", 0x41, 0, 0)
"""An index that lists nothing, in the format of driver 580."""


class CudaState(KindState):
    """The entries that this process used, and those that appeared in its folder.

    No library reports what it made, and another process of the user can put entries there, so none is known
    to be of this process: `warm` publishes what its own build leaves in a folder, and a service publishes
    only what was restored for it.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._before: frozenset[str] = frozenset()
        """Paths that were in the folder when this process began to use it."""
        self._restored: set[str] = set()
        """Paths that were restored for this process."""

    def use_folder(self, root: Path) -> None:
        """Make the folder with an index, and remember what is in it.

        Does nothing where the folder cannot be written: the driver keeps nothing there then.
        """
        if root == self._root:
            return
        self._root = root
        with contextlib.suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            handle = os.open(root / "index", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, _EMPTY_INDEX)
            finally:
                os.close(handle)
        self._before = frozenset(RULES.files_in(root))

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Count these files as restored, and not as compiled here."""
        self._restored.update(paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Count files of these paths as restored no more."""
        self._restored.difference_update(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the entries in ``root`` that were compiled or restored since `use_folder`."""
        return RULES.files_in(root) - (self._before - self._restored)

    def compiled(self) -> set[str]:
        """Return the entries that libraries seem to have compiled here: none in a process without driver."""
        present = RULES.files_in(self._root) if self._root is not None and _has_driver() else set()
        return present - self._before - self._restored

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why libraries compiled what a revision could have held.

        No hit is less of a hit for it: neither driver nor working directory decides an entry, so processes
        would replace each other's revisions for ever.
        """
        count = len(self.compiled())
        if not (count and restored.revisions):
            return
        here = restored.here.get("driver")
        drivers = {fingerprint.get("driver") for fingerprint in restored.revisions} - {here, None}
        what = f"{count} kernels of libraries were" if count > 1 else "1 kernel of a library was"
        yield f"{what} compiled here (cuDNN's attention, for one): " + (
            f"the restored ones are of driver {', '.join(sorted(map(str, drivers)))}, here is {here}"
            if drivers
            else "cuDNN's hold the working directory: warm with the service's (cwd in the spec)"
        )


def _has_driver() -> bool:
    """Return whether this process has loaded the CUDA driver, without which no one compiles for it."""
    try:
        return b"/libcuda.so" in Path("/proc/self/maps").read_bytes()
    except OSError:
        return False


KIND = Kind(
    rules=RULES,
    start=CudaState,
    folder=KindFolder("CUDA_CACHE_PATH", home="process"),
    decides_fit=False,
)
