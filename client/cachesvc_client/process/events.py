"""Owns the events of a process that compiles, `Events`, and what acts on them, `Listener`.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..hooks import imports
from ..hooks.table import Hook
from ..wire.errors import CacheSvcError

if TYPE_CHECKING:
    from ..hooks.activity import Moment
    from ..kinds.kind import Comparison

_log = logging.getLogger("cachesvc")

_COMPILE = Hook(
    "torch._inductor.compile_fx",
    "compile_fx",
    "waits for the restore before the first compile",
    "no compile waits, so nothing may be restored in time",
    role="restore",
    warns=True,
)
HOOKS = (_COMPILE,)


def hook_compiles(body: imports.Body) -> None:
    """Run ``body`` in the place of ``compile_fx``; its ``CacheSvcError`` reaches the application."""
    _COMPILE.install(body, reaches=(CacheSvcError,))


class Listener:
    """Acts on the events of a process. Each method does nothing unless a listener overrides it."""

    def armed(self) -> None:
        """Act on the first hooks of this process, before a fork and its exit are followed."""

    def before_compile(self) -> None:
        """Act before a compile, and before a kernel that the application launches itself. Only a
        ``CacheSvcError`` may be raised: it reaches the application."""

    def wait_for_restore(self) -> bool:
        """Wait for the restore where nothing is compiled, at most the deadline; return whether it is over.
        Only a ``CacheSvcError`` may be raised: it reaches the application."""
        return True

    def runs_eagerly(self) -> bool:
        """Return whether calls run without a compile for now."""
        return False

    def restoring(self) -> bool:
        """Return whether a restore goes on."""
        return False

    def traces(self) -> bool:
        """Return whether this process traces although frames were restored."""
        return False

    def around_graph(self, graph: Any) -> Callable[[Any], Any] | None:
        """Return what is put around the compiled form of a graph; ``None`` for nothing."""
        return None

    def around_file(self, kind: str, path: str) -> Comparison | None:
        """Return what is done with the compiled graphs of a restored file; ``None`` for nothing."""
        return None

    def key_missed(self, key: str) -> bool:
        """Act on a key that a compiler looked up and did not find; return whether its files are here now."""
        return False

    def restore_ended(self) -> None:
        """Act on the end of a restore, however it ended. Runs on the thread of the restore."""

    def paused(self, moment: Moment, deadline: float, /) -> None:
        """Act when the compilers pause, when the process is quiet and when it ends; see `hooks.activity`."""

    def forked(self) -> None:
        """Forget the parent's threads in a forked child."""


class Events:
    """Tells each listener what happens, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._late: Callable[[], Sequence[Listener]] | None = None
        self._making = threading.Lock()
        """Locked while the late listeners are made: they miss no event."""

    def subscribe(self, listener: Listener) -> None:
        """Add a listener, for the rest of this process."""
        self._listeners.append(listener)

    def subscribe_late(self, make: Callable[[], Sequence[Listener]]) -> None:
        """Add listeners that are made at the first event after a compiler began to work: their modules would
        make each start slower."""
        self._late = make

    def _working(self) -> Sequence[Listener]:
        """Return every listener, the late ones too."""
        with self._making:
            make, self._late = self._late, None
            if make is not None:
                try:
                    self._listeners += make()
                except Exception:  # noqa: BLE001 - a module that cannot be read breaks no compile
                    _log.warning("this process reports and publishes nothing", exc_info=True)
        return self._listeners

    def armed(self) -> None:
        """Tell the listeners that the hooks are put in place for the first time."""
        for listener in self._listeners:
            listener.armed()

    def before_compile(self) -> None:
        """Have the listeners act before a compile. Raises what they raise."""
        for listener in self._listeners:
            listener.before_compile()

    def wait_for_restore(self) -> bool:
        """Have the listeners wait for the restore; return whether it is over. Raises what they raise."""
        return all(listener.wait_for_restore() for listener in self._listeners)

    def runs_eagerly(self) -> bool:
        """Return whether a listener has calls run without a compile."""
        return any(listener.runs_eagerly() for listener in self._listeners)

    def restoring(self) -> bool:
        """Return whether a restore of a listener goes on."""
        return any(listener.restoring() for listener in self._listeners)

    def traces(self) -> bool:
        """Return whether a listener has this process trace."""
        return any(listener.traces() for listener in self._listeners)

    def around_graph(self, graph: Any) -> Callable[[Any], Any] | None:
        """Return what the first listener that has something puts around a compiled graph."""
        return next(filter(None, (one.around_graph(graph) for one in self._listeners)), None)

    def around_file(self, kind: str, path: str) -> Comparison | None:
        """Return what the first listener that has something does with the graphs of a restored file."""
        found = (one.around_file(kind, path) for one in self._listeners)
        return next((one for one in found if one is not None), None)

    def key_missed(self, key: str) -> bool:
        """Return whether a listener has brought the files of a key."""
        return any(listener.key_missed(key) for listener in self._working())

    def restore_ended(self) -> None:
        """Tell the listeners that a restore has ended."""
        for listener in self._working():
            listener.restore_ended()

    def paused(self, moment: Moment, deadline: float, /) -> None:
        """Tell the listeners that the compilers pause, or that the process is quiet or ends. The error of one
        keeps no other from its work."""
        for listener in self._working():
            try:
                listener.paused(moment, deadline)
            except Exception:  # noqa: BLE001 - cachesvc is never the reason that a service fails
                _log.debug("at %s: %s", moment, listener, exc_info=True)

    def forked(self) -> None:
        """Tell the listeners that this process is a forked child."""
        self._making = threading.Lock()
        for listener in self._listeners:
            listener.forked()
