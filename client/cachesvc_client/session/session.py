"""What `attach` starts: sessions, the threads that restore, the one bounded wait, fail-open.

One background thread per attach reads the configuration and runs `restore.name_restore`; it never imports
torch. The first compile waits for it once, at the entry of ``compile_fx``, for at most the deadline; after
that the cache folders are the compiler's alone and a late restore fills only the node store. Nothing here
raises into a service, unless CACHESVC_STRICT says so.

What `attach` costs is paid on the application's own thread at start-up, so this module imports
little at its top: configuration, records, cryptography and HTTP are imported by the thread.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..environment import releases
from ..graphs import keys
from ..hooks import counters, imports, logger
from ..hooks.activity import ActivityWatch, Moment
from ..wire.errors import CacheSvcError, Distrusted, InvalidRequest, Unsupported
from .deadline import Deadline
from .process import Process, hook_compiles, process

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..canary.withdraw import Watched
    from ..claims.restore_or_claim import ClaimedRestore
    from ..config import Config
    from ..node.installed import InstalledRevision, RestoreResult
    from ..outcome.judge import Report
    from ..outcome.log import OutcomeLog
    from ..outcome.send import Reporter
    from ..own_results.results import Keeper
    from ..ranks.agreement import Agreement
    from ..restore.name_restore import Restoring
    from ..restore.plan import NameRequest
    from ..wire.digest import Digest
    from ..wire.names import Name

_log = logging.getLogger("cachesvc")

_LONGEST_CONFIGURE = 10.0
"""Seconds that a compile waits for a thread that does not even get to read its deadline."""
_MAX_SAID = 8
"""Different things that a canary says, at most."""


class AttachOptions(NamedTuple):
    """What `attach` was called with; what is ``None`` comes from the configuration."""

    name: str | None = None
    bundle: str | None = None
    url: str | None = None
    token: str | None = None
    deadline: float | None = None
    fallback: tuple[str, ...] = ()
    model: Digest | None = None
    canary: bool | None = None

    @property
    def label(self) -> str:
        """What the log calls it."""
        given = self.name or self.bundle
        return given or os.environ.get("CACHESVC_NAME") or os.environ.get("CACHESVC_BUNDLE") or "(no name)"

    def over(self, config: Config) -> Config:
        """The configuration with this in the place of its own. Raises ``InvalidRequest``."""
        from dataclasses import replace

        from ..wire.names import Name, Tag

        try:
            names = (Name.parse(self.name),) if self.name else config.names
            fallback = tuple(Tag(tag) for tag in self.fallback) or config.tag_fallback
        except ValueError as error:
            raise InvalidRequest(f"attach: {error}") from None
        return replace(
            config,
            names=names,
            tag_fallback=fallback,
            bundle=Path(self.bundle) if self.bundle else config.bundle,
            url=self.url or config.url,
            token=self.token or config.token,
            deadline=config.deadline if self.deadline is None else float(self.deadline),
            canary=config.canary if self.canary is None else self.canary,
        )


class Session:
    """What one `attach` started. ``wait`` and ``status`` serve readiness probes."""

    def __init__(self, attached: Sessions, wanted: AttachOptions) -> None:
        self._attached = attached
        self._process = attached.process
        self.wanted = wanted
        self.config: Config | None = None
        self.wishes: tuple[NameRequest, ...] = ()
        self.restored: RestoreResult | None = None
        self.error: CacheSvcError | None = None
        self.turns: ClaimedRestore | None = None
        """Who compiles what was missed: where this process may publish, from its first compile on."""
        self.reporter: Reporter | None = None
        """Made when there is something to report."""
        self.waited = False
        """A compile has gone on without or after this restore: the cache folders are its alone."""
        self._configured = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = "waiting"
        self._deadline = Deadline()
        self._restoring: Restoring | None = None
        self._in_turn = False

    @property
    def label(self) -> str:
        """What the log calls it."""
        return ", ".join(str(wish.name) for wish in self.wishes) or self.wanted.label

    @property
    def status(self) -> str:
        """``waiting``, ``running``, ``restored``, ``stored`` (too late), ``failed``, ``off``, ``local``."""
        return self._step

    @property
    def ready(self) -> bool:
        """The restore is over, however it ended."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the restore is over, at most ``timeout`` seconds; answers whether it is.

        With CACHESVC_STRICT=1 it raises the ``CacheSvcError`` that the restore ended with.
        """
        self._deadline.awaited.set()
        self._ensure_running()
        over = self._done.wait(timeout)
        if over:
            self._raise_if_strict()
        return over

    def report(self) -> Report:
        """What this process compiled, tuned and used, and why."""
        return self._attached.report()

    def capture(self, whole: bool = False) -> list[SourceFile]:
        """The files that this process produced or used; ``whole``: all that the kinds know in the
        folders (for a process that had empty ones, such as `warm`'s)."""
        return self._process.capture(whole)

    # The compile's side ---------------------------------------------------------------------

    def _compile_begins(self, begin: float) -> None:
        """From now on the deadline runs (``time.perf_counter``)."""
        self._deadline.begin(begin)
        self._ensure_running()
        self._begin_turn()

    def _wait_for_compile(self, begin: float) -> None:
        """At most the deadline, counted from ``begin``."""
        self._configured.wait(_LONGEST_CONFIGURE)
        deadline = self.config.deadline if self.config else 0.0

        def over() -> bool:
            return self._done.wait(max(0.0, begin + deadline - time.perf_counter()))

        # A restore that ended while this waited for it may have missed; then there is a turn to take.
        if not over() or (self._begin_turn() and not over()):
            text = "%s: not restored after %.1f s, this process compiles"
            logger.write(logging.WARNING, text, self.label, deadline)
        self.waited = True

    def _raise_if_strict(self) -> None:
        strict = self.config.strict if self.config else _strict_by_variable()
        if strict and self.error is not None:
            raise self.error

    def _drop(self, entry: InstalledRevision) -> None:
        """What was restored is wrong."""
        assert self.restored is not None
        self.restored.installed.remove(entry)
        self.restored.distrusted.append(entry)
        self.error = Distrusted(f"{entry.manifest.statement.full_name}: the canary found wrong numbers")
        self._step = "failed"

    def _withdraw(self, reason: str) -> None:
        """Takes out what was restored: PyTorch could take it for what it is not. Never raises."""
        restored = self.restored
        if restored is None or not restored.installed:
            return
        self._fail(Unsupported(reason))
        while restored.installed:
            try:
                self._process.withdraw(restored.installed.pop())
            except Exception as error:  # noqa: BLE001 - the other revisions go all the same
                _log.warning("%s: a restored revision could not be taken out: %s", self.label, error)

    def _ensure_running(self) -> None:
        if self._running_or_over():
            return
        self._attached.arm()
        with self._process.lock:
            if not self._running_or_over():
                self._start()

    def _running_or_over(self) -> bool:
        return self._done.is_set() or (self._thread is not None and self._thread.is_alive())

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="cachesvc-restore", daemon=True)
        self._thread.start()

    def _begin_turn(self) -> bool:
        """Once, for what the restore missed: only who compiles asks who compiles. Answers whether it did."""
        with self._process.lock:
            missed = self._restoring is not None and self._restoring.missed
            if self._in_turn or not missed or not self._done.is_set():
                return False
            self._in_turn = True
            self.error, self._done = None, threading.Event()
            self._start()
        return True

    def _begin_again(self) -> None:
        """In a forked child: what was not over has no thread any more."""
        over = self._done.is_set()
        self._configured, self._done, self._thread = threading.Event(), threading.Event(), None
        self._deadline.begin_again()
        self.reporter = None
        if over:
            self._configured.set()
            self._done.set()

    # The thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        self._step = "running"
        agreement: Agreement | None = None
        try:
            from ..ranks.agreement import Agreement

            agreement = Agreement(self._attempt, self._deadline)
            if self._in_turn:
                self._restore_in_turn(agreement)
            else:
                self._restore(agreement)
        except Unsupported as error:
            self._attached.disarm()
            self._fail(error)
        except CacheSvcError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the service compiles by itself
            _log.debug("restore of %s", self.label, exc_info=True)
            # Python imports no module that makes threads while it ends.
            ending = not threading.main_thread().is_alive()
            self._fail(CacheSvcError(f"{type(error).__name__}: {error}"), say=not ending)
        finally:
            try:
                self._finish(agreement)
            except Exception:  # noqa: BLE001 - as above
                _log.debug("restore of %s", self.label, exc_info=True)
            self._configured.set()
            self._done.set()

    def _finish(self, agreement: Agreement | None) -> None:
        if self.error is not None and agreement is not None:
            agreement.withdraw(self.error, self.config.store if self.config else None)
        self._accept_kernels()
        # The modules that the exit needs are imported now, after a failure too: the process compiles then.
        # Python cannot import all of them while it ends; and importing dataclasses runs exec(), after which
        # it forgets that SIGINT ended it.
        from ..outcome import log, send  # noqa: F401

        if self._has_restored:
            self._attached.report()
            self._attached.watch.start()

    def _attempt(self) -> tuple[object, ...]:
        """What tells this restore from the others of a job, in each of its ranks."""
        return self.wanted.label, self._attached.round_of(self), self._in_turn

    def _fail(self, error: CacheSvcError, say: bool = True) -> None:
        self.error, self._step = error, "failed"
        level = logging.INFO if self._in_turn else logging.WARNING  # it was said before
        if self._attached.exiting or not say:
            level = logging.DEBUG  # the process ends before it compiles anything
        logger.write(level, "%s: not restored, this process compiles: %s", self.label, error)

    def _restore(self, agreement: Agreement) -> None:
        from ..config import Config
        from ..node.installed import RestoreResult
        from ..restore.name_restore import Restoring, wishes

        self.restored = RestoreResult()
        self.config = config = self.wanted.over(Config.read())
        self._deadline.seconds = config.deadline
        self._configured.set()
        self.wishes = wishes(config, self.wanted.model)
        if config.mode == "off":
            self._step = "off"
            return
        self._attached.demand_bound_keys()
        self._restoring = Restoring(config, self._process, self.restored, lambda: not self.waited)
        try:
            self._restoring.restore(self.wishes, agreement)
        finally:
            self._step = "restored" if self.restored.installed else "stored"

    def _restore_in_turn(self, agreement: Agreement) -> None:
        from ..claims.restore_or_claim import ClaimedRestore

        config, restoring, restored = self.config, self._restoring, self.restored
        assert config is not None and restoring is not None and restored is not None
        self.turns = ClaimedRestore(config, self._patience, agreement.job(), self.wanted.label)
        try:
            restoring.restore_in_turn(self.turns, agreement)
        finally:
            self._step = "restored" if restored.installed else "stored"

    def _patience(self) -> float:
        """Seconds that may still be waited for another process that compiles."""
        from ..ranks.job import this_job

        return 0.0 if self.waited else self._deadline.for_turn(alone=this_job() is None)

    def _accept_kernels(self) -> None:
        """Host kernels of what was installed may be loaded from now on."""
        done = self.restored
        if done is None or not done.installed:
            return
        if self.config is not None and self.config.hold_collector:
            self._process.collector.allow()
        self._process.accept(done.installed)
        _log.info(
            "%s: %d revisions, %d files restored in %.2f s, %d bytes moved",
            self.label,
            len(done.installed),
            sum(entry.files for entry in done.installed),
            sum(done.seconds.values()),
            done.moved,
        )

    # What it tells ----------------------------------------------------------------------------

    def _told(self) -> Iterable[str]:
        """How it ended, for a report."""
        if self.error is not None:
            yield f"{self.label}: not restored: {self.error}"
        elif not self.ready:
            yield f"{self.label}: still {self.status}"
        elif self.status == "stored":
            yield f"{self.label}: came after the deadline, stored on this node for the next start"
        if self.restored is not None:
            yield from self.restored.problems

    @property
    def _has_restored(self) -> bool:
        restored = self.restored
        return restored is not None and bool(restored.installed or restored.distrusted)

    def _report(self, report: Report, moment: Moment, deadline: float) -> None:
        """Tells the registry, if it may be told and offered something. Raises nothing of a registry."""
        config, restored, fingerprint = self.config, self.restored, self._process.fingerprint
        if config is None or restored is None or fingerprint is None or not self._has_restored:
            return
        if config.bundle is not None or not (config.report and config.url and config.token):
            return
        if self.reporter is None:
            from ..outcome.send import Reporter

            self.reporter = Reporter(config)
        theirs = [*restored.installed, *restored.distrusted]
        self.reporter.tell(report, theirs, fingerprint, moment, deadline)


