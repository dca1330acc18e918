"""Brings what a compiler looked up and did not find, and what the start of the process did not restore.

A start knows little of what it will compile: of a name with many entries it restores those of its model, if
these are few, and those that the same program used the last time on this node. And what other processes
publish after it, it cannot know. Both are asked for by the compiler's own key of a graph, when it was looked
up and not found, before the graph is compiled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..http.registry import Remote
from ..node.installed import InstalledRevision, RestoreResult, StagedRevision
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError
from ..wire.protocol import ANSWER_SECONDS, MAX_WANTED, ResolvedRevision
from .answers import resolve, use_key
from .plan import NameRequest, RestoreContext
from .revision_restore import check_revision

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bundle.check import Policy
    from ..config import Config
    from ..process.process import Process

_log = logging.getLogger("cachesvc")


class Brought(NamedTuple):
    """Says what a question brought: revisions that are new in this process, and those that were installed
    again, since they lay in the folder before."""

    installed: list[InstalledRevision]
    moved: list[StagedRevision]


class OnDemand:
    """Asks a registry for the revisions that hold a key, and installs them for this process.

    Asks under the names of which the restore left revisions out, and, a few seconds after their answer, under
    those of which it left out nothing: something may have been published since. Its methods run on one thread
    at a time, and not on the one that compiles; `remember` and `refresh_answers` may run beside.
    """

    def __init__(
        self,
        config: Config,
        process: Process,
        scope: Digest,
        context: RestoreContext,
        policy: Callable[[Remote, float], Policy | None],
    ) -> None:
        """``context``: of the restore, with the names that it notes. ``policy``: brings the registry's trust
        metadata up to date, in so many seconds at most, and returns what they decide."""
        self._config, self._process, self._scope, self._context = config, process, scope, context
        self._policy, self._policy_at = policy, float("-inf")
        self._acceptance = context.acceptance
        self._answered: dict[str, list[tuple[NameRequest, ResolvedRevision]]] = {}
        """By key, what the registry has and this process has not tried; empty for a key that nobody has."""
        self._outdated: dict[NameRequest, None] = {}
        """Names for which this node remembers an answer without what was brought."""

    def has_names(self) -> bool:
        """Return whether there is a name under which a key may be asked for now."""
        return bool(self._context.partial) or bool(self._whole())

    def bring(self, keys: Iterable[str], may_install: Callable[[], bool], result: RestoreResult) -> Brought:
        """Installs for each key the next revision that holds it, if there is one. The first call for a key
        asks the registry.

        Adds to the seconds and bytes of ``result``. Raises ``CacheSvcError`` if the registry cannot be asked,
        or a revision not be downloaded; a revision that is refused is a problem of ``result``.
        """
        context = replace(self._context, revisions=[], may_install=may_install)
        wanted = tuple(keys)[:MAX_WANTED]
        with self._remote() as remote:
            context = self._with_policy(context, remote)
            self._ask(tuple(key for key in wanted if key not in self._answered), remote, context, result)
            present = {entry.revision for entry in result.installed}
            brought = Brought([], [])
            for key in wanted:
                new = self._next(key, present, remote, context, result, brought.moved)
                if new is not None:
                    present.add(new.revision)
                    brought.installed.append(new)
        return brought

    def refresh_answers(self) -> None:
        """Has this node remember what the registry answers now for names for which something was brought, so
        that its next start has that while the registry cannot be reached. Never raises because of one."""
        names, self._outdated = self._outdated, {}
        if not names:
            return
        context = replace(self._context, revisions=[], fresh=True)
        with suppress(CacheSvcError), self._remote() as remote:
            for name_request in names:
                request = name_request.request(context.fingerprint, most=context.most)
                resolve(name_request, request, remote, context, RestoreResult())

    def use_key(self) -> Digest:
        """Names this program for the node's memory of what it used."""
        return use_key(self._context)

    def remember(self, entries: Iterable[Digest]) -> None:
        """Remembers what this program used, for its next start on this node."""
        with suppress(CacheSvcError):
            self._context.store.remember_used(self.use_key(), entries)

    def _ask(
        self, keys: tuple[str, ...], remote: Remote, context: RestoreContext, result: RestoreResult
    ) -> None:
        if not keys:
            return
        answers = []
        for name_request in (*context.partial, *self._whole().values()):
            request = name_request.request(context.fingerprint, keys=keys)
            with result.timed("resolve"):
                answers.append((name_request, resolve(name_request, request, remote, context, result)))
        for key in keys:
            self._answered[key] = [
                (name_request, revision) for name_request, answer in answers for revision in answer.revisions
            ]

    def _remote(self) -> Remote:
        """Return a connection that leaves a compile half of its deadline."""
        config = self._config
        seconds = min(10.0, max(0.2, config.deadline / 2))
        return Remote(config.url or "", config.token, timeout=seconds, allow_links=config.allow_links)

    def _with_policy(self, context: RestoreContext, remote: Remote) -> RestoreContext:
        """Return the context with a policy that is a few seconds old at most: a process may run for weeks."""
        if self._config.trust_root is None:
            return context
        if time.monotonic() - self._policy_at > ANSWER_SECONDS:
            policy = self._policy(remote, remote.timeout / 2)
            self._acceptance, self._policy_at = self._config.acceptance(policy), time.monotonic()
        return replace(context, acceptance=self._acceptance)

    def _whole(self) -> dict[NameRequest, NameRequest]:
        """Return the names of which nothing was left out, by the request of the start: those whose answer
        is older than a registry repeats one."""
        before = time.monotonic() - ANSWER_SECONDS
        # A restore of this session may note a name meanwhile.
        names = dict(self._context.whole)
        return {start: answer.request for start, answer in names.items() if answer.at < before}

    def _next(
        self,
        key: str,
        present: set[Digest],
        remote: Remote,
        context: RestoreContext,
        result: RestoreResult,
        moved: list[StagedRevision],
    ) -> InstalledRevision | None:
        """Installs the first untried revision that holds the key. Adds to ``moved`` what was installed
        again."""
        untried = self._answered[key]
        while untried:
            name_request, revision = untried.pop(0)
            if revision.revision in present:
                continue
            try:
                staged = check_revision(name_request, revision, remote, context, result)
            except CacheSvcError as error:
                result.problems.append(str(error))
                continue
            if key not in staged.manifest.graph_keys:
                continue
            staged.fetch()
            whole = dict(self._context.whole).items()
            self._outdated.update({start: None for start, answer in whole if answer.request == name_request})
            return self._install(staged, context, moved)
        return None

    def _install(
        self, staged: StagedRevision, context: RestoreContext, moved: list[StagedRevision]
    ) -> InstalledRevision | None:
        """Installs a revision, and the others again where it needs another folder; ``None`` if that may not
        be now."""
        with self._process.installing:
            if not context.may_install():
                return None
            folder = self._process.own_results()
            others = self._process.join(self._scope, staged)
            for other in others or ():
                with suppress(CacheSvcError):  # its missing files are compiled
                    other.install(None, context.may_install)
                    moved.append(other)
            if self._process.own_results() != folder and self._process.keeps_own:
                _take_own_results_along(self._process)
            return None if others is None else staged.install(None)


def _take_own_results_along(process: Process) -> None:
    """Install into a new folder what this process compiled in the ones before. Never raises."""
    from ..own_results.install import restore_own_results
    from ..own_results.keep import keep_own_results

    try:
        if keep_own_results(process) is not None:
            restore_own_results(process)
    except Exception as error:  # noqa: BLE001 - it is compiled again
        _log.debug("what was compiled here is not taken along: %s: %s", type(error).__name__, error)
