"""Decide who compiles a missing key now, and whose claim a commit accepts.

A claim saves work and guarantees nothing: an entry's head moves by compare-and-set with or without one. A
claim adds the fence, a number that grows with every holder. A holder that was silent until another took over
has an older fence, and its publication over the other's work is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRef

LIVE_PER_TOKEN = 1000
"""Claims that a token may hold at once."""
KEPT_SECONDS = 86_400
"""Seconds that an ended claim is stored: until then its holder learns who took over."""

RECENT_SECONDS = 10
"""Seconds after its end in which a claim with a publication is shown and not taken: by processes that waited,
and by those that looked before the publication."""

Standing = Literal["held", "published", "free"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, see ``tables.ClaimRow``. ``holder`` is empty after the claim was returned. Times are whole
    seconds of the database's clock: the one clock that replicas share."""

    key: Digest
    namespace: Namespace
    name: ShortName
    lane: Lane | None
    holder: str
    fence: int
    taken: int
    expires: int
    done: bool = False
    who: str = ""


def standing(claim: Claim | None, now: int, seen: int = 0) -> Standing:
    """Returns whether a claim is free to take, held by another, or served by a publication to search for.

    ``seen``: the fence under which the caller has looked already. A publication counts whether or not its
    publisher still has the claim. `index.claims.Claims.take` applies the same rule in SQL.
    """
    if claim is None:
        return "free"
    is_held = bool(claim.holder) and claim.expires > now
    if claim.done and claim.fence != seen and (is_held or now - claim.expires < RECENT_SECONDS):
        return "published"
    return "held" if is_held else "free"


def demand_current(claim: Claim | None, shown: ClaimRef) -> None:
    """Raises ``ClaimLost`` unless ``shown`` is the current holder and fence of ``claim``.

    An expired claim that no one took over is current: no one else compiles.
    """
    if claim is not None and claim.holder == shown.holder and claim.fence == shown.fence:
        return
    if claim is None or not claim.holder:
        cause = "was given back, or ended long ago"
    else:
        by = f" by {claim.who}" if claim.who else ""
        cause = f"was taken over{by}, after its holder was silent for too long"
    raise ClaimLost(f"claim {shown.key[:19]} {cause}", "look for a new revision, or claim it again")
