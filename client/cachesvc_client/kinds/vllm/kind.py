"""Owns the kind `vllm` and its state in one process."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..kind import Activity, Kind, KindFolder, KindState, ProcessCallbacks, RestoredFacts
from ..look_ups import LatePart
from .artifacts import Artifacts
from .rules import RULES

if TYPE_CHECKING:
    from ...wire.digest import Digest
    from .model_infos import ModelInfos

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
    "leaves folders below a user's home, and a secret, out of vLLM's hash, as later releases do",
    "on releases such as 0.26, vLLM's artifacts fit processes with the builder's home and API key alone",
    role="restore",
)
_DESCRIBE = Hook(
    "vllm.model_executor.models.registry",
    "_LazyRegisteredModel._load_modelinfo_from_cache",
    "gives vLLM the description of the model's class from an entry",
    "vLLM imports the model's class once more, in another process, at each start on a fresh host",
    role="speed",
)
_RANK = Hook(
    "vllm.v1.worker.worker_base",
    "WorkerWrapperBase.init_worker",
    "learns which rank of the engine a worker is",
    "the ranks of an engine do not agree before they restore, and publish nothing together",
    role="speed",
)
_LOAD_CLASS = Hook(
    "vllm.model_executor.models.registry",
    "_LazyRegisteredModel.load_model_cls",
    "notes the class of the model, whose description becomes a file of the entry",
    "entries have no description of the model's class",
    role="speed",
)


class VllmState(KindState):
    """The artifacts of vLLM that this process loaded, those that it wrote, and descriptions of models."""

    def __init__(self) -> None:
        self._artifacts = Artifacts()
        self._infos = LatePart(_load_infos)

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the import of vLLM."""
        imports.when_imported(_LOAD.module, _tell_what_asks_for_sources)
        _FACTORS.install(_without_what_decides_nothing)
        _RANK.install(functools.partial(_note_rank, callbacks))
        _DESCRIBE.install(lambda call: self._infos.get().describe(callbacks, call))
        _LOAD_CLASS.install(lambda call: self._infos.get().note_class(call))
        load = functools.partial(self._artifacts.load_model, callbacks)
        _LOAD.install(callbacks.noting(load), reaches=(CacheSvcError,))

    def leave_folder(self) -> None:
        """Give vLLM no artifact of the folders before."""
        self._artifacts.refuse()
        self._infos.refuse_all()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow vLLM to load these files."""
        self._artifacts.accept(root, paths)
        self._infos.accept(root, paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Give vLLM none of these files any more."""
        self._artifacts.refuse(paths)
        self._infos.forget(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the artifacts that were loaded or written, and the descriptions of the classes that were
        loaded; copy what vLLM wrote."""
        accepted, described = self._infos.loaded.used() if self._infos.loaded else (set(), {})
        written = {} if left else {**self._artifacts.written(), **described}
        for path, own in written.items():
            _copy(own, root / path)
        return {*self._artifacts.loaded, *accepted, *written}

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the artifacts that vLLM wrote in this process. Its descriptions of classes may be older."""
        return self._artifacts.made()

    def used_paths(self) -> set[str]:
        """Return the artifacts that vLLM loaded."""
        return set(self._artifacts.loaded)

    def handed(self) -> set[str]:
        """Return the artifacts that vLLM loaded, and the descriptions that it took from a revision."""
        return {*self._artifacts.loaded, *(self._infos.loaded.read if self._infos.loaded else ())}

    def activity(self) -> Activity:
        """Return how many artifacts vLLM loaded, and the seconds of names and look-ups."""
        loaded = len(self._artifacts.loaded)
        return Activity(loaded, opened=loaded > 0, seconds=self._artifacts.seconds)

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why vLLM did not use an artifact of an entry."""
        if restored.revisions:
            yield from self._artifacts.reasons


def _tell_what_asks_for_sources(_: Any) -> None:
    from ...graphs.code import questions
    from .versions import ASK_FOR_SOURCES

    questions.answered.update(ASK_FOR_SOURCES)


def _load_infos() -> ModelInfos:
    """Return the descriptions of models. Only a process of vLLM needs their module."""
    from .model_infos import ModelInfos

    return ModelInfos()


def _without_what_decides_nothing(call: imports.Call) -> Any:
    """Run in the place of ``compile_factors()``, which returns the variables of vLLM's hash by name."""
    from .versions import OUT_OF_HASH  # Only a process of vLLM needs the module.

    factors = call()
    return {name: value for name, value in factors.items() if name not in OUT_OF_HASH}


def _note_rank(callbacks: ProcessCallbacks, call: imports.Call) -> Any:
    """Run in the place of ``WorkerWrapperBase.init_worker(self, all_kwargs)``."""
    from .ranks import note_rank  # Only a process of vLLM needs the module.

    return note_rank(callbacks, call)


def _copy(own: Path, target: Path) -> None:
    """Copy a file that vLLM wrote, whole. Raises ``OSError``."""
    from ...atomic import replacing

    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as out:
        out.write(own.read_bytes())


KIND = Kind(
    rules=RULES,
    start=VllmState,
    folder=KindFolder("CACHESVC_VLLM_DIR", home="inside", place="vllm", sets_variable=False),
    decides_fit=False,
    distributions=("vllm",),
    hooks=(_FACTORS, _RANK, _DESCRIBE, _LOAD_CLASS, _LOAD),
)
