"""Owns the kind `vllm` and its state in one process."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ...hooks import imports
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..kind import Kind, KindState, ProcessCallbacks, RestoredFacts
from .artifacts import Artifacts
from .rules import RULES

_LOAD = Hook(
    "vllm.compilation.decorators",
    "_try_load_aot_compiled_fn",
    "waits for the restore, and gives vLLM the artifact of an entry",
    "vLLM's compiled graphs are not restored; graphs and kernels of Inductor are",
    role="restore",
)
_FACTORS = Hook(
    "vllm.envs",
    "compile_factors",
    "leaves folders below a user's home out of vLLM's hash, as later releases do",
    "on releases such as 0.26, vLLM's artifacts fit processes with the builder's home alone",
    role="restore",
)


class VllmState(KindState):
    """The artifacts of vLLM that this process loaded, and those that it wrote."""

    def __init__(self) -> None:
        self._artifacts = Artifacts()

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the import of vLLM."""
        _FACTORS.install(_without_folders_of_user)
        load = functools.partial(self._artifacts.load_model, callbacks)
        _LOAD.install(callbacks.noting(load), reaches=(CacheSvcError,))

    def leave_folder(self) -> None:
        """Give vLLM no artifact of the folders before."""
        self._artifacts.refuse()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow vLLM to load these files."""
        self._artifacts.accept(root, paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Give vLLM none of these files any more."""
        self._artifacts.refuse(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the artifacts that were loaded or written; copy what vLLM wrote."""
        written = {} if left else self._artifacts.written()
        for path, own in written.items():
            _copy(own, root / path)
        return {*self._artifacts.loaded, *written}

    def used_paths(self) -> set[str]:
        """Return the artifacts that vLLM loaded."""
        return set(self._artifacts.loaded)

    def has_opened(self) -> bool:
        """Return whether vLLM loaded an artifact: then its compiled graphs were loaded."""
        return bool(self._artifacts.loaded)

    def activity(self) -> object:
        """Return how many artifacts vLLM loaded."""
        return len(self._artifacts.loaded)

    def seconds(self) -> float:
        """Return the seconds that names and look-ups took."""
        return self._artifacts.seconds

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why vLLM did not use an artifact of an entry."""
        if restored.revisions:
            yield from self._artifacts.reasons


def _without_folders_of_user(call: imports.Call) -> Any:
    """Run in the place of ``compile_factors()``, which returns the variables of vLLM's hash by name."""
    from .versions import FOLDERS_OF_USER  # Only a process of vLLM needs the module.

    factors = call()
    return {name: value for name, value in factors.items() if name not in FOLDERS_OF_USER}


def _copy(own: Path, target: Path) -> None:
    """Copy a file that vLLM wrote, whole. Raises ``OSError``."""
    from ...atomic import replacing

    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as out:
        out.write(own.read_bytes())


KIND = Kind(
    name=RULES.name,
    variable="CACHESVC_VLLM_DIR",
    rules=RULES,
    start=VllmState,
    home="inside",
    place="vllm",
    sets_variable=False,
    decides_fit=False,
    hooks=(_FACTORS, _LOAD),
)
