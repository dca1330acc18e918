"""Owns the kind `flashinfer` and its state in one process."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ...hooks.kind_counts import Count
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError, printable
from ..kind import Kind, KindFolder, ProcessCallbacks, RestoredFacts
from ..libraries import LibrariesState
from .modules import Modules
from .rules import RULES

_LOADS = Hook(
    "flashinfer.jit.core",
    "JitSpec.build_and_load",
    "waits for the restore, loads the modules of an entry, and records those that are built",
    "FlashInfer's modules are built on every fresh host, and no entry holds them",
    role="restore",
)
_BUILDS = Hook(
    "flashinfer.jit.core",
    "run_ninja",
    "counts the modules that FlashInfer builds",
    "a build of FlashInfer's is not counted, and no entry holds its library",
    role="count",
)


class FlashInferState(LibrariesState):
    """The modules of FlashInfer's that this process loaded or built."""

    def __init__(self) -> None:
        self._modules = Modules()
        super().__init__(self._modules)

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for FlashInfer's import."""
        load = functools.partial(self._modules.build_and_load, callbacks)
        _LOADS.install(callbacks.noting(load), reaches=(CacheSvcError,))
        _BUILDS.install(self._modules.run_ninja)

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why a module was built here."""
        if restored.revisions:
            for name, reason in list(self._modules.reasons.items()):
                yield f"FlashInfer's {printable(name)[:100]} was not taken from an entry: {reason}"


KIND = Kind(
    rules=RULES,
    start=FlashInferState,
    # The variable names the folder that FlashInfer writes: it stays where the user or FlashInfer wants it.
    folder=KindFolder("FLASHINFER_WORKSPACE_BASE", home="inside", place="flashinfer", sets_variable=False),
    hooks=(_LOADS, _BUILDS),
    counts=(Count("builds", "built", "FlashInfer module"),),
    distributions=("flashinfer-python",),
)
