"""Record requests and storage calls as spans of OpenTelemetry, where the operator asks for it.

Off, which is the default, a span is a context manager that does nothing. `start` turns spans on, by the
variables that every OpenTelemetry SDK reads (https://opentelemetry.io/docs/specs/otel/configuration/), with
the packages of ``cachesvc[otel]``. They are sent by a thread of the SDK, from a queue of bounded length: a
collector that is down costs spans, and no request waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from cachesvc_client.wire.errors import InvalidRequest

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables that name the collector."""
SERVICE = "cachesvc-registry"
"""Name of the service, unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` says another."""
EXPORT_SECONDS = 5.0
"""Seconds that one delivery to the collector may take."""
END_SECONDS = 2.0
"""Seconds that the end of the process waits for the last spans to be sent."""
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that machines ask for every few seconds."""

_OFF: AbstractContextManager[Any] = nullcontext()
_tracer: Any = None
_provider: Any = None


def asked_for() -> bool:
    """Returns whether the environment names a collector of traces, and does not turn them off."""
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    no_traces = os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    return not disabled and not no_traces and any(os.environ.get(name) for name in ENDPOINTS)


def start(version: str) -> bool:
    """Turns spans on if the environment asks for them, and returns whether it did. Raises ``InvalidRequest``
    if the packages are missing or a variable is not valid."""
    global _provider, _tracer
    if not asked_for():
        return False
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if protocol != "http/protobuf":
        raise InvalidRequest(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol[:40]!r}", "traces are sent by http/protobuf alone"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidRequest(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and {error.name} is not installed",
            'pip install "cachesvc[otel]", or unset the variable',
        ) from None
    facts = {"service.name": SERVICE, "service.version": version}
    try:
        # The environment's own attributes have precedence.
        resource = Resource(facts).merge(Resource.create())
        if resource.attributes.get("service.name", "").startswith("unknown_service"):  # type: ignore[union-attr]
            resource = resource.merge(Resource({"service.name": SERVICE}))
        _provider = TracerProvider(resource=resource)
        _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_SECONDS)))
    except ValueError as error:
        raise InvalidRequest(f"a variable OTEL_…: {error}") from None
    _tracer = _provider.get_tracer("cachesvc", version)
    return True


def stop() -> None:
    """Sends the last spans, for ``END_SECONDS`` at most, and turns spans off."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        # A collector that is down holds up the SDK's own end by half a minute.
        ending = threading.Thread(target=provider.shutdown, name="cachesvc-spans", daemon=True)
        ending.start()
        ending.join(END_SECONDS)


def span(name: str) -> AbstractContextManager[Any]:
    """Returns a span within the one that is current; nothing where there is none: work of the background is
    no part of a request."""
    if _tracer is None:
        return _OFF
    from opentelemetry import trace

    if not trace.get_current_span().is_recording():
        return _OFF
    started: AbstractContextManager[Any] = _tracer.start_as_current_span(name)
    return started


def request_span(method: str, path: str, headers: Mapping[bytes, str]) -> AbstractContextManager[Any]:
    """Returns the span of a request, in the trace that the request's headers name (W3C Trace Context)."""
    if _tracer is None or path in UNTRACED:
        return _OFF
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {
        name: headers[name.encode()] for name in ("traceparent", "tracestate") if name.encode() in headers
    }
    context = TraceContextTextMapPropagator().extract(carrier)
    facts = {"http.request.method": method[:20], "url.path": path[:500]}
    started: AbstractContextManager[Any] = _tracer.start_as_current_span(
        method[:20], context, SpanKind.SERVER, attributes=facts
    )
    return started


def answered(request: Any, method: str, route: str, status: int, request_id: str) -> None:
    """Completes the span of a request. ``request``: what the block of `request_span` got."""
    if request is None:
        return
    from opentelemetry.trace import StatusCode

    if route:
        request.update_name(f"{method[:20]} {route}")
        request.set_attribute("http.route", route)
    request.set_attribute("http.response.status_code", status)
    request.set_attribute("cachesvc.request_id", request_id)
    if status >= 500:
        request.set_status(StatusCode.ERROR)


def current() -> Any:
    """Returns the current context, for `within` on another thread; ``None`` when spans are off."""
    if _tracer is None:
        return None
    from opentelemetry import context

    return context.get_current()


class within(AbstractContextManager[None]):
    """Runs a block in a context that `current` returned on another thread."""

    def __init__(self, context: Any) -> None:
        self._context, self._token = context, None

    def __enter__(self) -> None:
        if self._context is not None:
            from opentelemetry import context

            self._token = context.attach(self._context)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            from opentelemetry import context

            context.detach(self._token)
