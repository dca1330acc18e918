"""Do what a process of `warm` does around a compile: hooks and folders before it, files after it."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import cachesvc_client
from cachesvc_client.hooks import counters
from cachesvc_client.wire.errors import Unavailable

from .. import kinds_used
from . import triton_bundler
from .cache_files import cache_roots, capture_files, list_files, name_files, outermost
from .file_reads import ReadWatch
from .phase import PhaseRequest, PhaseResult

if TYPE_CHECKING:
    from cachesvc_client.session.session import Session

RESTORE_SECONDS = 600.0
"""Seconds that a replay waits for its bundle: the bundle is on this machine, so only its size counts."""


class CompilingProcess:
    """Prepares this process to compile into its own folders, and captures what it compiled."""

    def __init__(self, request: PhaseRequest) -> None:
        """Put the hooks in place and begin to count. Raises ``Unsupported`` and ``StorageFull``."""
        from cachesvc_client.config.settings import Config
        from cachesvc_client.process.process import process
        from cachesvc_client.session.sessions import open_local

        self.observer = counters.start(audit=True)
        triton_bundler.leave_out_copies()
        self._request, self._session = request, open_local(Config.read())
        if request.phase == "finalise":
            process().all_kinds.compile_again()
            for folder in kinds_used.graph_folders(cache_roots()):
                shutil.rmtree(folder, ignore_errors=True)

    def add_capture(self, result: PhaseResult) -> PhaseResult:
        """Return the result with the captured files, if the request has a stage."""
        return _add_capture(self._request, self._session, result)


class RestoringProcess:
    """Restores an entry in this process as a service does; watches which files are read and added meanwhile.

    >>> with RestoringProcess(request) as process: ...       # doctest: +SKIP
    >>> process.add_files(result)                            # doctest: +SKIP
    """

    def __init__(self, request: PhaseRequest) -> None:
        """Put the hooks in place, begin to count, and return once the entry is restored.

        Raises ``Unavailable`` if it is not, and what a strict session raises.
        """
        from cachesvc_client.process.process import process

        self.observer = counters.start(audit=True)
        self._request, self._kernels = request, triton_bundler.KernelFiles()
        triton_bundler.record_files(self._kernels)
        triton_bundler.leave_out_copies()
        session = cachesvc_client.attach(request.name or None, bundle=request.bundle or None)
        if request.phase == "record":
            process().all_kinds.start_recording()
        if session is None or not session.wait(RESTORE_SECONDS):
            raise Unavailable(f"not restored within {RESTORE_SECONDS:.0f} s" if session else "not attached")
        self._session, self._roots = session, cache_roots()
        self._before = set(list_files(self._roots))
        self._watches: dict[Path, ReadWatch] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> RestoringProcess:
        self._watches = {root: self._open.enter_context(ReadWatch(root)) for root in outermost(self._roots)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add_files(self, result: PhaseResult) -> PhaseResult:
        """Return the result with the files that were read, needed, added and emitted until now."""
        roots, before = self._roots, self._before
        emitted = name_files(roots, self._kernels.emitted) - before
        new = set(list_files(roots)) - before - emitted
        of_libraries = {name for name in new if not kinds_used.decides_fit(name.partition("/")[0])}
        paths = (root / path for root, watch in self._watches.items() for path in watch.read())
        return replace(
            result,
            files_read=tuple(sorted(name_files(roots, paths) & before)),
            files_required=tuple(sorted(name_files(roots, self._kernels.required) & before)),
            files_added=tuple(sorted(new - of_libraries)),
            files_of_libraries=tuple(sorted(of_libraries)),
            files_emitted=tuple(sorted(emitted)),
        )

    def log_reasons(self) -> tuple[str, ...]:
        """Return what a service's log says of this start: why it compiled or traced all the same."""
        return cachesvc_client.report().reasons

    def names_ending(self, ending: str) -> tuple[str, ...]:
        """Return the restored files whose names end so, as ``kind/path``."""
        return tuple(sorted(name for name in self._before if name.endswith(ending)))

    def add_capture(self, result: PhaseResult) -> PhaseResult:
        """Return the result with the captured files, if the request has a stage."""
        return _add_capture(self._request, self._session, result)


def _add_capture(request: PhaseRequest, session: Session, result: PhaseResult) -> PhaseResult:
    """Return the result with the captured files and the key components, if the request has a stage."""
    from cachesvc_client.process.process import process

    if not request.stage:
        return result
    capture = capture_files(session, Path(request.stage), result.files_emitted)
    return replace(result, capture=capture, keys=process().output.key_facts())
