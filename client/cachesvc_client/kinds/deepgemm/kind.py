"""Owns the kind `deepgemm` and its state in one process."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...hooks import counters, imports
from ...hooks.kind_counts import Count
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..folders import chosen_by_sglang
from ..kind import Kind, KindState, LatePart, ProcessCallbacks, RestoredFacts
from .rules import RULES, VARIABLE

if TYPE_CHECKING:
    from ...wire.digest import Digest
    from .kernels import Kernels

_NOT_RESTORED = "DeepGEMM's kernels are compiled on every fresh host, and no entry holds them"
_NAMED_BY = (VARIABLE, "SGLANG_DG_CACHE_DIR")
"""Variables with which a user names DeepGEMM's folder; SGLang takes the second one for it."""
_IMPORTED = Hook(
    "deep_gemm",
    "",
    "waits for the restore, and names the folder in which DeepGEMM finds the kernels of an entry",
    _NOT_RESTORED,
    role="gpu",
)
_IMPORTED_BY_VLLM = Hook(
    "vllm.utils.deep_gemm",
    "_import_deep_gemm",
    "does the same for the DeepGEMM that is a part of vLLM",
    _NOT_RESTORED,
    role="gpu",
)


class DeepGemmState(KindState):
    """The kernels that DeepGEMM got or compiled in this process. Only a process that imports DeepGEMM loads
    them."""

    def __init__(self) -> None:
        self._part = LatePart(self._load)
        self._named_by = ""
        self._imported = False
        """Whether DeepGEMM was imported."""
        self._root: Path | None = None

    @property
    def _kernels(self) -> Kernels:
        return self._part.get()

    def _load(self) -> Kernels:
        from .kernels import Kernels

        return Kernels(self._named_by, self._root)

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for DeepGEMM's import."""
        # vLLM and SGLang set the variable themselves, before they import DeepGEMM.
        self._named_by = next(filter(_is_named, _NAMED_BY), "")

        def open_for(module: ModuleType) -> None:
            if self._imported:  # vLLM imports it several times
                return
            self._imported = True
            callbacks.restored()
            self._kernels.open(module)
            counters.counted_elsewhere["deepgemm.compilations"] = lambda: len(self._kernels.compiled())

        def open_for_vllm(call: imports.Call) -> Any:
            module = call()
            if isinstance(module, ModuleType):
                open_for(module)
            return module

        _IMPORTED.watch(open_for)
        _IMPORTED_BY_VLLM.install(open_for_vllm, reaches=(CacheSvcError,))

    def use_folder(self, root: Path) -> None:
        """Begin to use ``root``. Where DeepGEMM was imported before, it keeps the folder that it has."""
        self._root = root

    def leave_folder(self) -> None:
        """Put no kernel of the folders before there any more."""
        self._part.refuse_all()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the kernels among these files to be found."""
        self._part.accept(root, paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Treat the kernels of these paths as never used, and allow them no more."""
        self._part.forget(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the kernels that DeepGEMM got or compiled; write those that it compiled."""
        return self._part.loaded.used_files(root, left) if self._part.loaded else set()

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the kernels that DeepGEMM compiled in a folder of ours."""
        return self._part.loaded.made_files() if self._part.loaded else {}

    def used_paths(self) -> set[str]:
        """Return the paths of the machine code that DeepGEMM read."""
        return self._part.loaded.used_paths() if self._part.loaded else set()

    def has_opened(self) -> bool:
        """Return whether DeepGEMM got a folder of ours."""
        return self._part.loaded is not None and self._part.loaded.opened

    def activity(self) -> object:
        """Return how many kernels were found and compiled."""
        return (
            (len(self._part.loaded.found()), len(self._part.loaded.compiled()))
            if self._part.loaded
            else (0, 0)
        )

    def seconds(self) -> float:
        """Return the seconds that keys and copies took."""
        return self._part.loaded.seconds if self._part.loaded else 0.0

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why DeepGEMM compiled kernels here."""
        from ...wire.text import count_text

        if not restored.revisions or self._part.loaded is None:
            return
        if self._part.loaded.reason:
            yield f"DeepGEMM finds no kernels of an entry: {self._part.loaded.reason}"
        elif count := len(self._part.loaded.compiled()):
            kernels = count_text(count, "kernel")
            yield f"DeepGEMM compiled {kernels}: no restored entry has them for this nvcc and these headers"


def _is_named(variable: str) -> bool:
    """Return whether the user named a folder by a variable."""
    value = os.environ.get(variable, "")
    return bool(value) and not chosen_by_sglang(variable, value)


KIND = Kind(
    name=RULES.name,
    variable=VARIABLE,
    rules=RULES,
    start=DeepGemmState,
    home="inside",
    place="deepgemm",
    # The variable names the folder that DeepGEMM writes. It is set when DeepGEMM is imported.
    sets_variable=False,
    hooks=(_IMPORTED, _IMPORTED_BY_VLLM),
    counts=(Count("compilations", "compiled", "DeepGEMM kernel"),),
    distributions=("deep-gemm",),
)
