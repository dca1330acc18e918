"""Owns the kind `tilelang` and its state in one process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...hooks.kind_counts import Count
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..kind import Activity, Kind, KindFolder, KindState, ProcessCallbacks, RestoredFacts
from ..rules import HOST_FOLDER, host_id
from .kernels import CompiledKernel, Kernels, copy_compiled
from .rules import MADE, MANIFEST, RULES, files_of
from .versions import CPU

if TYPE_CHECKING:
    from ...wire.digest import Digest
    from ...wire.factors import Fingerprint

_CACHE, _KERNEL = "tilelang.cache.kernel_cache", "tilelang.jit.kernel"
_NOT_RESTORED = "TileLang's kernels are not restored, and no entry holds them"
_LOOKS_UP = Hook(
    _CACHE,
    "KernelCache._load_kernel_from_disk",
    "waits for the restore, and has TileLang load the kernel of an entry",
    _NOT_RESTORED,
    role="restore",
)
_PLACE = Hook(
    _CACHE,
    "KernelCache._get_cache_path",
    "names the folder of an entry's kernel for the length of a look-up",
    _NOT_RESTORED,
    role="restore",
)
_SAVES = Hook(
    _CACHE,
    "KernelCache._save_kernel_to_disk",
    "records the kernels that are compiled",
    "no entry holds TileLang's kernels",
    role="restore",
)
_MANIFESTS = Hook(
    _CACHE,
    "KernelCache._write_manifest",
    "tells the files of this process from those of another one that was faster",
    "no entry holds TileLang's kernels",
    role="restore",
)
_COMPILER = Hook(
    "tilelang.contrib.cc",
    "get_cplus_compiler",
    "has TileLang load a kernel on a host without a compiler",
    "TileLang loads no kernel on a host without a compiler",
    role="restore",
)
_COMPILES = Hook(
    _KERNEL,
    "JITKernel._compile_and_create_adapter",
    "counts the kernels that TileLang compiles",
    "TileLang's compilations are not counted",
    role="count",
)
_BUILDS = Hook(
    "tilelang.jit.adapter.libgen",
    "LibraryGenerator.compile_lib",
    "counts the compilers that TileLang starts",
    "compilers that TileLang starts are not counted",
    role="count",
)

_COMPILES_FOR_GPU = Hook(
    "tilelang.contrib.nvcc",
    "compile_cuda",
    "counts nvcc, and tells which source it compiled",
    "no entry holds TileLang's kernels for CUDA, and nvcc is not counted",
    role="gpu",
)
_TARGETS = Hook(
    "tilelang.backend.target",
    "auto_detect_target",
    "has TileLang find a GPU on a host without the CUDA toolkit",
    "a program on such a host has to name the target",
    role="gpu",
)
_CALLBACKS = Hook(
    "tilelang.cuda.backend",
    "",
    "remembers TileLang's own functions that compile for CUDA",
    "TileLang's kernels for CUDA are not restored, and no entry holds them",
    role="gpu",
)


class TileLangState(KindState):
    """The kernels that TileLang loaded or compiled in this process."""

    def __init__(self) -> None:
        self.part = self._kernels = Kernels()

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the imports of TileLang's modules."""
        kernels = self._kernels
        look_up = functools.partial(kernels.look_up, callbacks)
        _LOOKS_UP.install(callbacks.noting(look_up), reaches=(CacheSvcError,))
        for hook, body in (
            (_PLACE, kernels.folder_of),
            (_SAVES, kernels.save),
            (_MANIFESTS, kernels.write_manifest),
            (_COMPILER, kernels.compiler),
            (_COMPILES, kernels.compile_kernel),
            (_BUILDS, kernels.build_library),
            (_COMPILES_FOR_GPU, kernels.compile_for_gpu),
        ):
            hook.install(body)
        find_target = functools.partial(kernels.find_target, callbacks.before_compile)
        _TARGETS.install(find_target, reaches=(CacheSvcError,))
        if _CALLBACKS.module not in sys.modules:  # else a program may have put its own functions there before
            _CALLBACKS.watch(kernels.note_callbacks)

    def set_environment(self, fingerprint: Fingerprint) -> None:
        """Name this host."""
        self._kernels.host = host_id(fingerprint)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the files of the kernels that were loaded or compiled; copy what was compiled here."""
        folders = {folder: files_of(backend) for folder, backend in self._kernels.loaded.items()}
        for folder, kernel in [] if left or not self._kernels.host else self._compiled():
            if copy_compiled(kernel, root / folder):
                folders[folder] = tuple(kernel.digests)
        return {f"{folder}/{name}" for folder, files in folders.items() for name in (*files, MANIFEST, MADE)}

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the files of the kernels that were compiled here."""
        from ...wire.digest import Digest

        made: dict[str, Digest | None] = {}
        for folder, kernel in self._compiled() if self._kernels.host else []:
            made |= {f"{folder}/{name}": Digest(f"sha256:{hex}") for name, hex in kernel.digests.items()}
            made[f"{folder}/{MANIFEST}"] = Digest.of(kernel.manifest)
            made[f"{folder}/{MADE}"] = Digest.of(kernel.made)
        return made

    def used_paths(self) -> set[str]:
        """Return the paths of the libraries that were loaded."""
        return {f"{folder}/{backend.library}" for folder, backend in self._kernels.loaded.items()}

    def has_host_code(self) -> bool:
        """Return whether a kernel for the CPU was loaded or compiled: its code is for this host. The host's
        part of a kernel for a GPU is compiled for any CPU of the platform."""
        compiled = any(CPU.library in kernel.digests for kernel in self._kernels.compiled.values())
        return compiled or CPU in self._kernels.loaded.values()

    def activity(self) -> Activity:
        """Return how many kernels were loaded and compiled, and the seconds of look-ups and records."""
        kernels = self._kernels
        opened = bool(kernels.loaded or kernels.compiled)
        return Activity((len(kernels.loaded), len(kernels.compiled)), opened, kernels.seconds)

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why TileLang compiled kernels here."""
        if restored.revisions:
            yield from self._kernels.reasons

    def _compiled(self) -> list[tuple[str, CompiledKernel]]:
        prefix = f"{HOST_FOLDER}/{self._kernels.host}"
        return [(f"{prefix}/{place}", kernel) for place, kernel in list(self._kernels.compiled.items())]


KIND = Kind(
    rules=RULES,
    start=TileLangState,
    # The variable names the folder that TileLang writes: it stays where the user or TileLang wants it.
    folder=KindFolder("TILELANG_CACHE_DIR", home="inside", place="tilelang", sets_variable=False),
    hooks=(
        *(_LOOKS_UP, _PLACE, _SAVES, _MANIFESTS, _COMPILER, _COMPILES, _BUILDS),
        *(_COMPILES_FOR_GPU, _TARGETS, _CALLBACKS),
    ),
    counts=(Count("compilations", "compiled", "TileLang kernel"),),
    distributions=("tilelang", "apache-tvm-ffi"),
)
