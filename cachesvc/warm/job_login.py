"""Log a CI job in at a registry with the job's own token, and keep it logged in while it compiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cachesvc.schema.access import TokenAnswer
from cachesvc.schema.publishers import ExchangeRequest
from cachesvc_client.http.origin import split_url
from cachesvc_client.http.registry import Remote
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest
from cachesvc_client.wire.names import Lane, Namespace

from .job_token import JobTokenSource

TIMEOUT = 60.0
"""Seconds of one call to the registry."""
_AGAIN_SECONDS = 30.0
"""Seconds after which a renewal that failed is tried again."""


@dataclass(frozen=True, slots=True)
class JobLogin:
    """Exchanges tokens of this job for tokens of the registry at ``url``. ``role``: ``read`` for a run that
    hands its token to model code."""

    source: JobTokenSource
    url: str
    namespace: Namespace
    lane: Lane | None
    role: str

    def exchange(self) -> TokenAnswer:
        """Return a new token of the registry. Raises what the registry answers, and ``InvalidRequest``
        before the job's token would go over plain HTTP to another machine."""
        origin, _ = split_url(self.url, "the registry's URL")
        if origin.scheme != "https" and not origin.loopback:
            raise InvalidRequest(
                f"{origin}: a job's token is not sent over plain HTTP to another machine", "use https://"
            )
        request = ExchangeRequest(self.source.get(self.url), self.namespace, self.lane, self.role)
        with Remote(self.url, timeout=TIMEOUT) as remote:
            return remote.call("POST", "/v1/oidc/token", request, TokenAnswer, idempotent=False)


@contextmanager
def logged_in(login: JobLogin, show: Callable[[str], None]) -> Iterator[tuple[Remote, TokenAnswer]]:
    """Yield a connection whose token is renewed in the background, and what the first token may do.

    ``show`` gets a line when the token cannot be renewed.
    """
    first = login.exchange()
    with Remote(login.url, first.secret, timeout=TIMEOUT) as remote:
        ended = threading.Event()
        renewal = threading.Thread(
            target=_renew, args=(login, remote, first, ended, show), name="cachesvc-renewal", daemon=True
        )
        if login.source.renews:
            renewal.start()
        else:
            left = max(0, (first.expires or 0) - time.time()) / 60
            show(f"the registry's token ends in {left:.0f} minutes and cannot be renewed in this job")
        try:
            yield remote, first
        finally:
            ended.set()


def _renew(
    login: JobLogin,
    remote: Remote,
    answer: TokenAnswer,
    ended: threading.Event,
    show: Callable[[str], None],
) -> None:
    """Renew the token after half of its life, until the run has ended."""
    wait = _half_life(answer)
    while not ended.wait(wait):
        try:
            answer = login.exchange()
            remote.replace_token(answer.secret)
            wait = _half_life(answer)
        except CacheSvcError as error:
            show(f"the registry's token cannot be renewed, and is tried again: {error}")
            wait = _AGAIN_SECONDS


def _half_life(answer: TokenAnswer) -> float:
    # By the registry's clock alone: this machine's may differ.
    return max(1.0, ((answer.expires or 0) - answer.created) / 2)
