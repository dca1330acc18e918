"""Claims: take, renew, give back; and what a commit makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from cachesvc.domain.access import Action, Token, demand, may
from cachesvc.domain.claims import LIVE_PER_TOKEN, Claim, demand_current, standing
from cachesvc.index.unit import Unit
from cachesvc.index.uploads import Upload
from cachesvc_client.wire.claims import (
    ClaimAnswer,
    ClaimRef,
    ClaimRelease,
    ClaimRequest,
    satisfied_claim_keys,
)
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest, TooMany, Unavailable
from cachesvc_client.wire.records import Manifest

from .context import Registry

_TRIES = 5


def take(registry: Registry, token: Token, request: ClaimRequest) -> ClaimAnswer:
    """The claim, or who has it. The same holder again gets what it has; nobody waits here.

    Raises ``Forbidden`` without the role *write* there, ``TooMany``.
    """
    subject, seconds = request.subject, registry.limits.claim_seconds
    demand(token, Action.write, subject.namespace, subject.lane)
    key = subject.key
    with registry.index.write() as unit:
        for _ in range(_TRIES):
            asked = (subject, request.holder, request.who, token.token, seconds, request.seen)
            taken = unit.claims.take(*asked)
            if taken is not None:
                # The row that was just taken is among them; a transaction that raises takes nothing.
                if unit.claims.live(token.token) > LIVE_PER_TOKEN:
                    raise TooMany(
                        f"token {token.token} holds {LIVE_PER_TOKEN} claims", "use a token for each job"
                    )
                return _answer("yours", *taken)
            found = unit.claims.get(key)
            state = standing(*found, request.seen) if found else "free"
            if found and state != "free":
                return _answer(state, *found)
            # It ended between the two statements.
    raise Unavailable(f"claim {key} changes hands too fast", "try again")


def renew(registry: Registry, token: Token, shown: ClaimRef) -> ClaimAnswer:
    """Moves the claim's end. Raises ``ClaimLost`` if it is not the holder's any more."""
    with registry.index.write() as unit:
        _demand_own(unit, token, shown)
        renewed = unit.claims.renew(shown, registry.limits.claim_seconds)
        if renewed is None:
            demand_current(unit.claims.lock(shown.key), shown)
            raise Unavailable(f"claim {shown.key} changes hands", "try again")
        return _answer("yours", *renewed)


def release(registry: Registry, token: Token, request: ClaimRelease) -> None:
    """Gives it back; who waits learns of it. What is not the holder's any more is left as it is."""
    with registry.index.write() as unit:
        _demand_own(unit, token, request.claim)
        released = unit.claims.release(request.claim, done=request.done)
    if released:
        wake(registry, [request.claim.key])


def demand_claim(unit: Unit, upload: Upload, shown: ClaimRef) -> None:
    """In a commit's transaction: nobody takes the claim over before it ends. Raises ``ClaimLost``."""
    claim = unit.claims.lock(shown.key)
    demand_current(claim, shown)
    assert claim is not None
    if (claim.namespace, claim.name, claim.lane) != (upload.namespace, upload.name, upload.lane):
        raise InvalidRequest(f"claim {shown.key[:19]} is of another name", "commit without it")


def fulfil(unit: Unit, manifest: Manifest, shown: ClaimRef | None) -> Sequence[Digest]:
    """In a commit's transaction: the claims that ``manifest`` serves are done, and the publisher's is given
    back. Answers the keys to :func:`wake` when it is committed."""
    keys = [*satisfied_claim_keys(manifest)]
    if shown is not None:
        unit.claims.release(shown, done=True)
        keys.append(shown.key)
    return unit.claims.fulfil(sorted(set(keys)))


def wake(registry: Registry, keys: Sequence[Digest]) -> None:
    """Who waits for these looks now, and not at his next look."""
    for key in keys:
        registry.hot.wake(topic(key))


def topic(key: Digest) -> str:
    """What is woken for a claim."""
    return f"{TOPIC}{key}"


TOPIC = "claims/"


def _demand_own(unit: Unit, token: Token, shown: ClaimRef) -> None:
    """A stranger is told what somebody is told whose claim is long over."""
    found = unit.claims.get(shown.key)
    if found is None or not may(token, Action.write, found[0].namespace, found[0].lane):
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
