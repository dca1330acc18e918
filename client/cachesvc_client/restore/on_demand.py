"""Fetches what a compiler looked up and did not find, and what the start of the process did not restore.

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

from ..node.installed import AcceptedRevision, InstalledRevision, RestoreResult
from ..wire.errors import CacheSvcError
from ..wire.requests.protocol import ANSWER_SECONDS, MAX_WANTED, ResolvedRevision
from .accept import accept_resolved
from .ask import resolve, use_key
from .install import install_revision
from .request import Coverage, NameRequest
from .settings import Inquiry, RestoreSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..http.registry import Remote
    from ..process.process import Process
    from ..wire.digest import Digest
    from .registry_access import RegistryAccess

_log = logging.getLogger("cachesvc")


class Fetched(NamedTuple):
    """Says what a question came to: revisions that are new in this process, and those that were installed
    again, since they lay in the folder before."""

    installed: list[InstalledRevision]
    moved: list[AcceptedRevision]


class OnDemand:
    """Asks a registry for the revisions that hold a key, and installs them for this process.

    Asks under the names of which the restore left revisions out, and, a few seconds after their answer, under
    those of which it left out nothing: something may have been published since. Its methods run on one thread
    at a time, and not on the one that compiles; `remember` and `refresh_answers` may run beside.
    """

    def __init__(
        self,
        access: RegistryAccess,
        settings: RestoreSettings,
        process: Process,
        scope: Digest,
        coverage: Coverage,
    ) -> None:
        """``coverage``: where the restore notes the names. ``scope``: the trust scope of the session."""
        self._access, self._settings, self._target = access, settings, access.target
        self._process, self._scope, self._coverage = process, scope, coverage
        self._policy_at = float("-inf")
        self._answered: dict[str, list[tuple[NameRequest, ResolvedRevision]]] = {}
        """By key, what the registry has and this process has not tried; empty for a key that nobody has."""
        self._outdated: dict[NameRequest, None] = {}
        """Names for which this node remembers an answer without what was brought."""

    def has_names(self) -> bool:
        """Return whether there is a name under which a key may be asked for now."""
        return bool(self._coverage.truncated) or bool(self._complete())

    def fetch_keys(
        self, keys: Iterable[str], may_install: Callable[[], bool], result: RestoreResult
    ) -> Fetched:
        """Install for each key the next revision that holds it, if there is one. The first call for a key
        asks the registry.

        Add to the seconds and bytes of ``result``. Raise ``CacheSvcError`` if the registry cannot be asked,
        or a revision not be downloaded; a revision that is refused is a problem of ``result``.
        """
        wanted = tuple(keys)[:MAX_WANTED]
        with self._access.connect() as remote:
            self._refresh_policy(remote)
            inquiry = Inquiry(remote, self._settings, self._target, result, self._coverage)
            self._ask(tuple(key for key in wanted if key not in self._answered), inquiry)
            present = {entry.revision for entry in result.installed}
            fetched = Fetched([], [])
            for key in wanted:
                accepted = self._next(key, present, inquiry)
                if accepted is None:
                    continue
                new = self._install(accepted, may_install, result, fetched.moved)
                if new is not None:
                    present.add(new.revision)
                    fetched.installed.append(new)
        return fetched

    def refresh_answers(self) -> None:
        """Have this node remember what the registry answers now for names for which something was fetched,
        so that its next start has that while the registry cannot be reached. Never raise because of one."""
        names, self._outdated = self._outdated, {}
        if not names:
            return
        settings = replace(self._settings, bypass_cache=True)
        with suppress(CacheSvcError), self._access.connect() as remote:
            inquiry = Inquiry(remote, settings, self._target, RestoreResult())
            for name_request in names:
                request = name_request.request(settings.fingerprint, limit=settings.limit)
                resolve(name_request, request, inquiry)

    def use_key(self) -> Digest:
        """Name this program for the node's memory of what it used."""
        return use_key(self._settings)

    def remember(self, entries: Iterable[Digest]) -> None:
        """Remember what this program used, for its next start on this node."""
        with suppress(CacheSvcError):
            self._target.store.remember_used(self.use_key(), entries)

    def _refresh_policy(self, remote: Remote) -> None:
        """Have the policy be a few seconds old at most: a process may run for weeks."""
        if time.monotonic() - self._policy_at > ANSWER_SECONDS:
            acceptance = self._access.acceptance(remote, remote.timeout / 2)
            self._settings = replace(self._settings, acceptance=acceptance)
            self._policy_at = time.monotonic()

    def _ask(self, keys: tuple[str, ...], inquiry: Inquiry) -> None:
        if not keys:
            return
        answers = []
        for name_request in (*self._coverage.truncated, *self._complete().values()):
            request = name_request.request(inquiry.settings.fingerprint, keys=keys)
            with inquiry.result.timed("resolve"):
                answer = resolve(name_request, request, inquiry)
            answers.append((name_request, answer))
        for key in keys:
            self._answered[key] = [
                (name_request, revision) for name_request, answer in answers for revision in answer.revisions
            ]

    def _complete(self) -> dict[NameRequest, NameRequest]:
        """Return the names of which nothing was left out, by the request of the start: those whose answer
        is older than a registry repeats one."""
        before = time.monotonic() - ANSWER_SECONDS
        # A restore of this session may note a name meanwhile.
        names = dict(self._coverage.complete)
        return {start: answer.request for start, answer in names.items() if answer.at < before}

    def _next(self, key: str, present: set[Digest], inquiry: Inquiry) -> AcceptedRevision | None:
        """Return the first untried revision that holds the key, with its pack on this node."""
        untried = self._answered[key]
        while untried:
            name_request, revision = untried.pop(0)
            if revision.revision in present:
                continue
            try:
                one = accept_resolved(name_request, revision, inquiry)
            except CacheSvcError as error:
                inquiry.result.problems.append(str(error))
                continue
            if key not in one.manifest.graph_keys:
                continue
            one.pack.fetch()
            complete = dict(self._coverage.complete).items()
            starts = {start: None for start, answer in complete if answer.request == name_request}
            self._outdated.update(starts)
            return one
        return None

    def _install(
        self,
        accepted: AcceptedRevision,
        may_install: Callable[[], bool],
        result: RestoreResult,
        moved: list[AcceptedRevision],
    ) -> InstalledRevision | None:
        """Install a revision, and the others again where it needs another folder, which are added to
        ``moved``; return ``None`` if that may not be now."""
        process, target = self._process, self._target
        with process.installing:
            if not may_install():
                return None
            folder = process.own_results()
            others = process.join(self._scope, accepted)
            for other in others or ():
                with suppress(CacheSvcError):  # its missing files are compiled
                    install_revision(other, target, result, may_install=may_install)
                    moved.append(other)
            if process.own_results() != folder and process.keeps_own:
                _take_own_results_along(process)
            if others is None:
                return None
            return install_revision(accepted, target, result, may_install=may_install)


def _take_own_results_along(process: Process) -> None:
    """Install into a new folder what this process compiled in the ones before. Never raises."""
    from ..own_results.install import restore_own_results
    from ..own_results.keep import keep_own_results

    try:
        if keep_own_results(process) is not None:
            restore_own_results(process)
    except Exception as error:  # noqa: BLE001 - it is compiled again
        _log.debug("what was compiled here is not taken along: %s: %s", type(error).__name__, error)
