"""Owns `MissedKeys`: has the sessions of a process bring what a compiler looked up and did not find.

The thread that compiles waits for a thread that asks the registry, within the deadline of its compile. After
a registry that failed, or did not answer in time, no key is asked for in this process any more. The ranks of
a job ask for none: they hit together or not at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..hooks import logger
from ..process.events import Listener
from ..ranks.job import this_job
from ..wire.errors import CacheSvcError
from .attempt import Attempt

if TYPE_CHECKING:
    from ..hooks.activity import Moment
    from ..node.installed import RestoreResult
    from ..outcome.judge import Report
    from ..process.process import Process
    from ..restore.on_demand import Fetched, OnDemand
    from .session import Session

_log = logging.getLogger("cachesvc")

_MOST_MISSES = 64
"""Keys in a row that no registry has, after which a process that left revisions out asks for no more: it
compiles what nobody has published."""
_MISSES_BEFORE_PAUSE = 16
"""Keys in a row that no registry has, after which a process that left nothing out asks for none for a while:
something may be published meanwhile."""
_PAUSE_SECONDS = 60.0
"""Seconds of that pause. After it, one more key that no registry has begins the next one."""
_LEAST_SHARE = 0.1
"""Share of a deadline that must be left for a question."""


class MissedKeys(Listener):
    """Brings the revisions that hold missed keys. Threads that compile at the same time share one request."""

    def __init__(self, process: Process, sessions: Sequence[Session]) -> None:
        self._process, self._sessions = process, sessions
        self._begin()

    def _begin(self) -> None:
        self._asking = threading.Lock()
        """Held by the thread that asks for all pending keys."""
        self._pending: dict[str, None] = {}
        self._absent: set[str] = set()
        """Keys that no registry has, for the rest of this process."""
        self._brought: dict[str, int] = {}
        """By key, how many revisions were installed for it."""
        self._misses = 0
        self._fruitless = 0.0
        """Seconds of the questions since the last one that brought something."""
        self._paused_until = 0.0
        self._over = False
        self._remembered: set[object] = set()

    def key_missed(self, key: str) -> bool:
        """Return whether files of this key were installed, so that the compiler looks again. Never raises."""
        if self._over or key in self._absent or time.monotonic() < self._paused_until:
            return False
        if this_job() is not None or not any(one.has_names() for _, one in self._on_demand()):
            return False
        deadline = self._deadline()
        left, begin = deadline - self._process.waited(), time.perf_counter()
        if left < _LEAST_SHARE * deadline:
            return False
        seen = self._brought.get(key, 0)
        self._pending[key] = None
        with self._process.at_look_up():
            if not self._asking.acquire(timeout=left):
                return False
            try:
                if self._brought.get(key, 0) == seen and key not in self._absent and not self._over:
                    self._ask(begin + left)
            finally:
                self._asking.release()
                seconds = self._process.output.seconds
                seconds["asked"] = seconds.get("asked", 0.0) + time.perf_counter() - begin
        fetched = self._brought.get(key, 0) > seen
        if fetched:  # what is used from now on is reported
            self._process.watch.start()
        return fetched

    def forked(self) -> None:
        """Begin again in a forked child, where no thread asks."""
        self._begin()

    def remember(self, report: Report, moment: Moment) -> None:
        """Remember on this node which entries this program used, if it was restored in part or asked for
        more; and, unless it ends, what the registry has now of names for which something was brought."""
        used = {use.revision for use in report.revisions if use.used}
        results = [session.result for session in self._sessions if session.result is not None]
        entries = sorted(
            {
                entry.manifest.entry
                for result in results
                for entry in result.installed
                if str(entry.revision) in used
            }
        )
        if entries and tuple(entries) not in self._remembered:
            self._remembered.add(tuple(entries))
            for session, on_demand in self._on_demand():
                if self._brought or (session.restoring is not None and session.restoring.remembers_used):
                    on_demand.remember(entries)
        if moment != "exit":
            for _, on_demand in self._on_demand():
                on_demand.refresh_answers()

    def _on_demand(self) -> Iterable[tuple[Session, OnDemand]]:
        for session in self._sessions:
            if session.ready and session.restoring is not None and session.restoring.on_demand is not None:
                yield session, session.restoring.on_demand

    def _deadline(self) -> float:
        """Return the seconds that a compile may wait for sessions, for the restore and for what it asks."""
        configs = [session.config for session, _ in self._on_demand() if session.config is not None]
        return max((config.deadline for config in configs), default=0.0)

    def _ask(self, deadline: float) -> None:
        """Ask for all pending keys on another thread, and wait for it until the deadline."""
        keys = list(self._pending)
        for key in keys:
            self._pending.pop(key, None)
        errors: list[BaseException] = []
        given_up, begin = threading.Event(), time.perf_counter()

        def work() -> None:
            try:
                for session, on_demand in tuple(self._on_demand()):
                    assert session.result is not None
                    fetched = on_demand.fetch_keys(keys, lambda: not given_up.is_set(), session.result)
                    if not given_up.is_set():
                        self._note(session, session.result, fetched)
            except Exception as error:  # noqa: BLE001 - whatever it is, the service compiles by itself
                errors.append(error)

        try:
            attempt = Attempt(work)
            attempt.start()
            in_time = attempt.wait(max(0.0, deadline - time.perf_counter()))
        except RuntimeError as error:  # no more threads, or the process ends
            in_time = True
            errors.append(error)
        given_up.set()
        if errors or not in_time:
            self._give_up(errors[0] if errors else None)
            return
        absent = [key for key in keys if not self._brought.get(key)]
        self._absent.update(absent)
        self._count(len(absent), len(absent) == len(keys), time.perf_counter() - begin)

    def _count(self, absent: int, fruitless: bool, seconds: float) -> None:
        """Count the keys that no registry has, and end or pause the questions after too many in a row; and
        after ones that took a whole deadline together."""
        self._misses = self._misses + absent if fruitless else 0
        self._fruitless = self._fruitless + seconds if fruitless else 0.0
        partial = any(one.restoring is not None and one.restoring.partial for one, _ in self._on_demand())
        if self._fruitless > self._deadline() or (partial and self._misses >= _MOST_MISSES):
            self._over = True
        elif not partial and self._misses >= _MISSES_BEFORE_PAUSE:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS

    def _note(self, session: Session, result: RestoreResult, fetched: Fetched) -> None:
        """Note what was installed, for the report and the log, and allow the compilers to use it."""
        installed = fetched.installed
        result.installed += installed
        for manifest in [one.manifest for one in installed] + [one.manifest for one in fetched.moved]:
            for key in manifest.graph_keys:
                self._brought[key] = self._brought.get(key, 0) + 1
                self._process.output.components.missed.pop(key, None)
        if installed:
            self._process.accept(installed)
            _log.info(
                "%s: %s brought for what is compiled now",
                session.label,
                ", ".join(str(entry.manifest.statement.target) for entry in installed),
            )

    def _give_up(self, error: BaseException | None) -> None:
        self._over = True
        reason = str(error) if isinstance(error, CacheSvcError) else f"{type(error).__name__}: {error}"
        if error is None:
            reason = "the registry did not answer within the deadline"
        for session, _ in self._on_demand():
            if error is None and session.restoring is not None:
                session.restoring.note_late()
            if session.result is not None:
                session.result.problems.append(f"{session.label}: not asked for more: {reason}")
            text = "%s: not asked for what is compiled now, nor for more: %s"
            logger.write(logging.WARNING, text, session.label, reason)
