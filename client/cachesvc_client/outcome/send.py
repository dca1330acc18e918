"""Sends the outcome of a start to the registry: when the compiler pauses, and again when it has changed.

A report has no personal data: digests of revisions, counts, seconds, the fingerprint of the resolve, and a
node id that no other registry sees.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..config.settings import Config
from ..hooks import logger
from ..hooks.activity import Moment
from ..node.installed import InstalledRevision
from ..node.processes import boot_id
from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError
from ..wire.factors import Fingerprint
from ..wire.names import Lane, Name
from ..wire.requests.protocol import MAX_RESOLVED
from ..wire.requests.reports import (
    MAX_COLD,
    MAX_COUNT,
    MAX_SECONDS,
    ColdName,
    ColdStart,
    EarlierReport,
    KindWork,
    ReportAnswer,
    ReportRequest,
    RevisionReport,
)
from .judge import Report

_log = logging.getLogger("cachesvc")

MOST_UPDATES = 20
"""Reports of one start before its exit, at most: a process that compiles for ever sends no more."""


class Reporter:
    """Sends the outcome of one start to one registry.

    A report replaces the one before it, so that the registry counts each start once.
    """

    def __init__(self, config: Config) -> None:
        self.sent = False
        """Whether the registry has a report of this start."""
        self._config = config
        self._last: ReportRequest | None = None
        self._count = 0
        self._over = False

    def send_changes(
        self,
        report: Report,
        installed: Sequence[InstalledRevision],
        fingerprint: Fingerprint,
        moment: Moment,
        deadline: float,
        cold: ColdStart | None = None,
    ) -> None:
        """Sends the report if it has changed, in one try. Raises no error of a registry. ``cold``: of a start
        that nothing was ``installed`` for, what it wanted.

        The first report is sent at the first pause, because a process that a signal kills sends nothing at
        its exit. At that pause it is not known whether a revision is useless, so an outcome other than *hit*
        and *partial* waits until the process is quiet.
        """
        early = moment == "compiled" and (self._last is not None or report.state not in ("hit", "partial"))
        if self._over or early or (moment != "exit" and self._count >= MOST_UPDATES):
            return
        message = request(report, self._config.url or "", installed, fingerprint, cold)
        if self._last is not None:
            if _counts(message) == _counts(self._last):
                return
            message = replace(message, replaces=EarlierReport(self._last.revisions, self._last.kinds))
        try:
            answer = send(message, self._config, deadline)
        except CacheSvcError as error:
            _log.debug("not reported: %s", error)
            self._over = not error.retry
            return
        self.sent, self._last, self._count = True, replace(message, replaces=None), self._count + 1
        for revision in answer.quarantined:
            text = "%s: inert here and elsewhere, not offered to this environment any more"
            logger.write(logging.WARNING, text, revision)


def _counts(message: ReportRequest) -> object:
    """Return the parts of a report whose change is worth another report: not the seconds."""
    rows = [(row.revision, row.state, row.used) for row in message.revisions]
    work = {kind: (spent.compilations, spent.tuning_runs) for kind, spent in message.kinds.items()}
    return rows, work, message.why


def send(message: ReportRequest, config: Config, deadline: float) -> ReportAnswer:
    """Sends a report to the registry of ``config``, in one try. Raises ``CacheSvcError``."""
    from ..http.registry import Remote

    timeout = max(0.05, deadline - time.monotonic())
    with Remote(
        config.url or "", config.token, timeout=timeout, connect_timeout=timeout, retries=0
    ) as remote:
        return remote.report(message, deadline)


def cold_start(names: Iterable[Name], lane: Lane | None, models: Sequence[Digest]) -> ColdStart:
    """Returns what a start wanted that restored nothing, within the protocol's bounds."""
    wanted = dict.fromkeys(ColdName(one.namespace, one.name, one.tag, lane) for one in names)
    return ColdStart(tuple(wanted)[:MAX_COLD], tuple(dict.fromkeys(models))[:MAX_COLD])


def request(
    report: Report,
    url: str,
    installed: Sequence[InstalledRevision],
    fingerprint: Fingerprint,
    cold: ColdStart | None = None,
) -> ReportRequest:
    """Returns the report as it is sent, within the protocol's bounds. Pure, but for the node's id."""
    of_registry = {str(entry.revision) for entry in installed}
    rows = [
        RevisionReport(
            revision=Digest(use.revision),
            state=use.state,
            files=min(use.files, MAX_COUNT),
            used=min(use.used, MAX_COUNT),
            saved=None if use.saved is None else max(-MAX_SECONDS, min(use.saved, MAX_SECONDS)),
        )
        for use in {use.revision: use for use in report.revisions if use.revision in of_registry}.values()
    ]
    kinds = {
        kind: KindWork(
            min(work.compilations, MAX_COUNT),
            min(work.tuning_runs, MAX_COUNT),
            min(work.seconds, MAX_SECONDS),
        )
        for kind, work in report.kinds.items()
    }
    compared = report.compared
    words = [row.component for row in compared.key_differences]
    words += [row.factor for row in compared.differences]
    why = dict.fromkeys(word[:200] for word in words)
    return ReportRequest(
        node_id(url), fingerprint, tuple(rows[:MAX_RESOLVED]), kinds, tuple(why)[:8], cold=cold
    )


@functools.cache
def node_id(url: str) -> str:
    """Returns 32 hex digits that name this node to the registry at ``url``.

    They are the same for all processes and containers of a running kernel, and change with its next boot.
    Another registry gets other digits. Where the kernel has no boot id, they are random for this process.
    """
    boot = boot_id() or os.urandom(16).hex()
    return Digest.of(canonical(["cachesvc.node/1", url, boot])).hex[:32]
