"""Brings what a compiler looked up and did not find, of names of which a start restores only a part.

A start knows little of what it will compile: of a name with many entries it restores those of its model, if
these are few, and those that the same program used the last time on this node. The others are asked for by
the compiler's own key of a graph, when it was looked up and not found, before the graph is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..http.registry import Remote
from ..node.installed import InstalledRevision, RestoreResult
from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError
from ..wire.partitions import known_partition
from ..wire.protocol import FEW_RESOLVED, MAX_WANTED, ResolveAnswer, ResolvedRevision
from .plan import NameRequest, RestoreContext, RestoreProcess
from .revision_restore import check_revision, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import Config


def leave_out(
    name_request: NameRequest,
    answer: ResolveAnswer,
    remote: Remote,
    context: RestoreContext,
    result: RestoreResult,
) -> tuple[ResolvedRevision, ...]:
    """Notes that an answer is not all that fits, and returns what this program used of the rest the last
    time.

    Never raises because of the registry: what is not restored now is asked for later.
    """
    result.more += answer.more or 0
    answered = name_request
    if answer.tag in name_request.tags:  # else each request tries the tags again
        answered = replace(name_request, name=replace(name_request.name, tag=answer.tag), fallback=())
    context.partial.append(answered)
    present = {revision.entry for revision in answer.revisions}
    last_time = [entry for entry in context.store.used_entries(use_key(context)) if entry not in present]
    if not last_time:
        return ()
    request = name_request.request(context.fingerprint, entries=tuple(last_time[:FEW_RESOLVED]))
    try:
        with result.timed("resolve"):
            return resolve(name_request, request, remote, context, result).revisions
    except CacheSvcError as error:
        result.problems.append(f"{name_request.name}: not asked for what was used the last time: {error}")
        return ()


def use_key(context: RestoreContext) -> Digest:
    """Names this program, in this environment and with its trusted keys, for the node's memory of what it
    used."""
    trusted = sorted(str(key) for key in context.trusted)
    program = [*sys.argv[:1], str(known_partition(context.fingerprint)), str(context.lane or "")]
    return Digest.of(canonical(["cachesvc.uses/1", program, trusted]))


class OnDemand:
    """Asks a registry for the revisions that hold a key, and installs them into the process's own folder.

    Its methods run on one thread at a time, and not on the one that compiles.
    """

    def __init__(
        self, config: Config, process: RestoreProcess, scope: Digest, context: RestoreContext
    ) -> None:
        """``context``: of the restore, with its policy and the names of which it left revisions out."""
        self._config, self._process, self._scope, self._context = config, process, scope, context
        self._answered: dict[str, list[tuple[NameRequest, ResolvedRevision]]] = {}
        """By key, what the registry has and this process has not tried; empty for a key that nobody has."""

    def bring(
        self, keys: Iterable[str], may_install: Callable[[], bool], result: RestoreResult
    ) -> list[InstalledRevision]:
        """Installs for each key the next revision that holds it, if there is one. The first call for a key
        asks the registry.

        Adds to the seconds and bytes of ``result``. Raises ``CacheSvcError`` if the registry cannot be asked,
        or a revision not be downloaded; a revision that is refused is a problem of ``result``.
        """
        context = replace(self._context, revisions=[], may_install=may_install)
        config, wanted = self._config, tuple(keys)[:MAX_WANTED]
        seconds = min(10.0, max(0.2, config.deadline / 2))
        with Remote(
            config.url or "", config.token, timeout=seconds, allow_links=config.allow_links
        ) as remote:
            self._ask(tuple(key for key in wanted if key not in self._answered), remote, context, result)
            present = {entry.revision for entry in result.installed}
            installed: list[InstalledRevision] = []
            for key in wanted:
                new = self._next(key, present, remote, context, result)
                if new is not None:
                    present.add(new.revision)
                    installed.append(new)
        return installed

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
        for name_request in context.partial:
            request = name_request.request(context.fingerprint, keys=keys)
            with result.timed("resolve"):
                answers.append((name_request, resolve(name_request, request, remote, context, result)))
        for key in keys:
            self._answered[key] = [
                (name_request, revision) for name_request, answer in answers for revision in answer.revisions
            ]

    def _next(
        self,
        key: str,
        present: set[Digest],
        remote: Remote,
        context: RestoreContext,
        result: RestoreResult,
    ) -> InstalledRevision | None:
        """Installs the first untried revision that holds the key."""
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
            with self._process.installing:
                if context.may_install() and self._process.add(self._scope, staged):
                    return staged.install(None)
        return None
