"""Who compiles a missing key now, and whose word still counts at a commit.

A claim saves work and decides no truth: an entry's head moves by compare-and-set with or without one. What a
claim adds is the fence. It grows with every holder, so that one who was silent until somebody else took over
cannot publish over the other's work without looking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cachesvc_client.wire.claims import ClaimRef
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost
from cachesvc_client.wire.names import Lane, Namespace, ShortName

LIVE_PER_TOKEN = 1000
"""Claims that a token may hold at once."""
KEPT_SECONDS = 86_400
"""A claim that ended is remembered for so long: until then its holder is told who took over."""

RECENT_SECONDS = 10
"""So long after its end a claim under which something was published is not taken, but shown: to those who
waited, and to those who looked before it was there."""

Standing = Literal["held", "published", "free"]


@dataclass(frozen=True, slots=True)
class Claim:
    """See ``tables.ClaimRow``. ``holder`` is empty once it was given back. Times are whole seconds of the
    database's clock: the one clock that replicas share."""

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
    """What somebody learns who wants it: look again, take it, or wait.

    ``seen``: the fence under which he has looked already. That something was published counts whether or not
    its publisher still holds the claim; `index.claims.Claims.take` takes what is free by this rule.
    """
    if claim is None:
        return "free"
    held = bool(claim.holder) and claim.expires > now
    if claim.done and claim.fence != seen and (held or now - claim.expires < RECENT_SECONDS):
        return "published"
    return "held" if held else "free"


def demand_current(claim: Claim | None, shown: ClaimRef) -> None:
    """Raises ``ClaimLost`` unless ``claim`` is the very one that is shown.

    One that expired, and that nobody took over, is current: nobody else compiles."""
    if claim is not None and claim.holder == shown.holder and claim.fence == shown.fence:
        return
    if claim is None or not claim.holder:
        said = "was given back, or ended long ago"
    else:
        by = f" by {claim.who}" if claim.who else ""
        said = f"was taken over{by}, after its holder was silent for too long"
    raise ClaimLost(f"claim {shown.key[:19]} {said}", "look for a new revision, or claim it again")
