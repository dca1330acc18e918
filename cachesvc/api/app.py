"""The FastAPI application over a registry."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio import to_thread
from fastapi import FastAPI

import cachesvc
from cachesvc.door.declared import FORWARDS, PLACES
from cachesvc.door.route import Door
from cachesvc.door.shares import Shares
from cachesvc.registry import answers, health, reports
from cachesvc.registry.context import Registry
from cachesvc.registry.upkeep import gc
from cachesvc.registry.waiting import Waiting
from cachesvc_client.wire.errors import CacheSvcError

from . import access, edge, garbage
from .batching import SHARED, Batches, shared
from .event_delivery import deliver_events
from .metrics import Metrics
from .mirroring import Looks
from .routes import admin, claims, inventory, mirrors, peers, public, publishers, read, trust, webhooks, write

_log = logging.getLogger("cachesvc.gc")


def create_app(
    registry: Registry,
    *,
    gc_seconds: float | None = None,
    token_requests: int = 1000,
    web_page: bool = False,
    metrics_namespaces: bool = False,
    mirror_seconds: float | None = None,
) -> FastAPI:
    """Returns the application.

    ``gc_seconds``: seconds between two collections in the background; ``None``: it never collects.
    ``token_requests``: requests that one token may have under way at once. ``web_page``: serves the web page
    of operators too. ``metrics_namespaces``: names namespaces in ``/metrics``. ``mirror_seconds``: seconds
    between two looks of a mirror at its upstream; ``None``: it never looks.
    """

    waiting = Waiting(registry)
    metrics = Metrics(registry, lambda: waiting.number, metrics_namespaces=metrics_namespaces)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.receivers = anyio.CapacityLimiter(PLACES.process)
        app.state.webhook_tests = anyio.CapacityLimiter(webhooks.TESTS)
        app.state.exchanges = anyio.CapacityLimiter(publishers.EXCHANGES)
        app.state.waiting_for_issuers = Counter()
        app.state.forwards, app.state.forwarded_waits = Shares.of_fleet(FORWARDS), Shares.of_fleet(FORWARDS)
        app.state.logins = anyio.CapacityLimiter(publishers.EXCHANGES)
        with (
            garbage.rarely_searched(),
            app.state.resolves.running(read.RESOLVES),
            app.state.long_resolves.running(1),
            app.state.large_resolves.running(1),
            app.state.reports.running(1),
            app.state.scrapes.running(1),
            app.state.probes.running(1),
        ):
            async with anyio.create_task_group() as group:
                group.start_soon(waiting.run)
                group.start_soon(garbage.search_regularly)
                group.start_soon(deliver_events, registry)
                if registry.mirror is not None and mirror_seconds is not None:
                    app.state.looks = Looks(registry, mirror_seconds)
                    group.start_soon(app.state.looks.run)
                if gc_seconds is not None:
                    group.start_soon(_collect_regularly, registry, metrics, gc_seconds)
                yield
                if registry.mirror is not None:
                    registry.mirror.close()
                group.cancel_scope.cancel()

    app = FastAPI(
        title="cachesvc registry",
        version=cachesvc.__version__,
        summary="Compiled artifacts for torch.compile: resolve, publish, download.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.registry = registry
    app.state.web_page = web_page
    app.state.looks = None
    app.state.metrics = metrics
    app.state.waiting = waiting
    app.state.resolves = Batches(partial(answers.answer_each, registry))
    app.state.long_resolves = Batches(partial(answers.answer_each, registry))
    app.state.large_resolves = Batches(partial(answers.answer_each, registry, most=None), 1)
    app.state.reports = Batches(partial(reports.report_each, registry), reports.MAX_REPORTS)
    app.state.scrapes = Batches(shared(metrics.render), SHARED)
    app.state.probes = Batches(shared(partial(health.readiness, registry)), SHARED)
    app.state.door = Door()
    app.state.description, app.state.describing = b"", anyio.Lock()
    app.state.request_counts = access.RequestCounts(token_requests)
    for module in (public, read, write, claims, inventory, admin):
        app.include_router(module.router)
    app.include_router(mirrors.router)
    app.include_router(peers.router)
    app.include_router(publishers.open_router)
    app.include_router(trust.router)
    app.include_router(trust.admin_router)
    app.include_router(publishers.router)
    app.include_router(webhooks.router)
    if web_page:
        from cachesvc.ui.routes import (
            ROUTERS,
        )  # templates take time to import, and not every registry has pages

        for router in ROUTERS:
            app.include_router(router)
    edge.install(app, metrics)
    return app


async def _collect_regularly(registry: Registry, metrics: Metrics, seconds: float) -> None:
    while True:
        await anyio.sleep(seconds)
        try:
            metrics.collected(await to_thread.run_sync(gc.collect, registry))
        except CacheSvcError as error:
            metrics.collected(None)
            _log.warning("collection failed, and is tried again in %d s: %s", seconds, error)