class Sessions:
    """All sessions of this process, and what they do together: wait, be judged, report."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.sessions: list[Session] = []
        self.watch = ActivityWatch(process.activity, counters.compiling)
        self.watch.listeners += [self._on_activity, self._keep_own_results]
        self.exiting = False
        """Nothing is logged any more."""
        self._outcome: OutcomeLog | None = None
        self._keeper: Keeper | None = None
        self._canary_said: dict[str, None] = {}
        """Reasons, once each, in their order."""
        self._follows_process = False
        self._canary_uncalled: set[int] = set()
        self._canary_warned = False

    def arm(self) -> None:
        """Puts the hooks in place, once; cheap, imports nothing of the compilers. A torch that is refused
        gets none; the sessions' threads say why."""
        if self.process.armed:
            return
        refused = releases.refused()  # without the lock: it may wait for an import that waits for the lock
        with self.process.lock:
            if not self._follows_process:
                self._follows_process = True
                os.register_at_fork(after_in_child=self._after_fork)
                atexit.register(self._end)  # runs after what is registered later
                self.watch.at_exit()
                if os.environ.get("CACHESVC_LOG"):
                    from ..outcome.show_log import show

                    show(os.environ["CACHESVC_LOG"])
            if refused:
                self._raise_at_compile()
            elif not self.process.armed:
                self.process.arm(self.before_compile, self._watch, self.watch.compiled)

    def disarm(self) -> None:
        """Takes the hooks out: this torch is refused after all, with the GPU that is here."""
        with self.process.lock:
            self.process.disarm()
            self._raise_at_compile()

    def _raise_at_compile(self) -> None:
        """Has the first compile of a refused torch raise, where CACHESVC_STRICT asks for that."""
        if _strict_by_variable():
            hook_compiles(self._only_wait)

    def _only_wait(self, call: imports.Call) -> Any:
        self.before_compile()
        return call()

    def before_compile(self) -> None:
        """The one bounded wait of each session. Raises only under CACHESVC_STRICT."""
        waiting = [session for session in self.sessions if not session.waited]
        if not waiting:
            return
        begin = time.perf_counter()
        for session in waiting:
            session._compile_begins(begin)
        for session in waiting:
            session._wait_for_compile(begin)
        if self.process.armed and (reason := keys.missing_here()):
            for session in waiting:
                session._withdraw(reason)
        self.process.seconds["wait"] += time.perf_counter() - begin
        for session in waiting:
            session._raise_if_strict()

    def round_of(self, session: Session) -> int:
        """How often this process has attached to what ``session`` has: ranks do so equally often."""
        return sum(_same(one.wanted, session.wanted) for one in self.sessions)

    def demand_bound_keys(self) -> None:
        """Raises ``InvalidRequest`` if this process has attached to names of several namespaces, and trusts
        a key without saying for which."""
        from ..bundle.seal import demand_bound
        from ..config import Config

        config = Config.read()
        names: set[Name] = set()
        for session in self.sessions:
            with suppress(InvalidRequest):  # that session fails by itself
                names.update(session.wanted.over(config).names)
        demand_bound(config.trusted_keys, (name.namespace for name in names))

    def _after_fork(self) -> None:
        """In the child there is no background thread: what was under way begins again when needed."""
        self.process.begin_again()
        self.watch.begin_again()
        self._outcome = None
        for session in self.sessions:
            session._begin_again()

    # The canary ---------------------------------------------------------------------------

    def _watch(self, graph: Any) -> Callable[[Any], Any] | None:
        """Where ``canary`` is asked for and something was restored. Never raises."""
        if not any(self._under_canary()) or not hasattr(graph, "graph"):
            return None
        try:
            from ..canary.withdraw import Watch

            wrong = self._canary_said.setdefault
            watch = Watch(self.process, self._watched, wrong, self._not_compared, self._canary_uncalled)
            return watch.around(graph)
        except Exception as error:  # noqa: BLE001 - without it the process goes on as without a canary
            self._not_compared(f"{type(error).__name__}: {error}")
            return None

    def _under_canary(self) -> Iterable[tuple[Session, InstalledRevision]]:
        for session in self.sessions:
            if session.config is not None and session.config.canary and session.restored is not None:
                yield from ((session, entry) for entry in session.restored.installed)

    def _watched(self) -> Iterable[Watched]:
        from ..canary.withdraw import Watched

        for session, entry in self._under_canary():
            yield Watched(entry, functools.partial(session._drop, entry), session._raise_if_strict)

    def _not_compared(self, why: str) -> None:
        if len(self._canary_said) < _MAX_SAID:
            self._canary_said.setdefault(f"canary: not compared: {why}")
        _log.debug("canary: not compared: %s", why)

    def _never_called(self) -> Iterable[str]:
        """Says that a canary was asked for and does not work."""
        if self._canary_uncalled:
            yield (
                f"canary: {len(self._canary_uncalled)} restored graphs were not called through the canary: "
                "nothing of them was compared"
            )

    def _warn_of_uncalled(self) -> None:
        for text in self._never_called():
            if not self._canary_warned:
                logger.write(logging.WARNING, "%s", text)
            self._canary_warned = True

    # What happened ------------------------------------------------------------------------

    def report(self) -> Report:
        """See `outcome.judge.Report`."""
        from ..outcome.report import account

        results = [session.restored for session in self.sessions if session.restored is not None]
        told = (line for session in self.sessions for line in session._told())
        return account(self.process, results, told, [*self._canary_said, *self._never_called()])

    def send_report(self, timeout: float) -> bool:
        """See `cachesvc_client.send_report`."""
        self.watch.flush(timeout)
        return any(session.reporter is not None and session.reporter.told for session in self.sessions)

    def _keep_own_results(self, moment: Moment, deadline: float) -> None:
        """Keeps what was compiled here for the node's next start, after everybody was told of it."""
        from ..own_results.results import Keeper

        if self._keeper is None:
            self._keeper = Keeper(self.process)
        self._keeper(moment, deadline)

    def _on_activity(self, moment: Moment, deadline: float) -> None:
        """Says what the restore came to and tells the registries, on the watch's thread."""
        from ..outcome.log import OutcomeLog

        self._warn_of_uncalled()
        report = self.report()
        if self._outcome is None:
            self._outcome = OutcomeLog()
        names = [session.label for session in self.sessions if session._has_restored]
        self._outcome.say(report, ", ".join(names), moment)
        for session in self.sessions:
            session._report(report, moment, deadline)

    def _end(self) -> None:
        self.exiting = True


