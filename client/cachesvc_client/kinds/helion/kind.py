"""Owns the kind `helion` and its state in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ...hooks.kind_counts import Count
from ...hooks.table import Hook
from ...wire.errors import CacheSvcError
from ..kind import Activity, Kind, KindFolder, KindState, ProcessCallbacks, RestoredFacts
from ..look_ups import LatePart
from .rules import RULES

if TYPE_CHECKING:
    from ...wire.digest import Digest
    from .configurations import Configurations

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
    """The configurations that Helion took or found in this process. Only a process of Helion loads them."""

    def __init__(self) -> None:
        self.part = self._part = LatePart(_load)

    @property
    def _configurations(self) -> Configurations:
        return self._part.get()

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place; they wait for the imports of Helion's modules."""

        def begin(call: imports.Call) -> Any:
            callbacks.before_compile()
            return call()

        def look_up(call: imports.Call) -> Any:
            return self._configurations.look_up(callbacks.before_compile, call)

        for hook in _BEGINS:
            hook.install(begin, reaches=(CacheSvcError,))
        _LOOKS_UP.install(callbacks.noting(look_up), reaches=(CacheSvcError,))
        _PLACE.install(lambda call: self._configurations.path_of(call))
        _SAVES.install(lambda call: self._configurations.put(call))
        _SEARCHES.install(lambda call: self._configurations.search(call))

    def compile_again(self) -> None:
        """Search again where Helion's own folder has a configuration, which no entry could hold."""
        self._configurations.search_anew()

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the configurations that were taken or found; write those that were found."""
        if self._part.loaded is None:
            return set()
        return self._part.loaded.taken | self._part.loaded.write_found(root, left=left)

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the configurations that this process found by searching."""
        from ...wire.digest import Digest

        found = dict(self._part.loaded.found) if self._part.loaded else {}
        return {path: Digest.of(data) for path, data in found.items()}

    def used_paths(self) -> set[str]:
        """Return the paths of the configurations that were taken."""
        return set(self._part.loaded.taken) if self._part.loaded else set()

    def activity(self) -> Activity:
        """Return how many configurations were taken and found, and the seconds of look-ups and records."""
        if self._part.loaded is None:
            return Activity()
        part = self._part.loaded
        return Activity((len(part.taken), len(part.found)), bool(part.taken or part.found), part.seconds)

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why Helion searched here."""
        if restored.revisions and self._part.loaded:
            yield from self._part.loaded.reasons


def _load() -> Configurations:
    from .configurations import Configurations

    return Configurations()


KIND = Kind(
    rules=RULES,
    start=HelionState,
    # The variable names the folder that Helion writes: it stays where the user or Helion wants it.
    folder=KindFolder("HELION_CACHE_DIR", home="inside", place="helion", sets_variable=False),
    hooks=(*_BEGINS, _LOOKS_UP, _PLACE, _SAVES, _SEARCHES),
    counts=(Count("searches", "searched for", "Helion configuration", tunes=True),),
    distributions=("helion",),
)
