"""Several runs of `warm` for one entry: one compiles, the others wait for what it publishes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from cachesvc_client.claims.acquire import ClaimOutcome, acquire_or_wait, describe_this_process
from cachesvc_client.wire.claims import ClaimAnswer, ClaimRequest, ClaimSubject, exact_environment
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.names import Lane, Name, Target
from cachesvc_client.wire.records import Manifest, Workload

if TYPE_CHECKING:
    from cachesvc_client.http.registry import Remote

POLL_SECONDS = 5.0
"""Of one request: an interrupted run ends that much later."""
OUTAGE_SECONDS = 60.0
"""A registry that is away for longer is not waited for: this run compiles."""


def subject(
    name: Name, lane: Lane | None, target: Target, fingerprint: Fingerprint, workload: Workload
) -> ClaimSubject:
    """What a run compiles, as far as it is known before."""
    environment = exact_environment(fingerprint)
    return ClaimSubject(name.namespace, name.name, environment, name.tag, lane, target, workload.key)


def take(
    remote: Remote,
    of: ClaimSubject,
    look: Callable[[], Manifest | None],
    tell: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> ClaimOutcome[Manifest]:
    """Waits for as long as another run compiles ``of``, unless ``cancelled``. ``look``: what is published;
    ``tell``: for the progress, of each run that is waited for. Raises what ``look`` raises."""
    told: set[int] = set()

    def tell_once(answer: ClaimAnswer) -> None:
        if answer.fence not in told:
            told.add(answer.fence)
            tell(f"waiting for {answer.who or 'another run'}, which compiles it since {answer.age} s")

    return acquire_or_wait(
        remote,
        ClaimRequest(of, secrets.token_hex(16), describe_this_process()),
        look,
        patience=lambda: 0.0 if cancelled() else math.inf,
        on_wait=tell_once,
        poll_seconds=POLL_SECONDS,
        outage_seconds=OUTAGE_SECONDS,
    )
