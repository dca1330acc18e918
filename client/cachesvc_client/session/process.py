"""What this process is and has done: its folders and fingerprint, the hooks in its compilers and what they
record. It knows of no session: whoever arms the hooks says what is to happen around a compile.

`attach` pays for it on the application's own thread, so it imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .. import kinds
from ..graphs import ambient, key_components, operators
from ..hooks import counters, imports
from ..wire.errors import CacheSvcError, Unsupported
from .gc_pause import GcPause

if TYPE_CHECKING:
    from pathlib import Path

    from ..bundle.pack import SourceFile
    from ..config import Config
    from ..graphs.request import GraphRequests
    from ..node.installed import InstalledRevision, RestoreResult, StagedRevision
    from ..node.store import NodeStore
    from ..wire.digest import Digest
    from ..wire.factors import Facts, Fingerprint
    from ..wire.key_components import KeyFacts

_log = logging.getLogger("cachesvc")


class Process:
    """One set of folders and hooks, whatever is attached. ``models``: hashes of what `compile` was given.
    ``seconds``: that compiles waited, and were inside Inductor. ``lock``: for what is decided once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._preparing = threading.RLock()
        """Not the other one, for which the application asks inside of an import: who prepares imports."""
        self.installing = threading.RLock()
        """Held by the session that installs: the folder that it installs into does not change meanwhile."""
        self.kernels = kinds.inductor.HostKernels()
        self.triton = kinds.triton.UsedFiles()
        self.cuda = kinds.cuda.UsedFiles()
        self.components = key_components.Recorder()
        self.observer: counters.Observer | None = None
        """There is one once hooks were armed."""
        self.armed = False
        self.models: list[Digest] = []
        self.compiled_before = _graphs_compiled_already()
        self.folders = kinds.Folders()
        self.fingerprint: Fingerprint | None = None
        self.seconds = {"wait": 0.0, "compile": 0.0}
        self.collector = GcPause()
        self._store: NodeStore | None = None
        self._accepted: dict[Digest, dict[Digest, StagedRevision]] = {}
        """Trust scope -> revision -> what was accepted for it."""
        self._folder: Path | None = None
        """The private folder in use."""
        self._compiling = 0
        """Compiles that are under way."""
        self._used = False
        """The compilers may have opened the folder."""
        self.keeps_own = False
        """Whether what is compiled here is kept for the node's next start."""
        self._depth = threading.local()

    @functools.cached_property
    def asked(self) -> GraphRequests:
        """What the compiles of this process were asked for; made when there is one."""
        from ..graphs.request import GraphRequests

        return GraphRequests()

    def begin_again(self) -> None:
        """In a forked child: whoever held a lock is not there."""
        self.lock, self._preparing, self.installing = (threading.RLock() for _ in range(3))
        self._compiling = 0

    # Hooks --------------------------------------------------------------------------------

    def arm(
        self,
        before: Callable[[], None],
        watch: Callable[[Any], Callable[[Any], Any] | None],
        after: Callable[[], None],
    ) -> None:
        """Puts the hooks in place; cheap, imports nothing of the compilers. To be called once, and again
        after `disarm`.

        ``before`` and ``after`` each compile; ``before`` a kernel too that the application launches itself.
        ``watch`` is asked for each graph before it is compiled, and may answer what is to be put around what
        it was compiled to. A ``CacheSvcError`` that they raise reaches the application.
        """
        self.armed = True
        self.observer = counters.start()
        kinds.inductor.install_hooks(self.kernels)
        key_components.install_hooks(self.components)
        operators.install_hooks()
        ambient.install_hooks()
        self.collector.install_hooks()
        kinds.triton.install_hooks(self.triton, before, self._launched)
        hook_compiles(functools.partial(self._compile_fx, before, watch, after))

    def disarm(self) -> None:
        """Takes every hook out: this process goes on as if cachesvc were not there. Never raises."""
        self.armed = False
        imports.disarm()

    def _compile_fx(
        self,
        before: Callable[[], None],
        watch: Callable[[Any], Callable[[Any], Any] | None],
        after: Callable[[], None],
        call: imports.Call,
    ) -> Any:
        if getattr(self._depth, "inside", False):
            return call()
        before()
        watched = watch(call.args[0] if call.args else call.kwargs.get("model_"))
        graph = self.asked.note(*call.args, **call.kwargs)
        compiled_before = counters.counts["graphs_compiled"]
        begin = time.perf_counter()
        self._depth.inside = True
        with self.lock:
            self._compiling += 1
            self._used = True
        try:
            compiled = call()
            return compiled if watched is None else watched(compiled)
        finally:
            self._depth.inside = False
            with self.lock:
                self._compiling -= 1
            self.seconds["compile"] += time.perf_counter() - begin
            graph.compiled = counters.counts["graphs_compiled"] > compiled_before
            after()

    def _launched(self, event: Mapping[str, Any]) -> None:
        self._used = True
        self.asked.launched(event)

    # Where it keeps what ------------------------------------------------------------------

    def prepare(self, config: Config, restored: RestoreResult) -> tuple[NodeStore, Fingerprint]:
        """Opens the node store, detects this environment and decides the folders, once for all sessions.

        Raises ``Unsupported`` for a torch that cachesvc was not tested on (unless told to try), and
        ``StorageFull`` if there is no node store to put a private folder into.
        """
        from ..environment.detect import detect, supported
        from ..node.store import NodeStore, default_root
        from ..node.trust_scope import folder_name, trust_scope

        store = NodeStore(config.store or default_root())
        with self._preparing:
            store = self._store = self._store or store
            scope = trust_scope(config)
            if self.fingerprint is None:
                # Before the rest: the application may initialise CUDA any moment.
                self.folders.settle_drivers(lambda: store.own_folder(kinds.cuda.NAME))
                with restored.timed("detect"):
                    fingerprint = detect()
                reason = supported(fingerprint, untested=config.untested)
                if reason:
                    self.folders.leave_drivers()
                    raise Unsupported(reason)
                self.kernels.own(fingerprint)
                nothing_yet = folder_name(fingerprint, {scope: ()})
                self._use_folder(lambda: store.folder(nothing_yet))
                self.cuda.begin(self._of_libraries())
                self.fingerprint = fingerprint
            self._accepted.setdefault(scope, {})
            return store, self.fingerprint

    @property
    def trust_scopes(self) -> int:
        """How many trust scopes the sessions of this process have."""
        return len(self._accepted)

    def place(
        self, scope: Digest, accepted: Sequence[StagedRevision], may_install: Callable[[], bool]
    ) -> list[StagedRevision] | None:
        """Chooses the folder for what a session accepted, together with what others of this process did.

        Answers what has to be installed again, since it lies in the folder before; ``None`` if it is too late
        to choose: a compile is under way. To be called with ``installing`` held, after `prepare`. What was
        compiled here before stays in its folder, to which nothing is added. Raises as `NodeStore.folder`
        does.
        """
        from ..node.trust_scope import folder_name

        assert self._store is not None and self.fingerprint is not None
        others = [held for revisions in self._accepted.values() for held in revisions.values()]
        wanted = {key: dict(revisions) for key, revisions in self._accepted.items()}
        wanted.setdefault(scope, {}).update((one.revision, one) for one in accepted)
        names = {key: set(revisions) for key, revisions in wanted.items() if revisions}
        if not self.folders.private or names == {
            key: set(held) for key, held in self._accepted.items() if held
        }:
            self._accepted = wanted
            return []
        folder = self._store.folder(folder_name(self.fingerprint, names))
        with self.lock:
            if self._compiling or not may_install():
                self._store.leave(folder)
                return None
            self._use_folder(lambda: folder)
        self._accepted = wanted
        self.accept(others)
        return others

    def _use_folder(self, private: Callable[[], Path]) -> None:
        """Makes the private folder the compilers', unless the user named theirs."""
        assert self._store is not None
        before = self._folder

        def chosen() -> Path:
            self._folder = private()
            return self._folder

        self.folders.settle(chosen)
        if before is not None and not (self._used or self.triton.folders):
            self.folders.forget_earlier()
            self.kernels.refuse()
            self._store.leave(before)
        roots = self.folders.roots()
        root = roots[kinds.inductor.NAME]
        self.kernels.accept(root / kinds.inductor.HOST_FOLDER / self.kernels.host)
        kinds.cuda.prepare(roots[kinds.cuda.NAME])

    def accept(self, installed: Iterable[InstalledRevision | StagedRevision]) -> None:
        """Host kernels of these revisions may be loaded from now on, and the driver's are this process's."""
        root = self.folders.roots()[kinds.inductor.NAME]
        for entry in installed:
            files = entry.manifest.files
            paths = [record.path for record in files if record.kind == kinds.inductor.NAME]
            for folder in kinds.inductor.accepted_folders(root, paths):
                self.kernels.accept(folder)
            self.cuda.accept(record.path for record in files if record.kind == kinds.cuda.NAME)

    def forget(self, entry: InstalledRevision) -> None:
        """Takes a wrong revision out of this process and its folders, and off this node."""
        if self._store is not None:
            self._store.distrust(entry.manifest.entry, entry.revision)
        self.withdraw(entry)

    def withdraw(self, entry: InstalledRevision) -> None:
        """Takes a revision out of this process and its folders."""
        from ..node.install import remove

        paths = {record.path for record in entry.manifest.files}
        self.kernels.recorded.forget(paths, entry.keys)
        self.kernels.clear()
        for roots in self.folders.every_roots():
            remove(entry.manifest, kinds.RULES, roots)

    # What there is to publish and to tell -------------------------------------------------

    def capture(self, whole: bool) -> list[SourceFile]:
        """See `Session.capture`."""
        files: dict[tuple[str, str], SourceFile] = {}
        for number, roots in enumerate(self.folders.every_roots()):
            for file in self._capture_from(roots, whole, earlier=number > 0):
                files.setdefault((file.kind, file.path), file)
        return [files[place] for place in sorted(files)]

    def _capture_from(self, roots: Mapping[str, Path], whole: bool, earlier: bool) -> list[SourceFile]:
        """``earlier``: they are roots of a folder that this process has left."""
        from ..node.capture import capture, listing

        found = {
            kinds.inductor.NAME: self.kernels.recorded.paths(roots[kinds.inductor.NAME], copied=not earlier),
            kinds.triton.NAME: self.triton.paths(roots[kinds.triton.NAME]),
            kinds.cuda.NAME: self.cuda.paths(self._of_libraries()),
        }
        if whole:
            found = {kind: paths | listing(roots[kind], kinds.RULES[kind]) for kind, paths in found.items()}
        return capture(found, kinds.RULES, roots)

    def compiled_here(self) -> list[SourceFile]:
        """What `capture` answers, without the files of the revisions that were restored."""
        accepted = [held for revisions in self._accepted.values() for held in revisions.values()]
        restored = {(file.kind, file.path) for held in accepted for file in held.manifest.files}
        return [file for file in self.capture(whole=False) if (file.kind, file.path) not in restored]

    def own_results(self) -> Path | None:
        """Where this node keeps what is compiled in the present folder; ``None`` if the user named it."""
        from ..wire.digest import Digest

        if self._store is None or self._folder is None:
            return None
        return self._store.own_results(Digest(f"sha256:{self._folder.name}"))

    def made_by_libraries(self) -> int:
        """How many kernels were compiled beside the compilers, for all that the folder tells."""
        return len(self.cuda.made(self._of_libraries()))

    def _of_libraries(self) -> set[str]:
        """What is in the driver's folder now, relative to it; nothing before there is one."""
        from ..node.capture import listing

        root = self.folders.roots().get(kinds.cuda.NAME)
        return listing(root, kinds.cuda.RULES) if root is not None else set()

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

    def here(self) -> Facts:
        """What this process is and asks for, by the factor table: of its environment as it is now, and of
        the graphs that were compiled here (of all, if none was)."""
        from ..environment.detect import detect

        model = {"model": str(self.models[0])} if self.models else {}
        return {**detect(), **self.asked.facts(missed=True), **model}

    def activity(self) -> object:
        """Changes while this process compiles or loads; ``None`` before it did either."""
        observed = self.observer.snapshot() if self.observer else counters.Observation()
        if not self.seconds["compile"] and observed.clean and not self.triton.folders:
            return None
        return observed, dict(self.seconds), self.kernels.hits, len(self.triton.folders)


def hook_compiles(body: imports.Body) -> None:
    """Runs ``body`` in the place of ``compile_fx``; its ``CacheSvcError`` reaches the application."""
    imports.when_imported("torch._inductor.compile_fx", functools.partial(_hook_compile_fx, body))


def _hook_compile_fx(body: imports.Body, module: ModuleType) -> None:
    if not imports.hook(module, "compile_fx", body, reaches=(CacheSvcError,)):
        _log.warning("this torch has no compile_fx where it is expected: no compile will wait")


def _graphs_compiled_already() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    return int(getattr(utils, "counters", {}).get("stats", {}).get("unique_graphs", 0))


_process: Process | None = None
_process_lock = threading.Lock()


def process() -> Process:
    """This process's one state; made at the first call."""
    global _process
    with _process_lock:
        if _process is None:
            _process = Process()
        return _process
