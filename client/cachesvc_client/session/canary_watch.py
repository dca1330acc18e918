"""Owns `CanaryWatch`: the canary of a process, over all its sessions, and what it says in reports.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..environment.variables import CanarySetting
from ..hooks import logger
from ..process.events import Listener
from ..process.process import Process
from .session import Session

if TYPE_CHECKING:
    from ..canary.comparisons import Comparisons
    from ..canary.withdraw import Canary, WatchedRevision
    from ..hooks.activity import Moment
    from ..kinds.kind import Comparison
    from ..node.installed import InstalledRevision

_log = logging.getLogger("cachesvc")

_DRAW_BYTES = 8
_MOST_LINES = 8
"""How many different lines of the canary a report holds, at most."""


class CanaryWatch(Listener):
    """Decides what a canary compares in this process.

    A start decides once whether it is one of a sample, by its draw.
    """

    def __init__(
        self,
        process: Process,
        sessions: Sequence[Session],
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """``sessions``: the list of the sessions, which grows. ``random`` returns so many random bytes."""
        self._process, self._sessions = process, sessions
        self._lines: dict[str, None] = {}
        """What the canary says in reports: each line once, in the order of first use."""
        self._uncalled: set[object] = set()
        """An object for each restored function that was not called through the canary."""
        self._warned = False
        """Whether the log says that the canary was not called."""
        self._random = random
        self._drawn: int | None = None
        self._is_decided = False
        self._comparisons: Comparisons | None = None

    def armed(self) -> None:
        """Draw, once: before a fork, so that the children take part alike."""
        if self._drawn is None:
            self._drawn = int.from_bytes(self._random(_DRAW_BYTES), "big")

    def around_graph(self, graph: Any) -> Callable[[Any], Any] | None:
        """Return what the canary puts around a compiled graph; ``None`` where it watches nothing.

        Never raises.
        """
        if not (self._may_come() or any(self._under_canary())) or not hasattr(graph, "graph"):
            return None
        try:
            return self._canary().around(graph)
        except Exception as error:  # noqa: BLE001 - without it the process goes on as without a canary
            self._skip(f"{type(error).__name__}: {error}")
            return None

    def _may_come(self) -> bool:
        """Return whether revisions that the canary watches may still be restored."""
        asks = any(session.asks_by_key for session in self._sessions)
        return asks and any(self._runs_in(session) for session in self._sessions)

    def around_file(self, kind: str, path: str) -> Comparison | None:
        """Return what the canary does with the compiled graphs of a restored file; ``None`` where it watches
        no revision that has the file.

        Where each start is compared, an error reaches the kind, which does not use the file then.
        """
        try:
            return self._canary().around_recorded(kind, path) if any(self._under_canary()) else None
        except Exception as error:
            if not self._is_beside():
                raise
            self._skip(f"{type(error).__name__}: {error}")
            return None

    def _canary(self) -> Canary:
        from ..canary.withdraw import Canary

        comparisons = self._beside() if self._is_beside() else None
        return Canary(self._process, self._watched, self._note_wrong, self._skip, self._uncalled, comparisons)

    def _beside(self) -> Comparisons:
        from ..canary.comparisons import Comparisons

        if self._comparisons is None:
            self._comparisons = Comparisons()
            logger.write(
                logging.INFO,
                "canary: first outputs of this start are compared with eager, beside the service",
            )
        return self._comparisons

    def _is_beside(self) -> bool:
        """Return whether all sessions with a canary have one of a sample: the stricter one decides."""
        return all(setting.beside for setting in map(_setting_of, self._sessions) if setting.one_of)

    def _runs_in(self, session: Session) -> bool:
        """Return whether the canary watches the revisions of a session in this start."""
        setting = _setting_of(session)
        if setting.one_of <= 1:
            return bool(setting.one_of)
        from ..canary.sampling import is_sampled

        return is_sampled(setting, self._draw_of_start())

    def _draw_of_start(self) -> int:
        """Return the draw of this start; that of its job for a rank, as far as that is known at the first
        question. It changes no more."""
        from ..canary.sampling import draw_of_job
        from ..ranks.job import this_job

        if not self._is_decided:
            job, self._is_decided = this_job(), True
            if job is not None:
                self._drawn = draw_of_job(job)
        self.armed()
        assert self._drawn is not None
        return self._drawn

    def _under_canary(self) -> Iterable[tuple[Session, InstalledRevision]]:
        for session in self._sessions:
            if session.result is not None and self._runs_in(session):
                yield from ((session, entry) for entry in session.result.installed)

    def _watched(self) -> Iterable[WatchedRevision]:
        from ..canary.withdraw import WatchedRevision

        for session, entry in self._under_canary():
            yield WatchedRevision(entry, functools.partial(session.drop, entry), session.raise_if_strict)

    # What it says -----------------------------------------------------------------------------------

    def lines(self, moment: Moment | None = None) -> list[str]:
        """Return the lines of a report."""
        return [*self._lines, *self._uncalled_lines(moment)]

    def warn_of_uncalled(self, moment: Moment) -> None:
        """Warn once where restored graphs do not call the canary."""
        for text in self._uncalled_lines(moment):
            if not self._warned:
                logger.write(logging.WARNING, "%s", text)
            self._warned = True

    def _uncalled_lines(self, moment: Moment | None) -> Iterable[str]:
        """Yield a line where a canary was asked for and restored graphs do not call it. At the moment
        *compiled* none: the first call of that graph follows."""
        if self._uncalled and moment != "compiled":
            yield (
                f"canary: {len(self._uncalled)} restored graphs were not called through the canary: "
                "nothing of them was compared"
            )

    def _note_wrong(self, text: str) -> None:
        self._lines.setdefault(text)
        self._process.output.wrong_numbers += 1
        self._process.watch.compiled()

    def _skip(self, why: str) -> None:
        if len(self._lines) < _MOST_LINES:
            self._lines.setdefault(f"canary: not compared: {why}")
        _log.debug("canary: not compared: %s", why)


def _setting_of(session: Session) -> CanarySetting:
    return session.config.canary if session.config is not None else CanarySetting()
