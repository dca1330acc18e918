"""Loads extensions from accepted folders instead of building them, and records those that are built.

PyTorch numbers the versions of a name in each process: where sources or flags changed, ``fused`` is built and
loaded as ``fused_v1``, so that two versions never share a file. The number is in the code. Here the same
numbers are given. The record of a version that was loaded and not built is one that PyTorch takes for
changed: PyTorch alone would look for its library in the folder of the build, where there is none.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hooks import counters, imports
from ...wire.errors import printable
from ..kind import ProcessCallbacks
from ..libraries import Libraries
from .rules import RULES

if TYPE_CHECKING:
    from ..builds.request import BuildRequest

_log = logging.getLogger("cachesvc")


class _LoadedHash(NamedTuple):
    """Stands in PyTorch's record of a version that was loaded from an accepted folder. No hash equals it."""

    of_pytorch: int


class Extensions(Libraries):
    """The extensions of this process: which may be loaded, which were loaded and which were built."""

    def __init__(self) -> None:
        super().__init__(RULES)

    def run_ninja(self, call: imports.Call) -> Any:
        """Run in the place of ``_run_ninja_build``, which starts ninja. Where ninja finds nothing to do, no
        build is counted."""
        from ..builds.build_folder import state_of, written

        folder = Path(call.argument("build_directory"))
        before = state_of(folder)
        answer = counters.counter_of("torch_extensions.runs")(call)
        self._call.names = written(before, state_of(folder)) - {".ninja_log", ".ninja_deps"}
        counters.counts["torch_extensions.builds"] += bool(self._call.names)
        return answer

    def jit_compile(self, callbacks: ProcessCallbacks, call: imports.Call) -> Any:
        """Run in the place of ``_jit_compile``; any doubt falls through to the original."""
        self._call.reason = ""
        request = self._timed(lambda: self._read(call))
        if request is None:
            return self._build(call)
        callbacks.before_compile()
        version = self._timed(lambda: _next_version(request, call))
        folder = self._timed(lambda: self._find(request, version)) if version is not None else None
        if folder is not None and version is not None:
            try:
                return self._load(callbacks, request, version, folder)
            except Exception as error:  # noqa: BLE001 - what cannot be loaded is built
                what = printable(str(error))  # the loader's words, with names of symbols of the file
                _log.warning("extension %s does not load (%s): building it here", request.name, what)
        began = time.time_ns()
        answer = self._build(call)
        self._timed(lambda: self._record(request, began))
        return answer

    def _build(self, call: imports.Call) -> Any:
        """Have PyTorch look for the library in its own folder, and build it where it is not up to date."""
        self._call.names = frozenset()
        answer = call()
        if self._call.names and self._call.reason:
            self._timed(lambda: self.reasons.update({call.argument("name"): self._call.reason}))
        return answer

    def _read(self, call: imports.Call) -> BuildRequest | None:
        from ..builds.flags import Doubt
        from .request import read_request

        arguments = call.arguments
        if arguments.get("is_standalone"):
            return None
        try:
            return read_request(_module(), arguments)
        except Doubt as doubt:
            self._call.reason = str(doubt)
            raise

    def _find(self, request: BuildRequest, version: _Version) -> Path | None:
        """Return an accepted folder whose library fits, and note why if there is none."""
        absent = "no restored entry has it with these sources and flags" if self._accepted else ""
        name, module = version.name, _module()
        return self._fitting(request.key(name), name, absent, lambda made: made.difference(request, module))

    def _load(
        self, callbacks: ProcessCallbacks, request: BuildRequest, version: _Version, folder: Path
    ) -> Any:
        module = _module()
        path = f"{self._accepted.relative(folder)}/{version.name}.so"
        with callbacks.files.loading(RULES.name, path):
            answer = module._import_module_from_library(version.name, str(folder), request.is_python_module)
        record = version.record._replace(hash=_LoadedHash(version.record.hash))
        module.JIT_EXTENSION_VERSIONER.entries[request.name] = record
        self.loaded[path] = folder / f"{version.name}.so"
        return answer

    def _record(self, request: BuildRequest, began: int) -> None:
        """Record the library that was built during this call. ``began``: nanoseconds, when it began."""
        from ..builds.build_folder import read_headers
        from ..builds.dependencies import read_by_build

        names: frozenset[str] = self._call.names
        record = _module().JIT_EXTENSION_VERSIONER.entries[request.name]
        name = f"{request.name}_v{record.version}" if record.version else request.name
        if f"{name}.so" not in names:
            return
        headers = read_headers(request.build_directory, names, len(request.sources))
        depends = read_by_build(request, _module(), headers)
        self._keep(request, name, headers, depends.encode(), began)


class _Version(NamedTuple):
    """The version that PyTorch would give: the name that the library has, and PyTorch's record of it."""

    name: str
    record: Any


def _next_version(request: BuildRequest, call: imports.Call) -> _Version | None:
    """Return the version that PyTorch would give this call; ``None`` if PyTorch has loaded that one itself.

    PyTorch's own records stay as they are.
    """
    module = _module()
    versioner = module.ExtensionVersioner()
    before = module.JIT_EXTENSION_VERSIONER.entries.get(request.name)
    ours = before is not None and isinstance(before.hash, _LoadedHash)
    if before is not None:
        versioner.entries[request.name] = before._replace(hash=before.hash.of_pytorch) if ours else before
    given = call.arguments
    versioner.bump_version_if_changed(
        request.name,
        [str(source) for source in request.sources],
        build_arguments=[
            given.get(name)
            for name in ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths")
        ],
        build_directory=given["build_directory"],
        with_cuda=request.with_cuda,
        with_sycl=False,
        is_python_module=given["is_python_module"],
        is_standalone=given["is_standalone"],
    )
    record = versioner.entries[request.name]
    if before is not None and not ours and record.version == before.version:
        return None
    name = f"{request.name}_v{record.version}" if record.version else request.name
    return _Version(name, record)


def _module() -> Any:
    """Return ``torch.utils.cpp_extension``, which calls us."""
    return sys.modules["torch.utils.cpp_extension"]
