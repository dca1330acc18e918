"""Threads, deadline, hooks, fail-open: the process-wide state behind `attach`.

One background thread per attach reads the configuration and runs `restore`; it never imports torch. The
first compile waits for it once, at the entry of ``compile_fx``, for at most the deadline; after that the
cache folders are the compiler's alone and a late restore fills only the node store. Nothing here raises
into a service, unless CACHESVC_STRICT says so.

What `attach` costs is paid on the application's own thread at start-up, so this module imports
little at its top: configuration, records, cryptography and HTTP are imported by the thread.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import importhook, kinds, observe
from .collector import Collector
from .kinds import components, operators
from .wire.errors import (
    CacheSvcError,
    Incompatible,
    InvalidRequest,
    NotFound,
    StorageFull,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from .bundle.pack import SourceFile
    from .canary import Trial
    from .claiming import Turns
    from .config import Config
    from .kinds.asked import Asked
    from .node.job import Round
    from .node.store import NodeStore
    from .ranks import Job
    from .remote import Remote
    from .reporting import Reporter
    from .restore import Held, Installed, Means, Restored, Wish
    from .usefulness import KeyDifference, Report, RevisionUse
    from .wire.digest import Digest
    from .wire.factors import Difference, Facts, Fingerprint
    from .wire.keyfacts import KeyFacts

_log = logging.getLogger("cachesvc")

_LONGEST_CONFIGURE = 10.0
"""Seconds that a compile waits for a thread that does not even get to read its deadline."""
_AGREE_SHARE = 0.6
"""Of the deadline: until then the ranks of a job must have agreed; the rest is for their installs."""
_TURN_SHARE = 0.9
"""Of the deadline: so long the first compile waits for another process that compiles the same. What is left
is for the restore of what that one published."""
_RANKS_TURN_SHARE = 0.5
"""The same, where ranks have to agree afterwards."""
_ASK_SECONDS = (0.01, 0.25)
"""Between two looks for the other ranks' votes: while a compile waits, and otherwise."""
_MAX_SAID = 8
"""Different things that a canary says, at most."""


class Wanted(NamedTuple):
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


