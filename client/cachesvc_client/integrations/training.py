"""Attaches a training job, publishes what it compiled, and reports how it went.

It needs no framework: a loop of one's own, and one with Accelerate, calls it; the callbacks beside it do too.

    cache = TrainingCache("team/finetune")
    for batch in batches:
        ...
        optimizer.step()
        cache.step()
    cache.end()
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import cachesvc_client

from ..config.settings import Config
from ..ranks.job import this_job

if TYPE_CHECKING:
    from ..wire.requests.protocol import CommitAnswer

_log = logging.getLogger("cachesvc")


class TrainingCache:
    """Restores the compiled artifacts of a training job, so that a restart on another node compiles nothing.

    Nothing here raises: without a registry the job compiles as if cachesvc were not there, and one line of
    the log says why. In mode ``readwrite`` the job publishes too. Make one before the first compile.

    Args:
        name: ``namespace/name[:tag]``. By default CACHESVC_NAME.
        publish_after: The step, counted from 1 in each process, after which the job publishes. The default
            is 2: a second batch of another shape compiles again.
        target: The target under which the job publishes.
    """

    def __init__(self, name: str | None = None, *, publish_after: int = 2, target: str = "training") -> None:
        self._name = name
        self._publish_after = publish_after
        self._target = target
        self._steps = 0
        self._published_at: int | None = None
        self._attached_in: int | None = None
        self.attach()

    def attach(self) -> None:
        """Attach this process, once. A worker process that got this object by a pickle calls it before it
        compiles."""
        # A second attach would ask again for a name under which nothing is published yet.
        by_variables = self._name is None and cachesvc_client.status()
        if self._attached_in != os.getpid() and not by_variables:
            cachesvc_client.attach(self._name)
        self._attached_in = os.getpid()

    def step(self) -> None:
        """Tell that a step is over: forward, backward and optimizer. Each rank of a job tells its own."""
        self._steps += 1
        if self._steps == self._publish_after:
            self.publish()

    def end(self) -> None:
        """Publish what was compiled since, and tell the registry how it went. To be called when the training
        is over; the registry is told of a job that never calls it, too."""
        if self._published_at is None or self._compiled_more():
            self.publish()
        cachesvc_client.send_report()

    def publish(self) -> CommitAnswer | None:
        """Publish now what this process compiled or used, if the mode is ``readwrite``.

        Returns:
            What `cachesvc_client.publish` returns; ``None`` if nothing was published, with the reason in the
            log.
        """
        try:
            if not cachesvc_client.enabled() or Config.read().mode != "readwrite":
                return None
            self._published_at = cachesvc_client.report().compilations
            answer = cachesvc_client.publish(self._name, target=self._target)
        except Exception as error:  # noqa: BLE001 - the cache is never the reason that a job fails
            _log.warning("training goes on, not published: %s: %s", type(error).__name__, error)
            return None
        how = "published" if answer.created else "published already"
        _log.info("training: %s as %s, revision %s", how, self._target, answer.revision)
        return answer

    def _compiled_more(self) -> bool:
        """Return whether anything was compiled since the publication. False in a job of several ranks: all
        ranks have to publish equally often, and one of them may compile more."""
        return this_job() is None and cachesvc_client.report().compilations != self._published_at
