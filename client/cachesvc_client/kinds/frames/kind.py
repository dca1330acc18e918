"""The kind `frames`: what Dynamo made of a program's functions, so that a start does not trace.

Nine tenths of a restored start are traces of what the builder traced already. `warm` records each frame in a
process that restored everything else, and a service gives it back to Dynamo where Dynamo would trace (ADR
39). The object that a program holds is PyTorch's own; a call that no record fits is traced as ever.

A frame is given only where the restore is over when Dynamo asks. No trace waits for a restore: the compile
that follows the trace does.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...environment.variables import is_eager_policy
from ...hooks import counters, imports
from ...hooks.table import Hook
from ..kind import (
    TRACED_ALL_THE_SAME,
    Activity,
    Comparison,
    Kind,
    KindFolder,
    KindState,
    ProcessCallbacks,
    RestoredFacts,
)
from .names import BACKEND, CONFIG, CUDA_GRAPH, CUDA_GRAPHS, FRAME, HOOKS, KERNELS, LOAD, SOURCES
from .recording import FrameRecording
from .rules import RULES, SUFFIX
from .versions import is_known

if TYPE_CHECKING:
    from ...graphs.operators import RegisteredFunctions
    from ...wire.digest import Digest
    from .replay.replayer import FrameReplayer

_log = logging.getLogger("cachesvc")
_MOST_REASONS = 3


class FramesState(KindState):
    """The frames that this process may give to Dynamo, or those that it records."""

    def __init__(self) -> None:
        self._replayer: FrameReplayer | None = None
        """What may be given; ``None`` where no file was accepted."""
        self._frames = FrameRecording(self._registered)
        self.recording = self._frames
        self._callbacks: ProcessCallbacks | None = None
        self._not_eager = ""
        """Why no call can run without a compile."""

    def install_hooks(self, callbacks: ProcessCallbacks) -> None:
        """Put the hooks in place with which Dynamo asks for a frame, and those that spare work."""
        self._callbacks = callbacks
        FRAME.install(self._frame, on_missing=self._note_missing)
        for hook, name in (
            (CONFIG, "compiler_config"),
            (BACKEND, "compiler_function"),
            (LOAD, "load_graph"),
            (CUDA_GRAPH, "record_cuda_graphs"),
            (CUDA_GRAPHS, "record_cuda_graphs"),
            (KERNELS, "kernel_name"),
            (SOURCES, "source_hash"),
        ):
            hook.install(functools.partial(self._spare, name))

    def _registered(self) -> RegisteredFunctions:
        """Return the functions that libraries registered for their operators in this process."""
        from ...graphs.operators import RegisteredFunctions

        known = self._callbacks.registered if self._callbacks is not None else None
        return known or RegisteredFunctions()

    def leave_folder(self) -> None:
        """Give no frame any more."""
        self._replayer = None

    def accept(self, root: Path, paths: Collection[str]) -> None:
        """Allow these files' frames to be given. What is not there is another rank's."""
        from .replay.replayer import FrameReplayer

        self._frames.restored()
        replayer = self._replayer or FrameReplayer(self._registered(), self._comparison)
        for path in paths:
            if RULES.rule(path) is not None and os.path.exists(root / path):
                replayer.accept(root / path)
        self._replayer = replayer

    def forget(self, paths: Collection[str], keys: Collection[str]) -> None:
        """Give no frame of these files any more."""
        if self._replayer is not None:
            self._replayer.refuse(paths)

    def used_files(self, root: Path, *, left: bool = False) -> set[str]:
        """Return the files whose frames were given, and the file of the frames that were recorded here."""
        if not left:
            self._frames.save(root)
        return self._frames.written | self.used_paths()

    def beyond(self, root: Path, flags: frozenset[str], *, left: bool = False) -> str:
        """Frames hold no machine code."""
        return ""

    def made_files(self, root: Path) -> Mapping[str, Digest | None]:
        """Return the file of the frames that were recorded here."""
        from ...wire.digest import Digest

        return {path: Digest(f"sha256:{path.removesuffix(SUFFIX)}") for path in self._frames.written}

    def used_paths(self) -> set[str]:
        """Return the files whose frames were given."""
        return set(self._replayer.used) if self._replayer is not None else set()

    def activity(self) -> Activity:
        """Return how many frames were given, whose compiled graphs were loaded then, and the seconds that
        comparing and giving took."""
        if self._replayer is None:
            return Activity(0)
        return Activity(self._replayer.given, self._replayer.given > 0, self._replayer.seconds)

    def explain(self, restored: RestoredFacts) -> Iterable[str]:
        """Yield why frames were traced although the entry holds them."""
        reasons = self._replayer.reasons.most_common(_MOST_REASONS) if self._replayer is not None else []
        for reason, _ in reasons:
            yield TRACED_ALL_THE_SAME + reason

    def not_eager(self) -> str:
        """Return why no call of this process can run without a compile."""
        return self._not_eager

    def _note_missing(self, hook: Hook) -> None:
        self._not_eager = f"this torch has no {hook.name}"

    def _frame(self, call: imports.Call) -> Any:
        """Run in the place of Dynamo's compile of one frame."""
        if (skipped := self._run_eagerly(call)) is not None:
            return skipped
        if self._frames.may_begin or self._may_record_later():
            traced = self._replayer is not None or counters.counts["frames_traced"] or self._has_to_trace()
            self._frames.begin_beside(is_first=not traced)
        if self._frames.recorder is not None or self._replayer is not None:
            answer = self._answer(call)
            if answer is not None:
                if self._callbacks is not None:
                    self._callbacks.opened()
                return answer
        counters.counts["frames_traced"] += 1
        return call()

    def _may_record_later(self) -> bool:
        """Return whether the first trace runs before the restore has said whether this process records."""
        untraced = self._frames.recorder is None and not counters.counts["frames_traced"]
        return (
            untraced
            and self._callbacks is not None
            and self._callbacks.files.restoring()
            and not is_eager_policy()
        )

    def _run_eagerly(self, call: imports.Call) -> Any:
        """Return the answer that runs this call as Python, while another process compiles; else ``None``.
        Never raises."""
        if (
            self._callbacks is None
            or self._frames.recorder is not None
            or self._not_eager
            or not is_eager_policy()
        ):
            return None
        try:
            import torch

            from .replay import eager_call

            if not is_known(torch.__version__):
                self._not_eager = f"not tested on torch {torch.__version__}"
            elif eager_call.is_of_inductor(call) and self._callbacks.runs_eagerly():
                return eager_call.skip_once(call)
        except Exception as error:  # noqa: BLE001 - a torch whose internals differ
            self._not_eager = f"{type(error).__name__}: {error}"[:200]
        return None

    def _spare(self, name: str, call: imports.Call) -> Any:
        """Run a function of PyTorch without what only a compile needs, if frames may be given."""
        if self._replayer is None or self._frames.recorder is not None or self._has_to_trace():
            return call()
        from . import deferred

        return getattr(deferred, name)(call)

    def _has_to_trace(self) -> bool:
        """Return whether the user wants that this process traces."""
        return self._callbacks is not None and self._callbacks.traces()

    def _comparison(self, name: str) -> Comparison | None:
        """Return what the canary does with the compiled graphs of a file; ``None`` where none runs."""
        return self._callbacks.files.comparison(RULES.name, name) if self._callbacks is not None else None

    def _answer(self, call: imports.Call) -> Any:
        """Return the result for a frame; ``None`` where Dynamo has to trace it unrecorded."""
        import torch

        from .arguments import frame_call
        from .describe import ambient
        from .split import unsplit

        asked = frame_call(call) if is_known(torch.__version__) else None
        backend = ambient.inductor_backend(unsplit(asked.compiler)) if asked is not None else None
        if asked is not None and backend is None and self._frames.recorder is not None:
            self._frames.recorder.refuse(asked)
        if asked is None or backend is None:
            return None
        if self._frames.recorder is not None:
            counters.counts["frames_traced"] += 1
            return self._frames.trace(call, asked, backend)
        if self._replayer is None or self._has_to_trace() or not asked.has_room:
            return None
        with contextlib.ExitStack() as guards:
            if self._callbacks is not None:
                for name in self._replayer.names:
                    guards.enter_context(self._callbacks.files.loading(RULES.name, name))
            return self._replayer.replay(asked, backend)


KIND = Kind(
    rules=RULES,
    start=FramesState,
    folder=KindFolder("CACHESVC_FRAMES_DIR", home="inside", place="frames", sets_variable=False),
    decides_fit=False,
    records_on=is_known,
    hooks=HOOKS,
)