class Session:
    """What one `attach` started. ``wait`` and ``status`` serve readiness probes."""

    def __init__(self, process: _Process, wanted: Wanted) -> None:
        self._process = process
        self.wanted = wanted
        self.config: Config | None = None
        self.wishes: tuple[Wish, ...] = ()
        self.restored: Restored | None = None
        self.error: CacheSvcError | None = None
        self.turns: Turns | None = None
        """Who compiles what was missed: where this process may publish, from its first compile on."""
        self._in_turn = False
        self.waited = False
        """A compile has gone on without or after this restore: the cache folders are its alone."""
        self._configured = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = "waiting"
        self._awaited = threading.Event()
        """Somebody waits: what is not known of this process's rank by now has to do."""
        self._compile_began: float | None = None
        self._voted = False
        self._means: Means | None = None
        self._missed: tuple[Wish, ...] = ()
        """What nothing fits, and this process may publish."""

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
        self._awaited.set()
        self._ensure_running()
        over = self._done.wait(timeout)
        if over:
            self._raise_if_strict()
        return over

    def report(self) -> Report:
        """What this process compiled, tuned and used, and why."""
        return self._process.report()

    def capture(self, whole: bool = False) -> list[SourceFile]:
        """The files that this process produced or used; ``whole``: all that the kinds know in the
        folders (for a process that had empty ones, such as `warm`'s)."""
        return self._process.capture(whole)

    # The compile's side ---------------------------------------------------------------------

    def _compile_begins(self, begin: float) -> None:
        """From now on the deadline runs (``time.perf_counter``)."""
        self._compile_began = begin
        self._awaited.set()
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
            _log.warning("%s: not restored after %.1f s, this process compiles", self.label, deadline)
        self.waited = True

    def _raise_if_strict(self) -> None:
        strict = self.config.strict if self.config else os.environ.get("CACHESVC_STRICT") in ("1", "true")
        if strict and self.error is not None:
            raise self.error

    def _ensure_running(self) -> None:
        with self._process.lock:
            if self._done.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="cachesvc-restore", daemon=True)
        self._thread.start()

    def _begin_turn(self) -> bool:
        """Once, for what the restore missed: only who compiles asks who compiles. Answers whether it did."""
        with self._process.lock:
            if self._in_turn or not self._missed or not self._done.is_set():
                return False
            self._in_turn = True
            self.error, self._voted, self._done = None, False, threading.Event()
            self._start()
        return True

    def _begin_again(self) -> None:
        """In a forked child: what was not over has no thread any more."""
        over = self._done.is_set()
        self._configured, self._done, self._thread = threading.Event(), threading.Event(), None
        self._awaited, self._compile_began, self._voted = threading.Event(), None, False
        if over:
            self._configured.set()
            self._done.set()

    # The thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        self._step = "running"
        try:
            if self._in_turn:
                self._restore_in_turn()
            else:
                self._restore()
        except CacheSvcError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the service compiles by itself
            _log.debug("restore of %s", self.label, exc_info=True)
            self._fail(CacheSvcError(f"{type(error).__name__}: {error}"))
        finally:
            if self.error is not None:
                self._withdraw(self.error)
            self._process.accept_kernels(self)
            self._process.report_later()
            self._configured.set()
            self._done.set()

    def _fail(self, error: CacheSvcError) -> None:
        self.error, self._step = error, "failed"
        level = logging.INFO if self._in_turn else logging.WARNING  # it was said before
        _log.log(level, "%s: not restored, this process compiles: %s", self.label, error)

    def _configure(self) -> Config:
        from dataclasses import replace

        from .config import Config
        from .restore import Wish
        from .wire.names import Name, Tag

        wanted, config = self.wanted, Config.read()
        try:
            names = (Name.parse(wanted.name),) if wanted.name else config.names
            fallback = tuple(Tag(tag) for tag in wanted.fallback) or config.tag_fallback
        except ValueError as error:
            raise InvalidRequest(f"attach: {error}") from None
        self.config = config = replace(
            config,
            bundle=Path(wanted.bundle) if wanted.bundle else config.bundle,
            url=wanted.url or config.url,
            token=wanted.token or config.token,
            deadline=config.deadline if wanted.deadline is None else float(wanted.deadline),
            canary=config.canary if wanted.canary is None else wanted.canary,
        )
        self._configured.set()
        if config.mode != "off" and config.bundle is None:
            if not names:
                raise InvalidRequest("attach: no name", "give one, or set CACHESVC_NAME or CACHESVC_BUNDLE")
            if not config.url:
                raise InvalidRequest("attach: no registry", "run cachesvc login, or set CACHESVC_URL")
            self.wishes = tuple(Wish(name, fallback, config.lane, wanted.model) for name in names)
        return config

    def _restore(self) -> None:
        from .ranks import may_become_rank, this_job
        from .restore import Means, Restored

        self.restored = Restored()
        config = self._configure()
        if config.mode == "off":
            self._step = "off"
            return
        store, fingerprint = self._process.prepare(config, self.restored)
        self._means = means = Means(
            store=store,
            trusted=config.trusted_keys,
            fingerprint=fingerprint,
            rules=kinds.RULES,
            roots=self._process.folders.roots,
            may_install=lambda: not self.waited,
            held=[] if this_job() is not None or may_become_rank() else None,
        )
        try:
            self._restore_with(config, means, self.restored)
        finally:
            self._step = "restored" if self.restored.installed else "stored"

    def _restore_in_turn(self) -> None:
        """What was missed, once more: another process may compile and publish it while this one waits."""
        from dataclasses import replace

        from .claiming import Turns

        config, means, restored = self.config, self._means, self.restored
        assert config is not None and means is not None and restored is not None
        means = replace(means, held=None if means.held is None else [])
        self.turns = Turns(config, self._patience, self._job(), self.wanted.label)
        try:
            self._restore_wishes(self._missed, self.turns.restore, config, means, restored)
        finally:
            self._step = "restored" if restored.installed else "stored"

    def _restore_with(self, config: Config, means: Means, restored: Restored) -> None:
        from .restore import restore, restore_files

        if config.bundle is not None:
            restore_files(_bundles(config.bundle), means, restored)
            self._install_held(means, [])
            return
        self._restore_wishes(self.wishes, restore, config, means, restored)

    def _restore_wishes(
        self,
        wishes: Iterable[Wish],
        restore: Callable[[Wish, Remote, Means, Restored], None],
        config: Config,
        means: Means,
        restored: Restored,
    ) -> None:
        from .remote import Remote

        failures: list[CacheSvcError] = []
        missed: list[Wish] = []
        # Half of what the compile waits, so that a hung registry leaves time for the node's last answer.
        seconds = min(10.0, max(0.2, config.deadline / 2))
        with Remote(config.url or "", config.token, timeout=seconds) as remote:
            for wish in wishes:
                try:
                    restore(wish, remote, means, restored)
                except CacheSvcError as error:
                    failures.append(error)
                    if isinstance(error, (NotFound, Incompatible)):
                        missed.append(wish)
            self._install_held(means, failures)
        if config.mode == "readwrite" and config.token:
            self._missed = tuple(missed)
        if failures:
            raise failures[0]

    # The other ranks of a job ---------------------------------------------------------------

    def _install_held(self, means: Means, failures: list[CacheSvcError]) -> None:
        """Installs what was put on this node: if all ranks on it can do the same, else none of them does.

        Raises ``Unavailable`` or ``Incompatible`` then. What an install raises is added to ``failures``.
        """
        if means.held is None:
            return
        job = self._job()
        if job is not None:
            # What all ranks lack alike keeps none of them from the rest.
            nothing = str(failures[0]) if failures and not means.held else ""
            self._agree(job, means.store, means.held, nothing)
        for held in means.held:
            try:
                held.install(job.rank if job else None)
            except CacheSvcError as error:
                failures.append(error)

    def _job(self) -> Job | None:
        """The job, once it is certain: some workers are told their rank later, but before they compile."""
        from .ranks import may_become_rank, this_job

        while this_job() is None and may_become_rank() and not self._awaited.wait(_ASK_SECONDS[1]):
            pass
        return this_job()

    def _agree(self, job: Job, store: NodeStore, held: Sequence[Held], problem: str) -> None:
        """Votes and waits for the others: on this thread, and at most until a compile has waited its share.
        Raises ``Unavailable`` or ``Incompatible`` if they do not agree."""
        from .node.job import wait_for
        from .ranks import misfit

        misfits = [text for one in held if (text := misfit(one.manifest, job))]
        try:
            round_ = self._vote(job, store, held, problem or (misfits[0] if misfits else ""))
            if misfits:
                raise Incompatible(misfits[0], f"warm with {job.world} ranks")
            if round_ is None or problem:
                return
            outcome = wait_for(round_, self._time_is_up, self._pause)
        except OSError as error:
            raise StorageFull(f"node store {store.root}: {error.strerror or error}") from error
        if not outcome.agreed:
            raise Unavailable(f"the ranks of this job install all or nothing: {outcome.why}")

    def _vote(self, job: Job, store: NodeStore, held: Sequence[Held], problem: str) -> Round | None:
        """``None`` where it is not known who else is on this node. Raises ``StorageFull``."""
        from .node.job import Round
        from .wire.codec import canonical
        from .wire.digest import Digest

        self._voted = True
        if not job.here:
            return None
        said = [job.key, self.wanted.label, self._process.round_of(self), self._in_turn]
        key = Digest.of(canonical(said))
        round_ = Round(store.job(key), job.local, job.here)
        round_.vote(sorted(str(one.revision) for one in held), problem)
        return round_

    def _withdraw(self, error: CacheSvcError) -> None:
        """Tells the other ranks of a restore that failed before it came to a vote, so that none waits."""
        from .node.store import NodeStore, default_root
        from .ranks import this_job

        job = this_job()
        if job is not None and not self._voted:
            with suppress(CacheSvcError, OSError):
                root = self.config.store if self.config else None
                self._vote(job, NodeStore(root or default_root()), (), str(error))

    def _patience(self) -> float:
        """Seconds that may still be waited for another process that compiles."""
        from .ranks import this_job

        began, config = self._compile_began, self.config
        if began is None or config is None or self.waited:
            return 0.0
        share = _TURN_SHARE if this_job() is None else _RANKS_TURN_SHARE
        return began + share * config.deadline - time.perf_counter()

    def _time_is_up(self) -> bool:
        began, config = self._compile_began, self.config
        if began is None or config is None:
            return False
        return time.perf_counter() > began + _AGREE_SHARE * config.deadline

    def _pause(self) -> None:
        if self._awaited.wait(_ASK_SECONDS[1]):
            time.sleep(_ASK_SECONDS[0])


