"""Owns `Process`: the one state of this process, and the hooks in its compilers.

`Process` adds the hooks to `ProcessOutput` (what the hooks recorded) and to `ProcessFolders` (the cache
folders). It calls no session: `Sessions` passes the functions that run around a compile.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..graphs import ambient, backend_names, door, key_components, operators
from ..hooks import counters, imports
from ..kinds.kind import ProcessCallbacks
from ..kinds.own_place import OwnPlace
from .compile_hook import hook_compiles
from .gc_pause import GcPause
from .output import ProcessOutput

if TYPE_CHECKING:
    from pathlib import Path

    from ..kinds.kind import Comparison


class Process(ProcessOutput):
    """One set of folders, records and hooks, however many sessions are attached."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        """Whether the hooks are in place."""
        self.collector = GcPause()
        self.own_place = OwnPlace(lambda: self.folders, _is_unfit)
        self._depth = threading.local()
        """``inside`` is true on a thread that is inside ``compile_fx``, which calls itself; ``waited``: the
        seconds that its compile has waited for sessions."""

    def arm(
        self,
        before: Callable[[], None],
        watch: Callable[[Any], Callable[[Any], Any] | None],
        after: Callable[[], None],
        traces: Callable[[], bool] = lambda: False,
        comparison: Callable[[str, str], Comparison | None] = lambda *_: None,
        restored: Callable[[], object] = lambda: None,
        missed: Callable[[str], bool] = lambda _: False,
        runs_eagerly: Callable[[], bool] = lambda: False,
    ) -> None:
        """Put the hooks in place; cheap, and imports nothing of the compilers. To be called once, and again
        after `disarm`.

        ``before`` and ``after`` run around each compile; ``before`` runs too before a kernel that the
        application launches itself, and ``after`` when a kind has opened something by itself. ``watch`` gets
        each graph before it is compiled, and returns a function to wrap the compiled graph with, or ``None``.
        ``traces``, ``comparison``, ``restored``, ``missed`` and ``runs_eagerly``: as `ProcessCallbacks` has
        them. A ``CacheSvcError`` that ``before`` and ``watch`` raise reaches the application.
        """
        self.armed = True
        self.observer = counters.start()
        key_components.install_hooks(self.components)
        operators.install_hooks(self.registered_functions)
        ambient.install_hooks(self.other_isa)
        door.install_hooks()
        backend_names.install_hooks()
        self.collector.install_hooks()
        callbacks = ProcessCallbacks(
            before,
            self._record_launch,
            lambda: traces() or bool(self.folders.left_first()),
            comparison,
            self.point_compilers,
            after,
            restored,
            missed,
            _join_ranks,
            runs_eagerly,
            self.loading,
            self.folders.left,
            self.registered_functions,
        )
        for state in self.kinds.values():
            state.install_hooks(callbacks)
        self.own_place.install_hooks(lambda: getattr(self._depth, "inside", False))
        hook_compiles(functools.partial(self._compile_fx, before, watch, after))

    def disarm(self) -> None:
        """Take every hook out: this process goes on as if cachesvc were not there. Never raises."""
        self.armed = False
        imports.disarm()

    def waited(self) -> float:
        """Return how many seconds the compile under way on this thread has waited for sessions; 0 outside of
        one."""
        return float(self._depth.waited) if getattr(self._depth, "inside", False) else 0.0

    @contextlib.contextmanager
    def at_look_up(self) -> Iterator[None]:
        """Count this thread's compile as one that waits at a look-up, and the seconds as waited. Outside of a
        compile, do nothing."""
        inside, begin = int(getattr(self._depth, "inside", False)), time.perf_counter()
        with self.lock:
            self._looking_up += inside
        try:
            yield
        finally:
            with self.lock:
                self._looking_up -= inside
            if inside:
                self._depth.waited += time.perf_counter() - begin

    def _compile_fx(
        self,
        before: Callable[[], None],
        watch: Callable[[Any], Callable[[Any], Any] | None],
        after: Callable[[], None],
        call: imports.Call,
    ) -> Any:
        if getattr(self._depth, "inside", False):
            return call()
        began = time.perf_counter()
        before()
        self._depth.waited = time.perf_counter() - began
        wrap = watch(call.args[0] if call.args else call.kwargs.get("model_"))
        graph = self.asked.note(*call.args, **call.kwargs)
        compiled_before = counters.counts["graphs_compiled"]
        begin = time.perf_counter()
        self._depth.inside = True
        with self.lock:
            self._compiling += 1
            self._used = True
        try:
            compiled = self.own_place.run(call)
            return compiled if wrap is None else wrap(compiled)
        finally:
            self._depth.inside = False
            with self.lock:
                self._compiling -= 1
            self.seconds["compile"] += time.perf_counter() - begin
            graph.compiled = counters.counts["graphs_compiled"] > compiled_before
            self.off = self.off or self._off_now()
            if left := self.folders.left_first():
                self.compiled_in[left] += 1
            after()

    def _record_launch(self, event: Mapping[str, Any]) -> None:
        """Record a Triton kernel that the application launched itself."""
        self._used = True
        self.asked.note_launch(event)


def _is_unfit(folder: Path) -> bool:
    from ..node.folder_probe import probe_again

    return not probe_again(folder).usable


def _join_ranks(rank: int, world: int, about: Sequence[str]) -> None:
    from ..ranks.job import join

    join(rank, world, about)


_process: Process | None = None
_process_lock = threading.Lock()


def process() -> Process:
    """Return the one state of this process; the first call makes it."""
    global _process
    with _process_lock:
        if _process is None:
            _process = Process()
        return _process
