"""Computes Triton's own key ahead of the first compile, once, and with the right ``ptxas``."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...hooks import imports
from ...hooks.table import Hook
from .versions import KEY_PACKAGES

_log = logging.getLogger("cachesvc")

_KEY = Hook(
    "triton.runtime.cache",
    "triton_key",
    "computes Triton's key once, ahead of the first compile",
    "the first compile computes the key itself, in 0.3 s",
    since="3.5",
    role="speed",
)
_IMPORT = Hook("triton", "", "begins to compute Triton's key", "", role="speed")
_PTXAS = Hook(
    "torch._inductor.runtime.triton_heuristics",
    "",
    "names the ptxas that Inductor compiles with, before a key holds its version",
    "",
    role="gpu",
)
HOOKS = (_KEY, _IMPORT, _PTXAS)


class TritonKey:
    """Triton's key, computed once: a thread that asks while it is being computed waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compute: Callable[[], Any] | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def install_hooks(self) -> None:
        """Put the hooks in place; they wait for the import of Triton and of Inductor's heuristics."""
        _PTXAS.watch(settle_ptxas)
        _KEY.watch(self._hook)
        _IMPORT.watch(self._begin)

    def _hook(self, module: ModuleType) -> None:
        keeps_answer = hasattr(getattr(module, "triton_key", None), "cache_info")
        if not keeps_answer:
            _KEY.log_missing()
        elif _KEY.install_now(module, self._once):
            self._compute = module.triton_key

    def _once(self, call: imports.Call) -> Any:
        """Run in the place of Triton's function, which keeps its answer."""
        with self._lock:
            return call()

    def _begin(self, package: ModuleType) -> None:
        """Compute the key on a thread of its own as soon as Triton is imported.

        Every key of PyTorch's holds it. Nearly all of it is one digest over a library of up to 500 MB, during
        which other threads of Python run. Not where its walk over Triton's packages would import one: a
        thread that imports beside the application can deadlock it.
        """
        compute = self._compute
        walked = (f"{package.__name__}.{part}" for part in KEY_PACKAGES)
        if compute is None or not all(map(walk_is_imported, walked)):
            return

        def ahead() -> None:
            try:
                compute()
            except Exception:  # noqa: BLE001 - the caller that needs the key gets the error
                _log.debug("Triton's key could not be computed ahead", exc_info=True)

        threading.Thread(target=ahead, name="cachesvc-triton-key", daemon=True).start()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


def walk_is_imported(package: str) -> bool:
    """Return whether the package and all packages below it are imported, so that a walk imports nothing."""
    import pkgutil

    module = sys.modules.get(package)
    return module is not None and all(
        walk_is_imported(item.name)
        for item in pkgutil.iter_modules(module.__path__, f"{package}.")
        if item.ispkg
    )


def settle_ptxas(heuristics: ModuleType) -> None:
    """Name kernels after Inductor's own ptxas, whatever comes first in a process.

    Triton's key holds the version of ptxas, asked once per process; PyTorch names another ptxas than Triton's
    (``TRITON_PTXAS_PATH``), but only on its way to the first kernel that it compiles from source (2.11:
    ``compile_tasks._set_triton_ptxas_path``). A process that asked before, for a winner that is loaded or a
    kernel launched eagerly, looks for all kernels under other keys than the compile workers gave them, and
    compiles them again. What the user set stays.
    """
    del heuristics
    from torch._inductor.runtime import compile_tasks

    before = os.environ.get("TRITON_PTXAS_PATH")
    compile_tasks._set_triton_ptxas_path()
    nvidia = sys.modules.get("triton.backends.nvidia.compiler")
    if nvidia is not None and os.environ.get("TRITON_PTXAS_PATH") != before:
        nvidia.get_ptxas_version.cache_clear()
