"""Claim an entry among several runs of `warm`: one compiles, the others wait for what it publishes."""

from __future__ import annotations

import math
import secrets

from cachesvc_client.claims.acquire import ClaimOutcome, acquire_or_wait, describe_this_process
from cachesvc_client.environment.march import for_level
from cachesvc_client.http.claims import Claims
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.requests.claims import ClaimAnswer, ClaimRequest, ClaimSubject, exact_environment

from .context import TargetContext
from .lookup import find_published

POLL_SECONDS = 5.0
"""Seconds that one request waits for the holder: an interrupted run ends that much later."""
OUTAGE_SECONDS = 60.0
"""Seconds that a registry may be away; after that this run compiles without a claim."""


def claim_or_wait(target: TargetContext) -> ClaimOutcome[Manifest]:
    """Claim the entry of a target; or wait while another run compiles it, and return what it has published.

    The wait ends when the run is interrupted. Raises what ``find_published`` raises.
    """
    warm = target.warm
    assert warm.registry is not None
    holders: set[int] = set()

    def show_holder(answer: ClaimAnswer) -> None:
        if answer.fence not in holders:
            holders.add(answer.fence)
            who = answer.who or "another run"
            target.show_step(f"waiting for {who}, which has been compiling it for {answer.age} s")

    return acquire_or_wait(
        Claims(warm.registry.remote),
        ClaimRequest(_subject(target), secrets.token_hex(16), describe_this_process()),
        lambda: find_published(target).manifest,
        patience=lambda: 0.0 if warm.launcher.cancelled else math.inf,
        on_wait=show_holder,
        poll_seconds=POLL_SECONDS,
        outage_seconds=OUTAGE_SECONDS,
    )


def _subject(target: TargetContext) -> ClaimSubject:
    """Return what the run compiles, as far as that is known before the compile."""
    name, workload = target.warm.name, target.workload.key
    environment = exact_environment(for_level(target.eager.fingerprint))
    return ClaimSubject(
        name.namespace, name.name, environment, name.tag, target.warm.lane, target.job.target, workload
    )
