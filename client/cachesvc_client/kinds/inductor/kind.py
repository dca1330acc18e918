"""Owns the kind `inductor` and its state in one process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ...hooks.table import Hook
from ..kind import Activity, Kind, KindFolder, KindState, ProcessCallbacks
from ..own_place import default_folder
from ..rules import HOST_FOLDER
from . import tuning
from .host_kernels import HostKernels, accepted_folders
from .rules import GRAPH_FOLDERS, RULES
from .settings import switched_off
from .used_files import UsedFiles, UsedKeys

if TYPE_CHECKING:
    from ...hooks.counters import Observation
    from ...wire.digest import Digest
    from ...wire.factors import Fingerprint
    from ...wire.requests.reports import KindWork

_HOST_KERNELS = Hook(
    "torch._inductor.codecache",
    "CppCodeCache.load_async",
    "loads C++ kernels of an entry, and records those that are built",
    "C++ kernels are built in every process, and no entry holds them",
    role="restore",
    warns=True,
)
_SETS = Hook(
    "torch._inductor.cpu_vec_isa",
    "valid_vec_isa_list",
    "keeps instruction sets out that only some CPUs of a level have (TORCHINDUCTOR_CPP_MARCH)",
    "what is built for x86-64-v4 on a CPU with VNNI or AMX counts as built for that CPU",
    since="2.13",
    role="speed",
)
_RECORDS = Hook(
    "torch.compiler._cache",
    "CacheArtifactManager.record_artifact",
    "records which cached graphs and tuning results were saved or used",
    "nothing of Inductor's folder is captured, and no use is counted",
    role="restore",
)
_NOT_MADE = "what this process compiles is not known to be its own, and not published"
_SAVES = tuple(
    Hook(module, name, "tells what was saved from what was found", _NOT_MADE, role="restore")
    for module, name in (
        ("torch._inductor.codecache", "FxGraphCache._save_graph"),
        ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache.save"),
        ("torch._inductor.runtime.autotune_cache", "AutotuneCache.save"),
    )
)
_IF_NOT_ASKED = "a graph that the start did not restore is compiled, also if the registry has it"
_LOOKUPS: dict[Hook, Callable[[Any], bool]] = {
    Hook(
        "torch._functorch._aot_autograd.autograd_cache",
        "AOTAutogradCache._lookup",
        "asks the registry for a traced graph that was looked up and not found",
        _IF_NOT_ASKED,
        role="speed",
    ): lambda answer: answer is None,
    Hook(
        "torch._inductor.codecache",
        "FxGraphCache._lookup_graph",
        "asks the registry for a graph that was looked up and not found",
        _IF_NOT_ASKED,
        role="speed",
    ): lambda answer: answer[0] is None,
}
"""The look-ups of graphs, and whether an answer of each says that nothing was found."""


class InductorState(KindState):
    """What this process used of Inductor's folder, and the host kernels that it may load."""

    def __init__(self) -> None:
        self._used = UsedFiles()
        self._kernels = HostKernels(self._used)
        self._keys = UsedKeys(self._used)
        self.keys = self._keys

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place, also those of Inductor's autotuner."""
        self._used.left = functools.partial(callbacks.files.left, RULES.name)
        _HOST_KERNELS.install(functools.partial(self._kernels.load_async, callbacks))
        _SETS.install(_sets_of_all)
        _RECORDS.install(self._used.record_artifact)
        for hook in _SAVES:
            hook.install(self._used.save)
        tuning.install_hooks()
        for hook, absent in _LOOKUPS.items():
            hook.install(functools.partial(self._look, missed=callbacks.missed, absent=absent))

    def _look(
        self, call: imports.Call, *, missed: Callable[[str], bool], absent: Callable[[Any], bool]
    ) -> Any:
        """Run in the place of a look-up. ``missed``: takes a key that was not found, and returns whether to
        look again; called until it returns false, since the guards of a dynamic graph may fit another
        revision's."""
        answer = call()
        if not absent(answer):
            return answer
        key = str(call.argument("key"))
        while absent(answer) and not self._used.left() and missed(key):
            answer = call.original(*call.args, **call.kwargs)
        if absent(answer):
            self._keys.not_found.add(key)
        return answer

    def set_environment(self, fingerprint: Fingerprint) -> None:
        """Name this host, so that the kernels that it builds can be captured."""
        self._kernels.set_environment(fingerprint)

    def use_folder(self, root: Path) -> None:
        """Allow this host's own kernels of this folder to be loaded."""
        self._kernels.accept(root / HOST_FOLDER / self._kernels.host)

    def leave_folder(self) -> None:
        """Allow no kernel of the folders before to be loaded."""
        self._kernels.refuse_all()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the host kernels among these files to be loaded."""
        for folder in accepted_folders(root, paths):
            self._kernels.accept(folder)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Drop the records of these files and keys, and every loaded kernel."""
        self._used.forget(paths, keys)
        self._kernels.forget_loaded()

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the paths of graphs, tuning results and host kernels; copy kernels that were built here."""
        return self._used.paths(root, copied=not left)

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the graphs and tuning results that were saved, and the host kernels that were built."""
        return self._used.made()

    def used_paths(self) -> set[str]:
        """Return the paths of the host kernels that were loaded from an accepted folder."""
        return set(self._used.loaded)

    def beyond(self, root: Path, flags: frozenset[str], *, left: bool = False) -> str:
        """Return why a host kernel that was compiled here may use instructions beyond ``flags``."""
        return self._kernels.beyond

    def has_host_code(self) -> bool:
        """Return whether host kernels were built or loaded."""
        return bool(self._used.kernels)

    def activity(self) -> Activity:
        """Return how many host kernels were loaded, and the seconds of their look-ups."""
        return Activity(self._kernels.loads, seconds=self._kernels.seconds)

    def switched_off(self) -> str:
        """Return the setting of Inductor's that switches its caches off."""
        return switched_off()


def _sets_of_all(call: imports.Call) -> Any:
    from .build_options import sets_of_all  # `attach` loads nothing that a compile alone needs

    return sets_of_all(call)


def _user_folder(named: Path, earlier: Mapping[str, Path]) -> Path | None:
    """PyTorch sets the variable to its default, once it is imported."""
    return None if "torch" in sys.modules and named == default_folder() else named


def _work(observed: Observation, compile_seconds: float) -> KindWork:
    """Seconds inside of Triton are Triton's: they lie in those of Inductor."""
    from ...wire.requests.reports import KindWork

    graphs = observed.torch.graphs_compiled + observed.torch.cpp_builds
    seconds = compile_seconds - observed.seconds.get("triton_compilations", 0.0)
    runs = observed.tuning_runs - observed.tuned_by_kinds
    return KindWork(graphs, runs, round(max(0.0, seconds), 3))


KIND = Kind(
    rules=RULES,
    start=InductorState,
    folder=KindFolder("TORCHINDUCTOR_CACHE_DIR", home="private", place="inductor", named=_user_folder),
    graph_folders=GRAPH_FOLDERS,
    hooks=(_HOST_KERNELS, _SETS, _RECORDS, *_SAVES, *tuning.HOOKS, *_LOOKUPS),
    work=_work,
)
