"""What the thread of a session restores: each of its wishes, and what was missed once more, in turn.

It never imports torch. `restore` knows one wish; here are all of them, the bundle files instead, and which
failure counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import kinds
from ..node.installed import InstalledRevision, RestoreResult
from ..node.trust_scope import trust_scope
from ..own_results.install import restore_own_results
from ..ranks.job import may_become_rank, this_job
from ..wire.errors import CacheSvcError, Incompatible, InvalidRequest, NotFound
from .plan import NameRequest, RestoreContext
from .revision_restore import accept_bundles, accept_revisions

if TYPE_CHECKING:
    from ..claims.restore_or_claim import ClaimedRestore
    from ..config import Config
    from ..http.registry import Remote
    from ..ranks.agreement import Agreement
    from ..session.process import Process
    from ..wire.digest import Digest


def wishes(config: Config, model: Digest | None) -> tuple[NameRequest, ...]:
    """What is asked for: of a registry, or of the bundle, which may have any name if this is empty. Raises
    ``InvalidRequest`` where nothing says what, or whom."""
    if config.mode == "off":
        return ()
    if config.bundle is not None:
        return _named(config, model)
    if not config.names:
        raise InvalidRequest("attach: no name", "give one, or set CACHESVC_NAME or CACHESVC_BUNDLE")
    if not config.url:
        raise InvalidRequest("attach: no registry", "run cachesvc login, or set CACHESVC_URL")
    return _named(config, model)


def _named(config: Config, model: Digest | None) -> tuple[NameRequest, ...]:
    return tuple(NameRequest(name, config.tag_fallback, config.lane, model) for name in config.names)


class Restoring:
    """The restores of one session. ``missed``: what nothing fits, and this process may publish."""

    def __init__(
        self, config: Config, process: Process, restored: RestoreResult, may_install: Callable[[], bool]
    ) -> None:
        """Fills ``restored``. ``may_install``: see `RestoreContext`. Raises as `Process.prepare` does."""
        store, fingerprint = process.prepare(config, restored)
        self.missed: tuple[NameRequest, ...] = ()
        self._config, self._restored, self._process = config, restored, process
        self._scope = trust_scope(config)
        self._means = RestoreContext(
            store=store,
            trusted=config.trusted_keys,
            fingerprint=fingerprint,
            rules=kinds.RULES,
            roots=process.folders.roots,
            may_install=may_install,
            lane=config.lane,
            ahead=this_job() is not None or may_become_rank(),
        )

    def restore(self, wanted: Iterable[NameRequest], agreement: Agreement) -> None:
        """The configuration's bundle files if it names some, else what is ``wanted``; and, whatever comes of
        it, what this node compiled itself. Raises ``CacheSvcError``: the first wish's that failed, when all
        were tried."""
        try:
            self._restore(wanted, agreement)
        finally:
            self._restore_own()

    def _restore(self, wanted: Iterable[NameRequest], agreement: Agreement) -> None:
        if self._config.bundle is None:
            self._restore_each(wanted, accept_revisions, self._means, agreement)
            return
        accept_bundles(_bundles(self._config.bundle), tuple(wanted), self._means, self._restored)
        self._install(self._means, agreement.reach(self._means, ()))

    def _restore_own(self) -> None:
        """Not for a rank of a job, whose ranks all hit or none does, nor where this process publishes."""
        if self._config.mode != "read" or not self._config.keep_own or this_job() is not None:
            return
        try:
            with self._process.installing, self._restored.timed("install"):
                if self._means.may_install():
                    self._restored.own = restore_own_results(self._process)
        except CacheSvcError as error:
            self._restored.problems.append(str(error))
        # Python cannot import everything while it ends, so that the keeper's modules are imported now.
        from ..bundle import seal  # noqa: F401
        from ..publication import build_bundle  # noqa: F401

        self._process.keeps_own = True

    def restore_in_turn(self, turns: ClaimedRestore, agreement: Agreement) -> None:
        """What was missed, once more: another process may compile and publish it while this one waits.
        Raises as `restore` does."""
        self._restore_each(self.missed, turns.accept, replace(self._means, held=[]), agreement)

    def _restore_each(
        self,
        wanted: Iterable[NameRequest],
        accept: Callable[[NameRequest, Remote, RestoreContext, RestoreResult], None],
        means: RestoreContext,
        agreement: Agreement,
    ) -> None:
        from ..http.registry import Remote

        config = self._config
        failures: list[CacheSvcError] = []
        missed: list[NameRequest] = []
        # Half of what the compile waits, so that a hung registry leaves time for the node's last answer.
        seconds = min(10.0, max(0.2, config.deadline / 2))
        with Remote(config.url or "", config.token, timeout=seconds) as remote:
            for wish in wanted:
                try:
                    accept(wish, remote, means, self._restored)
                except CacheSvcError as error:
                    failures.append(error)
                    if isinstance(error, (NotFound, Incompatible)):
                        missed.append(wish)
            rank = agreement.reach(means, failures)
            if config.mode == "readwrite" and config.token:
                self.missed = tuple(missed)
            self._install(means, rank, failures)

    def _install(
        self, means: RestoreContext, rank: int | None, failures: Sequence[CacheSvcError] = ()
    ) -> None:
        """Installs what was accepted. Raises the first of ``failures``, or, if nothing was installed or this
        is a rank, the first failure of an install."""
        if self._process.trust_scopes > 1:
            for held in means.held:
                with suppress(CacheSvcError):  # its install raises the same
                    held.fetch()  # no session waits for another one's download
        with self._process.installing:
            failed = self._install_each(means, rank)
        nothing = not (self._restored.installed or self._restored.stored)
        if failures or (failed and (nothing or rank is not None)):
            raise [*failures, *failed][0]

    def _install_each(self, means: RestoreContext, rank: int | None) -> list[CacheSvcError]:
        """Answers what failed."""
        restored = self._restored
        failed: list[CacheSvcError] = []
        again = self._process.place(self._scope, means.held, means.may_install)
        for held in again or ():
            with suppress(CacheSvcError):  # it is another session's: what lacks is compiled
                held.install(rank)
        for held in means.held:
            try:
                installed = held.fetch() if again is None else held.install(rank)
            except CacheSvcError as error:
                failed.append(error)
                restored.problems.append(str(error))
            else:
                if isinstance(installed, InstalledRevision):
                    restored.installed.append(installed)
                else:
                    restored.stored += 1
        return failed


def _bundles(path: Path) -> list[Path]:
    if not path.exists():
        raise InvalidRequest(f"{path}: no such bundle file or folder")
    return sorted(path.glob("*.cachesvc")) if path.is_dir() else [path]
