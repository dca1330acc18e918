"""Attach to a name in a span of the program's own, and print the trace's id and what was restored.

``program``: with a tracer provider of the program. ``variable``: with TRACEPARENT, and no OpenTelemetry."""

import json
import sys

import cachesvc_client


def restored(session):
    over = session.wait(60)
    return {"over": over, "status": session.status, "otel": "opentelemetry" in sys.modules}


if sys.argv[1] == "variable":
    print(json.dumps(restored(cachesvc_client.attach("team/light"))))
else:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("service").start_as_current_span("service.start") as span:
        session = cachesvc_client.attach("team/light")
    answer = restored(session)
    provider.shutdown()
    print(json.dumps({**answer, "trace": f"{span.get_span_context().trace_id:032x}"}))
