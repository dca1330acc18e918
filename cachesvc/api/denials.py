"""Log refused tokens: one line for each address, status and token in a minute, so that an operator sees an
attack and an attacker cannot fill the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

SECONDS = 60.0
"""Seconds in which the same refusal is logged once."""
MOST = 1000
"""Different refusals in that time, at most: of the others only the first is logged."""

_log = logging.getLogger("cachesvc.access")


class Denials:
    """Logs answers with 401 and 403. Only the event loop's thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = -SECONDS
        self._counts: dict[tuple[str, int, str], int] = {}

    def note(self, status: int, address: str, token: str, request: str) -> None:
        """Logs a refusal of ``request`` (method and route), unless the same one was logged a moment ago.

        ``token``: the token's id, which is no secret; empty if it is not known.
        """
        now = self._clock()
        if now - self._began >= SECONDS:
            self._began = now
            self._end_span()
        key = (address, status, token)
        if key not in self._counts and len(self._counts) >= MOST:
            key = ("other addresses", status, "")
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] == 1:
            whose = f"token {token}" if token else "no valid token"
            _log.warning("%d %s from %s: %s", status, request, key[0], whose)

    def _end_span(self) -> None:
        repeated = sum(count - 1 for count in self._counts.values())
        if repeated:
            _log.warning("%d more requests were answered with 401 or 403 in a minute", repeated)
        self._counts.clear()
