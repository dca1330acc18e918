"""Threads, deadline, hooks, fail-open: the process-wide state behind `attach`.

One background thread per attached name runs `restore`; it never imports torch. The first compile
waits for it once, at the entry of ``compile_fx``, for at most the deadline; after that the cache folders
are the compiler's alone and a late restore fills only the node store. Nothing here raises into a
service, unless CACHESVC_STRICT says so.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import importhook, kinds, observe
from .restore import Means, Restored, Wish, restore, restore_files
from .usefulness import Report, judge, uses
from .wire.digest import Digest
from .wire.errors import CacheSvcError, Unsupported
from .wire.factors import Fingerprint, partition
from .wire.names import Name

if TYPE_CHECKING:
    from .bundle.pack import SourceFile
    from .config import Config
    from .node.store import NodeStore

_log = logging.getLogger("cachesvc")


class Session:
    """One attached name or bundle. ``wait`` and ``status`` serve readiness probes."""

    def __init__(self, process: _Process, config: Config, wish: Wish | None, bundle: Path | None) -> None:
        self._process = process
        self._config = config
        self.wish = wish
        self.bundle = bundle
        self.restored = Restored()
        self.error: CacheSvcError | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._step = "waiting"
        self.waited = False
        """A compile has gone on without or after this restore: the cache folders are its alone."""

    @property
    def label(self) -> str:
        """What the log calls it."""
        return str(self.wish.name) if self.wish else str(self.bundle or "local")

    @property
    def status(self) -> str:
        """``waiting``, ``running``, ``restored``, ``stored`` (came too late), ``failed`` or ``local``."""
        return self._step

    @property
    def ready(self) -> bool:
        """The restore is over, however it ended."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the restore is over, at most ``timeout`` seconds; answers whether it is.

        With CACHESVC_STRICT it raises the ``CacheSvcError`` that the restore ended with.
        """
        self._ensure_running()
        over = self._done.wait(timeout)
        if over and self.error is not None and self._config.strict:
            raise self.error
        return over

    def report(self) -> Report:
        """What this process compiled, tuned and used, and why."""
        return self._process.report()

    def capture(self, whole: bool = False) -> list[SourceFile]:
        """The files that this process produced or used; ``whole``: all that the kinds know in the
        folders (for a process that had empty ones, such as `warm`'s)."""
        return self._process.capture(whole)

    def _ensure_running(self) -> None:
        with self._process.lock:
            if self._done.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="cachesvc-restore", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._step = "running"
        try:
            self._restore()
            self._step = "restored" if self.restored.installed else "stored"
        except CacheSvcError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the service compiles by itself
            _log.debug("restore of %s", self.label, exc_info=True)
            self._fail(CacheSvcError(f"{type(error).__name__}: {error}"))
        finally:
            self._process.restored(self)
            self._done.set()

    def _fail(self, error: CacheSvcError) -> None:
        self.error, self._step = error, "failed"
        _log.warning("%s: not restored, this process compiles: %s", self.label, error)

    def _restore(self) -> None:
        store, fingerprint = self._process.prepare(self._config, self.restored)
        means = Means(
            store=store,
            trusted=self._config.trusted_keys,
            fingerprint=fingerprint,
            rules=kinds.RULES,
            roots=self._process.folders.roots,
            may_install=lambda: not self.waited,
        )
        if self.bundle is not None:
            restore_files(_bundles(self.bundle), means, self.restored)
        elif self.wish is not None:
            from .remote import Remote

            with Remote(self._config.url or "", self._config.token) as remote:
                restore(self.wish, remote, means, self.restored)


class _Process:
    """The state of this process: one set of folders and hooks, any number of sessions."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sessions: list[Session] = []
        self._compiled_before = _graphs_compiled_already()
        self.folders = kinds.Folders(compiled_already=self._compiled_before > 0)
        self.kernels = kinds.inductor.HostKernels()
        self.triton = kinds.triton.Recorded()
        self.observer: observe.Observer | None = None
        self.models: list[Digest] = []
        self._fingerprint: Fingerprint | None = None
        self._seconds = {"wait": 0.0, "compile": 0.0}
        self._depth = threading.local()

    # Hooks --------------------------------------------------------------------------------

    def arm(self) -> None:
        """Puts the hooks in place, once; cheap, imports nothing of the compilers."""
        with self.lock:
            if self.observer is not None:
                return
            self.observer = observe.start()
            kinds.inductor.install_hooks(self.kernels)
            kinds.triton.install_hooks(self.triton, self.before_compile)
            importhook.when_imported("torch._inductor.compile_fx", self._hook_compile_fx)
            os.register_at_fork(after_in_child=self._after_fork)
            atexit.register(self._say_how_it_was)

    def _hook_compile_fx(self, module: ModuleType) -> None:
        if not importhook.wrap(module, "compile_fx", self._around_compile_fx):
            _log.warning(
                "this torch has no torch._inductor.compile_fx.compile_fx: nothing will be waited for"
            )

    def _around_compile_fx(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile_fx(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._depth, "inside", False):
                return original(*args, **kwargs)
            self.before_compile()
            self._depth.inside = True
            begin = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._depth.inside = False
                self._seconds["compile"] += time.perf_counter() - begin

        return compile_fx

    def before_compile(self) -> None:
        """The one bounded wait of each session. Raises only under CACHESVC_STRICT."""
        waiting = [session for session in self.sessions if not session.waited]
        if not waiting:
            return
        begin = time.perf_counter()
        for session in waiting:
            deadline = session._config.deadline
            session._ensure_running()
            if not session._done.wait(max(0.0, begin + deadline - time.perf_counter())):
                _log.warning("%s: not restored after %.1f s, this process compiles", session.label, deadline)
            session.waited = True
        self._seconds["wait"] += time.perf_counter() - begin
        for session in waiting:
            if session._config.strict and session.error is not None:
                raise session.error

    def _after_fork(self) -> None:
        """In the child there is no background thread: what was under way begins again when needed."""
        self.lock = threading.RLock()
        for session in self.sessions:
            over = session._done.is_set()
            session._done = threading.Event()
            session._thread = None
            if over:
                session._done.set()
            else:
                session.restored = Restored()

    # Restore ------------------------------------------------------------------------------

    def prepare(self, config: Config, restored: Restored) -> tuple[NodeStore, Fingerprint]:
        """Opens the node store, detects this environment and decides the folders, once for all sessions.

        Raises ``Unsupported`` for a torch that cachesvc was not tested on (unless told to try).
        """
        from .detect import detect, supported
        from .node.store import NodeStore, default_root

        store = NodeStore(config.store or default_root())
        with self.lock:
            if self._fingerprint is None:
                with restored.timed("detect"):
                    self._fingerprint = detect()
                reason = None if config.untested else supported(self._fingerprint)
                if reason:
                    self._fingerprint = None
                    raise Unsupported(reason, "set CACHESVC_UNTESTED=1 to try all the same")
                self.kernels.own(self._fingerprint)
                self._choose_folders(store, self._fingerprint)
            return store, self._fingerprint

    def _choose_folders(self, store: NodeStore, fingerprint: Fingerprint) -> None:
        self.folders.settle(lambda: store.folder(partition(fingerprint, ("gpu", "host"))))
        root = self.folders.roots()[kinds.inductor.NAME]
        self.kernels.accept(root / kinds.inductor.HOST_FOLDER / kinds.inductor.host_id(fingerprint))

    def restored(self, session: Session) -> None:
        """Host kernels of what was installed may be loaded from now on."""
        roots = self.folders.roots()
        for entry in session.restored.installed:
            paths = [record.path for record in entry.manifest.files if record.kind == kinds.inductor.NAME]
            for folder in kinds.inductor.accepted_folders(roots[kinds.inductor.NAME], paths):
                self.kernels.accept(folder)
        if session.restored.installed:
            done = session.restored
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
        """See `Report`."""
        observed = self.observer.snapshot() if self.observer else observe.Observation()
        installed = [entry for session in self.sessions for entry in session.restored.installed]
        recorded = self.kernels.recorded
        used_keys = recorded.keys() | {folder.name for folder in self.triton.folders}
        revisions = uses(installed, set(recorded.kernels), used_keys)
        state = judge(observed, revisions)
        seconds = {**self._seconds, "hooks": self.kernels.seconds}
        for session in self.sessions:
            for step, spent in session.restored.seconds.items():
                seconds[step] = seconds.get(step, 0.0) + spent
        return Report(
            state=state,
            reasons=tuple(self._reasons(state, observed)),
            observed=observed,
            revisions=revisions,
            rejected=tuple(one for session in self.sessions for one in session.restored.rejected),
            bytes_moved=sum(session.restored.moved for session in self.sessions),
            seconds={step: round(spent, 4) for step, spent in seconds.items()},
            saved=self._saved(installed, revisions, seconds),
        )

    def _reasons(self, state: str, observed: observe.Observation) -> Iterable[str]:
        if self._compiled_before:
            yield f"{self._compiled_before} graphs were compiled before attach: attach earlier"
        for session in self.sessions:
            if session.error is not None:
                yield f"{session.label}: {session.error}"
            elif not session.ready:
                yield f"{session.label}: still {session.status}"
            elif session.status == "stored":
                yield f"{session.label}: came after the deadline, stored on this node for the next start"
            yield from session.restored.problems
        if state == "inert":
            yield "PyTorch looked for other keys than the installed ones: compare with cachesvc explain"
        if observed.missing:
            yield "not counted in this torch: " + ", ".join(observed.missing)

    def _saved(
        self, installed: Sequence[Any], revisions: Sequence[Any], seconds: dict[str, float]
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

    def _say_how_it_was(self) -> None:
        if any(session.wish or session.bundle for session in self.sessions):
            _log.info("at exit: %s", self.report().line)


_process: _Process | None = None
_process_lock = threading.Lock()


def process() -> _Process:
    """This process's one state; made at the first call."""
    global _process
    with _process_lock:
        if _process is None:
            _process = _Process()
        return _process


def open_session(
    config: Config, name: Name | None, bundle: Path | None, model: Digest | None = None
) -> Session:
    """Arms the hooks and starts the restore of ``name`` or ``bundle``; neither: only observes.

    The same name again (a notebook that is run twice) answers the session that is there, unless its
    restore failed: then it is tried again. Never waits.
    """
    state = process()
    state.arm()
    wish = Wish(name, config.tag_fallback, config.lane, model) if name else None
    with state.lock:
        for session in state.sessions:
            same = (session.wish and wish and session.wish.name == wish.name) or (
                bundle is not None and session.bundle == bundle
            )
            if same and session.error is None:
                return session
        session = Session(state, config, wish, bundle)
        state.sessions.append(session)
    if wish is None and bundle is None:
        session._step = "local"
        _prepare_local(state, config, session)
        session._done.set()
    else:
        session._ensure_running()
    return session


def _prepare_local(state: _Process, config: Config, session: Session) -> None:
    """Without anything to restore: the fingerprint and the folders, so that capture works."""
    state.prepare(replace(config, untested=True), session.restored)


def _bundles(path: Path) -> list[Path]:
    return sorted(path.glob("*.cachesvc")) if path.is_dir() else [path]


def _graphs_compiled_already() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0))
