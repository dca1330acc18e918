"""Decides whether a process publishes by itself what it compiles, and into which lane.

A process in mode ``readwrite`` publishes when nothing has compiled for ``publish_after`` seconds. Nobody
has proven what it publishes, so that goes into a lane: CACHESVC_LANE, else `UNPROVEN_LANE`. A process that
may not publish there says so in one warning, and neither takes claims nor waits for those of others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..hooks import logger
from ..wire.errors import CacheSvcError, Forbidden, InvalidRequest, Unsupported
from ..wire.names import Lane, Name

if TYPE_CHECKING:
    from ..config.settings import Config

UNPROVEN_LANE = Lane("unproven")
"""Lane of what services publish by themselves, if they name none."""
MAY_WRITE = ("write", "admin")
"""Roles of tokens that may publish."""
_ASK_SECONDS = 10.0
"""Seconds that the registry may take to say what a token may do."""
_REFUSED_SECONDS = 600.0
"""Seconds after which a refusal is checked again: a role, a key or a quota may be another one by then."""


def publishes_by_itself(config: Config) -> bool:
    """Return whether this configuration asks for publications without a call of ``publish``."""
    return config.mode == "readwrite" and config.publish_after > 0 and config.bundle is None


def with_lane(config: Config) -> Config:
    """Return the configuration with the lane that a process reads, which is also the one that it publishes
    into by itself."""
    if publishes_by_itself(config) and config.lane is None:
        return replace(config, lane=UNPROVEN_LANE)
    return config


class RightToPublish:
    """Whether a process may publish names by itself. Said once if it may not, and asked again after a while.
    Thread-safe.

    ``leads``: whether this process signs; of a job, only rank 0 does. ``supported``: whether this torch is a
    tested one. On others only proven entries are used, so that publishing there serves nobody.
    """

    def __init__(
        self, config: Config, names: Iterable[Name], label: str, *, leads: bool, supported: bool
    ) -> None:
        """``config``: as `with_lane` returns it."""
        self._config, self._names, self._label = config, tuple(names), label
        self._leads, self._supported = leads, supported
        self._lock = threading.Lock()
        self._granted: bool | None = None
        self._refused_at = 0.0
        self._said = False

    @property
    def refused(self) -> bool:
        """Return whether the process is known not to have the right."""
        return self._granted is False

    def begin_again(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._lock = threading.Lock()

    def ask(self) -> bool:
        """Return whether this process may publish. Asks the registry if that is not known; never raises.

        A registry that cannot be reached is asked again by the next call.
        """
        with self._lock:
            refused_before = self._granted is False and time.monotonic() > self._refused_at + _REFUSED_SECONDS
            if self._granted is None or refused_before:
                try:
                    self._check()
                    self._granted = True
                except CacheSvcError as error:
                    if error.retry:
                        return False
                    self._refuse(error)
            return self._granted is True

    def refuse(self, error: CacheSvcError) -> None:
        """Take the right away for a while, since a publication was refused, as the next one would be."""
        with self._lock:
            if self._granted is not False:
                self._refuse(error)

    def _refuse(self, error: CacheSvcError) -> None:
        self._granted, self._refused_at = False, time.monotonic()
        if self._said:
            return
        self._said = True
        text = "%s: nothing that this process compiles is published: %s"
        facts = {"event": "not_published", "names": self._label.split(", "), "reasons": [str(error)]}
        logger.write(logging.WARNING, text, self._label, error, facts=facts)

    def _check(self) -> None:
        """Raise ``CacheSvcError`` with what is missing."""
        from .signer import signer_of

        config = self._config
        if not self._supported:
            raise Unsupported(
                "this torch is not a supported release, and only proven entries are used there",
                "publish with cachesvc warm",
            )
        if not config.token:
            raise InvalidRequest("there is no token", "set CACHESVC_TOKEN to one that may write")
        if self._leads and signer_of(config) is None:
            raise InvalidRequest(
                "there is no signing key",
                "set CACHESVC_SIGNING_KEY or CACHESVC_SIGNER, or CACHESVC_MODE=read",
            )
        self._check_token(config)

    def _check_token(self, config: Config) -> None:
        from ..http.registry import Remote

        with Remote(config.url or "", config.token, timeout=_ASK_SECONDS) as remote:
            token = remote.whoami()
        if token.role not in MAY_WRITE:
            raise Forbidden(
                f"the token may only {token.role}", "use one of the role write, or CACHESVC_MODE=read"
            )
        for name in self._names:
            if token.namespace not in ("*", name.namespace):
                raise Forbidden(
                    f"the token is for the namespace {token.namespace}", f"use one for {name.namespace}"
                )
        if token.lane not in (None, config.lane):
            raise Forbidden(
                f"the token may write into the lane {token.lane} only, not into {config.lane}",
                f"set CACHESVC_LANE={token.lane}",
            )
