"""Records the frames of this process, for an entry or beside the work of a service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hooks import imports
from ..kind import UNLIMITED, Recording
from .versions import is_known

if TYPE_CHECKING:
    from ...graphs.operators import RegisteredFunctions
    from .arguments import FrameCall
    from .record.recorder import Recorder

_log = logging.getLogger("cachesvc")


class FrameRecording(Recording):
    """The recorder of this process, and the files that it wrote.

    ``registered``: returns the functions that libraries registered for their operators in this process.
    """

    def __init__(self, registered: Callable[[], RegisteredFunctions]) -> None:
        self.recorder: Recorder | None = None
        self.may_begin = False
        """Whether this process records beside its work, once it traces."""
        self.is_tentative = False
        """Whether it records before the restore has said that it may: nothing is written until then."""
        self.written: set[str] = set()
        """Names of the files that this process recorded."""
        self._seconds = UNLIMITED
        """What the recording beside the work of a service may need."""
        self._ended = ""
        """Why it ended."""
        self._saved = 0
        """How many frames were written."""
        self._registered = registered

    def start(self, *, serving: bool = False, seconds: float = UNLIMITED) -> None:
        """Record each frame from now on, where this torch can. A service does so from its first trace on, if
        its entry has no frames, until that has needed ``seconds``; where all is recorded, it adds nothing."""
        if not serving:
            self.may_begin = False
            self._make_recorder()
        elif self.recorder is None:
            self.may_begin, self._seconds = seconds > 0, seconds
        elif self.is_tentative:
            self.is_tentative, self._seconds = False, seconds

    def begin_beside(self, *, is_first: bool) -> None:
        """Record beside the work of a service, if this is the first trace of a process without frames: for
        now, where the restore has not ended."""
        import torch

        if is_first and is_known(torch.__version__):
            self.is_tentative = not self.may_begin
            self._make_recorder(serving=True)
        self.may_begin = False

    def restored(self) -> None:
        """End a recording that began before the restore, which has installed frames or may record none."""
        if self.is_tentative:
            self.is_tentative = False
            self.stop(())

    def _make_recorder(self, *, serving: bool = False) -> None:
        from .record.recorder import Recorder

        recorder = Recorder(self._registered(), serving=serving)
        recorder.install_hooks()
        self.recorder = recorder

    def stop(self, kept: Collection[str] | None = None) -> None:
        """Record nothing from now on; of the files that were written keep these alone, or all."""
        self.may_begin, self.recorder = False, None
        self.written &= self.written if kept is None else set(kept)

    def is_on(self) -> bool:
        """Return whether frames are recorded now."""
        return self.recorder is not None

    def count(self) -> int:
        """Return how many frames this process has recorded and written."""
        return self._saved

    def trace(self, call: imports.Call, asked: FrameCall, backend: Any) -> Any:
        """Let Dynamo trace a frame, record it, and return Dynamo's result."""
        assert self.recorder is not None
        answer = self.recorder.trace(call, asked, backend)
        self._check_seconds(self.recorder)
        return answer

    def _check_seconds(self, recorder: Recorder) -> None:
        if recorder.serving and recorder.seconds > self._seconds:
            self._ended = f"recording needs more than {self._seconds:g} s (CACHESVC_RECORD_SECONDS)"
            _log.debug("no frame is recorded: %s", self._ended)
            self.stop(())

    def refused(self) -> Iterable[str]:
        """Yield why frames were not recorded, by function."""
        if self._ended:
            yield self._ended
        if self.recorder is not None:
            yield from (f"{name}: {why}" for name, why in self.recorder.refused.items())

    def save(self, root: Path) -> None:
        """Write what was recorded. A service that fails there, or that has compiled, records no more."""
        recorder = self.recorder
        if recorder is None:
            return
        if not recorder.serving:
            if name := recorder.save(root):
                self.written = {name}
            return
        self.restored()
        if not recorder.is_clean():
            self.stop()
        if self.recorder is None:
            return
        try:
            if name := recorder.save(root):
                self.written.add(name)
        except Exception:  # noqa: BLE001 - the entry stays as it is
            _log.debug("what was recorded cannot be written", exc_info=True)
            self.stop()
        self._saved = recorder.saved
        self._check_seconds(recorder)