_attached: Sessions | None = None
_attached_lock = threading.Lock()


def attached() -> Sessions:
    """What this process has attached to; made at the first call."""
    global _attached
    with _attached_lock:
        if _attached is None:
            _attached = Sessions(process())
        return _attached


def open_session(wanted: AttachOptions, *, with_torch: bool = False) -> Session:
    """Arms the hooks and starts the restore. Never waits and never raises.

    ``with_torch``: does both only when this process begins to import torch, for an attach that reaches
    every interpreter of a job, most of which never will. The same again (a notebook that is run twice)
    answers the session that is there, unless its restore failed: then it is tried again.
    """
    state = attached()
    with state.process.lock:
        for session in state.sessions:
            if session.error is None and _same(session.wanted, wanted):
                break
        else:
            session = Session(state, wanted)
            state.sessions.append(session)
    if with_torch:
        imports.when_importing("torch", session._ensure_running)
    else:
        session._ensure_running()
    return session


def open_local(config: Config) -> Session:
    """Hooks and folders without anything to restore: for a process that compiles to be captured.

    Raises ``Unsupported`` for a torch that is refused, which has no hook in it then, and ``StorageFull`` if
    there is no node store to put a private folder into.
    """
    from ..node.installed import RestoreResult

    state = attached()
    state.arm()
    session = Session(state, AttachOptions())
    session.config, session.restored, session.waited = config, RestoreResult(), True
    try:
        state.process.prepare(config, session.restored)
    except Unsupported:
        state.disarm()
        raise
    session._step = "local"
    session._configured.set()
    session._done.set()
    with state.process.lock:
        state.sessions.append(session)
    return session


def _strict_by_variable() -> bool:
    """Answers what CACHESVC_STRICT says, before the configuration is read."""
    return os.environ.get("CACHESVC_STRICT") in ("1", "true")


def _same(one: AttachOptions, other: AttachOptions) -> bool:
    return (one.label.removesuffix(":latest"), one.url) == (other.label.removesuffix(":latest"), other.url)
