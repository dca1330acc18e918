"""Owns `Process`: the one state of this process, the hooks in its compilers, and the events that they make.

`Process` is the cache folders (`ProcessFolders`) with the hooks. It has what the hooks recorded (`output`),
the files that were made or used (`files`), and the states of all kinds as one (`all_kinds`). It knows no
session: what acts on its events subscribes to them.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..environment import releases
from ..environment.variables import is_switched_on
from ..graphs import ambient, backend_names, door, key_components, operators
from ..hooks import counters, imports
from ..hooks.activity import ActivityWatch
from ..kinds.kind import ProcessCallbacks, RestoredFiles
from ..kinds.own_place import OwnPlace
from .events import Events, hook_compiles
from .files import ProcessFiles
from .folders import ProcessFolders
from .gc_pause import GcPause
from .kinds import AllKinds
from .output import ProcessOutput

if TYPE_CHECKING:
    from pathlib import Path


class Process(ProcessFolders):
    """One set of folders, records and hooks, however many sessions are attached."""

    def __init__(self) -> None:
        super().__init__()
        self.all_kinds = AllKinds(self)
        self.files = ProcessFiles(self)
        self.output = ProcessOutput(self, self.all_kinds)
        self.armed = False
        """Whether the hooks are in place."""
        self.events = Events()
        self.watch = ActivityWatch(self.output.activity, busy=counters.compiling)
        self.watch.listeners.append(self.events.paused)
        self.exiting = False
        """Whether the process ends: nothing is logged any more."""
        self._followed = False
        """Whether fork and exit of the process call this object."""
        self.collector = GcPause()
        self.own_place = OwnPlace(lambda: self.folders, is_unfit=_is_unfit)
        self._depth = threading.local()
        """``inside`` is true on a thread that is inside ``compile_fx``, which calls itself; ``waited``: the
        seconds that its compile has waited for sessions."""

    def arm(self) -> None:
        """Put the hooks in place, once, and again after `disarm`. Cheap; import nothing of the compilers.

        A torch that is refused gets no hook but that of CACHESVC_STRICT, which raises at the first compile.
        """
        if self.armed:
            return
        # Without the lock: this call may wait for an import that waits for the lock.
        refused = releases.refusal(releases.torch()[0]) is not None
        with self.lock:
            if not self._followed:
                self._followed = True
                self.events.armed()
                self._follow()
            if refused:
                self._raise_at_compile()
            elif not self.armed:
                self.armed = True
                self._install_hooks()

    def disarm(self) -> None:
        """Take every hook out, for a torch that is refused after all: this process goes on as if cachesvc
        were not there. Never raises."""
        with self.lock:
            self.armed = False
            imports.disarm()
            self._raise_at_compile()

    def _raise_at_compile(self) -> None:
        """Let the first compile of a refused torch raise, where CACHESVC_STRICT asks for that."""

        def body(call: imports.Call) -> Any:
            self.events.before_compile()
            return call()

        if is_switched_on("CACHESVC_STRICT"):
            hook_compiles(body)

    def _install_hooks(self) -> None:
        self.output.observer = counters.start()
        key_components.install_hooks(self.output.components)
        operators.install_hooks(self.output.registered_functions)
        ambient.install_hooks(self.output.other_isa)
        door.install_hooks()
        backend_names.install_hooks()
        self.collector.install_hooks()
        callbacks = ProcessCallbacks(
            before_compile=self.events.before_compile,
            launched=self._record_launch,
            traces=lambda: self.events.traces() or bool(self.folders.left_first()),
            opened=self.watch.compiled,
            restored=self.events.wait_for_restore,
            missed=self.events.key_missed,
            joined=_join_ranks,
            runs_eagerly=self.events.runs_eagerly,
            files=RestoredFiles(
                comparison=self.events.around_file,
                point_compilers=self.point_compilers,
                loading=self.loading,
                left=self.folders.left,
                restoring=self.events.restoring,
            ),
            registered=self.output.registered_functions,
        )
        for state in self.kinds.values():
            state.install_hooks(callbacks)
        self.own_place.install_hooks(lambda: getattr(self._depth, "inside", False))
        hook_compiles(self._compile_fx)

    def _follow(self) -> None:
        """Have this object called at a fork and at the exit of the process."""
        os.register_at_fork(before=_close_gate, after_in_parent=_open_gate, after_in_child=self._after_fork)
        atexit.register(self._begin_exit)  # runs after the functions that are registered later
        self.watch.at_exit()

    def _after_fork(self) -> None:
        """Forget the parent's threads in a forked child: unfinished work begins again when it is needed."""
        _open_gate()
        self.begin_again()
        self.watch.begin_again()
        self.events.forked()

    def _begin_exit(self) -> None:
        self.exiting = True

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

    def _compile_fx(self, call: imports.Call) -> Any:
        if getattr(self._depth, "inside", False):
            return call()
        began = time.perf_counter()
        self.events.before_compile()
        self._depth.waited = time.perf_counter() - began
        wrap = self.events.around_graph(call.args[0] if call.args else call.kwargs.get("model_"))
        graph = self.output.asked.note(*call.args, **call.kwargs)
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
            self.output.seconds["compile"] += time.perf_counter() - begin
            graph.compiled = counters.counts["graphs_compiled"] > compiled_before
            self.output.off = self.output.off or self.output.off_now()
            if left := self.folders.left_first():
                self.output.compiled_in[left] += 1
            self.watch.compiled()

    def _record_launch(self, event: Mapping[str, Any]) -> None:
        """Record a Triton kernel that the application launched itself."""
        self._used = True
        self.output.asked.note_launch(event)


def _close_gate() -> None:
    from . import fork_gate  # `attach` loads nothing that a fork alone needs

    fork_gate.close()


def _open_gate() -> None:
    from . import fork_gate

    fork_gate.open_again()


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
