"""Owns `Session`: the restore that one `attach` started, its threads and its one bounded wait.

One background thread reads the configuration and runs `restore.session_restore`; it never imports torch.
The first compile waits for the thread once, at the entry of ``compile_fx``, for at most the deadline. After
that wait the cache folders belong to the compilers; a late restore fills only the node store. A session
raises nothing into a service unless CACHESVC_STRICT asks for errors.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ..environment.variables import is_switched_on
from ..hooks import logger
from ..hooks.activity import Moment
from ..ranks.deadline import Deadline
from ..wire.errors import (
    CacheSvcError,
    Distrusted,
    Incompatible,
    InvalidRequest,
    NotFound,
    Unsupported,
    Untrusted,
)
from .attempt import Attempt
from .options import AttachOptions

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..claims.claim import Claim
    from ..claims.restore_or_claim import ClaimedRestore
    from ..config.settings import Config
    from ..node.installed import InstalledRevision, RestoreResult
    from ..outcome.judge import Report
    from ..outcome.send import Reporter
    from ..process.process import Process
    from ..publication.as_you_go import RightToPublish
    from ..ranks.agreement import Agreement
    from ..restore.request import NameRequest
    from ..restore.session_restore import SessionRestore
    from ..wire.names import Name
    from ..wire.reports import ColdStart
    from .eager_calls import EagerCalls

_log = logging.getLogger("cachesvc")

Status = Literal["waiting", "running", "restored", "stored", "failed", "off", "local"]
"""How far a session is. ``stored``: the restore came after the deadline and filled only the node store.
``off``: CACHESVC_MODE=off. ``local``: the session restores nothing, since its process compiles to be
captured."""

_LONGEST_CONFIGURE = 10.0
"""Seconds that a compile waits, at most, for the thread to read the configuration and in it the deadline."""


class Session:
    """The restore that one `attach` started. ``wait`` and ``status`` serve readiness probes."""

    def __init__(self, process: Process, options: AttachOptions, siblings: Sequence[Session]) -> None:
        """``siblings``: the list of all sessions of the process, which grows."""
        self._process = process
        self._siblings = siblings
        self.options = options
        self.config: Config | None = None
        """The configuration with the options over it; ``None`` until the thread has read it."""
        self.requests: tuple[NameRequest, ...] = ()
        """The names to restore; empty until the thread has read the configuration."""
        self.result: RestoreResult | None = None
        """What was restored so far; ``None`` until the thread has begun."""
        self.error: CacheSvcError | None = None
        """The error with which the restore ended."""
        self.reporter: Reporter | None = None
        """The sender of reports to the registry; ``None`` until there is something to report."""
        self.waited = False
        """Whether a compile has ended its wait for this session. From then on nothing is installed."""
        self.right: RightToPublish | None = None
        """Whether this session publishes by itself; ``None`` where nobody asks for that."""
        self._status: Status = "waiting"
        self._deadline = Deadline()
        self._configured = threading.Event()
        """Set once the configuration, and in it the deadline, is known or cannot be read."""
        self.restoring: SessionRestore | None = None
        """The restore of this session; ``None`` until the thread has begun it."""
        self._claimed_restore: ClaimedRestore | None = None
        self._restore_attempt = Attempt(functools.partial(self._run, self._restore))
        self._claim_attempt: Attempt | None = None
        """The second attempt, for the names that the first one missed."""
        self._eager: EagerCalls | None = None
        """The calls that run without a compile; ``None`` where none was to."""
        self._wait_began: float | None = None
        """When a call began to wait for the restore (``time.perf_counter``) that was not over in time."""

    def __repr__(self) -> str:
        return f"<cachesvc session {self.label}: {self.status}>"

    @property
    def label(self) -> str:
        """Return the text that names this session in log lines."""
        return ", ".join(str(request.name) for request in self.requests) or self.options.label

    @property
    def status(self) -> Status:
        """Return how far this session is, see `Status`."""
        return self._status

    @property
    def ready(self) -> bool:
        """Return whether the restore is over, however it ended. Once true, it stays true."""
        return self._restore_attempt.over

    @property
    def claims(self) -> Mapping[Name, Claim]:
        """Return the claims that this session took, under which this process compiles and may publish."""
        return {} if self._claimed_restore is None else self._claimed_restore.claims

    @property
    def asks_by_key(self) -> bool:
        """Return whether this session may ask for a key that a compiler missed."""
        return self.restoring is not None and self.restoring.on_demand is not None

    @property
    def has_revisions(self) -> bool:
        """Return whether any revision was installed, including those that the canary took out again."""
        result = self.result
        return result is not None and bool(result.installed or result.distrusted)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the restore is over, at most ``timeout`` seconds; return whether it is over.

        With CACHESVC_STRICT=1 it raises the ``CacheSvcError`` that the restore ended with.
        """
        self._deadline.awaited.set()
        self.ensure_running()
        # Where calls run eagerly, nobody waits for what another process compiles.
        attempt = self._attempt if self._eager is None else self._restore_attempt
        over = attempt.wait(timeout)
        if over:
            self.raise_if_strict()
        return over

    def capture(self, whole: bool = False) -> list[SourceFile]:
        """Return the files that this process produced or used.

        ``whole``: return every file in the folders that a kind knows; for a process that began with empty
        folders, such as one of `warm`.
        """
        return self._process.capture(whole)

    # For `Sessions`: around a compile -----------------------------------------------------------

    def begin_compile(self, begin: float) -> None:
        """Start the deadline at ``begin`` (``time.perf_counter``), and the threads that are not running."""
        self._deadline.begin(begin)
        self.ensure_running()
        self._begin_claim()

    def wait_for_compile(self, begin: float) -> None:
        """Wait for the restore, at most the deadline, which counts from ``begin``, or from when a call began
        to wait for it."""
        begin = begin if self._wait_began is None else min(begin, self._wait_began)

        def over() -> bool:
            return self._attempt.wait(self.seconds_left(begin))

        # A restore that ended during this wait may have missed: then the claim comes now.
        if not over() or (self._begin_claim() and not over()):
            text = "%s: not restored after %.1f s, this process compiles"
            logger.write(logging.WARNING, text, self.label, self._deadline.seconds or 0.0)
            if self.restoring is not None:
                self.restoring.compile_goes_on()
        self.waited = True

    def runs_eagerly(self) -> bool:
        """Wait for the restore, at most the deadline; return whether calls run without a compile for now.

        They do from a restore that missed until the revision is installed, or nobody else compiles. The ranks
        of a job wait instead: they hit together. Raises nothing.
        """
        if self.waited or (self._eager is not None and self._eager.over):
            return False
        self.ensure_running()
        if self._eager is None and not self._begin_eagerly():
            return False
        eager, claim = self._eager, self._claim_attempt
        if eager is None or claim is None or claim.over:
            self._end_eagerly()
            return False
        eager.count()
        return True

    def _begin_eagerly(self) -> bool:
        """Wait for the restore; return whether it missed something that another process may compile."""
        from ..ranks.job import this_job
        from .eager_calls import EagerCalls

        begin = time.perf_counter()
        self._deadline.awaited.set()
        over = self._restore_attempt.wait(self.seconds_left(begin))
        self._process.seconds["wait"] += time.perf_counter() - begin
        if not over:
            self._wait_began = begin
        if not over or self.config is None or self.config.wait != "eager" or this_job() is not None:
            return False
        with self._process.lock:
            self._eager = self._eager or EagerCalls(self.label)
        self._begin_claim()
        return True

    def _end_eagerly(self) -> None:
        if self._eager is not None and not self._eager.over:
            self._eager.end(restored=self.has_revisions)
            if self._eager.calls:
                self._process.seconds["eager"] = self._eager.seconds

    def seconds_left(self, begin: float) -> float:
        """Return what is left of a deadline that began at ``begin``, once the configuration was read."""
        self._configured.wait(_LONGEST_CONFIGURE)
        deadline = self.config.deadline if self.config else 0.0
        return max(0.0, begin + deadline - time.perf_counter())

    def raise_if_strict(self) -> None:
        """Raise the error of the restore, if there is one and CACHESVC_STRICT asks for it."""
        strict = self.config.strict if self.config else is_switched_on("CACHESVC_STRICT")
        if strict and self.error is not None:
            raise self.error

    def ensure_running(self) -> None:
        """Arm the hooks and start the thread, unless the thread runs or the restore is over."""
        if self._attempt.running_or_over:
            return
        self._process.arm()
        with self._process.lock:
            if not self._attempt.running_or_over:
                self._attempt.start()

    def open_local(self, config: Config) -> None:
        """Prepare the folders without a restore: for a process that compiles to be captured.

        Raises as `Process.prepare` does.
        """
        from ..node.installed import RestoreResult

        self.config, self.result, self.waited = config, RestoreResult(), True
        self._process.prepare(config, self.result)
        self._process.sweep_folders()
        self._status = "local"
        self._configured.set()
        self._restore_attempt.end()

    def begin_again(self) -> None:
        """Forget the parent's threads in a forked child; attempts that were not over can be started again."""
        configured = self._configured.is_set() and self.ready
        self._configured = threading.Event()
        if configured:
            self._configured.set()
        for attempt in (self._restore_attempt, self._claim_attempt):
            if attempt is not None:
                attempt.begin_again()
        self._deadline.begin_again()
        self.reporter = None
        if self.right is not None:
            self.right.begin_again()

    # For `Sessions`: what happens to a restored revision, and its report ------------------------

    def drop(self, entry: InstalledRevision) -> None:
        """Remove a revision whose numbers the canary found wrong from the result of this session."""
        assert self.result is not None
        self.result.installed.remove(entry)
        self.result.distrusted.append(entry)
        self.error = Distrusted(f"{entry.manifest.statement.full_name}: the canary found wrong numbers")
        self._status = "failed"

    def withdraw(self, reason: str) -> None:
        """Take every restored revision out of the folders, since PyTorch could use it wrongly, for a
        ``reason`` that log and report say. Never raises."""
        result = self.result
        if self.restoring is not None:
            self.restoring.ask_no_more()
        if result is None or not result.installed:
            return
        self._fail(Unsupported(reason))
        while result.installed:
            try:
                self._process.withdraw(result.installed.pop())
            except Exception as error:  # noqa: BLE001 - the other revisions are taken out all the same
                _log.warning("%s: a restored revision could not be taken out: %s", self.label, error)

    def explain_end(self) -> Iterable[str]:
        """Yield the lines of a report that say how the restore ended."""
        end = "" if self.error is None else f"{self.label}: not restored: {self.error}"
        if end:
            yield end
        elif not self._attempt.over:
            yield f"{self.label}: still {self.status}"
        elif self.status == "stored":
            yield f"{self.label}: came after the deadline, stored on this node for the next start"
        problems = () if self.result is None else self.result.problems
        yield from (one for one in problems if one.removeprefix(f"{self.label}: ") not in end)

    def send_report(self, report: Report, moment: Moment, deadline: float) -> None:
        """Send ``report`` to the registry, if that is allowed, and the registry's revisions were installed or
        this start compiled for want of them.

        Raises nothing of a registry.
        """
        config, result, fingerprint = self.config, self.result, self._process.fingerprint
        if config is None or result is None or fingerprint is None:
            return
        if config.bundle is not None or not (config.report and config.url and config.token):
            return
        revisions = [*result.installed, *result.distrusted, *result.withdrawn]
        cold = None if revisions else self._cold_start(report, config)
        if not revisions and cold is None:
            return
        if self.reporter is None:
            from ..outcome.send import Reporter

            self.reporter = Reporter(config)
        self.reporter.send_changes(report, revisions, fingerprint, moment, deadline, cold)

    def _cold_start(self, report: Report, config: Config) -> ColdStart | None:
        """Return what this session wanted and the registry did not have; ``None`` if nothing was compiled, or
        if the registry did not answer: a start without it is not cold for want of an entry."""
        answered = self.error is None or isinstance(self.error, (NotFound, Incompatible, Untrusted))
        if report.observed.clean or not self.requests or not self.ready or not answered:
            return None
        if config.mode == "off" or self.status == "stored" or (self.result is not None and self.result.more):
            return None
        from ..outcome.send import cold_start

        names = [request.name for request in self.requests]
        return cold_start(names, config.lane, self._process.models)

    # Attempts -----------------------------------------------------------------------------------

    @property
    def _attempt(self) -> Attempt:
        """Return the latest attempt."""
        return self._claim_attempt or self._restore_attempt

    def _begin_claim(self) -> bool:
        """Start the claim attempt for the names that the restore missed; return whether this call started it.

        Only a process that compiles and publishes claims: the attempt begins with the first compile. Nor does
        one that compiles whatever others do.
        """
        if self.config is not None and self.config.wait == "compile":
            return False
        with self._process.lock:
            missed = self.restoring is not None and self.restoring.missed
            if self._claim_attempt is not None or not missed or not self.ready or self.right is None:
                return False
            self.error = None
            if self.config is not None and self.config.wait == "eager" and self._eager is None:
                from .eager_calls import explain_wait

                explain_wait(self.label, (state.not_eager() for state in self._process.kinds.values()))
            self._claim_attempt = Attempt(functools.partial(self._run, self._restore_or_claim))
            self._claim_attempt.start()
        return True

    # On the thread of an attempt ----------------------------------------------------------------

    def _run(self, restore: Callable[[Agreement], None]) -> None:
        self._status = "running"
        agreement: Agreement | None = None
        try:
            from ..ranks.agreement import Agreement

            agreement = Agreement(self._agreement_subject, self._deadline)
            restore(agreement)
        except Unsupported as error:
            self._process.disarm()
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

    def _finish(self, agreement: Agreement | None) -> None:
        if self.error is not None and agreement is not None:
            agreement.withdraw(self.error, self.config.store if self.config else None)
        self._accept_kernels()
        self._process.events.restore_ended()
        self._process.sweep_folders()

    def _agreement_subject(self) -> tuple[object, ...]:
        """Return what distinguishes this attempt from the others of a job, the same in each of its ranks."""
        # Ranks attach to the same target equally often.
        number = sum(session.options.same_target(self.options) for session in self._siblings)
        return self.options.label, number, self._claim_attempt is not None

    def _fail(self, error: CacheSvcError, say: bool = True) -> None:
        self.error, self._status = error, "failed"
        # The failure of a claim attempt is the second line about the same names.
        level = logging.INFO if self._claim_attempt is not None or error.quiet else logging.WARNING
        if self._process.exiting or not say:
            level = logging.DEBUG  # the process ends before it compiles anything
        facts = {"event": "not_restored", "names": self.label.split(", "), "reasons": [str(error)]}
        logger.write(level, "%s: not restored, this process compiles: %s", self.label, error, facts=facts)

    def _restore(self, agreement: Agreement) -> None:
        from ..config.settings import Config
        from ..node.installed import RestoreResult
        from ..publication.as_you_go import with_lane
        from ..restore.session_restore import SessionRestore, name_requests_of

        self.result = RestoreResult()
        self.config = config = with_lane(self.options.over(Config.read()))
        self._deadline.seconds = config.deadline
        self._configured.set()
        self.requests = name_requests_of(config, self.options.model)
        if config.mode == "off":
            self._status = "off"
            return
        self._demand_bound_keys()
        self.restoring = SessionRestore(config, self._process, self.result, lambda: not self.waited)
        self._ask_right(config, self.restoring.supported)
        try:
            self.restoring.restore(self.requests, agreement)
        finally:
            self._status = self.result.status

    def _demand_bound_keys(self) -> None:
        """Raise ``InvalidRequest`` if this process has attached to names of several namespaces, and trusts a
        key without saying for which."""
        from ..bundle.seal import require_bound_keys
        from ..config.settings import Config

        config = Config.read()
        names: set[Name] = set()
        for session in self._siblings:
            with suppress(InvalidRequest):  # that session fails by itself
                names.update(session.options.over(config).names)
        require_bound_keys(config.trusted_keys, (name.namespace for name in names))

    def _ask_right(self, config: Config, supported: bool) -> None:
        """Ask, beside the restore, whether this session may publish by itself, if it is to."""
        from ..publication.as_you_go import RightToPublish, publishes_by_itself
        from ..ranks.job import signs

        if publishes_by_itself(config):
            names = [request.name for request in self.requests]
            self.right = RightToPublish(config, names, self.label, leads=signs(), supported=supported)
            with suppress(RuntimeError):  # no more threads: whoever needs the answer asks
                threading.Thread(target=self.right.ask, name="cachesvc-right", daemon=True).start()

    def _restore_or_claim(self, agreement: Agreement) -> None:
        from ..claims.restore_or_claim import ClaimedRestore

        config, restoring, result = self.config, self.restoring, self.result
        assert config is not None and restoring is not None and result is not None
        publishes, label = self.right is not None and self.right.ask(), self.options.label
        self._claimed_restore = ClaimedRestore(config, self._patience, agreement.job(), label, publishes)
        try:
            restoring.restore_missed(self._claimed_restore.accept, agreement)
        finally:
            self._status = result.status

    def _patience(self) -> float:
        """Return the seconds that this session may still wait for another process that compiles."""
        from ..ranks.job import this_job

        if self.waited:
            return 0.0
        if self._eager is not None and not self._deadline.began:
            return self._eager.patience
        return self._deadline.for_claim(alone=this_job() is None)

    def _accept_kernels(self) -> None:
        """Allow the compilers to use what was installed, and log what was restored and what was wrong."""
        result = self.result
        while result is not None and result.warnings:  # of this attempt; a second one has its own
            logger.write(logging.WARNING, "%s", result.warnings.pop(0))
        if result is None or not (result.installed or result.more):
            return
        if self.config and self.config.hold_collector:
            self._process.collector.allow()
        self._process.accept(result.installed)
        from ..outcome.log import log_restored

        log_restored(self.label, result, self._process.support_text)