class _Process:
    """The state of this process: one set of folders and hooks, any number of sessions."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sessions: list[Session] = []
        self.kernels = kinds.inductor.HostKernels()
        self.triton = kinds.triton.Recorded()
        self.components = components.Recorder()
        self.observer: observe.Observer | None = None
        self.models: list[Digest] = []
        self._compiled_before = _graphs_compiled_already()
        self.folders = kinds.Folders(compiled_already=self._compiled_before > 0)
        self._fingerprint: Fingerprint | None = None
        self._store: NodeStore | None = None
        self._canary_said: dict[str, None] = {}
        """Reasons, once each, in their order."""
        self._seconds = {"wait": 0.0, "compile": 0.0}
        self.reporter: Reporter | None = None
        self.collector = Collector()
        self._depth = threading.local()

    @functools.cached_property
    def asked(self) -> Asked:
        """What the compiles of this process were asked for; made when there is one."""
        from .kinds.asked import Asked

        return Asked()

    # Hooks --------------------------------------------------------------------------------

    def arm(self) -> None:
        """Puts the hooks in place, once; cheap, imports nothing of the compilers."""
        with self.lock:
            if self.observer is not None:
                return
            self.observer = observe.start()
            kinds.inductor.install_hooks(self.kernels)
            components.install_hooks(self.components)
            operators.install_hooks()
            self.collector.install_hooks()
            kinds.triton.install_hooks(self.triton, self.before_compile, self._launched)
            importhook.when_imported("torch._inductor.compile_fx", self._hook_compile_fx)
            os.register_at_fork(after_in_child=self._after_fork)
            atexit.register(self._say_how_it_was)

    def _hook_compile_fx(self, module: ModuleType) -> None:
        if not importhook.wrap(module, "compile_fx", self._around_compile_fx):
            _log.warning("this torch has no compile_fx where it is expected: no compile will wait")

    def _around_compile_fx(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile_fx(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._depth, "inside", False):
                return original(*args, **kwargs)
            self.before_compile()
            trial = self._trial(args[0] if args else kwargs.get("model_"))
            self._depth.inside = True
            graph = self.asked.note(*args, **kwargs)
            compiled_before = observe.counts["graphs_compiled"]
            begin = time.perf_counter()
            try:
                compiled = original(*args, **kwargs)
                return compiled if trial is None else trial.watch(compiled)
            finally:
                self._depth.inside = False
                self._seconds["compile"] += time.perf_counter() - begin
                graph.compiled = observe.counts["graphs_compiled"] > compiled_before
                self.report_later()

        return compile_fx

    def _launched(self, event: Mapping[str, Any]) -> None:
        self.asked.launched(event)

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
        self._seconds["wait"] += time.perf_counter() - begin
        for session in waiting:
            session._raise_if_strict()

    # The canary ---------------------------------------------------------------------------

    def _trial(self, graph: Any) -> Trial[Installed] | None:
        """Where ``canary`` is asked for and something was restored. Never raises."""
        if not any(self._under_canary()) or not hasattr(graph, "graph"):
            return None
        try:
            from .canary import Trial

            before = len(self.kernels.recorded)
            return Trial(graph, lambda: self._suspects(before), self._distrust, self._not_compared)
        except Exception as error:  # noqa: BLE001 - without it the process goes on as without a canary
            self._not_compared(f"{type(error).__name__}: {error}")
            return None

    def _under_canary(self) -> Iterable[tuple[Session, Installed]]:
        for session in self.sessions:
            if session.config is not None and session.config.canary and session.restored is not None:
                yield from ((session, entry) for entry in session.restored.installed)

    def _suspects(self, before: int) -> Sequence[Installed]:
        """The revisions that hold a record which was used since there were ``before`` of them."""
        keys = self.kernels.recorded.keys(since=before)
        return [entry for _, entry in self._under_canary() if keys & entry.keys]

    def _not_compared(self, why: str) -> None:
        if len(self._canary_said) < _MAX_SAID:
            self._canary_said.setdefault(f"canary: not compared: {why}")
        _log.debug("canary: not compared: %s", why)

    def _distrust(self, suspects: Sequence[Installed], why: str) -> None:
        """Nothing of these revisions is used in this process again, nor installed on this node. Raises only
        under CACHESVC_STRICT."""
        found = [pair for pair in self._under_canary() if pair[1] in suspects]
        for session, entry in found:
            statement = entry.manifest.statement
            text = f"canary: {statement.full_name} {statement.target}: {why}: compiling here instead"
            _log.warning("%s (revision %s)", text, entry.revision)
            self._canary_said.setdefault(text)
            try:
                self._drop(session, entry)
            except Exception as error:  # noqa: BLE001 - the graph runs eagerly at least
                _log.warning("canary: %s: %s", type(error).__name__, error)
        try:
            kinds.inductor.forget_compiled("restored code was wrong")
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("canary: graphs run eagerly until torch.compiler.reset(): %s", error)
        for session, _ in found:
            session._raise_if_strict()

    def _drop(self, session: Session, entry: Installed) -> None:
        from .node.folders import remove
        from .wire.errors import Distrusted

        restored, manifest = session.restored, entry.manifest
        assert restored is not None
        restored.installed.remove(entry)
        restored.distrusted.append(entry)
        session.error = Distrusted(f"{manifest.statement.full_name}: the canary found wrong numbers")
        session._step = "failed"
        paths = {record.path for record in manifest.files}
        self.kernels.recorded.forget(paths, entry.keys)
        self.kernels.clear()
        if self._store is not None:
            self._store.distrust(manifest.entry, entry.revision)
        remove(manifest, kinds.RULES, self.folders.roots())

    def _after_fork(self) -> None:
        """In the child there is no background thread: what was under way begins again when needed."""
        self.lock = threading.RLock()
        self.reporter = None
        for session in self.sessions:
            session._begin_again()

    # Restore ------------------------------------------------------------------------------

    def prepare(self, config: Config, restored: Restored) -> tuple[NodeStore, Fingerprint]:
        """Opens the node store, detects this environment and decides the folders, once for all sessions.

        Raises ``Unsupported`` for a torch that cachesvc was not tested on (unless told to try).
        """
        from .detect import detect, supported
        from .node.store import NodeStore, default_root

        self._store = store = NodeStore(config.store or default_root())
        with self.lock:
            if self._fingerprint is None:
                with restored.timed("detect"):
                    fingerprint = detect()
                reason = supported(fingerprint, untested=config.untested)
                if reason:
                    raise Unsupported(reason)
                self._fingerprint = fingerprint
                self.kernels.own(fingerprint)
                self._choose_folders(store, fingerprint)
            return store, self._fingerprint

    def _choose_folders(self, store: NodeStore, fingerprint: Fingerprint) -> None:
        from .wire.factors import partition

        self.folders.settle(lambda: store.folder(partition(fingerprint, ("gpu", "host"))))
        root = self.folders.roots()[kinds.inductor.NAME]
        self.kernels.accept(root / kinds.inductor.HOST_FOLDER / kinds.inductor.host_id(fingerprint))

    def round_of(self, session: Session) -> int:
        """How often this process has attached to what ``session`` has: ranks do so equally often."""
        return sum(_same(one.wanted, session.wanted) for one in self.sessions)

    def accept_kernels(self, session: Session) -> None:
        """Host kernels of what a session installed may be loaded from now on."""
        done, roots = session.restored, self.folders.roots()
        if done is None or not done.installed:
            return
        if session.config is not None and session.config.hold_collector:
            self.collector.allow()
        for entry in done.installed:
            paths = [record.path for record in entry.manifest.files if record.kind == kinds.inductor.NAME]
            for folder in kinds.inductor.accepted_folders(roots[kinds.inductor.NAME], paths):
                self.kernels.accept(folder)
        _log.info(
            "%s: %d revisions, %d files restored in %.2f s, %d bytes moved",
            session.label,
            len(done.installed),
            sum(entry.files for entry in done.installed),
            sum(done.seconds.values()),
            done.moved,
        )

    # What happened ------------------------------------------------------------------------

    def report(self) -> Report:
        """See `usefulness.Report`."""
        from .usefulness import Report, by_kind, by_revision, judge, key_differences, uses

        observed = self.observer.snapshot() if self.observer else observe.Observation()
        results = [session.restored for session in self.sessions if session.restored is not None]
        installed = [entry for result in results for entry in result.installed]
        recorded = self.kernels.recorded
        used_keys = recorded.keys() | {folder.name for folder in self.triton.folders}
        used = uses(installed, set(recorded.kernels), used_keys)
        state = judge(observed, used)
        retraced = observed.counters.get("aot_autograd.autograd_cache_miss", 0)
        told = self.differences() if state in ("inert", "partial") or retraced else ()
        seconds = {**self._seconds, "hooks": self.kernels.seconds + self.asked.seconds}
        for result in results:
            for step, spent in result.seconds.items():
                seconds[step] = seconds.get(step, 0.0) + spent
        saved = self._saved(installed, used, seconds)
        compiled = state in ("inert", "partial")
        differences = key_differences(dict(self.components.missed), installed) if compiled else ()
        distrusted = [entry for result in results for entry in result.distrusted]
        wrong = by_revision("inert", distrusted, uses(distrusted, set(), set()), None)
        return Report(
            state=state if not distrusted else "inert",
            reasons=tuple(self._reasons(state, observed, told, differences)),
            observed=observed,
            revisions=(*by_revision(state, installed, used, saved, self.models), *wrong),
            rejected=tuple(one for result in results for one in result.rejected),
            differences=told,
            facts=self.here() if told or state == "miss" else {},
            bytes_moved=sum(result.moved for result in results),
            seconds={step: round(spent, 4) for step, spent in seconds.items()},
            saved=saved,
            kinds=by_kind(observed, seconds["compile"]),
            key_differences=differences,
            distrusted=tuple(str(entry.revision) for entry in distrusted),
        )

    def _reasons(
        self,
        state: str,
        observed: observe.Observation,
        told: Sequence[Difference],
        in_keys: Sequence[KeyDifference],
    ) -> Iterable[str]:
        if self._compiled_before:
            yield f"{self._compiled_before} graphs were compiled before attach: attach earlier"
        yield from self._canary_said
        for session in self.sessions:
            if session.error is not None:
                yield f"{session.label}: {session.error}"
            elif not session.ready:
                yield f"{session.label}: still {session.status}"
            elif session.status == "stored":
                yield f"{session.label}: came after the deadline, stored on this node for the next start"
            if session.restored is not None:
                yield from session.restored.problems
        off = kinds.inductor.switched_off()
        if off and state in ("inert", "partial"):
            yield f"PyTorch's caches are switched off in this process ({off}): nothing restored is looked at"
            told, in_keys = (), ()
        yield from map(kinds.inductor.uncached, observed.bypassed)
        yield from (difference.advice for difference in told)
        for difference in in_keys[:3]:
            yield f"PyTorch's key differs from the nearest installed one: {difference}"
        if state == "inert" and not (off or told or in_keys or observed.bypassed or self._canary_said):
            yield "PyTorch looked for other keys than the installed ones: compare with cachesvc explain"
        if observed.missing:
            yield "not counted in this torch: " + ", ".join(observed.missing)

    def here(self) -> Facts:
        """What this process is and asks for, by the factor table: of its environment as it is now, and of
        the graphs that were compiled here (of all, if none was)."""
        from .detect import detect

        model = {"model": str(self.models[0])} if self.models else {}
        return {**detect(), **self.asked.facts(missed=True), **model}

    def differences(self) -> tuple[Difference, ...]:
        """Between this process, now that torch is loaded and something was compiled, and the nearest entry
        that was installed: what can be why its files were not used, most important first."""
        from .wire.factors import differences, explaining, nearness

        here = self.here()
        found = [
            explaining(differences(here, entry.manifest.facts, entry.manifest.scopes))
            for session in self.sessions
            for entry in (session.restored.installed if session.restored else ())
        ]
        return min(found, key=nearness, default=())

    def _saved(
        self, installed: Sequence[Installed], revisions: Sequence[RevisionUse], seconds: dict[str, float]
    ) -> float | None:
        built = [
            entry.manifest.measured["first_call"]
            for entry, use in zip(installed, revisions, strict=True)
            if use.used and "first_call" in entry.manifest.measured
        ]
        return round(sum(built) - seconds["compile"] - seconds["wait"], 3) if built else None

    def capture(self, whole: bool) -> list[SourceFile]:
        """See `Session.capture`."""
        from .node.folders import capture, listing

        roots = self.folders.roots()
        if not roots:
            return []
        found = {
            kinds.inductor.NAME: self.kernels.recorded.paths(roots[kinds.inductor.NAME]),
            kinds.triton.NAME: self.triton.paths(roots[kinds.triton.NAME]),
        }
        if whole:
            found = {kind: paths | listing(roots[kind], kinds.RULES[kind]) for kind, paths in found.items()}
        return capture(found, kinds.RULES, roots)

    def key_facts(self) -> KeyFacts | None:
        """What the keys that this process compiled for were made of, for who publishes them."""
        return self.components.facts(self.kernels.recorded.keys())

    def scopes(self) -> tuple[str, ...]:
        """What the code of this process is bound to: the GPU if CUDA was used, else the host's CPU; both
        where host kernels were built or loaded beside it."""
        torch = sys.modules.get("torch")
        cuda = bool(torch is not None and torch.cuda.is_initialized())
        host = bool(self.kernels.recorded.kernels) or not cuda
        return (("gpu",) if cuda else ()) + (("host",) if host else ())

    # Telling the registry -------------------------------------------------------------------

    def report_later(self) -> None:
        """Sees to it that the registry is told, once, what this start came to: when it has been quiet for a
        while, or at exit. Cheap, never raises; in a forked child from its first compile on."""
        if self.reporter is not None or not any(map(_reports, self.sessions)):
            return
        try:
            from .reporting import Reporter

            with self.lock:
                if self.reporter is None:
                    self.reporter = Reporter(self._tell, self._activity)
        except Exception:  # noqa: BLE001 - telling is never the reason that anything fails
            _log.debug("nothing will be reported", exc_info=True)

    def _activity(self) -> object:
        """Changes while this process compiles or loads; ``None`` before it did either."""
        seen = (self.observer.snapshot() if self.observer else None, dict(self._seconds), self.kernels.hits)
        return seen if self._seconds["compile"] or (seen[0] and not seen[0].clean) else None

    def _tell(self, deadline: float) -> None:
        from .reporting import send

        report = self.report()
        for session in filter(_reports, self.sessions):
            if session.config is not None and session.restored is not None and self._fingerprint is not None:
                theirs = [*session.restored.installed, *session.restored.distrusted]
                send(report, session.config, theirs, self._fingerprint, deadline)

    def _say_how_it_was(self) -> None:
        if self.reporter is not None:
            self.reporter.begin_to_end()
        if any(session.status not in ("off", "local", "waiting") for session in self.sessions):
            _log.info("at exit: %s", self.report().line)
        if self.reporter is not None:
            self.reporter.end()


_process: _Process | None = None
_process_lock = threading.Lock()


def process() -> _Process:
    """This process's one state; made at the first call."""
    global _process
    with _process_lock:
        if _process is None:
            _process = _Process()
        return _process


