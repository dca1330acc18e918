"""Owns `ProcessFolders`: the environment that this process detected, its node store, and its cache folders
with the revisions that were accepted for them.

`attach` imports this module on the application's own thread, so the module imports little at its top.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..hooks import counters, logger
from ..kinds import KINDS, RULES
from ..kinds.folders import Folders
from ..kinds.kind import KindState
from ..wire.errors import Distrusted, Unsupported, Untrusted

if TYPE_CHECKING:
    from ..config.settings import Config
    from ..environment.support import Support
    from ..node.installed import AcceptedRevision, InstalledRevision, RestoreResult
    from ..node.ledger import Ledger
    from ..node.store import NodeStore
    from ..trust.accept import Accepted
    from ..wire.digest import Digest
    from ..wire.factors import Fingerprint


class ProcessFolders:
    """The folders that the compilers of this process use, and the revisions that lie in them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Guards what is decided once for the process. Held briefly, and never around an import."""
        self._preparing = threading.RLock()
        """Held around `prepare`, which imports. An import of the application may wait for ``lock``, so
        ``lock`` would not do."""
        self.installing = threading.RLock()
        """Held by the session that installs: the folder that it installs into does not change meanwhile."""
        self.kinds: dict[str, KindState] = {kind.name: kind.start() for kind in KINDS}
        """What was used of each kind, by its name."""
        self.folders = Folders(KINDS)
        self.fingerprint: Fingerprint | None = None
        """The environment; ``None`` before the first `prepare`."""
        self.support: Support | None = None
        """What may be restored in this environment; ``None`` before the first `prepare`."""
        self._store: NodeStore | None = None
        self._began = time.time_ns()
        """When this process began to be observed."""
        self._accepted: dict[Digest, dict[Digest, AcceptedRevision]] = {}
        """By trust scope and revision, what was accepted for the present folder."""
        self._alone = False
        """Whether the present folder is this process's own, so that more may be added while it compiles."""
        self._folder: Path | None = None
        """The private folder in use; ``None`` where the user named the folders."""
        self._folder_name: Digest | None = None
        """What `_folder` is named by, the same at each start."""
        self._swept = False
        self._compiling = 0
        """How many compiles are under way."""
        self._looking_up = 0
        """How many of these wait at a look-up, where they have no file open."""
        self.keeps_own = False
        """Whether what is compiled here is kept for the node's next start."""
        self.own: InstalledRevision | None = None
        """What was installed of the node's own results."""
        self.records_own = False
        """Whether what is recorded here is kept beside it."""
        self.captured = False
        """Whether what this process compiles is to be published."""
        self._used = False
        """Whether a compiler may have opened a file of the folder."""

    @functools.cached_property
    def ledger(self) -> Ledger:
        """Return where the files of the folders come from; the first use makes the object, in `prepare`."""
        from ..node.ledger import Ledger

        return Ledger(self._began)

    def read_variables(self) -> None:
        """Take what the variables of folders say now as what the user named. For a process of `warm` whose
        hooks were in place before it knew its folders; to be called before `prepare`."""
        self.folders = Folders(KINDS)

    @property
    def support_text(self) -> str:
        """Return in words why entries may be restored here, for the log."""
        if self.support is None or self.support.state == "supported":
            return "this torch is supported"
        return "proven by this entry"

    def begin_again(self) -> None:
        """Replace the locks in a forked child: the threads that held them are not there."""
        self.lock, self._preparing, self.installing = (threading.RLock() for _ in range(3))
        self._compiling = self._looking_up = 0

    def prepare(self, config: Config, result: RestoreResult) -> tuple[NodeStore, Fingerprint]:
        """Open the node store, detect this environment and decide the folders, once for all sessions.

        ``result``: where the seconds of the detection are counted. Raises ``Unsupported`` for a torch that is
        not usable (`environment.support`), and ``StorageFull`` if there is no node store to put a private
        folder into: then every compiler stays in its own folder.
        """
        from ..environment.detect import detect
        from ..node.trust_scope import folder_name, trust_scope
        from .every_hook import support_of

        with self._preparing:
            store = self._store = self._store or _open_store(config, result)
            _ = (
                self.ledger
            )  # made under the lock, so that there is one; no assert, which python -O leaves out
            self.captured |= config.mode == "readwrite"
            scope = trust_scope(config)
            if self.fingerprint is None:
                # Before the detection: the application may initialise CUDA at any moment.
                self.folders.settle_early(store.folders.open_own)
                with result.timed("detect"):
                    fingerprint = detect()
                    support = support_of(fingerprint)
                if support.state == "not usable":
                    self.folders.leave_early()
                    raise Unsupported(support.line)
                self.support = support
                for state in self.kinds.values():
                    state.set_environment(fingerprint)
                without_revisions = folder_name(fingerprint, {scope: ()})
                self._use_folder(without_revisions, lambda: store.folders.open(without_revisions))
                self.fingerprint = fingerprint
            self._accepted.setdefault(scope, {})
            return store, self.fingerprint

    @property
    def trust_scopes(self) -> int:
        """Return how many trust scopes the sessions of this process have."""
        return len(self._accepted)

    def place(
        self,
        scope: Digest,
        accepted: Sequence[AcceptedRevision],
        may_install: Callable[[], bool],
        alone: bool = False,
        at_look_up: bool = False,
    ) -> list[AcceptedRevision] | None:
        """Choose the folder for the revisions that a session accepted and those of the other sessions.

        Return the revisions that have to be installed again, since they lie in the folder before; ``None``
        if it is too late to choose, because a compile is under way. ``alone``: choose a folder that no other
        process has, to which `join` adds; such a folder stays this process's. ``at_look_up``: a compile that
        waits at a look-up is none that is under way. The caller holds ``installing`` and has called
        `prepare`. Files that were compiled here before stay in their folder, to which nothing
        is added. Raises as `NodeStore.folder` does.
        """
        from ..node.trust_scope import folder_name
        from ..wire.digest import Digest

        assert self._store is not None and self.fingerprint is not None
        others = self._accepted_revisions()
        together = {key: dict(revisions) for key, revisions in self._accepted.items()}
        together.setdefault(scope, {}).update((one.revision, one) for one in accepted)
        names = {key: set(revisions) for key, revisions in together.items() if revisions}
        present = {key: set(revisions) for key, revisions in self._accepted.items() if revisions}
        if not self.folders.private or self._alone or (names == present and not alone):
            self._accepted = together
            self._note(accepted)
            return []
        name = folder_name(self.fingerprint, names)
        name = Digest.of(f"more than {name}".encode()) if alone else name
        folder = self._store.folders.open_own(str(name)) if alone else self._store.folders.open(name)
        with self.lock:
            busy = self._writes_files() if at_look_up else self._compiling
            if busy or not may_install():
                self._store.folders.leave(folder)
                return None
            self._use_folder(name, lambda: folder)
        self._alone, self._accepted = alone, together
        self._note(accepted)
        self.accept(others)
        return others

    def join(self, scope: Digest, accepted: AcceptedRevision) -> list[AcceptedRevision] | None:
        """Choose the folder for a revision that a look-up of a compiler asked for.

        A folder that only this process has, or that the user named, stays: the revision is added. What is
        compiled beside it is not kept for the node's next start, since a private folder's own results go with
        the revisions in its name. A folder that other processes use holds what its name says, and nothing
        else: another one takes its place, as by `place`, if every compile under way waits at a look-up, and
        no program has pointed a compiler elsewhere. Return and raise as `place` does. The caller holds
        ``installing``.
        """
        if self.folders.private and not self._alone:
            if not self.folders.in_use():
                return None
            return self.place(scope, [accepted], lambda: True, at_look_up=True)
        self._accepted.setdefault(scope, {})[accepted.revision] = accepted
        self._note([accepted])
        self.keeps_own = False
        return []

    def _writes_files(self) -> bool:
        """Return whether a compile is under way that does not wait at a look-up, or is inside another one's
        code generation: its files are to lie in one folder."""
        return self._compiling > self._looking_up or counters.compiling()

    def point_compilers(self) -> None:
        """Set the compilers' variables to the present folders again, which a program has changed.

        Does nothing where no revision was restored and nothing is to be published: there the program's own
        folder may hold what it compiled before.
        """
        if self.captured or any(self._accepted.values()):
            self.folders.point_again()

    def accept(self, revisions: Iterable[InstalledRevision | AcceptedRevision]) -> None:
        """Allow the compilers to use the files of these revisions."""
        roots = self.folders.roots()
        for entry in revisions:
            self.ledger.note(entry)
            for name, root in roots.items():
                paths = [record.path for record in entry.manifest.files if record.kind == name]
                if paths:
                    self.kinds[name].accept(root, paths)

    def loading(self, kind: str, path: str) -> AbstractContextManager[None]:
        """Return a guard for a block that loads a restored file as code: if two processes crash in it, this
        node installs the revisions that have the file no more, for a while. Raises nothing."""
        suspects = self.ledger.revisions_of(kind, path)
        if self._store is None or not suspects:
            return nullcontext()
        return self._store.marks.loading(suspects)

    def _note(self, revisions: Iterable[AcceptedRevision]) -> None:
        """Note in the ledger who signed the revisions that are to be installed."""
        for revision in revisions:
            self.ledger.note(revision)

    def refuse_own(self, own: Accepted) -> None:
        """Raise ``Untrusted`` if this node has withdrawn these own results, or if a revision that they were
        made beside is not accepted for the present folder, or was withdrawn."""
        assert self._store is not None
        withdrawn = self._store.marks.distrusts
        if withdrawn(own.manifest.entry, own.revision):
            raise Distrusted("two processes of this node crashed while they loaded a file of it")
        entries = {one.revision: one.manifest.entry for one in self._accepted_revisions()}
        for one in own.manifest.ancestors or ():
            if one.revision not in entries or withdrawn(entries[one.revision], one.revision):
                raise Untrusted("made beside a revision that is not accepted now")

    def forget(self, entry: InstalledRevision) -> None:
        """Take a wrong revision out of this process and its folders, and off this node."""
        if self._store is not None:
            self._store.marks.distrust(entry.manifest.entry, entry.revision)
        self.withdraw(entry)

    def withdraw(self, entry: InstalledRevision) -> None:
        """Take a revision out of this process and its folders, and the node's own results that were made
        beside it."""
        from ..node.install import remove

        own = self.own
        if own is not None and any(one.revision == entry.revision for one in own.manifest.ancestors or ()):
            self.own = None
            self.withdraw(own)
        paths = {record.path for record in entry.manifest.files}
        for state in self.kinds.values():
            state.forget(paths, entry.keys)
        for roots in self.folders.every_roots():
            remove(entry.manifest, RULES, roots)

    def own_results(self) -> Path | None:
        """Return where this node keeps what is compiled in the present folder; ``None`` if the user named
        the folder."""
        if self._store is None or self._folder is None or self._folder_name is None:
            return None
        return self._store.own_results(self._folder_name)

    def sweep_folders(self) -> None:
        """Remove the private folders that earlier processes of this node have left, once, on a thread."""
        if self._store is None or self._swept:
            return
        self._swept = True
        with suppress(RuntimeError):  # no more threads: the next start does it
            threading.Thread(target=self._store.sweep_folders, name="cachesvc-sweep", daemon=True).start()

    def _use_folder(self, named_by: Digest, private: Callable[[], Path]) -> None:
        """Give the compilers the private folder of this name, unless the user named theirs."""
        assert self._store is not None
        before = self._folder

        def choose() -> Path:
            self._folder, self._folder_name = private(), named_by
            return self._folder

        self.folders.settle(choose)
        states = self.kinds.values()
        if before is not None and not (self._used or any(state.activity().opened for state in states)):
            self.folders.forget_earlier()
            for state in states:
                state.leave_folder()
            self._store.folders.leave(before)
        for name, root in self.folders.roots().items():
            self.kinds[name].use_folder(root)

    def _accepted_revisions(self) -> list[AcceptedRevision]:
        return [one for revisions in self._accepted.values() for one in revisions.values()]


def _open_store(config: Config, result: RestoreResult) -> NodeStore:
    """Open the store in the first folder that can be used, and say which ones could not. Raise as
    `NodeStore` does, and ``NoFolder``."""
    from ..node.store import NodeStore
    from ..node.store_root import SETTING, choose_store

    choice = choose_store(config.store)
    for found in choice.refused:
        if found.folder == config.store:
            result.warn(f"{SETTING} is not used: node store {found}")
        elif choice.root is not None:
            logger.write(logging.INFO, "node store %s; %s is used", found, choice.root)
    return NodeStore(choice.demand())
