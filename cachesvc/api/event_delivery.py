"""Deliver the events of webhooks in the background of a registry's process."""

from __future__ import annotations

import logging

import anyio
from anyio import to_thread

from cachesvc.index.webhooks import Receiver
from cachesvc.registry import webhooks
from cachesvc.registry.context import Registry
from cachesvc_client.wire.errors import CacheSvcError

POLL_SECONDS = 2.0
"""Seconds between two searches for events to send."""
PAUSE_SECONDS = 30.0
"""Seconds until the next look after one that failed: the index may be down."""
RECEIVERS = 4
"""Receivers that one process serves at once. They have threads of their own: one that hangs takes none of the
requests'."""

_log = logging.getLogger("cachesvc.webhooks")


async def deliver_events(registry: Registry) -> None:
    """Sends events to their receivers as they come, until it is cancelled."""
    places = anyio.CapacityLimiter(RECEIVERS)
    looks = anyio.CapacityLimiter(1)
    async with anyio.create_task_group() as group:
        while True:
            pause = POLL_SECONDS
            try:
                if places.available_tokens:
                    receiver = await to_thread.run_sync(webhooks.take_receiver, registry, limiter=looks)
                    if receiver is not None:
                        group.start_soon(_serve, registry, receiver, places)
                        pause = 0.0
            except CacheSvcError as error:
                _log.warning("events of webhooks are not sent now: %s", error)
                pause = PAUSE_SECONDS
            await anyio.sleep(pause)


async def _serve(registry: Registry, receiver: Receiver, places: anyio.CapacityLimiter) -> None:
    async with places:
        try:
            # A try ends by itself in seconds; what it was about is sent again after a restart.
            await to_thread.run_sync(
                webhooks.deliver, registry, receiver, limiter=anyio.CapacityLimiter(1), abandon_on_cancel=True
            )
        except CacheSvcError as error:
            _log.warning("webhook %s is served later: %s", receiver.webhook, error)
