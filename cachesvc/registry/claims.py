"""Take, renew and return claims, and end those that a commit serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc.domain.claims import LIVE_PER_TOKEN, Claim, demand_current, standing
from cachesvc.index.packs.uploads import Upload
from cachesvc.index.unit import Unit
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, TooMany, Unavailable
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.requests.claims import (
    ClaimAnswer,
    ClaimRef,
    ClaimRelease,
    ClaimRequest,
    satisfied_claim_keys,
)

from .context import Registry


@dataclass(frozen=True, slots=True)
class LiveClaim:
    """A claim that holds now. ``age`` and ``left``: seconds since it was taken, and until it ends unless its
    holder renews it."""

    claim: Claim
    age: int
    left: int


_TRIES = 5
"""Attempts to take a claim, or to say who has it, while it changes hands."""


def take(registry: Registry, token: Token, request: ClaimRequest) -> ClaimAnswer:
    """Takes a claim, or says who has it, without waiting. The same holder gets its own claim again.

    Raises ``Forbidden`` without the role *write* there, ``TooMany``.
    """
    subject, seconds = request.subject, registry.limits.claim_seconds
    demand(token, Action.write, subject.namespace, subject.lane)
    registry.packs.reserve.demand()  # no one could publish what the claim is for
    key = subject.key
    with registry.index.read() as unit:  # of a fleet, one takes the claim: the others need no transaction
        current = unit.claims.get(key)
    if current is not None and current[0].holder != request.holder:
        state = standing(*current, request.seen)
        if state != "free":
            return _answer(state, *current)
    with registry.index.write() as unit:
        for _ in range(_TRIES):
            arguments = (subject, request.holder, request.who, token.token, seconds, request.seen)
            own = unit.claims.take(*arguments)
            if own is not None:
                # The count includes the row that was just taken; a transaction that raises takes nothing.
                if unit.claims.live(token.token) > LIVE_PER_TOKEN:
                    raise TooMany(
                        f"token {token.token} holds {LIVE_PER_TOKEN} claims", "use a token for each job"
                    )
                return _answer("yours", *own)
            current = unit.claims.get(key)
            state = standing(*current, request.seen) if current else "free"
            if current and state != "free":
                return _answer(state, *current)
            # The claim ended between the two statements.
    raise Unavailable(f"claim {key} changes hands too fast", "try again")


def renew(registry: Registry, token: Token, shown: ClaimRef) -> ClaimAnswer:
    """Moves the claim's end. Raises ``ClaimLost`` if the claim is not the holder's any more."""
    with registry.index.write() as unit:
        _demand_own(unit, token, shown)
        renewed = unit.claims.renew(shown, registry.limits.claim_seconds)
        if renewed is None:
            demand_current(unit.claims.lock(shown.key), shown)
            raise Unavailable(f"claim {shown.key} changes hands", "try again")
        return _answer("yours", *renewed)


def release(registry: Registry, token: Token, request: ClaimRelease) -> None:
    """Gives a claim back and wakes those who wait for it; changes nothing if it is not the holder's any
    more."""
    with registry.index.write() as unit:
        _demand_own(unit, token, request.claim)
        released = unit.claims.release(request.claim, done=request.done)
    if released:
        wake(registry, [request.claim.key])


def list_live(registry: Registry, by: Token, limit: int) -> list[LiveClaim]:
    """Returns the claims of the admin's namespace that hold now, the newest first. Raises ``Forbidden``."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        rows = unit.claims.all_live(by.namespace, limit)
    return [LiveClaim(claim, max(0, now - claim.taken), max(0, claim.expires - now)) for claim, now in rows]


def demand_claim(unit: Unit, upload: Upload, shown: ClaimRef) -> None:
    """Locks a claim for a commit's transaction. Raises ``ClaimLost`` if another has it."""
    claim = unit.claims.lock(shown.key)
    demand_current(claim, shown)
    assert claim is not None
    if (claim.namespace, claim.name, claim.lane) != (upload.namespace, upload.name, upload.lane):
        raise InvalidRequest(f"claim {shown.key[:19]} is of another name", "commit without it")


def fulfil(unit: Unit, manifest: Manifest, shown: ClaimRef | None) -> Sequence[Digest]:
    """Ends, in a commit's transaction, the publisher's claim and those that ``manifest`` serves.

    Returns the keys to :func:`wake` after the commit.
    """
    keys = [*satisfied_claim_keys(manifest)]
    if shown is not None:
        unit.claims.release(shown, done=True)
        keys.append(shown.key)
    return unit.claims.fulfil(sorted(set(keys)))


def wake(registry: Registry, keys: Sequence[Digest]) -> None:
    """Wakes those who wait for these claims, so that they need not wait for their next look."""
    for key in keys:
        registry.hot.wake(topic(key))


def topic(key: Digest) -> str:
    """Returns the topic of a claim in the hot store."""
    return f"{TOPIC}{key}"


TOPIC = "claims/"
"""Beginning of the topics of claims."""


def _demand_own(unit: Unit, token: Token, shown: ClaimRef) -> None:
    """Raises ``ClaimLost`` for a token that may not write there: the same answer as for an absent claim."""
    row = unit.claims.get(shown.key)
    if row is None or not may(token, Action.write, row[0].namespace, row[0].lane):
        demand_current(None, shown)


def _answer(state: str, claim: Claim, now: int) -> ClaimAnswer:
    return ClaimAnswer(
        state,
        claim.key,
        fence=claim.fence,
        left=max(0, claim.expires - now),
        age=max(0, now - claim.taken),
        who=claim.who,
    )
