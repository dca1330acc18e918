"""Tells the registry what a start came to: once, from a thread of its own, bounded at exit.

Nothing personal goes out: digests of revisions, counts, seconds, the fingerprint that was resolved with, and
a node id that only this registry could see again.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .config import Config
from .restore import Installed
from .usefulness import Report
from .wire.codec import canonical
from .wire.digest import Digest
from .wire.errors import CacheSvcError
from .wire.factors import Fingerprint
from .wire.protocol import (
    MAX_COUNT,
    MAX_RESOLVED,
    MAX_SECONDS,
    KindWork,
    ReportRequest,
    RevisionReport,
)

_log = logging.getLogger("cachesvc")

QUIET_SECONDS = 60.0
"""A start is over when nothing was compiled for so long."""
SEND_SECONDS = 5.0
"""For one report that nobody waits for."""
EXIT_SECONDS = 1.0
"""That an exit waits, at most. A process that is killed waits for nothing."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Reporter:
    """Calls ``tell(deadline)`` once: when what ``look`` answers (``None``: nothing happened yet) has not
    changed for ``QUIET_SECONDS``, or when it is told to end. The thread is there before the exit: none can be
    started then, and a look-up of a host name, which cannot be interrupted, can be left behind.

    ``deadline``: a value of ``time.monotonic()``.
    """

    def __init__(self, tell: Callable[[float], None], look: Callable[[], object]) -> None:
        self._tell, self._look = tell, look
        self._ending = threading.Event()
        self._sent = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="cachesvc-report", daemon=True)
        self._thread.start()

    def begin_to_end(self, timeout: float = EXIT_SECONDS) -> None:
        """Tells now, beside what the caller still has to do."""
        if self._deadline is None:
            self._deadline = time.monotonic() + timeout
        self._ending.set()

    def end(self, timeout: float = EXIT_SECONDS) -> bool:
        """Waits until it was told, at most ``timeout`` seconds since it was first asked to end."""
        self.begin_to_end(timeout)
        assert self._deadline is not None
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        return self._sent

    def _run(self) -> None:
        before: object = None
        while not self._ending.wait(QUIET_SECONDS):
            now = self._look()
            if now is not None and now == before:
                break
            before = now
        try:
            self._tell(self._deadline or time.monotonic() + SEND_SECONDS)
            self._sent = True
        except CacheSvcError as error:
            _log.debug("not reported: %s", error)
        except Exception:  # noqa: BLE001 - telling is never the reason that anything fails
            _log.debug("not reported", exc_info=True)


def send(
    report: Report, config: Config, installed: Sequence[Installed], fingerprint: Fingerprint, deadline: float
) -> None:
    """Tells the registry of ``config`` of the revisions that came from it. One try; raises
    ``CacheSvcError``."""
    from .http.registry import Remote

    timeout = max(0.05, deadline - time.monotonic())
    with Remote(
        config.url or "", config.token, timeout=timeout, connect_timeout=timeout, retries=0
    ) as remote:
        answer = remote.report(request(report, config.url or "", installed, fingerprint), deadline)
    for revision in answer.quarantined:
        _log.warning("%s: inert here and elsewhere, not offered to this environment any more", revision)


def request(
    report: Report, url: str, installed: Sequence[Installed], fingerprint: Fingerprint
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
