"""Tells the registry what a start came to: when the compiler pauses, and again when that has changed.

Nothing personal goes out: digests of revisions, counts, seconds, the fingerprint that was resolved with, and
a node id that only this registry could see again.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config import Config
from ..hooks import logger
from ..hooks.activity import Moment
from ..node.installed import InstalledRevision
from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError
from ..wire.factors import Fingerprint
from ..wire.protocol import MAX_RESOLVED
from ..wire.reports import (
    MAX_COUNT,
    MAX_SECONDS,
    EarlierReport,
    KindWork,
    ReportAnswer,
    ReportRequest,
    RevisionReport,
)
from .judge import Report

_log = logging.getLogger("cachesvc")

MOST_UPDATES = 20
"""Reports of one start before its exit, at most: a process that compiles for ever reports no more then."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Reporter:
    """Tells one registry what one start came to. A report replaces the one before it, so that the registry
    counts each start once."""

    def __init__(self, config: Config) -> None:
        self.told = False
        """The registry has a report of this start."""
        self._config = config
        self._last: ReportRequest | None = None
        self._sent = 0
        self._over = False

    def tell(
        self,
        report: Report,
        installed: Sequence[InstalledRevision],
        fingerprint: Fingerprint,
        moment: Moment,
        deadline: float,
    ) -> None:
        """Sends what is new, in one try. Raises nothing of a registry.

        The first report goes out at the first pause, because a process that a signal kills says nothing at
        its exit. Whether a revision was useless is not known so early: that waits until it is quiet.
        """
        early = moment == "compiled" and (self._last is not None or report.state not in ("hit", "partial"))
        if self._over or early or (moment != "exit" and self._sent >= MOST_UPDATES):
            return
        made = request(report, self._config.url or "", installed, fingerprint)
        if self._last is not None:
            if _counts(made) == _counts(self._last):
                return
            made = replace(made, replaces=EarlierReport(self._last.revisions, self._last.kinds))
        try:
            answer = send(made, self._config, deadline)
        except CacheSvcError as error:
            _log.debug("not reported: %s", error)
            self._over = not error.retry
            return
        self.told, self._last, self._sent = True, replace(made, replaces=None), self._sent + 1
        self._over = not answer.replaces  # a registry of an earlier release would count the start again
        for revision in answer.quarantined:
            text = "%s: inert here and elsewhere, not offered to this environment any more"
            logger.write(logging.WARNING, text, revision)


def _counts(made: ReportRequest) -> object:
    """What of a report is worth another one: no seconds."""
    rows = [(row.revision, row.state, row.used) for row in made.revisions]
    work = {kind: (done.compilations, done.tuning_runs) for kind, done in made.kinds.items()}
    return rows, work, made.why


def send(made: ReportRequest, config: Config, deadline: float) -> ReportAnswer:
    """Sends a report to the registry of ``config``, in one try. Raises ``CacheSvcError``."""
    from ..http.registry import Remote

    timeout = max(0.05, deadline - time.monotonic())
    with Remote(
        config.url or "", config.token, timeout=timeout, connect_timeout=timeout, retries=0
    ) as remote:
        return remote.report(made, deadline)


def request(
    report: Report, url: str, installed: Sequence[InstalledRevision], fingerprint: Fingerprint
) -> ReportRequest:
    """What is told, within the protocol's bounds. Pure, but for the node's id."""
    theirs = {str(entry.revision) for entry in installed}
    rows = [
        RevisionReport(
            revision=Digest(use.revision),
            state=use.state,
            files=min(use.files, MAX_COUNT),
            used=min(use.used, MAX_COUNT),
            saved=None if use.saved is None else max(-MAX_SECONDS, min(use.saved, MAX_SECONDS)),
        )
        for use in {use.revision: use for use in report.revisions if use.revision in theirs}.values()
    ]
    kinds = {
        kind: KindWork(
            min(work.compilations, MAX_COUNT),
            min(work.tuning_runs, MAX_COUNT),
            min(work.seconds, MAX_SECONDS),
        )
        for kind, work in report.kinds.items()
    }
    why = dict.fromkeys(difference.component[:200] for difference in report.key_differences)
    return ReportRequest(node_id(url), fingerprint, tuple(rows[:MAX_RESOLVED]), kinds, tuple(why)[:8])


@functools.cache
def node_id(url: str) -> str:
    """32 hex digits: the same for all processes and containers of a running kernel, another one after its
    next boot and for another registry. Random for this process where the kernel has no boot id
    (random(4))."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = os.urandom(16).hex()
    return Digest.of(canonical(["cachesvc.node/1", url, boot])).hex[:32]
