"""Restores a name, or claims it: of the services that may publish it, one compiles and the others wait."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..environment.march import for_level
from ..http.claims import Claims
from ..http.registry import Remote
from ..wire.codec import canonical
from ..wire.digest import Digest
from ..wire.errors import Incompatible, NotFound
from ..wire.partitions import known_partition
from ..wire.requests.claims import MAX_WAIT_SECONDS, ClaimAnswer, ClaimRequest, ClaimSubject
from .acquire import ANSWER_SECONDS, ClaimOutcome, acquire_or_wait, describe_this_process

if TYPE_CHECKING:
    from ..config.settings import Config
    from ..node.installed import AcceptedRevision
    from ..ranks.job import Job
    from ..restore.request import NameRequest
    from ..restore.settings import Inquiry, RestoreSettings
    from ..wire.names import Name
    from .claim import Claim

_log = logging.getLogger("cachesvc")

HOLD_SECONDS = 1800.0
"""Seconds that a service may have a claim. A service that has not published by then never does, so the others
wait no longer."""
OUTAGE_SECONDS = 5.0
"""Seconds for which a service that waits goes on without an answer: a registry that is started again has the
claims of before. When services waited no longer than until the first failure, a restart made the whole fleet
compile."""


@functools.cache
def _holder_of_process(pid: int) -> str:
    """Returns the name of a process alone. A forked child has another one than its parent."""
    del pid  # the key of the cache
    return secrets.token_hex(16)


@dataclass(slots=True)
class ClaimedRestore:
    """Restores the names of a session that will publish; claims the names without a fitting entry.

    ``patience``: as in :func:`.acquire.acquire_or_wait`. ``label``: the session's label, the same for all
    ranks of its job. ``publishes``: whether the session will publish. ``claims``: the claims that the session
    has acquired.
    """

    config: Config
    patience: Callable[[], float]
    job: Job | None
    label: str
    publishes: bool
    claims: dict[Name, Claim] = field(default_factory=dict)

    def accept(self, request: NameRequest, inquiry: Inquiry) -> list[AcceptedRevision]:
        """Accept the revisions of a name; where nothing fits, claim the name or wait for its publication.

        Return and raise what `restore.accept.accept_name` does.
        """
        from ..restore.accept import accept_name

        result = inquiry.result
        before = len(result.rejected)
        try:
            return accept_name(request, inquiry)
        except (NotFound, Incompatible) as error:
            missed = error
        if not self._can_publish:
            raise missed

        def look() -> list[AcceptedRevision] | None:
            del result.rejected[before:]
            now = replace(inquiry, settings=replace(inquiry.settings, bypass_cache=True))
            with suppress(NotFound, Incompatible):
                return accept_name(request, now)
            return None

        published = self._acquire(request, inquiry.settings, look).result
        if published is None:
            raise missed
        return published

    @property
    def _leads(self) -> bool:
        """Tells whether this process publishes, and so needs a signing key."""
        return self.job is None or self.job.rank == 0

    @property
    def _can_publish(self) -> bool:
        has_key = self.config.can_sign or not self._leads
        return self.publishes and has_key and (self.job is None or self.job.one_node)

    def _holder(self) -> str:
        """Names the holder of a claim. The sessions of a process are one holder, and so are the ranks of a
        job, so that none waits for another."""
        if self.job is None:
            return _holder_of_process(os.getpid())
        return Digest.of(canonical([self.job.key, "claim", self.label])).hex[:32]

    def _acquire(
        self,
        request: NameRequest,
        settings: RestoreSettings,
        look: Callable[[], list[AcceptedRevision] | None],
    ) -> ClaimOutcome[list[AcceptedRevision]]:
        """Acquires the claim of a name, or waits for its holder; logs the outcome."""
        config = self.config
        timeout = MAX_WAIT_SECONDS + ANSWER_SECONDS
        # Three failures in a row would end the wait otherwise: the breaker is open for longer than an outage
        # may last (`OUTAGE_SECONDS`).
        remote = Remote(
            config.url or "",
            config.token,
            timeout=timeout,
            retries=0,
            allow_links=config.allow_links,
            paced=True,
        )
        name = request.name
        # That of the entry which this process would publish.
        environment = known_partition(for_level(settings.fingerprint))
        subject = ClaimSubject(name.namespace, name.name, environment, name.tag, request.lane)
        logged: set[str] = set()

        def log_once(answer: ClaimAnswer) -> None:
            if answer.who not in logged:
                logged.add(answer.who)
                _log.info("%s: waits for %s, who compiles it for %d s now", name, answer.who, answer.age)

        outcome = acquire_or_wait(
            Claims(remote),
            ClaimRequest(subject, self._holder(), describe_this_process()),
            look,
            patience=self.patience,
            on_wait=log_once,
            hold_seconds=HOLD_SECONDS,
            outage_seconds=OUTAGE_SECONDS,
            leads=self._leads,
        )
        if outcome.claim is not None:
            _log.info("%s: nothing fits; others wait until this process has published it", name)
            self.claims[name] = outcome.claim
        elif outcome.result is None and outcome.why:
            _log.info("%s: not waited for: %s", name, outcome.why)
        return outcome
