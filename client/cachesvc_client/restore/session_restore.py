"""Restores all that one session asks for: each of its names, or bundle files instead of them.

For each name: `ask`, `accept`; for all together: agree with the other ranks, choose the folder; for each
revision: fetch its pack (`packs`), `install`. This module decides which failure counts. It runs on the
session's thread and never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..node.installed import AcceptedRevision, RestoreResult
from ..node.trust_scope import trust_scope
from ..own_results.install import restore_own_results
from ..ranks.job import may_become_rank, this_job
from ..wire.errors import CacheSvcError, Incompatible, InvalidRequest, NotFound
from ..wire.requests.protocol import FEW_RESOLVED
from .accept import accept_bundles, accept_name, add_newest
from .install import install_revision
from .registry_access import RegistryAccess
from .request import Coverage, NameRequest
from .settings import Inquiry, RestoreSettings, RestoreTarget

if TYPE_CHECKING:
    from ..bundle.seal import PublicKey
    from ..config.settings import Config
    from ..http.registry import Remote
    from ..process.process import Process
    from ..ranks.agreement import Agreement
    from ..trust.accept import Accepted
    from ..wire.digest import Digest
    from ..wire.manifest.records import Manifest
    from .node_offers import NodeOffers
    from .on_demand import OnDemand

    AcceptName = Callable[[NameRequest, Inquiry], list[AcceptedRevision]]


def name_requests_of(config: Config, model: Digest | None) -> tuple[NameRequest, ...]:
    """List the names that ``config`` asks a registry for, or accepts in a bundle.

    If no name is set, a bundle of any name is accepted. Raise ``InvalidRequest`` if neither a name nor a
    bundle is set, or a name without a registry.
    """
    if config.mode == "off":
        return ()
    if config.bundle is None and not config.names:
        raise InvalidRequest("attach: no name", "give one, or set CACHESVC_NAME or CACHESVC_BUNDLE")
    if config.bundle is None and not config.url:
        raise InvalidRequest("attach: no registry", "run cachesvc login, or set CACHESVC_URL")
    return tuple(NameRequest(name, config.tag_fallback, config.lane, model) for name in config.names)


class SessionRestore:
    """Restores what one session asks for.

    ``missed``: names that no entry fits, in a process that may publish entries for them. ``coverage``: which
    names have everything that fits.
    """

    def __init__(
        self, config: Config, process: Process, result: RestoreResult, may_install: Callable[[], bool]
    ) -> None:
        """Prepare the process. The restores fill ``result``. ``may_install``: asked before every file; after
        it has returned false, only the node store is filled.

        Raise as `Process.prepare` does.
        """
        store, fingerprint = process.prepare(config, result)
        self.missed: tuple[NameRequest, ...] = ()
        self.coverage = Coverage()
        self.supported = process.support is None or process.support.state == "supported"
        self._config, self._result, self._process = config, result, process
        self._may_install = may_install
        self._scope = trust_scope(config)
        of_job = this_job() is not None or may_become_rank()
        self._settings = RestoreSettings(
            acceptance=config.acceptance(),
            fingerprint=fingerprint,
            support=process.support,
            lane=config.lane,
            offline=config.offline,
            # Ranks hit together or not at all, so what one of them lacks is not asked for.
            limit=None if config.bundle or of_job else FEW_RESOLVED,
            patience=config.deadline,
            prefetch=of_job,
        )
        self._target = RestoreTarget(store, process.folders.roots, _node_offers(config, result))
        self._access = RegistryAccess(config, self._target, result)
        self._on_demand: OnDemand | None = None
        self._asks_by_key = self._settings.limit is not None

    @property
    def partial(self) -> bool:
        """Return whether revisions that fit were left out, for a compile to ask for."""
        return self._asks_by_key and bool(self.coverage.truncated)

    @property
    def remembers_used(self) -> bool:
        """Return whether the next start of this program restores what this one uses of what was omitted."""
        return self.partial or (self._asks_by_key and self.coverage.older)

    @property
    def on_demand(self) -> OnDemand | None:
        """Return what asks for the keys that a compiler looks up and does not find; ``None`` where nothing
        may be added, or no registry has answered."""
        answered = self.coverage.truncated or self.coverage.complete
        if self._on_demand is None and self._asks_by_key and answered:
            from .on_demand import OnDemand

            self._on_demand = OnDemand(
                self._access, self._settings, self._process, self._scope, self.coverage
            )
        return self._on_demand if self._asks_by_key else None

    def ask_no_more(self) -> None:
        """Ask for no key of a compiler any more."""
        self._asks_by_key = False

    def restore(self, requests: Iterable[NameRequest], agreement: Agreement) -> None:
        """Restore the configuration's bundle files, or else the names; then this node's own results.

        The node's own results are restored even if the rest fails. Raise the first ``CacheSvcError`` after
        all names were tried.
        """
        try:
            if self._config.bundle is None:
                self._restore_names(requests, accept_name, agreement)
            else:
                self._restore_bundles(self._config.bundle, tuple(requests), agreement)
        finally:
            self._restore_own()

    def restore_missed(self, accept: AcceptName, agreement: Agreement) -> None:
        """Restore the missed names again, since another process may publish them while this one waits.

        ``accept``: accepts the revisions of one name, or waits for them. Raise as `restore` does.
        """
        self._restore_names(self.missed, accept, agreement)

    def _restore_bundles(self, bundle: Path, requests: tuple[NameRequest, ...], agreement: Agreement) -> None:
        from ..bundle.file import bundle_files

        settings = replace(self._settings, acceptance=self._access.acceptance_of_bundles())
        accepted = accept_bundles(bundle_files(bundle), requests, settings, self._target, self._result)
        self._install(accepted, self._agree(agreement, accepted, ()))

    def _restore_names(
        self, requests: Iterable[NameRequest], accept: AcceptName, agreement: Agreement
    ) -> None:
        """Accept the revisions of each name, agree with the other ranks, and install."""
        with self._access.connect() as remote:
            accepted, missed, failures = self._accept_names(requests, accept, remote)
            rank = self._agree(agreement, accepted, failures)
            # What a service publishes has no proof, so on a torch that is not supported nobody waits for it.
            if self._config.mode == "readwrite" and self.supported:
                self.missed = missed
            self._install(accepted, rank, failures)

    def _accept_names(
        self, requests: Iterable[NameRequest], accept: AcceptName, remote: Remote
    ) -> tuple[list[AcceptedRevision], tuple[NameRequest, ...], list[CacheSvcError]]:
        """Return the accepted revisions, the names that no entry fits, and the errors."""
        try:
            acceptance = self._access.acceptance(remote, remote.timeout / 2)
        except CacheSvcError as error:
            return [], (), [error]
        settings = replace(self._settings, acceptance=acceptance)
        inquiry = Inquiry(remote, settings, self._target, self._result, self.coverage)
        accepted: dict[Digest, AcceptedRevision] = {}
        failures: list[CacheSvcError] = []
        missed: list[NameRequest] = []
        for request in requests:
            try:
                for one in accept(request, replace(inquiry, others=bool(accepted))):
                    add_newest(accepted, one)
            except CacheSvcError as error:
                failures.append(error)
                if isinstance(error, (NotFound, Incompatible)):
                    missed.append(request)
        return list(accepted.values()), tuple(missed), failures

    def _agree(
        self,
        agreement: Agreement,
        revisions: Sequence[AcceptedRevision],
        failures: Sequence[CacheSvcError],
    ) -> int | None:
        """Return this process's rank, once all ranks install the same; ``None`` for a process alone."""
        if not self._settings.prefetch:
            return None
        return agreement.reach([one.accepted for one in revisions], self._target.store, failures)

    def _restore_own(self) -> None:
        """Install what this node compiled itself.

        A rank of a job skips this step, because either all ranks of a job hit or none does. So does a process
        that publishes, and one on a torch that is not supported: nobody has proven these results.
        """
        if not self._may_keep_own():
            return
        try:
            with self._process.installing, self._result.timed("install"):
                if self._may_install():
                    self._result.own = restore_own_results(self._process)
                    self._record_own()
        except CacheSvcError as error:
            self._result.problems.append(str(error))
        self._keep_own()

    def _record_own(self) -> None:
        """Record frames for this node's next start, where something was installed: the node keeps the frames,
        with the names of the revisions whose graphs they call."""
        process = self._process
        if (self._result.own or self._result.installed) and process.own_results() is not None:
            process.records_own = True
            process.all_kinds.start_recording(serving=True, seconds=self._config.record_seconds)

    def _may_keep_own(self) -> bool:
        config = self._config
        return config.mode == "read" and config.keep_own and this_job() is None and self.supported

    def _keep_own(self) -> None:
        """Have the process keep what it compiles for the next start of this node."""
        # The process stores its own results when it ends. Python cannot import every module then, so the
        # modules that this needs are imported now.
        from ..bundle import seal  # noqa: F401
        from ..publication import build_bundle  # noqa: F401

        self._process.keeps_own = True

    def note_late(self) -> None:
        """Remember on this node what came too slowly: a compile waits for it no longer."""
        self._target.store.slow.note_late()

    def compile_goes_on(self) -> None:
        """Note that a compile goes on before the restore is over: what it makes counts for the next start."""
        self.note_late()
        if self._may_keep_own():
            self._keep_own()

    def fetch_head(
        self, request: NameRequest, is_head: Callable[[Manifest], bool], own: PublicKey
    ) -> tuple[Accepted, Path] | None:
        """Fetch the revision under a name for which ``is_head`` is true, and return it with its pack;
        ``None`` if the registry offers none. Install nothing. ``own``: this process's key, which counts too.
        Raise as `accept_name` does.
        """
        from ..http.registry import Remote

        config = self._config
        with Remote(config.url or "", config.token, allow_links=config.allow_links) as remote:
            acceptance = self._access.acceptance(remote, 5.0).trusting(own)
            settings = replace(
                self._settings, acceptance=acceptance, bypass_cache=True, prefetch=False, limit=None
            )
            with suppress(NotFound, Incompatible):
                for one in accept_name(request, Inquiry(remote, settings, self._target, RestoreResult())):
                    if is_head(one.manifest):
                        return one.accepted, one.pack.fetch()
        return None

    def _install(
        self,
        revisions: Sequence[AcceptedRevision],
        rank: int | None,
        failures: Sequence[CacheSvcError] = (),
    ) -> None:
        """Install the accepted revisions.

        Raise the first of ``failures``. Without one, raise the first error of an install if nothing was
        installed or this process is a rank.
        """
        if self._process.trust_scopes > 1:
            for one in revisions:
                with suppress(CacheSvcError):  # its install raises the same
                    one.pack.fetch()  # no session waits for another one's download
        with self._process.installing:
            errors = self._install_each(revisions, rank)
        empty = not (self._result.installed or self._result.stored or self.coverage.truncated)
        if failures or (errors and (empty or rank is not None)):
            raise [*failures, *errors][0]

    def _install_each(self, revisions: Sequence[AcceptedRevision], rank: int | None) -> list[CacheSvcError]:
        """Install each accepted revision and return the errors."""
        target, result, may_install = self._target, self._result, self._may_install
        errors: list[CacheSvcError] = []
        alone = bool(self.coverage.truncated)
        again = self._process.place(self._scope, revisions, may_install, alone)
        for one in again or ():
            with suppress(CacheSvcError):  # another session's revision: its missing files are compiled
                install_revision(one, target, result, rank=rank, may_install=may_install)
        for one in revisions:
            try:
                if again is None:
                    one.pack.fetch()
                    installed = None
                else:
                    installed = install_revision(one, target, result, rank=rank, may_install=may_install)
            except CacheSvcError as error:
                errors.append(error)
                result.problems.append(str(error))
            else:
                if installed is not None:
                    result.installed.append(installed)
                else:
                    result.stored += 1
        return errors


def _node_offers(config: Config, result: RestoreResult) -> NodeOffers | None:
    """Open the store of this node's agent, if the user named one; a store that cannot be used is a warning,
    and the registry is asked."""
    if config.node_store is None or config.bundle is not None or not config.url:
        return None
    from ..node.shared_store import open_shared_store
    from .node_offers import NodeOffers

    try:
        store = open_shared_store(config.node_store, config.node_owner)
    except CacheSvcError as error:
        result.warn(f"CACHESVC_NODE_STORE is not used: {error}")
        return None
    return NodeOffers(store, config.url, config.node_age)
