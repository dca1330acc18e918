"""Owns `Session`: the restore that one `attach` started, and its threads.

One background thread reads the configuration and runs `restore.session_restore`; it never imports torch.
The first compile waits for the thread once, at the entry of ``compile_fx``, for at most the deadline
(`compile_wait`). After that wait the cache folders belong to the compilers; a late restore fills only the
node store. A session raises nothing into a service unless CACHESVC_STRICT asks for errors.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ..environment.variables import is_switched_on
from ..hooks import logger
from ..wire.errors import CacheSvcError, Distrusted, Unsupported
from .attempt import Attempt
from .compile_wait import CompileWait
from .options import AttachOptions, demand_bound_keys

if TYPE_CHECKING:
    from ..bundle.pack import SourceFile
    from ..claims.claim import Claim
    from ..claims.restore_or_claim import ClaimedRestore
    from ..config.settings import Config
    from ..node.installed import InstalledRevision, RestoreResult
    from ..process.process import Process
    from ..publication.as_you_go import RightToPublish
    from ..ranks.agreement import Agreement
    from ..restore.request import NameRequest
    from ..restore.session_restore import SessionRestore
    from ..wire.names import Name

_log = logging.getLogger("cachesvc")

Status = Literal["waiting", "running", "restored", "stored", "failed", "off", "local"]
"""How far a session is. ``stored``: the restore came after the deadline and filled only the node store.
``off``: CACHESVC_MODE=off. ``local``: the session restores nothing, since its process compiles to be
captured."""


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
        self.right: RightToPublish | None = None
        """Whether this session publishes by itself; ``None`` where nobody asks for that."""
        self._status: Status = "waiting"
        self.restoring: SessionRestore | None = None
        """The restore of this session; ``None`` until the thread has begun it."""
        self._claimed_restore: ClaimedRestore | None = None
        self.restore_attempt = Attempt(functools.partial(self._run, self._restore))
        self._claim_attempt: Attempt | None = None
        """The second attempt, for the names that the first one missed."""
        self.waiting = CompileWait(self, process)

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
        return self.restore_attempt.over

    @property
    def claims(self) -> Mapping[Name, Claim]:
        """Return the claims that this session took, under which this process compiles and may publish."""
        return {} if self._claimed_restore is None else self._claimed_restore.claims

    @property
    def claims_now(self) -> bool:
        """Return whether the second attempt is under way, for what the restore missed."""
        return self._claim_attempt is not None and not self._claim_attempt.over

    @property
    def asks_by_key(self) -> bool:
        """Return whether this session may ask for a key that a compiler missed."""
        return self.restoring is not None and self.restoring.on_demand is not None

    @property
    def has_revisions(self) -> bool:
        """Return whether any revision was installed, including those that the canary took out again."""
        result = self.result
        return result is not None and bool(result.installed or result.unusable.distrusted)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the restore is over, at most ``timeout`` seconds; return whether it is over.

        With CACHESVC_STRICT=1 it raises the ``CacheSvcError`` that the restore ended with.
        """
        self.waiting.deadline.awaited.set()
        self.ensure_running()
        # Where calls run eagerly, nobody waits for what another process compiles.
        attempt = self.attempt if self.waiting.eager is None else self.restore_attempt
        over = attempt.wait(timeout)
        if over:
            self.raise_if_strict()
        return over

    def capture(self, whole: bool = False) -> list[SourceFile]:
        """Return the files that this process produced or used.

        ``whole``: return every file in the folders that a kind knows; for a process that began with empty
        folders, such as one of `warm`.
        """
        return self._process.files.capture(whole)

    def raise_if_strict(self) -> None:
        """Raise the error of the restore, if there is one and CACHESVC_STRICT asks for it."""
        strict = self.config.strict if self.config else is_switched_on("CACHESVC_STRICT")
        if strict and self.error is not None:
            raise self.error

    def ensure_running(self) -> None:
        """Arm the hooks and start the thread, unless the thread runs or the restore is over."""
        if self.attempt.running_or_over:
            return
        self._process.arm()
        with self._process.lock:
            if not self.attempt.running_or_over:
                self.attempt.start()

    def open_local(self, config: Config) -> None:
        """Prepare the folders without a restore: for a process that compiles to be captured.

        Raises as `Process.prepare` does.
        """
        from ..node.installed import RestoreResult

        self.config, self.result, self.waiting.over = config, RestoreResult(), True
        self._process.prepare(config, self.result)
        self._process.sweep_folders()
        self._status = "local"
        self.waiting.configured.set()
        self.restore_attempt.end()

    def begin_again(self) -> None:
        """Forget the parent's threads in a forked child; attempts that were not over can be started again."""
        self.waiting.begin_again(configured=self.waiting.configured.is_set() and self.ready)
        for attempt in (self.restore_attempt, self._claim_attempt):
            if attempt is not None:
                attempt.begin_again()
        if self.right is not None:
            self.right.begin_again()

    # For `Sessions`: what happens to a restored revision ----------------------------------------

    def drop(self, entry: InstalledRevision) -> None:
        """Remove a revision whose numbers the canary found wrong from the result of this session."""
        assert self.result is not None
        self.result.installed.remove(entry)
        self.result.unusable.distrusted.append(entry)
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

    # Attempts -----------------------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt:
        """Return the latest attempt."""
        return self._claim_attempt or self.restore_attempt

    def begin_claim(self) -> bool:
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
            self.waiting.explain()
            self._claim_attempt = Attempt(functools.partial(self._run, self._restore_or_claim))
            self._claim_attempt.start()
        return True

    # On the thread of an attempt ----------------------------------------------------------------

    def _run(self, restore: Callable[[Agreement], None]) -> None:
        self._status = "running"
        agreement: Agreement | None = None
        try:
            from ..ranks.agreement import Agreement

            agreement = Agreement(self._agreement_subject, self.waiting.deadline)
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
            self.waiting.configured.set()

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
        self.waiting.deadline.seconds = config.deadline
        self.waiting.configured.set()
        self.requests = name_requests_of(config, self.options.model)
        if config.mode == "off":
            self._status = "off"
            return
        demand_bound_keys(session.options for session in self._siblings)
        self.restoring = SessionRestore(config, self._process, self.result, lambda: not self.waiting.over)
        self._ask_right(config, self.restoring.supported)
        try:
            self.restoring.restore(self.requests, agreement)
        finally:
            self._status = self.result.status

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
        patience = self.waiting.patience
        self._claimed_restore = ClaimedRestore(config, patience, agreement.job(), label, publishes)
        try:
            restoring.restore_missed(self._claimed_restore.accept, agreement)
        finally:
            self._status = result.status

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
