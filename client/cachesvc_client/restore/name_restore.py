"""Restores all that one session asks for: each of its names, or bundle files instead of them.

`revision_restore` accepts the revisions of one name. This module goes over all names, installs what was
accepted, and decides which failure counts. It runs on the session's thread and never imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..kinds import RULES
from ..node.installed import InstalledRevision, RestoreResult, StagedRevision
from ..node.trust_scope import trust_scope
from ..own_results.install import restore_own_results
from ..ranks.job import may_become_rank, this_job
from ..wire.errors import CacheSvcError, Incompatible, InvalidRequest, NotFound
from ..wire.protocol import FEW_RESOLVED
from .plan import NameRequest, RestoreContext
from .revision_restore import accept_bundles, accept_revisions

if TYPE_CHECKING:
    from ..bundle.seal import PublicKey
    from ..config import Config
    from ..http.registry import Remote
    from ..process.process import Process
    from ..ranks.agreement import Agreement
    from ..trust_root.policy import SignerPolicy
    from ..wire.digest import Digest
    from ..wire.records import Manifest
    from .node_offers import NodeOffers
    from .on_demand import OnDemand

    AcceptName = Callable[[NameRequest, Remote, RestoreContext, RestoreResult], None]


def name_requests_of(config: Config, model: Digest | None) -> tuple[NameRequest, ...]:
    """Lists the names that ``config`` asks a registry for, or accepts in a bundle.

    If no name is set, a bundle of any name is accepted. Raises ``InvalidRequest`` if neither a name nor a
    bundle is set, or a name without a registry.
    """
    if config.mode == "off":
        return ()
    if config.bundle is not None:
        return _requests_by_name(config, model)
    if not config.names:
        raise InvalidRequest("attach: no name", "give one, or set CACHESVC_NAME or CACHESVC_BUNDLE")
    if not config.url:
        raise InvalidRequest("attach: no registry", "run cachesvc login, or set CACHESVC_URL")
    return _requests_by_name(config, model)


def _requests_by_name(config: Config, model: Digest | None) -> tuple[NameRequest, ...]:
    """Makes a request for each configured name."""
    return tuple(NameRequest(name, config.tag_fallback, config.lane, model) for name in config.names)


class SessionRestore:
    """Restores what one session asks for.

    ``missed``: names that no entry fits, in a process that may publish entries for them.
    """

    def __init__(
        self, config: Config, process: Process, result: RestoreResult, may_install: Callable[[], bool]
    ) -> None:
        """Prepares the process. The restores fill ``result``; `RestoreContext` explains ``may_install``.

        Raises as `Process.prepare` does.
        """
        store, fingerprint = process.prepare(config, result)
        self.missed: tuple[NameRequest, ...] = ()
        self._config, self._result, self._process = config, result, process
        self._scope = trust_scope(config)
        self._context = RestoreContext(
            store=store,
            acceptance=config.acceptance(),
            fingerprint=fingerprint,
            rules=RULES,
            roots=process.folders.roots,
            may_install=may_install,
            lane=config.lane,
            offline=config.offline,
            ahead=this_job() is not None or may_become_rank(),
            support=process.support,
            # Ranks hit together or not at all, so what one of them lacks is not asked for.
            most=None if config.bundle or this_job() is not None or may_become_rank() else FEW_RESOLVED,
            offers=_node_offers(config, result),
            patience=config.deadline,
        )
        self._on_demand: OnDemand | None = None
        self._asks_by_key = self._context.most is not None
        self.supported = process.support is None or process.support.state == "supported"

    @property
    def partial(self) -> bool:
        """Return whether revisions that fit were left out, for a compile to ask for."""
        return self._asks_by_key and bool(self._context.partial)

    @property
    def on_demand(self) -> OnDemand | None:
        """Return what asks for the keys that a compiler looks up and does not find; ``None`` where nothing
        may be added, or no registry has answered."""
        if self._on_demand is None and self._asks_by_key and (self._context.partial or self._context.whole):
            from .on_demand import OnDemand

            self._on_demand = OnDemand(self._config, self._process, self._scope, self._context, self._policy)
        return self._on_demand if self._asks_by_key else None

    def ask_no_more(self) -> None:
        """Ask for no key of a compiler any more."""
        self._asks_by_key = False

    def restore(self, name_requests: Iterable[NameRequest], agreement: Agreement) -> None:
        """Restores the configuration's bundle files, or else ``name_requests``; then this node's own results.

        The node's own results are restored even if the rest fails. Raises the first ``CacheSvcError`` after
        all names were tried.
        """
        try:
            self._restore(name_requests, agreement)
        finally:
            self._restore_own()

    def _restore(self, name_requests: Iterable[NameRequest], agreement: Agreement) -> None:
        if self._config.bundle is None:
            self._restore_each(name_requests, accept_revisions, self._context, agreement)
            return
        acceptance = self._config.acceptance(self._policy_of_bundles())
        context = replace(self._context, acceptance=acceptance)
        accept_bundles(_bundles(self._config.bundle), tuple(name_requests), context, self._result)
        self._install(context, agreement.reach(context, ()))

    def _policy_of_bundles(self) -> SignerPolicy | None:
        """Return the policy by the trust metadata that this node has; see `policy_of_node`."""
        from ..trust_root.registry_metadata import policy_of_node

        policy, warning = policy_of_node(self._config, self._context.store)
        if warning:
            self._result.warn(f"bundles: {warning}")
        return policy

    def _policy(self, remote: Remote, seconds: float) -> SignerPolicy | None:
        """Bring the trust metadata up to date and return the policy; ``None`` without a pinned root.

        ``seconds``: how long the registry may take, before the metadata of this node are used.
        """
        from ..trust_root.registry_metadata import AgentMetadata, refresh_policy

        config, offers = self._config, self._context.offers
        if config.trust_root is None:
            return None
        agent = None if offers is None else AgentMetadata(offers.store.trust_folder, offers.max_age)
        with self._result.timed("trust"):
            folder, deadline = self._context.store.trust_folder, time.monotonic() + seconds
            policy, warning = refresh_policy(config.trust_root, folder, remote, deadline, agent)
        if warning:
            self._result.warn(warning)
        return policy

    def _restore_own(self) -> None:
        """Installs what this node compiled itself.

        A rank of a job skips this step, because either all ranks of a job hit or none does. So does a process
        that publishes, and one on a torch that is not supported: nobody has proven these results.
        """
        if not self._may_keep_own():
            return
        try:
            with self._process.installing, self._result.timed("install"):
                if self._context.may_install():
                    self._result.own = restore_own_results(self._process)
        except CacheSvcError as error:
            self._result.problems.append(str(error))
        self._keep_own()

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
        self._context.store.slow.note_late()

    def compile_goes_on(self) -> None:
        """Note that a compile goes on before the restore is over: what it makes counts for the next start."""
        self.note_late()
        if self._may_keep_own():
            self._keep_own()

    def restore_missed(self, accept: AcceptName, agreement: Agreement) -> None:
        """Restores the missed names again, since another process may publish them while this one waits.

        ``accept``: accepts the revisions of one name, or waits for them. Raises as `restore` does.
        """
        self._restore_each(self.missed, accept, replace(self._context, revisions=[]), agreement)

    def fetch_head(
        self, request: NameRequest, is_head: Callable[[Manifest], bool], own: PublicKey
    ) -> tuple[StagedRevision, Path] | None:
        """Brings the revision under a name for which ``is_head`` is true to this node, and returns it with
        its pack; ``None`` if the registry offers none. Installs nothing. ``own``: this process's key, which
        counts too. Raises as `accept_revisions` does.
        """
        from ..http.registry import Remote

        config = self._config
        context = replace(self._context, revisions=[], fresh=True, ahead=False, most=None)
        with Remote(config.url or "", config.token, allow_links=config.allow_links) as remote:
            acceptance = config.acceptance(self._policy(remote, 5.0)).trusting(own)
            context = replace(context, acceptance=acceptance)
            with suppress(NotFound, Incompatible):
                accept_revisions(request, remote, context, RestoreResult())
            for staged in context.revisions:
                if is_head(staged.manifest):
                    pack = staged.fetch()
                    return (staged, pack) if isinstance(pack, Path) else None
        return None

    def _restore_each(
        self,
        name_requests: Iterable[NameRequest],
        accept: AcceptName,
        context: RestoreContext,
        agreement: Agreement,
    ) -> None:
        from ..http.registry import Remote

        config = self._config
        failures: list[CacheSvcError] = []
        missed: list[NameRequest] = []
        # A request takes at most half of the compile's wait, so that a registry that hangs leaves time for
        # the answer that the node remembers.
        seconds = min(10.0, max(0.2, config.deadline / 2))
        with Remote(
            config.url or "", config.token, timeout=seconds, allow_links=config.allow_links
        ) as remote:
            try:
                policy = self._policy(remote, seconds / 2)
                context = replace(context, acceptance=config.acceptance(policy))
            except CacheSvcError as error:
                failures.append(error)
            for name_request in () if failures else name_requests:
                try:
                    accept(name_request, remote, context, self._result)
                except CacheSvcError as error:
                    failures.append(error)
                    if isinstance(error, (NotFound, Incompatible)):
                        missed.append(name_request)
            rank = agreement.reach(context, failures)
            # What a service publishes has no proof, so on a torch that is not supported nobody waits for it.
            if config.mode == "readwrite" and self.supported:
                self.missed = tuple(missed)
            self._install(context, rank, failures)

    def _install(
        self, context: RestoreContext, rank: int | None, failures: Sequence[CacheSvcError] = ()
    ) -> None:
        """Installs the accepted revisions.

        Raises the first of ``failures``. Without one, raises the first error of an install if nothing was
        installed or this process is a rank.
        """
        if self._process.trust_scopes > 1:
            for staged in context.revisions:
                with suppress(CacheSvcError):  # its install raises the same
                    staged.fetch()  # no session waits for another one's download
        with self._process.installing:
            errors = self._install_each(context, rank)
        empty = not (self._result.installed or self._result.stored or context.partial)
        if failures or (errors and (empty or rank is not None)):
            raise [*failures, *errors][0]

    def _install_each(self, context: RestoreContext, rank: int | None) -> list[CacheSvcError]:
        """Installs each accepted revision and returns the errors."""
        result = self._result
        errors: list[CacheSvcError] = []
        alone = bool(context.partial)
        reinstalls = self._process.place(self._scope, context.revisions, context.may_install, alone)
        for staged in reinstalls or ():
            with suppress(CacheSvcError):  # another session's revision: its missing files are compiled
                staged.install(rank, context.may_install)
        for staged in context.revisions:
            try:
                installed = staged.fetch() if reinstalls is None else staged.install(rank)
            except CacheSvcError as error:
                errors.append(error)
                result.problems.append(str(error))
            else:
                if isinstance(installed, InstalledRevision):
                    result.installed.append(installed)
                else:
                    result.stored += 1
        return errors


def _node_offers(config: Config, result: RestoreResult) -> NodeOffers | None:
    """Opens the store of this node's agent, if the user named one; a store that cannot be used is a warning,
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


def _bundles(path: Path) -> list[Path]:
    """Lists the bundle files at CACHESVC_BUNDLE. Raises ``InvalidRequest`` if nothing is there."""
    if not path.exists():
        raise InvalidRequest(f"{path}: no such bundle file or folder")
    return sorted(path.glob("*.cachesvc")) if path.is_dir() else [path]
