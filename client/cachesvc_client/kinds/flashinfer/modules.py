"""Loads modules from accepted folders instead of building them, and records those that are built."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import counters, imports
from ...wire.errors import printable
from ..kind import ProcessCallbacks
from ..libraries import Libraries
from .rules import RULES

if TYPE_CHECKING:
    from ..builds.request import BuildRequest

_log = logging.getLogger("cachesvc")


class Modules(Libraries):
    """The modules of FlashInfer's in this process: which may be loaded, were loaded and were built."""

    def __init__(self) -> None:
        super().__init__(RULES)

    def build_and_load(self, callbacks: ProcessCallbacks, call: imports.Call) -> Any:
        """Run in the place of ``JitSpec.build_and_load``; any doubt falls through to the original.

        What was compiled ahead of time, and what other compilers than nvcc make, is left to FlashInfer.
        """
        spec = call.args[0]
        self._call.reason, self._call.names = "", frozenset()
        if not hasattr(spec, "sources") or spec.is_aot:
            return call()
        callbacks.before_compile()
        request = self._timed(lambda: self._read(spec))
        folder = self._timed(lambda: self._find(request)) if request is not None else None
        if folder is not None:
            try:
                return self._load(callbacks, spec, folder)
            except Exception as error:  # noqa: BLE001 - what cannot be loaded is built
                what = printable(str(error))
                self._call.reason = "the library of the entry does not load"
                _log.warning("FlashInfer's %s does not load (%s): building it here", spec.name, what)
        began = time.time_ns()
        answer = call()
        if self._call.names:
            self._timed(lambda: self._note(spec.name))
            if request is not None:
                self._timed(lambda: self._record(request, began))
        return answer

    def run_ninja(self, call: imports.Call) -> Any:
        """Run in the place of ``run_ninja``. Where ninja finds nothing to do, no build is counted."""
        from ..builds.build_folder import state_of, written

        folder = Path(call.argument("workdir"))
        before = {place: state_of(place) for place in _folders(folder)}
        try:
            return counters.counter_of("flashinfer.runs")(call)
        finally:
            names = {
                place: written(before.get(place, {}), state_of(place)) - {".ninja_log", ".ninja_deps"}
                for place in _folders(folder)
            }
            self._call.names = names.get(folder, frozenset())
            builds = sum(name.endswith(".so") for changed in names.values() for name in changed)
            counters.counts["flashinfer.builds"] += builds

    # Look-ups and records ---------------------------------------------------------------------

    def _read(self, spec: Any) -> BuildRequest:
        from ..builds.flags import Doubt
        from .request import read_spec

        try:
            return read_spec(spec)
        except Doubt as doubt:
            self._call.reason = str(doubt)
            raise

    def _find(self, request: BuildRequest) -> Path | None:
        """Return an accepted folder whose library fits, and keep the reason if there is none."""
        from .request import difference

        absent = "no restored entry has it with these sources, flags and versions"
        key = request.key(request.name)
        return self._fitting(key, request.name, absent, lambda depends: difference(depends, request))

    def _load(self, callbacks: ProcessCallbacks, spec: Any, folder: Path) -> Any:
        library = folder / f"{spec.name}.so"
        path = f"{self._accepted.relative(folder)}/{library.name}"
        with callbacks.files.loading(RULES.name, path):
            answer = spec.load(library)
        self.loaded[path] = library
        return answer

    def _note(self, name: str) -> None:
        """Keep why a module was built here."""
        if self._call.reason:
            self.reasons[name] = self._call.reason

    def _record(self, request: BuildRequest, began: int) -> None:
        """Record the library that was built during this call. ``began``: nanoseconds, when it began."""
        from ..builds.build_folder import read_headers
        from .host_sources import unlisted_headers
        from .request import read_by_build

        if f"{request.name}.so" not in self._call.names:
            return
        headers = read_headers(request.build_directory, self._call.names, len(request.sources))
        headers |= unlisted_headers(request.build_directory)
        depends = read_by_build(request, headers)
        self._keep(request, request.name, headers, depends.encode(), began)


def _folders(folder: Path) -> list[Path]:
    """Return the folders that a run of ninja writes: that of one module, or those of several below it."""
    if not folder.is_dir():
        return [folder]
    return [folder, *(place for place in folder.iterdir() if place.is_dir())]
