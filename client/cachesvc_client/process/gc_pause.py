"""Owns `GcPause`: a pause of full garbage collections while a restored process makes its first calls.

A first call imports, traces and builds guards: hundreds of thousands of new objects, nearly all of which
stay. Meanwhile Python searches all objects of the process twice for garbage that is not there: 0.5 s of 7 on
an H200, 0.5 of 5 on a CPU (docs/gpu.md). `GcPause` puts this full collection off. Python still collects the
young generations, which hold the garbage of a trace.

The pause begins where torch or Dynamo is imported or Dynamo starts to compile, and only after something was
restored: a process that compiles for minutes makes garbage for minutes. The pause ends when nothing has
compiled for ``QUIET`` seconds, or ``FIRST_COMPILE`` seconds after an import if nothing was compiled, or after
``MOST`` seconds in all. The pause changes only the third number of ``gc.set_threshold``, and restores it
unless other code changed the numbers meanwhile. A collector that is switched off stays off.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from types import ModuleType

from ..hooks import imports
from ..hooks.table import Hook

_log = logging.getLogger("cachesvc")

MOST = 60.0
"""Seconds that the pauses of one process take, at most and in all."""
QUIET = 1.0
"""Seconds from the last compile until the pause ends."""
FIRST_COMPILE = 10.0
"""Seconds that the pause waits, after the import of torch or Dynamo, for the first compile. Libraries import
both before they build a model, and a full collection between them searches the same objects once more."""
_CHECK_SECONDS = 0.25
"""Seconds between two checks whether the pause is to end."""
_NEVER = 1 << 30
"""A threshold that no process reaches."""
_DYNAMO = Hook(
    "torch._dynamo",
    "",
    "puts full garbage collections off while it is imported, after a restore",
    "",
    role="speed",
)
_CALLBACKS = Hook(
    "torch._dynamo.callback",
    "callback_handler",
    "puts full garbage collections off during the first compiles, after a restore",
    "a restored start takes up to 0.5 s longer",
    role="speed",
)
HOOKS = (_DYNAMO, _CALLBACKS)


class GcPause:
    """The pause of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = False
        self._compiling = 0
        self._quiet_until = 0.0
        self._before: tuple[int, int, int] | None = None
        self._since = 0.0
        self._spent = 0.0

    @property
    def active(self) -> bool:
        """Return whether full collections are paused now."""
        return self._before is not None

    @property
    def seconds(self) -> float:
        """Return the seconds that the pauses have taken in all."""
        return self._spent + (time.monotonic() - self._since if self.active else 0.0)

    def install_hooks(self) -> None:
        """Put the hooks in place when the application imports torch and Dynamo. Imports nothing."""
        imports.around_body(
            "torch", before=self._begin_compile, after=lambda _: self._end_compile(FIRST_COMPILE)
        )
        imports.when_importing(_DYNAMO.module, self._begin_compile)
        _DYNAMO.watch(lambda _: self._end_compile(FIRST_COMPILE))
        _CALLBACKS.watch(self._hook_callbacks)
        os.register_at_fork(after_in_child=self._after_fork)

    def allow(self) -> None:
        """Allow the pause, since something was restored. Never raises."""
        with self._lock:
            self._allowed = True
            self._begin_pause()

    def _hook_callbacks(self, module: ModuleType) -> None:
        """Register callbacks around the outermost compile: of a frame, a backward or a recording.

        ``torch._dynamo.reset`` removes them.
        """
        handler = module.callback_handler
        # Until torch 2.7 they are called without an argument, since 2.8 with one.
        begins = imports.callback(lambda *_, **__: self._begin_compile())
        ends = imports.callback(lambda *_, **__: self._end_compile())

        def undo() -> None:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset took them off already
                handler.remove_start_callback(begins)
                handler.remove_end_callback(ends)

        handler.register_end_callback(ends)
        handler.register_start_callback(begins)
        imports.on_disarm(undo)

    def _begin_compile(self) -> None:
        with self._lock:
            self._compiling += 1
            self._begin_pause()

    def _end_compile(self, quiet: float | None = None) -> None:
        """End one compile, or the import of Dynamo; the next is awaited for ``quiet`` seconds."""
        with self._lock:
            self._compiling = max(0, self._compiling - 1)
            self._quiet_until = time.monotonic() + (QUIET if quiet is None else quiet)

    def _begin_pause(self) -> None:
        if not self._allowed or not self._compiling or self.active or self._spent >= MOST:
            return
        try:
            threading.Thread(target=self._watch, name="cachesvc-collector", daemon=True).start()
        except RuntimeError:  # at exit, or no more threads: no thread could end the pause
            return
        self._before, self._since = gc.get_threshold(), time.monotonic()
        gc.set_threshold(*self._before[:2], _NEVER)

    def _watch(self) -> None:
        while True:
            time.sleep(_CHECK_SECONDS)
            with self._lock:
                quiet = not self._compiling and time.monotonic() > self._quiet_until
                if not self.active:
                    return
                if quiet or self.seconds > MOST:
                    self._end_pause()
                    return

    def _end_pause(self) -> None:
        before, self._before = self._before, None
        self._spent += time.monotonic() - self._since
        if before is not None and gc.get_threshold() == (*before[:2], _NEVER):
            gc.set_threshold(*before)

    def _after_fork(self) -> None:
        """End the pause in a forked child: the thread that would end it is the parent's."""
        self._lock = threading.Lock()
        self._compiling = 0
        if self.active:
            self._end_pause()
