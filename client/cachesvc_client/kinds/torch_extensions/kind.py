"""Owns the kind `torch_extensions` and its state in one process."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ...hooks.kind_counts import Count
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..kind import Kind, KindFolder, ProcessCallbacks, RestoredFacts
from ..libraries import LibrariesState
from .extensions import Extensions
from .rules import RULES

_LOADS = Hook(
    "torch.utils.cpp_extension",
    "_jit_compile",
    "loads C++ and CUDA extensions of an entry, and records those that are built",
    "extensions are built on every fresh host, and no entry holds them",
    role="restore",
)
_BUILDS = Hook(
    "torch.utils.cpp_extension",
    "_run_ninja_build",
    "counts the extensions that are built",
    "a build of an extension is not counted, and no entry holds its library",
    role="count",
)


class TorchExtensionsState(LibrariesState):
    """The extensions that this process loaded or built."""

    def __init__(self) -> None:
        self._extensions = Extensions()
        super().__init__(self._extensions)

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the import of ``torch.utils.cpp_extension``."""
        load = functools.partial(self._extensions.jit_compile, callbacks)
        _LOADS.install(callbacks.noting(load), reaches=(CacheSvcError,))
        _BUILDS.install(self._extensions.run_ninja)

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why an extension was built here."""
        if restored.revisions:
            for name, reason in list(self._extensions.reasons.items()):
                if reason:
                    yield f"the extension {name} was not taken from an entry: {reason}"


KIND = Kind(
    rules=RULES,
    start=TorchExtensionsState,
    # The variable names the folder in which PyTorch builds: it stays where the user or PyTorch wants it.
    folder=KindFolder("TORCH_EXTENSIONS_DIR", home="inside", place="torch_extensions", sets_variable=False),
    hooks=(_LOADS, _BUILDS),
    counts=(Count("builds", "built", "extension"),),
)
