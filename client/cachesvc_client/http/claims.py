"""Takes claims of what is missing, so that one process compiles it for all."""

from __future__ import annotations

from contextlib import suppress

from ..wire.errors import ClaimLost
from ..wire.requests.claims import ClaimAnswer, ClaimRef, ClaimRelease, ClaimRequest
from .calls import Calls


class Claims:
    """The routes of claims of one registry."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def take(self, request: ClaimRequest, deadline: float | None = None) -> ClaimAnswer:
        """Takes a claim, or waits for it as long as the request says; the ``deadline`` must be later than
        that."""
        return self._calls.call("POST", "/v1/claims", request, ClaimAnswer, deadline=deadline)

    def renew(self, claim: ClaimRef, deadline: float | None = None) -> ClaimAnswer:
        """Says that the holder still compiles. Raises ``ClaimLost`` if the claim has another holder."""
        return self._calls.call("POST", "/v1/claims/renew", claim, ClaimAnswer, deadline=deadline)

    def release(self, request: ClaimRelease, deadline: float | None = None) -> None:
        """Gives a claim back. A claim that is over is a success."""
        with suppress(ClaimLost):
            self._calls.tell("POST", "/v1/claims/release", request, deadline)
