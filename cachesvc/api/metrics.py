"""Count for Prometheus. Each replica counts for itself; Prometheus adds the replicas up."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import Depends, Request
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import cachesvc
from cachesvc.registry.context import Registry
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.requests.claims import CLAIM_STATES
from cachesvc_client.wire.requests.protocol import API_VERSION
from cachesvc_client.wire.requests.reports import STATES, ReportRequest

from .gauges import MirrorGauges, MissGauges, RegistryGauges

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

COUNTERS = {
    "requests": "HTTP requests that this process answered, by method, declared route and status.",
    "resolves": "Resolve requests, by outcome: offered, none_fits (the environment), unknown (the name).",
    "claims": "Requests for the claim on a compile, by the state that this process answered.",
    "starts": "Revisions in starts of services that were reported to this process, by outcome.",
    "saved_seconds": "Seconds that starts of services took less than compiling, as they reported it.",
    "gc_runs": "Collections in the background of this process that ended, by outcome.",
    "gc_removed": "Revisions, entries, objects and rows that background collections of this process removed.",
}
"""Help of each counter, which is to be understood without the others."""
BLOB_COUNTERS = {
    "calls": "Calls of the blob store by this process, by operation.",
    "errors": "Calls of the blob store by this process that failed, by operation; read is a download.",
    "seconds": "Seconds that calls of the blob store by this process took, by operation.",
}
"""Help of each counter of the blob store."""


class Metrics:
    """The metrics of one application. Labels have few values: no name, namespace or token is a label."""

    def __init__(
        self, registry: Registry, waiting: Callable[[], int], *, metrics_namespaces: bool = False
    ) -> None:
        # A series of each counter's start would double what Prometheus stores, and nothing here uses it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._all = CollectorRegistry()
        ProcessCollector(registry=self._all)
        self._all.register(_Backends(registry))
        self._all.register(RegistryGauges(registry, namespaces=metrics_namespaces))
        self._all.register(MissGauges(registry, names=metrics_namespaces))
        if registry.mirror is not None:
            self._all.register(MirrorGauges(registry, registry.mirror))
        build = Gauge(
            "cachesvc_build_info",
            "Always 1; the labels name the versions of cachesvc, of its API and of Python.",
            ("version", "api", "python"),
            registry=self._all,
        )
        build.labels(cachesvc.__version__, str(API_VERSION), platform.python_version()).set(1)
        waits = Gauge(
            "cachesvc_claim_waiters",
            "Requests to this process that wait now for what another process compiles.",
            registry=self._all,
        )
        waits.set_function(waiting)
        self._seconds = Histogram(
            "cachesvc_request_seconds",
            "Seconds from the first byte of an HTTP request to the last byte of its answer.",
            ("method", "route"),
            buckets=BUCKETS_SECONDS,
            registry=self._all,
        )
        self._requests = self._counter("requests", "method", "route", "status")
        self._resolves = self._counter("resolves", "outcome")
        self._claims = self._counter("claims", "state")
        self._starts = self._counter("starts", "state")
        self._saved = self._counter("saved_seconds")
        self._collections = self._counter("gc_runs", "outcome")
        self._collected = self._counter("gc_removed", "what")
        for outcome in ("offered", "none_fits", "unknown"):
            self._resolves.labels(outcome)
        for state in CLAIM_STATES:
            self._claims.labels(state)
        for state in STATES:  # a rate does not see the first start of a series that was not there
            self._starts.labels(state)
        for outcome in ("ok", "failed"):
            self._collections.labels(outcome)

    def render(self) -> bytes:
        """Returns the metrics in Prometheus's text format, version 0.0.4."""
        return generate_latest(self._all)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts an answered request.

        ``route``: its declared path, with the names of its parameters; empty if no route matched.
        """
        method, route = method if method in METHODS else "other", route or "none"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def resolved(self, outcome: str) -> None:
        """Counts a resolve. ``outcome``: ``offered``, ``none_fits`` or ``unknown``."""
        self._resolves.labels(outcome).inc()

    def claimed(self, state: str) -> None:
        """Counts the answer to a claim. ``state``: one of ``CLAIM_STATES``."""
        self._claims.labels(state).inc()

    def reported(self, report: ReportRequest) -> None:
        """Counts the starts of a report. A start that took longer than compiling saves nothing. A second
        report of a start changes no state's count: a counter of Prometheus never falls."""
        earlier = {row.revision: row for row in report.replaces.revisions} if report.replaces else {}
        for row in report.revisions:
            before = earlier.get(row.revision)
            if before is None:
                self._starts.labels(row.state).inc()
            saved_before = (before.saved or 0.0) if before is not None else 0.0
            self._saved.inc(max((row.saved or 0.0) - max(saved_before, 0.0), 0.0))
        if report.cold is not None and report.replaces is None:
            self._starts.labels("miss").inc(len(report.cold.names))

    def collected(self, done: Any) -> None:
        """Counts a collection. ``done``: its counts, a dataclass; ``None`` if it failed."""
        self._collections.labels("failed" if done is None else "ok").inc()
        for what, count in dataclasses.asdict(done).items() if done is not None else ():
            if isinstance(count, int):
                self._collected.labels(what).inc(count)

    def _counter(self, name: str, *labels: str) -> Counter:
        return Counter(f"cachesvc_{name}", COUNTERS[name], labels, registry=self._all)


class _Backends(Collector):
    """Reads the counts of the backends when Prometheus asks for them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        meter = self._registry.packs.meter
        moved = CounterMetricFamily(
            "cachesvc_blob_bytes",
            "Bytes of packs that passed through this process: in (published) and out (downloaded).",
            labels=["way"],
        )
        moved.add_metric(["in"], meter.bytes_in)
        moved.add_metric(["out"], meter.bytes_out)
        yield moved
        for name, counts in (("calls", meter.calls), ("errors", meter.errors), ("seconds", meter.seconds)):
            family = CounterMetricFamily(f"cachesvc_blob_{name}", BLOB_COUNTERS[name], labels=["operation"])
            for operation, count in sorted(dict(counts).items()):
                family.add_metric([operation], count)
            yield family
        hot = "1 if this process can use the hot store (Redis, or its own memory), else 0."
        yield GaugeMetricFamily("cachesvc_hot_up", hot, value=float(self._is_hot_up()))
        pool = GaugeMetricFamily(
            "cachesvc_database_connections",
            "Connections to the database in the pool of this process, used and idle.",
            labels=["state"],
        )
        for state, count in self._registry.index.connections().items():
            pool.add_metric([state], count)
        yield pool

    def _is_hot_up(self) -> bool:
        try:
            self._registry.hot.check()
        except CacheSvcError:
            return False
        return True


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


TheMetrics = Annotated[Metrics, Depends(_metrics)]
