"""Owns the kind `helion` and its state in one process."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..kind import Kind, KindState, ProcessCallbacks, RestoredFacts
from .configurations import Configurations, write_found
from .rules import RULES

if TYPE_CHECKING:
    from ...hooks.counters import Observation
    from ...wire.reports import KindWork

_CACHE, _KERNEL = "helion.autotuner.local_cache", "helion.runtime.kernel"
_NOT_RESTORED = "Helion's configurations are not restored"
_NOT_KEPT = "no entry holds Helion's configurations"
_BEGINS = tuple(
    Hook(
        _KERNEL,
        f"BoundKernel.{function}",
        "waits for the restore before Helion names Triton's folder, or searches",
        "Helion may compile or search before its entry is restored",
        role="restore",
    )
    for function in ("autotune", "set_config")
)
_LOOKS_UP = Hook(
    _CACHE,
    "LocalAutotuneCache.get",
    "has Helion read the configuration of an entry",
    _NOT_RESTORED,
    role="restore",
)
_PLACE = Hook(
    _CACHE,
    "LocalAutotuneCache._get_local_cache_path",
    "names the file of an entry's configuration for the length of a look-up",
    _NOT_RESTORED,
    role="restore",
)
_SAVES = Hook(
    _CACHE,
    "LocalAutotuneCache.put",
    "records the configurations that a search found",
    _NOT_KEPT,
    role="restore",
)
_SEARCHES = Hook(
    "helion.autotuner.base_search",
    "BaseSearch.autotune",
    "counts Helion's searches",
    "Helion's searches are not counted",
    role="count",
)


class HelionState(KindState):
    """The configurations that Helion took or found in this process."""

    def __init__(self) -> None:
        self._configurations = Configurations()

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the imports of Helion's modules."""
        configurations = self._configurations

        def begin(call: imports.Call) -> Any:
            callbacks.before_compile()
            return call()

        for hook in _BEGINS:
            hook.install(begin, reaches=(CacheSvcError,))
        look_up = functools.partial(configurations.look_up, callbacks.before_compile)
        _LOOKS_UP.install(callbacks.noting(look_up), reaches=(CacheSvcError,))
        _PLACE.install(configurations.path_of)
        _SAVES.install(configurations.put)
        _SEARCHES.install(configurations.search)

    def leave_folder(self) -> None:
        """Allow no configuration of the folders before."""
        self._configurations.refuse_all()

    def compile_again(self) -> None:
        """Search again where Helion's own folder has a configuration, which no entry could hold."""
        self._configurations.search_anew()

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow the configurations among these files to be taken."""
        self._configurations.accept(root, paths)

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Treat the configurations of these paths as never used, and allow them no more."""
        self._configurations.forget(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the configurations that were taken or found; write those that were found."""
        return self._configurations.taken | write_found({} if left else self._configurations.found, root)

    def used_paths(self) -> set[str]:
        """Return the paths of the configurations that were taken."""
        return set(self._configurations.taken)

    def has_opened(self) -> bool:
        """Return whether a configuration was taken or found."""
        return bool(self._configurations.taken or self._configurations.found)

    def activity(self) -> object:
        """Return how many configurations were taken and found."""
        return len(self._configurations.taken), len(self._configurations.found)

    def seconds(self) -> float:
        """Return the seconds that look-ups and records took."""
        return self._configurations.seconds

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why Helion searched here."""
        if restored.revisions:
            yield from self._configurations.reasons


def _work(observed: Observation, compile_seconds: float) -> KindWork:
    from ...wire.reports import KindWork

    return KindWork(0, observed.helion_searches, round(observed.seconds.get("helion_searches", 0.0), 3))


KIND = Kind(
    name=RULES.name,
    variable="HELION_CACHE_DIR",
    rules=RULES,
    start=HelionState,
    home="inside",
    place="helion",
    # The variable names the folder that Helion writes: it stays where the user or Helion wants it.
    sets_variable=False,
    hooks=(*_BEGINS, _LOOKS_UP, _PLACE, _SAVES, _SEARCHES),
    work=_work,
)