def open_session(wanted: Wanted, *, with_torch: bool = False) -> Session:
    """Arms the hooks and starts the restore. Never waits and never raises.

    ``with_torch``: starts it only when this process begins to import torch, for an attach that reaches
    every interpreter of a job, most of which never will. The same again (a notebook that is run twice)
    answers the session that is there, unless its restore failed: then it is tried again.
    """
    state = process()
    state.arm()
    with state.lock:
        for session in state.sessions:
            if session.error is None and _same(session.wanted, wanted):
                break
        else:
            session = Session(state, wanted)
            state.sessions.append(session)
    if with_torch:
        importhook.when_importing("torch", session._ensure_running)
    else:
        session._ensure_running()
    return session


def open_local(config: Config) -> Session:
    """Hooks and folders without anything to restore: for a process that compiles to be captured.

    Raises ``StorageFull`` if there is no node store to put a private folder into.
    """
    from .restore import Restored

    state = process()
    state.arm()
    session = Session(state, Wanted())
    session.config, session.restored, session.waited = config, Restored(), True
    state.prepare(config, session.restored)
    session._step = "local"
    session._configured.set()
    session._done.set()
    with state.lock:
        state.sessions.append(session)
    return session


def _reports(session: Session) -> bool:
    """Whether there is anything to tell, and somebody to tell it to."""
    config, restored = session.config, session.restored
    if config is None or config.bundle is not None:
        return False
    return (
        config.report
        and bool(config.url and config.token)
        and restored is not None
        and bool(restored.installed or restored.distrusted)
    )


def _same(one: Wanted, other: Wanted) -> bool:
    return (one.label.removesuffix(":latest"), one.url) == (other.label.removesuffix(":latest"), other.url)


def _bundles(path: Path) -> list[Path]:
    if not path.exists():
        raise InvalidRequest(f"{path}: no such bundle file or folder")
    return sorted(path.glob("*.cachesvc")) if path.is_dir() else [path]


def _graphs_compiled_already() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0))
