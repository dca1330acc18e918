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
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import importhook, kinds, observe
from .collector import Collector
from .kinds import ambient, components, operators
from .wire.errors import Unsupported

if TYPE_CHECKING:
    from .bundle.pack import SourceFile
    from .config import Config
    from .kinds.asked import Asked
    from .node.store import NodeStore
    from .restore import Installed, Restored
    from .wire.digest import Digest
    from .wire.factors import Facts, Fingerprint
    from .wire.keyfacts import KeyFacts

_log = logging.getLogger("cachesvc")


class Process:
    """One set of folders and hooks, whatever is attached. ``models``: hashes of what `compile` was given.
    ``seconds``: that compiles waited, and were inside Inductor. ``lock``: for what is decided once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._preparing = threading.RLock()
        """Not the other one, for which the application asks inside of an import: who prepares imports."""
        self.kernels = kinds.inductor.HostKernels()
        self.triton = kinds.triton.Recorded()
        self.cuda = kinds.cuda.Recorded()
        self.components = components.Recorder()
        self.observer: observe.Observer | None = None
        """There is one once the hooks are armed."""
        self.models: list[Digest] = []
        self.compiled_before = _graphs_compiled_already()
        self.folders = kinds.Folders(compiled_already=self.compiled_before > 0)
        self.fingerprint: Fingerprint | None = None
        self.seconds = {"wait": 0.0, "compile": 0.0}
        self.collector = Collector()
        self._store: NodeStore | None = None
        self._depth = threading.local()

    @functools.cached_property
    def asked(self) -> Asked:
        """What the compiles of this process were asked for; made when there is one."""
        from .kinds.asked import Asked

        return Asked()

    def begin_again(self) -> None:
        """In a forked child: whoever held a lock is not there."""
        self.lock, self._preparing = threading.RLock(), threading.RLock()

    # Hooks --------------------------------------------------------------------------------

    def arm(
        self,
        before: Callable[[], None],
        watch: Callable[[Any], Callable[[Any], Any] | None],
        after: Callable[[], None],
    ) -> None:
        """Puts the hooks in place; cheap, imports nothing of the compilers. To be called once.

        ``before`` and ``after`` each compile; ``before`` a kernel too that the application launches itself.
        ``watch`` is asked for each graph before it is compiled, and may answer what is to be put around what
        it was compiled to. What they raise reaches the application.
        """
        self.observer = observe.start()
        kinds.inductor.install_hooks(self.kernels)
        components.install_hooks(self.components)
        operators.install_hooks()
        ambient.install_hooks()
        self.collector.install_hooks()
        kinds.triton.install_hooks(self.triton, before, self._launched)
        around = functools.partial(self._around_compile_fx, before, watch, after)
        importhook.when_imported("torch._inductor.compile_fx", functools.partial(_hook_compile_fx, around))

    def _around_compile_fx(
        self,
        before: Callable[[], None],
        watch: Callable[[Any], Callable[[Any], Any] | None],
        after: Callable[[], None],
        original: Callable[..., Any],
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile_fx(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._depth, "inside", False):
                return original(*args, **kwargs)
            before()
            watched = watch(args[0] if args else kwargs.get("model_"))
            self._depth.inside = True
            graph = self.asked.note(*args, **kwargs)
            compiled_before = observe.counts["graphs_compiled"]
            begin = time.perf_counter()
            try:
                compiled = original(*args, **kwargs)
                return compiled if watched is None else watched(compiled)
            finally:
                self._depth.inside = False
                self.seconds["compile"] += time.perf_counter() - begin
                graph.compiled = observe.counts["graphs_compiled"] > compiled_before
                after()

        return compile_fx

    def _launched(self, event: Mapping[str, Any]) -> None:
        self.asked.launched(event)

    # Where it keeps what ------------------------------------------------------------------

    def prepare(self, config: Config, restored: Restored) -> tuple[NodeStore, Fingerprint]:
        """Opens the node store, detects this environment and decides the folders, once for all sessions.

        Raises ``Unsupported`` for a torch that cachesvc was not tested on (unless told to try), and
        ``StorageFull`` if there is no node store to put a private folder into.
        """
        from .detect import detect, supported
        from .node.store import NodeStore, default_root
        from .wire.digest import Digest

        self._store = store = NodeStore(config.store or default_root())
        with self._preparing:
            if self.fingerprint is None:
                # Before the rest: the application may initialise CUDA any moment.
                self.folders.settle_drivers(lambda: store.folder(Digest.of(kinds.cuda.NAME.encode())))
                with restored.timed("detect"):
                    fingerprint = detect()
                reason = supported(fingerprint, untested=config.untested)
                if reason:
                    self.folders.leave_drivers()
                    raise Unsupported(reason)
                self.fingerprint = fingerprint
                self.kernels.own(fingerprint)
                self._choose_folders(store, fingerprint)
            return store, self.fingerprint

    def _choose_folders(self, store: NodeStore, fingerprint: Fingerprint) -> None:
        from .wire.factors import partition

        self.folders.settle(lambda: store.folder(partition(fingerprint, ("gpu", "host"))))
        roots = self.folders.roots()
        root = roots[kinds.inductor.NAME]
        self.kernels.accept(root / kinds.inductor.HOST_FOLDER / kinds.inductor.host_id(fingerprint))
        kinds.cuda.prepare(roots[kinds.cuda.NAME])
        self.cuda.begin(self._of_libraries())

    def accept(self, installed: Iterable[Installed]) -> None:
        """Host kernels of these revisions may be loaded from now on, and the driver's are this process's."""
        root = self.folders.roots()[kinds.inductor.NAME]
        for entry in installed:
            files = entry.manifest.files
            paths = [record.path for record in files if record.kind == kinds.inductor.NAME]
            for folder in kinds.inductor.accepted_folders(root, paths):
                self.kernels.accept(folder)
            self.cuda.accept(record.path for record in files if record.kind == kinds.cuda.NAME)

    def forget(self, entry: Installed) -> None:
        """Takes a wrong revision out of this process and its folders, and off this node."""
        if self._store is not None:
            self._store.distrust(entry.manifest.entry, entry.revision)
        self.withdraw(entry)

    def withdraw(self, entry: Installed) -> None:
        """Takes a revision out of this process and its folders."""
        from .node.folders import remove

        paths = {record.path for record in entry.manifest.files}
        self.kernels.recorded.forget(paths, entry.keys)
        self.kernels.clear()
        remove(entry.manifest, kinds.RULES, self.folders.roots())

    # What there is to publish and to tell -------------------------------------------------

    def capture(self, whole: bool) -> list[SourceFile]:
        """See `Session.capture`."""
        from .node.folders import capture, listing

        roots = self.folders.roots()
        if not roots:
            return []
        found = {
            kinds.inductor.NAME: self.kernels.recorded.paths(roots[kinds.inductor.NAME]),
            kinds.triton.NAME: self.triton.paths(roots[kinds.triton.NAME]),
            kinds.cuda.NAME: self.cuda.paths(self._of_libraries()),
        }
        if whole:
            found = {kind: paths | listing(roots[kind], kinds.RULES[kind]) for kind, paths in found.items()}
        return capture(found, kinds.RULES, roots)

    def made_by_libraries(self) -> int:
        """How many kernels were compiled beside the compilers, for all that the folder tells."""
        return len(self.cuda.made(self._of_libraries()))

    def _of_libraries(self) -> set[str]:
        """What is in the driver's folder now, relative to it; nothing before there is one."""
        from .node.folders import listing

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
        from .detect import detect

        model = {"model": str(self.models[0])} if self.models else {}
        return {**detect(), **self.asked.facts(missed=True), **model}

    def activity(self) -> object:
        """Changes while this process compiles or loads; ``None`` before it did either."""
        seen = (self.observer.snapshot() if self.observer else None, dict(self.seconds), self.kernels.hits)
        return seen if self.seconds["compile"] or (seen[0] and not seen[0].clean) else None


def _hook_compile_fx(around: Callable[[Any], Any], module: ModuleType) -> None:
    if not importhook.wrap(module, "compile_fx", around):
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
