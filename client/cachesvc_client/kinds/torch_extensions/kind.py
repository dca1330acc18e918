"""Owns the kind `torch_extensions` and its state in one process."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..inductor.host_kernels import host_id
from ..kind import Kind, KindState, ProcessCallbacks, RestoredFacts
from .extensions import BuiltLibrary, Extensions, copy_built
from .rules import DEPENDS, HOST_FOLDER, RULES

if TYPE_CHECKING:
    from ...hooks.counters import Observation
    from ...wire.factors import Fingerprint
    from ...wire.reports import KindWork

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


class TorchExtensionsState(KindState):
    """The extensions that this process loaded or built."""

    def __init__(self) -> None:
        self._extensions = Extensions()

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the import of ``torch.utils.cpp_extension``."""
        load = functools.partial(self._extensions.jit_compile, callbacks.before_compile)
        _LOADS.install(callbacks.noting(load), reaches=(CacheSvcError,))
        _BUILDS.install(self._extensions.run_ninja)

    def set_environment(self, fingerprint: Fingerprint) -> None:
        """Name this host, so that the extensions that it builds can be captured."""
        self._extensions.host = host_id(fingerprint)

    def leave_folder(self) -> None:
        """Allow no library of the folders before to be loaded."""
        self._extensions.refuse_all()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the libraries among these files to be loaded."""
        self._extensions.accept(root, paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Treat the libraries of these paths as never used, and load them no more."""
        self._extensions.forget(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the paths of the libraries that were loaded or built, and of their lists of dependencies;
        copy what was built here."""
        paths = set(self.used_paths())
        if not left:
            for path, library in self._built().items():
                if not copy_built(library, (root / path).parent, library.file.name):
                    paths.discard(path)
        return {file for path in paths for file in (path, f"{path.rpartition('/')[0]}/{DEPENDS}")}

    def used_paths(self) -> set[str]:
        """Return the paths of the libraries that were loaded or built."""
        return {*self._extensions.loaded, *self._built()}

    def has_host_code(self) -> bool:
        """Return whether an extension was loaded or built: its code is for this host."""
        return self.has_opened()

    def has_opened(self) -> bool:
        """Return whether an extension was loaded or built."""
        return bool(self._extensions.loaded or self._extensions.built)

    def activity(self) -> object:
        """Return how many extensions were loaded and built."""
        return len(self._extensions.loaded), len(self._extensions.built)

    def seconds(self) -> float:
        """Return the seconds that keys, look-ups and records of extensions took."""
        return self._extensions.seconds

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why an extension was built here."""
        if restored.revisions:
            for name, reason in list(self._extensions.reasons.items()):
                if reason:
                    yield f"the extension {name} was not taken from an entry: {reason}"

    def _built(self) -> dict[str, BuiltLibrary]:
        host = self._extensions.host
        built = list(self._extensions.built.items()) if host else []
        return {f"{HOST_FOLDER}/{host}/{key}/{name}": library for (key, name), library in built}


def _work(observed: Observation, compile_seconds: float) -> KindWork:
    from ...wire.reports import KindWork

    return KindWork(observed.extension_builds, 0, round(observed.seconds.get("ninja_runs", 0.0), 3))


KIND = Kind(
    name=RULES.name,
    variable="TORCH_EXTENSIONS_DIR",
    rules=RULES,
    start=TorchExtensionsState,
    home="inside",
    place="torch_extensions",
    # The variable names the folder in which PyTorch builds: it stays where the user or PyTorch wants it.
    sets_variable=False,
    hooks=(_LOADS, _BUILDS),
    work=_work,
)
