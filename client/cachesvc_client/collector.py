"""Python's collector is kept from its oldest objects while a restored process makes its first calls.

A first call imports, traces and builds guards: hundreds of thousands of new objects, nearly all of which
stay. On their way Python looks twice through everything that the process has, for garbage that is not
there: 0.5 s of 7 on an H200, 0.5 of 5 on a CPU (docs/gpu.md). So that look is put off; the young
generations, where a trace's garbage is, are collected as ever.

It begins where Dynamo is imported or starts to compile, only after something was restored (a process that
compiles for minutes makes garbage for minutes), and it ends when nothing has compiled for a second, after
``MOST`` seconds in all at the latest. Only the third number of ``gc.set_threshold`` is changed, and put
back unless somebody else changed the numbers meanwhile; a collector that is switched off stays off.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from types import ModuleType

from . import importhook

_log = logging.getLogger("cachesvc")

MOST = 60.0
"""Seconds that it is held in one process, in all."""
QUIET = 1.0
"""Seconds after the last compile, or after the import of Dynamo, until it is let go."""
_LOOK = 0.25
_NEVER = 1 << 30


class Collector:
    """The hold of one process. ``held``: whether it is held now; ``seconds``: in which it was, all told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = False
        self._compiling = 0
        self._last = 0.0
        self._before: tuple[int, int, int] | None = None
        self._since = 0.0
        self._spent = 0.0

    @property
    def held(self) -> bool:
        return self._before is not None

    @property
    def seconds(self) -> float:
        return self._spent + (time.monotonic() - self._since if self.held else 0.0)

    def install_hooks(self) -> None:
        """Puts the hooks in place when the application imports Dynamo. Imports nothing."""
        importhook.when_importing("torch._dynamo", self._begins)
        importhook.when_imported("torch._dynamo", lambda _: self._ends())
        importhook.when_imported("torch._dynamo.callback", self._hook_callbacks)
        os.register_at_fork(after_in_child=self._after_fork)

    def allow(self) -> None:
        """Something was restored. Never raises."""
        with self._lock:
            self._allowed = True
            self._hold()

    def _hook_callbacks(self, module: ModuleType) -> None:
        """Of frames, backwards and recordings; the outermost alone. ``torch._dynamo.reset`` ends that."""
        handler = module.callback_handler
        # Until torch 2.7 they are called without an argument, since 2.8 with one.
        begins = importhook.callback(lambda *_, **__: self._begins())
        ends = importhook.callback(lambda *_, **__: self._ends())

        def undo() -> None:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset took them off already
                handler.remove_start_callback(begins)
                handler.remove_end_callback(ends)

        handler.register_end_callback(ends)
        handler.register_start_callback(begins)
        importhook.on_disarm(undo)

    def _begins(self) -> None:
        with self._lock:
            self._compiling += 1
            self._hold()

    def _ends(self) -> None:
        with self._lock:
            self._compiling = max(0, self._compiling - 1)
            self._last = time.monotonic()

    def _hold(self) -> None:
        if not self._allowed or not self._compiling or self.held or self._spent >= MOST:
            return
        try:
            threading.Thread(target=self._watch, name="cachesvc-collector", daemon=True).start()
        except RuntimeError:  # at exit, or no more threads: nobody could let it go
            return
        self._before, self._since = gc.get_threshold(), time.monotonic()
        gc.set_threshold(*self._before[:2], _NEVER)

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK)
            with self._lock:
                quiet = not self._compiling and time.monotonic() - self._last > QUIET
                if not self.held:
                    return
                if quiet or self.seconds > MOST:
                    self._let_go()
                    return

    def _let_go(self) -> None:
        before, self._before = self._before, None
        self._spent += time.monotonic() - self._since
        if before is not None and gc.get_threshold() == (*before[:2], _NEVER):
            gc.set_threshold(*before)

    def _after_fork(self) -> None:
        """The thread that lets it go is the parent's."""
        self._lock = threading.Lock()
        self._compiling = 0
        if self.held:
            self._let_go()
