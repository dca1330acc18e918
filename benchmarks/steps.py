"""Measure what of a first call cachesvc's own comparisons take, by wrappers around named functions.

The same names are looked for in every client, so that two commits can be compared: a step names all
functions that do its work, also those of other commits, and what a client lacks is told. Each second counts
once, in the innermost step. Imports are a step, since most of what a comparison imports is needed after it.
Names of PyTorch are wrapped when guards are read, since the first call imports them.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

REPLAY, LOADING, FILES, IMPORTS = "replay", "loading graphs", "reading files", "imports"
COMPARING = ("settings", "code", "operators", "guards read", "guards made", "guards checked", REPLAY)
"""Steps that compare a frame with this process. ``replay`` is what its other steps leave."""
KEYS = ("keys",)
"""Steps that make keys of graphs."""
_FRAMES, _GRAPHS, _GUARDS = "cachesvc_client.kinds.frames.", "cachesvc_client.graphs.", "torch._dynamo.guards"
FUNCTIONS = {
    REPLAY: (f"{_FRAMES}replay.replayer:FrameReplayer.replay",),
    FILES: (f"{_FRAMES}stored:read",),
    LOADING: (f"{_FRAMES}replay.replayer:_install_functions",),
    IMPORTS: ("importlib._bootstrap:_find_and_load",),
    "settings": (
        f"{_FRAMES}describe.backends:describe_backend",
        f"{_FRAMES}describe.ambient:settings",
        f"{_FRAMES}describe.groups:groups_of_job",
    ),
    "code": (f"{_FRAMES}describe.objects:changed", f"{_FRAMES}describe.ambient:replacement"),
    "operators": (f"{_FRAMES}replay.replayer:_changed_operator",),
    "guards read": (f"{_FRAMES}guards.live:live_guards",),
    "guards made": (f"{_GUARDS}:CheckFunctionManager.__init__",),
    "guards checked": (f"{_GUARDS}:GuardManagerWrapper.check",),
    "keys": (
        f"{_GRAPHS}request:GraphRequests.note",
        f"{_GRAPHS}key_components:Recorder.note_lookup",
        f"{_GRAPHS}keys:_add_parts",
    ),
}
"""For each step the functions that do its work, as ``module:name``."""


class Steps:
    """Counts seconds and calls by step, on the thread that makes this object, just before a first call."""

    def __init__(self, more: tuple[str, ...] = ()) -> None:
        """``more``: further functions, as ``STEP=module:name``."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._left = {name: step for step, names in FUNCTIONS.items() for name in names}
        self._left |= {name: step for step, _, name in (text.partition("=") for text in more)}
        self._children: list[float] = []
        """For each step that runs, the seconds of those within it."""
        self._thread = threading.get_ident()
        self._cpu = time.thread_time()

    def wrap(self) -> None:
        """Wrap the functions whose modules are imported by now."""
        for name, step in list(self._left.items()):
            module, _, path = name.partition(":")
            if module in sys.modules and self._wrap_in(sys.modules[module], path, step):
                del self._left[name]

    def answer(self) -> dict[str, Any]:
        """Return what was measured, and the names that were not there. ``cpu``: the CPU seconds of this
        thread, which other work on the machine hardly changes."""
        return {
            "cpu": round(time.thread_time() - self._cpu, 6),
            "seconds": {step: round(spent, 6) for step, spent in self.seconds.items()},
            "calls": dict(self.calls),
            "not there": sorted(self._left),
        }

    def _wrap_in(self, module: ModuleType, path: str, step: str) -> bool:
        *owners, name = path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part, None)
        original = vars(owner).get(name) if owner is not None else None
        if original is None:
            return False
        timed = self._timed(original, step)
        setattr(owner, name, timed)
        for other in list(sys.modules.values()):  # those that have imported the function itself
            if getattr(other, "__name__", "").startswith("cachesvc_client") and not owners:
                for alias in [key for key, value in vars(other).items() if value is original]:
                    setattr(other, alias, timed)
        return True

    def _timed(self, original: Callable[..., Any], step: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._children.append(0.0)
            begin = time.perf_counter()
            try:
                if step == "guards read":  # by now PyTorch's guards are imported, or it imports them
                    import torch._dynamo.guards  # noqa: F401

                    self.wrap()
                return original(*args, **kwargs)
            finally:
                spent = time.perf_counter() - begin
                self.seconds[step] += spent - self._children.pop()
                self.calls[step] += 1
                if self._children:
                    self._children[-1] += spent

        return timed
