"""Hold what a mirror knows of the registry that it mirrors, beside the index."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cachesvc.upstream.upstream import Upstream
from cachesvc_client.trust_root.metadata import Targets
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import TooMany, Unavailable

PULLS = 4
"""Packs that a mirror downloads at once; more wait."""
STRANGERS = 16
"""Tokens that the upstream has not confirmed yet and is asked about at once; more are refused. Each holds up
a thread of requests: anyone who tries tokens must not take all."""


class Flights:
    """Runs each act once for all who ask for it at the same time. ``most``: acts that run or wait at once."""

    def __init__(self, threads: int, most: int | None = None) -> None:
        self._most = most
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mirror")
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}

    def start(self, key: Hashable, act: Callable[[], Any]) -> Future[Any]:
        """Returns the future of the act that runs under ``key``; begins ``act`` if none does. Raises
        ``TooMany``."""
        with self._lock:
            present = self._running.get(key)
            if present is not None:
                return present
            if self._most is not None and len(self._running) >= self._most:
                raise TooMany("the mirror is asked about too many new tokens at once", "try again")
            try:
                future = self._running[key] = self._pool.submit(act)
            except RuntimeError:  # closed
                raise Unavailable("the mirror is being stopped", "try again") from None
        # Without the lock: of an act that has ended already this calls back at once.
        future.add_done_callback(lambda _: self._end(key))
        return future

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._running.pop(key, None)

    def close(self) -> None:
        """Begins nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Mirror:
    """What makes a registry a mirror.

    ``offline_seconds``: how long a token that the upstream has confirmed counts while the upstream does not
    answer. ``keep_bytes``: bytes of packs above which those go that were offered longest ago; ``None``: none
    goes. The other attributes belong to the one thread that looks (`mirror_looks`): ``looked`` is the time
    of the last look that succeeded, in seconds of UTC, and ``mark`` what it said of the listing; ``behind``,
    ``why``: as in ``wire.mirrors.MirrorState``; ``whole_at``: when the whole listing was read;
    ``targets``: whose signatures counted in the last look; ``untrusted``: heads that are here and that
    these do not accept, with the reason.
    """

    def __init__(self, upstream: Upstream, offline_seconds: int, keep_bytes: int | None = None) -> None:
        self.upstream, self.offline_seconds, self.keep_bytes = upstream, offline_seconds, keep_bytes
        self.pulls = Flights(PULLS)
        self.questions = Flights(PULLS)
        self.strangers = Flights(PULLS, STRANGERS)
        self.closed = False
        self.looked: int | None = None
        self.behind = 0
        self.why = "it has not looked yet"
        self.mark: str | None = None
        self.whole_at = 0.0
        self.targets: Targets | None = None
        self.untrusted: dict[Digest, str] = {}

    def lag(self, now: float) -> int | None:
        """Returns the seconds since the last look that succeeded; ``None`` if none has."""
        return None if self.looked is None else max(0, int(now) - self.looked)

    def demand_open(self) -> None:
        """Raises ``Unavailable`` once the process ends."""
        if self.closed:
            raise Unavailable("the mirror is being stopped", "try again")

    def close(self) -> None:
        """Ends downloads at their next chunk, and begins no other."""
        self.closed = True
        for flights in (self.pulls, self.questions, self.strangers):
            flights.close()
